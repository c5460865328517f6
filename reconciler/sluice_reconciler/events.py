"""Object events as hints: which accepted keys they name, whatever service wrapped them.

Accepted shapes: S3 notifications (also as servers push them to a webhook, and inside an SNS
envelope, as SQS delivers them), EventBridge "Object Created", and S3's test event. Events arrive
twice, late, out of order or never; keys are URL-encoded or not. An accepted key contains neither
`%` nor `+`, so decoding is always safe. An event is only a hint: the store is read for what it
names.

Source: docs.aws.amazon.com/AmazonS3/latest/userguide/notification-content-structure.html and
ev-events.html.

A message queue is read by parallel long polls. Each poll puts its messages into a bounded buffer.
One task takes everything that is there, passes the keys of all messages to the pipeline in one
call, and removes the messages. While it works, the polls fill the buffer again.

A message is removed only when each key that it names is in every queue, is held, or has no
manifest. Otherwise it becomes visible again soon, also to other reconcilers: one of them may own
the lane. If a call fails for another reason than the store, its messages are processed one by one,
so that one of them cannot hold up the others. A message that failed often is removed with an error:
its manifest exists, so journals or a full pass find the batch.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_plus

import msgspec
import structlog

from sluice_protocol.clock import Clock
from sluice_protocol.errors import (
    UNREADABLE_JSON,
    BadUsage,
    InvalidRecord,
    OutcomeUnknown,
    SluiceError,
    StoreError,
)
from sluice_protocol.keys import ACCEPTED, parse_accepted_key
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_reconciler.metrics import ReconcilerMetrics
from sluice_reconciler.pipeline import BatchPipeline, PipelineResult
from sluice_store.port import run_together

log = structlog.get_logger()

HINTS_MAX: Final = 100_000
"""Keys named by events that are queued; further ones are left to the full pass."""
HINT_RETRY_S: Final = 1.0
"""Pause after hinted keys could not be processed for the first time; it doubles each time."""
HINT_PAUSE_S_MAX: Final = 60.0
HINT_ATTEMPTS_MAX: Final = 16
"""Attempts of one key, over about 11 minutes; then the full pass finds its batch."""
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

    `foreign` counts events about other keys, or about deletions.
    """

    keys: tuple[ObjectKey, ...]
    foreign: int


def parse_events(body: bytes) -> EventHints:
    """Parse one message of any accepted shape, with at most 10 000 keys."""
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
    except UNREADABLE_JSON as error:
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


def parse_counted_events(body: bytes, metrics: ReconcilerMetrics) -> EventHints:
    """Parse one message and count its events."""
    try:
        hints = parse_events(body)
    except BadUsage:
        metrics.events.labels("invalid").inc()
        raise
    metrics.events.labels("accepted").inc(len(hints.keys))
    metrics.events.labels("foreign").inc(hints.foreign)
    return hints


@dataclass(frozen=True, slots=True, kw_only=True)
class _FailedHints:
    """Keys whose processing failed.

    `due_ns` is monotonic.
    """

    keys: list[ObjectKey]
    attempts: int
    due_ns: int


def hint_delay_s(attempts: int) -> float:
    """Return the pause before keys are processed again, after some failed attempts."""
    return min(HINT_PAUSE_S_MAX, HINT_RETRY_S * 2.0 ** (attempts - 1))


