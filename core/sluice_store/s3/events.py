"""Object events from an SQS queue, the target of both S3 notifications and EventBridge rules.

This module only receives messages; the caller interprets them. A message is delivered again until
it is marked as done, so mark it only after its objects were processed.

Source: docs.aws.amazon.com/AWSSimpleQueueService, ReceiveMessage and DeleteMessageBatch.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from sluice_protocol.distribution import describe_missing_package
from sluice_protocol.errors import BadUsage
from sluice_store.s3.credentials import REGION_DEFAULT, CredentialSource, credential_source
from sluice_store.s3.sdk import call_renewing, sdk_errors, shared_credentials

MESSAGES_MAX: Final = 10
WAIT_S: Final = 10
_RECEIVES: Final = "ApproximateReceiveCount"
_CONNECTIONS_REST: Final = 4
"""Connections for removals, next to those of the polls."""
VISIBILITY_S: Final = 120
"""How long a message is hidden from other receivers while its objects are processed, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventMessage:
    """One message: its text, the handle to mark it as done, and its approximate receive count."""

    body: bytes
    receipt: str
    receives: int = 1


class EventQueue:
    """One SQS queue."""

    def __init__(self, client: Any, url: str, credentials: CredentialSource) -> None:  # noqa: ANN401 - the SDK has no types
        self._client = client
        self._credentials = credentials
        self._url = url

    async def receive(self, wait_s: int = WAIT_S) -> list[EventMessage]:
        """Return up to ten messages; wait up to `wait_s` for the first."""
        with sdk_errors("receive", self._url):
            answer = await call_renewing(
                self._credentials,
                self._client.receive_message,
                QueueUrl=self._url,
                MaxNumberOfMessages=MESSAGES_MAX,
                WaitTimeSeconds=wait_s,
                VisibilityTimeout=VISIBILITY_S,
                AttributeNames=[_RECEIVES],
            )
        return [
            EventMessage(
                body=one["Body"].encode(errors="replace"),
                receipt=one["ReceiptHandle"],
                receives=int(one.get("Attributes", {}).get(_RECEIVES, 1)),
            )
            for one in answer.get("Messages", [])
        ]

    async def done(self, messages: Sequence[EventMessage]) -> None:
        """Delete messages; one that stays is delivered again, which is harmless."""
        with sdk_errors("done", self._url):
            for first in range(0, len(messages), MESSAGES_MAX):
                entries = _entries(messages[first : first + MESSAGES_MAX])
                await call_renewing(
                    self._credentials,
                    self._client.delete_message_batch,
                    QueueUrl=self._url,
                    Entries=entries,
                )

    async def release(self, messages: Sequence[EventMessage], delay_s: int) -> None:
        """Make messages visible again after `delay_s` whole seconds."""
        with sdk_errors("release", self._url):
            for first in range(0, len(messages), MESSAGES_MAX):
                entries = _entries(messages[first : first + MESSAGES_MAX])
                for entry in entries:
                    entry["VisibilityTimeout"] = delay_s
                await call_renewing(
                    self._credentials,
                    self._client.change_message_visibility_batch,
                    QueueUrl=self._url,
                    Entries=entries,
                )


def _entries(messages: Sequence[EventMessage]) -> list[dict[str, str | int]]:
    return [
        {"Id": str(number), "ReceiptHandle": one.receipt} for number, one in enumerate(messages)
    ]


@asynccontextmanager
async def open_event_queue(
    url: str, *, region: str | None = None, polls: int = 1
) -> AsyncIterator[EventQueue]:
    """Open an SQS queue with the SDK's default credentials, for `polls` concurrent receives."""
    try:
        import aioboto3  # noqa: PLC0415 - an extra
        from aiobotocore.config import AioConfig  # noqa: PLC0415 - an extra
        from aiobotocore.session import get_session  # noqa: PLC0415 - an extra
    except ImportError as error:
        missing = describe_missing_package("s3", error.name)
        raise BadUsage(f"{missing}, url=`{url}`") from error
    with sdk_errors("open", url):
        base = get_session()
        credentials = credential_source(None)
        first = await credentials.get_frozen_credentials()
        base.register_component("credential_provider", shared_credentials(credentials, first))
        session = aioboto3.Session(botocore_session=base)
        where = region or session.region_name or REGION_DEFAULT
    config = AioConfig(max_pool_connections=polls + _CONNECTIONS_REST)
    async with session.client("sqs", region_name=where, config=config) as client:
        yield EventQueue(client, url, credentials)
