"""Object events as hints: which accepted keys they name, whatever service wrapped them.

Shapes taken: S3 notifications (also as servers push them to a webhook, and inside an SNS envelope,
as SQS delivers them), EventBridge "Object Created", and S3's test event. Events come twice, late,
out of order or never; keys come URL-encoded or not. A key of ours holds neither `%` nor `+`, so
decoding is always safe. An event is only a hint: what it names is read from the store. Pure.

Source: docs.aws.amazon.com/AmazonS3/latest/userguide/notification-content-structure.html and
ev-events.html.

Takes object events from a queue: receive, take what they name, then say that they are done.
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
from sluice_reconciler.pipeline import BatchPipeline, PipelineResult

if TYPE_CHECKING:  # the SDK is an extra: only who opens a queue needs it
    from sluice_store.s3.events import EventMessage


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
    """Every field that any of the shapes has; what is absent stays empty."""

    Records: tuple[_Record, ...] | None = None
    Event: str | None = None
    Message: str | None = None
    body: str | None = None
    detail: _Detail | None = None
    detail_type: str | None = msgspec.field(default=None, name="detail-type")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventHints:
    """What some events named.

    Attributes:
        keys: Accepted keys, each once, in order.
        foreign: Events about other keys, or about deletions.
    """

    keys: tuple[ObjectKey, ...]
    foreign: int


def parse_events(body: bytes) -> EventHints:
    """Reads one message of any of the shapes.

    Raises:
        BadUsage: It is not JSON, has none of the shapes, or names more than 10 000 keys.
    """
    named = _named(body, 0)
    if len(named) > KEYS_MAX:
        raise BadUsage(f"one message names at most {KEYS_MAX} keys, found=`{len(named)}`")
    found = [accepted_of(unquote_plus(raw)) for raw in named]
    keys = tuple(dict.fromkeys(key for key in found if key is not None))
    return EventHints(keys=keys, foreign=sum(key is None for key in found))


def _named(body: bytes | str, depth: int) -> list[str]:
    """Gives the raw keys of created objects; an empty text for an event about anything else."""
    try:
        seen = msgspec.json.decode(body, type=_Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
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
    """Gives the accepted key, relative to the deployment's prefix, that a full key names."""
    at = raw.rfind(ACCEPTED)
    if at < 0 or (at > 0 and raw[at - 1] != "/"):
        return None
    try:
        parse_accepted_key(raw[at:])
    except InvalidRecord:
        return None
    return ObjectKey(raw[at:])


log = structlog.get_logger()


class EventSource(Protocol):
    """Where events come from."""

    async def receive(self) -> "list[EventMessage]":
        """Waits for messages and gives them."""
        ...

    async def done(self, messages: "Sequence[EventMessage]") -> None:
        """Removes messages whose keys were taken."""
        ...


async def process_events(source: EventSource, intake: BatchPipeline) -> PipelineResult:
    """Takes one round of messages to its end.

    A message that cannot be read is counted, logged and removed: it would come back for ever, and
    the full pass finds what it may have named.

    Raises:
        StoreError: Messages or store could not be reached; the messages come again.
        OutcomeUnknown: The bounds of a write are spent; the messages come again.
    """
    messages = await source.receive()
    keys: list[ObjectKey] = []
    for one in messages:
        try:
            hints = parse_events(one.body)
        except BadUsage as error:
            intake.metrics.events.labels("invalid").inc()
            log.warning("event not understood", reason=str(error))
            continue
        intake.metrics.events.labels("accepted").inc(len(hints.keys))
        intake.metrics.events.labels("foreign").inc(hints.foreign)
        keys += hints.keys
    outcome = await intake.take_new(keys) if keys else PipelineResult()
    await source.done(messages)
    return outcome