class HintQueue:
    """Accepted keys that events named and that are not processed yet.

    Keys whose processing failed are tried again, in smaller parts each time, so that a key that
    always fails does not stop the others. New keys do not wait for them. After
    `HINT_ATTEMPTS_MAX` attempts they are left to the full pass.
    """

    def __init__(
        self, pipeline: BatchPipeline, metrics: ReconcilerMetrics, clock: Clock, batches_max: int
    ) -> None:
        self._pipeline = pipeline
        self._metrics = metrics
        self._clock = clock
        self._batches_max = batches_max
        self._keys: asyncio.Queue[ObjectKey] = asyncio.Queue(HINTS_MAX)
        self._failed: asyncio.Queue[_FailedHints] = asyncio.Queue()
        self._failed_keys = 0

    def add(self, keys: Sequence[ObjectKey]) -> int:
        """Queue keys; return how many there was space for."""
        queued = 0
        for key in keys:
            try:
                self._keys.put_nowait(key)
            except asyncio.QueueFull:
                self._metrics.hints_dropped.inc(len(keys) - queued)
                break
            queued += 1
        return queued

    async def run(self) -> None:
        """Process queued keys until cancelled, many together."""
        await run_together(self._process_new(), self._process_failed())

    async def _process_new(self) -> None:
        while True:
            keys = [await self._keys.get()]
            while not self._keys.empty() and len(keys) < self._batches_max:
                keys.append(self._keys.get_nowait())
            if not await self._process(keys, 1):
                await self._clock.sleep(HINT_RETRY_S)

    async def _process_failed(self) -> None:
        while True:
            failed = await self._failed.get()
            wait_s = (failed.due_ns - self._clock.monotonic_ns()) / NS_PER_S
            if wait_s > 0:
                await self._clock.sleep(wait_s)
            self._failed_keys -= len(failed.keys)
            size = max(1, self._batches_max >> failed.attempts)
            for first in range(0, len(failed.keys), size):
                await self._process(failed.keys[first : first + size], failed.attempts + 1)

    async def _process(self, keys: list[ObjectKey], attempts: int) -> bool:
        try:
            unread = (await self._pipeline.process_new(keys)).unread_keys
        except SluiceError as error:
            log.warning("route_failed", route="events", reason=str(error))
            unread = frozenset(keys)
        if unread:
            self._keep([key for key in keys if key in unread], attempts)
        return not unread

    def _keep(self, keys: list[ObjectKey], attempts: int) -> None:
        if attempts >= HINT_ATTEMPTS_MAX or self._failed_keys + len(keys) > HINTS_MAX:
            self._metrics.hints_dropped.inc(len(keys))
            log.warning("hints_abandoned", keys=len(keys), first_key=keys[0], attempts=attempts)
            return
        self._failed_keys += len(keys)
        due_ns = self._clock.monotonic_ns() + int(hint_delay_s(attempts) * NS_PER_S)
        self._failed.put_nowait(_FailedHints(keys=keys, attempts=attempts, due_ns=due_ns))


if TYPE_CHECKING:  # The AWS SDK is an extra: only a process that opens an event queue needs it.
    from sluice_store.s3.events import EventMessage, EventQueue


BUFFER_MAX: Final = 1_024
"""Messages that wait while as many are processed; full, no further ones are received."""
FAILURES_MAX: Final = 5
"""Receptions after which a message that fails is removed."""
LEFT_MAX: Final = 50
"""Receptions after which a message whose batch was left is removed: about 40 minutes."""
DELAY_MAX_S: Final = 60
RETRY_S: Final = 5.0
"""Pause after the store or the message queue failed, seconds."""


class MessageFate(StrEnum):
    """What happens to a message; also the label of the metric."""

    DONE = "done"
    INVALID = "invalid"
    LEFT = "left"
    FAILED = "failed"
    ABANDONED = "abandoned"


REMOVED: Final = frozenset({MessageFate.DONE, MessageFate.INVALID, MessageFate.ABANDONED})


def decide_message(
    keys: Sequence[ObjectKey], left: Collection[ObjectKey], receives: int
) -> MessageFate:
    """Decide about a message whose keys were processed without an error.

    `left` has the keys whose batches are neither in every queue nor held.
    """
    if not any(key in left for key in keys):
        return MessageFate.DONE
    return MessageFate.LEFT if receives < LEFT_MAX else MessageFate.ABANDONED


def decide_failed_message(receives: int) -> MessageFate:
    """Decide about a message whose processing fails without the others."""
    return MessageFate.FAILED if receives < FAILURES_MAX else MessageFate.ABANDONED


def delay_s(receives: int) -> int:
    """Return after how many seconds a message becomes visible again: 1, 2, 4 … up to a minute."""
    return min(DELAY_MAX_S, 1 << min(max(receives, 1) - 1, 10))


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedMessage:
    """One message and the accepted keys that it names."""

    message: "EventMessage"
    keys: tuple[ObjectKey, ...]


