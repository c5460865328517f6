"""Object events from a message queue: parallel long polls, one flush, then one removal for many.

Each poll puts its messages into a bounded buffer. One task takes everything that is there, passes
the keys of all messages to the pipeline in one call, and removes the messages. While it works, the
polls fill the buffer again.

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
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from sluice_protocol.clock import Clock
from sluice_protocol.errors import BadUsage, OutcomeUnknown, SluiceError, StoreError
from sluice_protocol.units import ObjectKey
from sluice_reconciler.events import parse_counted_events
from sluice_reconciler.metrics import ReconcilerMetrics
from sluice_reconciler.pipeline import PipelineResult

if TYPE_CHECKING:  # The AWS SDK is an extra: only a process that opens an event queue needs it.
    from sluice_store.s3.events import EventMessage

log = structlog.get_logger()

BUFFER_MAX: Final = 1_024
"""Messages that wait while as many are processed; full, no further ones are received."""
FAILURES_MAX: Final = 5
"""Receptions after which a message that fails is removed."""
LEFT_MAX: Final = 50
"""Receptions after which a message whose batch was left is removed: about 40 minutes."""
DELAY_MAX_S: Final = 60
RETRY_S: Final = 5.0
"""Pause after the store or the message queue failed, seconds."""


class EventSource(Protocol):
    """A queue of object events."""

    async def receive(self) -> "list[EventMessage]":
        """Wait for messages and return them."""
        ...

    async def done(self, messages: "Sequence[EventMessage]") -> None:
        """Remove messages from the queue."""
        ...

    async def release(self, messages: "Sequence[EventMessage]", delay_s: int) -> None:
        """Make messages visible again after a delay."""
        ...


class MessageFate(StrEnum):
    """What happens to a message; also the label of the metric."""

    DONE = "done"
    INVALID = "invalid"
    LEFT = "left"
    FAILED = "failed"
    ABANDONED = "abandoned"


REMOVED: Final = frozenset({MessageFate.DONE, MessageFate.INVALID, MessageFate.ABANDONED})


def decide_fate(
    keys: Sequence[ObjectKey], left: Collection[ObjectKey], receives: int
) -> MessageFate:
    """Decide about a message whose keys were processed without an error.

    Args:
        keys: The keys that it names.
        left: Keys whose batches are neither in every queue nor held.
        receives: How often it was received.
    """
    if not any(key in left for key in keys):
        return MessageFate.DONE
    return MessageFate.LEFT if receives < LEFT_MAX else MessageFate.ABANDONED


def decide_failed(receives: int) -> MessageFate:
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
        source: EventSource,
        process: ProcessKeys,
        metrics: ReconcilerMetrics,
        clock: Clock,
        polls: int,
    ) -> None:
        """Bind the receiver to a queue.

        Args:
            source: The queue.
            process: Verifies, indexes and enqueues batches by their accepted keys.
            metrics: Counts events and messages.
            clock: Time.
            polls: How many receptions wait concurrently.
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

        Raises:
            StoreError: The store or the message queue is unreachable; the messages that were not
                removed are delivered again.
            OutcomeUnknown: The retries of a write are spent; as above.
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
        return [(one.message, decide_fate(one.keys, left, one.message.receives)) for one in parsed]

    async def _process_alone(self, one: ParsedMessage) -> "tuple[EventMessage, MessageFate]":
        try:
            (found,) = await self._process_together([one])
        except (StoreError, OutcomeUnknown) as error:
            log.warning("route_failed", route="event_queue", reason=str(error))
            return one.message, MessageFate.FAILED
        except Exception as error:
            fate = decide_failed(one.message.receives)
            if fate is MessageFate.ABANDONED:
                log.exception("event_abandoned", keys=one.keys[:3], reason=str(error))
            return one.message, fate
        return found

    async def _settle(self, fates: "Sequence[tuple[EventMessage, MessageFate]]") -> None:
        """Remove the messages that are settled, then release the others.

        Raises:
            StoreError: The message queue is unreachable; the messages are delivered again.
        """
        for _, fate in fates:
            self._metrics.event_messages.labels(fate.value).inc()
        await self._source.done([message for message, fate in fates if fate in REMOVED])
        later: dict[int, list[EventMessage]] = {}
        for message, fate in fates:
            if fate not in REMOVED:
                later.setdefault(delay_s(message.receives), []).append(message)
        for delay, group in later.items():
            await self._source.release(group, delay)
