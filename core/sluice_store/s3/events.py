"""Object events from an SQS queue: S3 notifications and EventBridge rules end there alike.

The only place where messages are fetched; what they say is read by whoever asked. A message comes
again until it was said to be done, so it is done only after what it named was taken.

Source: docs.aws.amazon.com/AWSSimpleQueueService, ReceiveMessage and DeleteMessageBatch.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from sluice_protocol.errors import StoreMisconfigured
from sluice_store.s3.sdk import REGION_DEFAULT, sdk_errors

MESSAGES_MAX: Final = 10
WAIT_S: Final = 10
VISIBILITY_S: Final = 120
"""How long a message stays hidden from others while what it names is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventMessage:
    """One message.

    Attributes:
        body: What the service wrote.
        receipt: To say that it is done.
    """

    body: bytes
    receipt: str


class EventQueue:
    """One SQS queue."""

    def __init__(self, client: Any, url: str) -> None:  # noqa: ANN401 - the SDK has no types
        """Binds an open client to a queue."""
        self._client = client
        self._url = url

    async def receive(self, *, wait_s: int = WAIT_S) -> list[EventMessage]:
        """Gives up to ten messages; waits up to `wait_s` for the first, in whole seconds.

        Raises:
            StoreError: No answer, or a refusal.
        """
        with sdk_errors("receive", self._url):
            answer = await self._client.receive_message(
                QueueUrl=self._url,
                MaxNumberOfMessages=MESSAGES_MAX,
                WaitTimeSeconds=wait_s,
                VisibilityTimeout=VISIBILITY_S,
            )
        return [
            EventMessage(body=one["Body"].encode(), receipt=one["ReceiptHandle"])
            for one in answer.get("Messages", [])
        ]

    async def done(self, messages: Sequence[EventMessage]) -> None:
        """Removes messages; one that stays comes again, which does no harm.

        Raises:
            StoreError: No answer, or a refusal.
        """
        entries = [
            {"Id": str(number), "ReceiptHandle": one.receipt} for number, one in enumerate(messages)
        ]
        if entries:
            with sdk_errors("done", self._url):
                await self._client.delete_message_batch(QueueUrl=self._url, Entries=entries)


@asynccontextmanager
async def open_event_queue(
    url: str, *, endpoint: str | None = None, region: str | None = None
) -> AsyncIterator[EventQueue]:
    """Opens an SQS queue with the credentials that every AWS tool takes.

    Args:
        url: The queue's URL.
        endpoint: Another server than AWS's own.
        region: The region; the session's when None.

    Raises:
        StoreMisconfigured: The SDK is not installed.
        StoreError: The session cannot be opened.
    """
    try:
        import aioboto3  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise StoreMisconfigured(
            "open", url, "an event queue needs the extra `s3`: pip install 'sluice[s3]'"
        ) from error
    with sdk_errors("open", url):
        session = aioboto3.Session()
        where = region or session.region_name or REGION_DEFAULT
    async with session.client("sqs", region_name=where, endpoint_url=endpoint) as client:
        yield EventQueue(client, url)