ProcessKeys = Callable[[Sequence[ObjectKey]], Awaitable[PipelineResult]]


class EventReceiver:
    """Receives from one queue, with several polls at a time."""

    def __init__(
        self,
        source: "EventQueue",
        process: ProcessKeys,
        metrics: ReconcilerMetrics,
        clock: Clock,
        polls: int,
    ) -> None:
        """Bind the receiver to a queue.

        `process` verifies, indexes and enqueues batches by their accepted keys; `polls` receptions
        wait concurrently.
        """
        self._source = source
        self._process = process
        self._metrics = metrics
        self._clock = clock
        self._polls = polls
        self._buffer: asyncio.Queue[EventMessage] = asyncio.Queue(BUFFER_MAX)

    async def run(self) -> None:
        """Receive and process until cancelled; errors are logged and retried."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._polls):
                tasks.create_task(self._poll())
            tasks.create_task(self._process_buffer())

    async def _poll(self) -> None:
        while True:
            try:
                received = await self._source.receive()
            except SluiceError as error:
                await self._pause(error)
                continue
            for message in received:
                await self._buffer.put(message)

    async def _process_buffer(self) -> None:
        while True:
            messages = [await self._buffer.get()]
            while not self._buffer.empty():
                messages.append(self._buffer.get_nowait())
            try:
                await self.process(messages)
            except SluiceError as error:
                await self._pause(error)

    async def _pause(self, error: SluiceError) -> None:
        log.warning("route_failed", route="event_queue", reason=str(error))
        await self._clock.sleep(RETRY_S)

    async def process(self, messages: "Sequence[EventMessage]") -> None:
        """Process the keys of all messages in one call, then remove or release each message.

        After an error, messages that were not removed are delivered again.
        """
        fates: list[tuple[EventMessage, MessageFate]] = []
        parsed: list[ParsedMessage] = []
        for message in messages:
            try:
                keys = parse_counted_events(message.body, self._metrics).keys
            except BadUsage as error:
                # It would be delivered again forever; the full pass finds what it may have named.
                log.warning("event_invalid", reason=str(error))
                fates.append((message, MessageFate.INVALID))
            else:
                parsed.append(ParsedMessage(message=message, keys=keys))
        try:
            fates += await self._process_together(parsed)
        except (StoreError, OutcomeUnknown):
            await self._settle([*fates, *((one.message, MessageFate.FAILED) for one in parsed)])
            raise
        except Exception as error:  # noqa: BLE001 - one message must not stop the others
            log.warning("route_failed", route="event_queue", reason=str(error))
            fates += [await self._process_alone(one) for one in parsed]
        await self._settle(fates)

    async def _process_together(
        self, parsed: Sequence[ParsedMessage]
    ) -> "list[tuple[EventMessage, MessageFate]]":
        keys = list(dict.fromkeys(key for one in parsed for key in one.keys))
        left = (await self._process(keys)).left_keys if keys else frozenset[ObjectKey]()
        return [
            (one.message, decide_message(one.keys, left, one.message.receives)) for one in parsed
        ]

    async def _process_alone(self, one: ParsedMessage) -> "tuple[EventMessage, MessageFate]":
        try:
            (found,) = await self._process_together([one])
        except (StoreError, OutcomeUnknown) as error:
            log.warning("route_failed", route="event_queue", reason=str(error))
            return one.message, MessageFate.FAILED
        except Exception as error:
            fate = decide_failed_message(one.message.receives)
            if fate is MessageFate.ABANDONED:
                log.exception("event_abandoned", keys=one.keys[:3], reason=str(error))
            return one.message, fate
        return found

    async def _settle(self, fates: "Sequence[tuple[EventMessage, MessageFate]]") -> None:
        """Remove the messages that are settled, then release the others."""
        for _, fate in fates:
            self._metrics.event_messages.labels(fate.value).inc()
        await self._source.done([message for message, fate in fates if fate in REMOVED])
        later: dict[int, list[EventMessage]] = {}
        for message, fate in fates:
            if fate not in REMOVED:
                later.setdefault(delay_s(message.receives), []).append(message)
        for delay, group in later.items():
            await self._source.release(group, delay)
