"""Object events as hints: which accepted keys they name, whatever service wrapped them.

Accepted shapes: S3 notifications (also as servers push them to a webhook, and inside an SNS
envelope, as SQS delivers them), EventBridge "Object Created", and S3's test event. Events arrive
twice, late, out of order or never; keys are URL-encoded or not. An accepted key contains neither
`%` nor `+`, so decoding is always safe. An event is only a hint: the store is read for what it
names.

Source: docs.aws.amazon.com/AmazonS3/latest/userguide/notification-content-structure.html and
ev-events.html.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import unquote_plus

import msgspec
import structlog

from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.keys import ACCEPTED, parse_accepted_key
from sluice_protocol.units import ObjectKey
from sluice_reconciler.metrics import ReconcilerMetrics
from sluice_reconciler.pipeline import BatchPipeline, PipelineResult

if TYPE_CHECKING:  # The AWS SDK is an extra: only a process that opens an event queue needs it.
    from sluice_store.s3.events import EventMessage

log = structlog.get_logger()

KEYS_MAX: Final = 10_000
_DEPTH_MAX: Final = 3


class _Object(msgspec.Struct, frozen=True):
    key: str = ""


class _S3(msgspec.Struct, frozen=True):
    object: _Object = _Object()


class _Detail(msgspec.Struct, frozen=True):
    object: _Object = _Object()


class _Record(msgspec.Struct, frozen=True):
    eventName: str = ""  # noqa: N815 - the name on the wire
    s3: _S3 = _S3()


class _Envelope(msgspec.Struct, frozen=True):
    """Every field of any of the shapes; absent ones keep their default."""

    Records: tuple[_Record, ...] | None = None
    Event: str | None = None
    Message: str | None = None
    body: str | None = None
    detail: _Detail | None = None
    detail_type: str | None = msgspec.field(default=None, name="detail-type")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventHints:
    """The keys that some events named.

    Attributes:
        keys: Accepted keys, each once, in order.
        foreign: Number of events about other keys, or about deletions.
    """

    keys: tuple[ObjectKey, ...]
    foreign: int


def parse_events(body: bytes) -> EventHints:
    """Parse one message of any accepted shape.

    Raises:
        BadUsage: The message is not JSON, has none of the shapes, or names more than 10 000 keys.
    """
    named = _named(body, 0)
    if len(named) > KEYS_MAX:
        raise BadUsage(f"one message names at most {KEYS_MAX} keys, found=`{len(named)}`")
    found = [accepted_of(unquote_plus(raw)) for raw in named]
    keys = tuple(dict.fromkeys(key for key in found if key is not None))
    return EventHints(keys=keys, foreign=sum(key is None for key in found))


def _named(body: bytes | str, depth: int) -> list[str]:
    """Return the raw keys of created objects, and an empty string for any other event."""
    try:
        seen = msgspec.json.decode(body, type=_Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadUsage(f"not an object event: {error}") from error
    if seen.Records is not None:
        return [
            one.s3.object.key if "ObjectCreated" in one.eventName else "" for one in seen.Records
        ]
    if seen.detail is not None:
        created = seen.detail_type in (None, "Object Created")
        return [seen.detail.object.key if created else ""]
    inner = seen.Message if seen.Message is not None else seen.body
    if inner is not None and depth < _DEPTH_MAX:
        return _named(inner, depth + 1)
    if seen.Event == "s3:TestEvent":
        return []
    raise BadUsage("not an object event: none of the known shapes")


def accepted_of(raw: str) -> ObjectKey | None:
    """Return the accepted key that a full key names, relative to the deployment's prefix."""
    at = raw.rfind(ACCEPTED)
    if at < 0 or (at > 0 and raw[at - 1] != "/"):
        return None
    try:
        parse_accepted_key(raw[at:])
    except InvalidRecord:
        return None
    return ObjectKey(raw[at:])


class EventSource(Protocol):
    """A queue of object events."""

    async def receive(self) -> "list[EventMessage]":
        """Wait for messages and return them."""
        ...

    async def done(self, messages: "Sequence[EventMessage]") -> None:
        """Remove messages from the queue."""
        ...


def parse_counted_events(body: bytes, metrics: ReconcilerMetrics) -> EventHints:
    """Parse one message and count its events.

    Raises:
        BadUsage: As `parse_events`; the message is counted as invalid.
    """
    try:
        hints = parse_events(body)
    except BadUsage:
        metrics.events.labels("invalid").inc()
        raise
    metrics.events.labels("accepted").inc(len(hints.keys))
    metrics.events.labels("foreign").inc(hints.foreign)
    return hints


async def process_events(
    source: EventSource, pipeline: BatchPipeline, metrics: ReconcilerMetrics
) -> PipelineResult:
    """Receive messages, process the keys they name, and remove the messages.

    A message that cannot be parsed is counted, logged and removed. It would be delivered again
    forever, and the full pass finds what it may have named.

    Raises:
        StoreError: Messages or store are unreachable; the messages are delivered again.
        OutcomeUnknown: The retries of a write are spent; the messages are delivered again.
    """
    messages = await source.receive()
    keys: list[ObjectKey] = []
    for message in messages:
        try:
            keys += parse_counted_events(message.body, metrics).keys
        except BadUsage as error:
            log.warning("event_invalid", reason=str(error))
    outcome = await pipeline.process_new(keys) if keys else PipelineResult()
    await source.done(messages)
    return outcome
