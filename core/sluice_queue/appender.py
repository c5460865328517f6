"""Group commit of entries to one lane, with one swap in flight and every outcome resolved.

Callers of `append` queue up while a swap is in flight. The next caller to get the lock commits all
of them in one swap. There is no background task: the caller that holds the lock does the work. The
write in flight is part of the appender's state, so another caller continues it if a caller is
cancelled.

An appender without tries left raises `OutcomeUnknown`, and then rejects every append. A caller with
a durable append intent (producer id, counter) opens a new appender with them. `takeover` reports
the outcome of the last write.

A producer pauses before its next swap, so that swaps of rivals seldom conflict. Each conflict
doubles the pause, and each committed swap shortens it by 1.5 %. In balance about one swap in 45
conflicts, however many producers there are. A producer without rivals never waits. Each pause is
random, or producers that conflicted once would conflict again and again. The same rule adapts to
stores that allow one write a second per key, up to the longest pause.
"""

import asyncio
import random  # noqa: TID251 - only the type
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, assert_never

from sluice_protocol.errors import (
    BadUsage,
    OutcomeUnknown,
    SluiceError,
    StoreError,
    StoreUnavailable,
)
from sluice_protocol.outcomes import Applied, Mismatch, Unknown
from sluice_protocol.units import NS_PER_S
from sluice_queue.errors import (
    LayoutChanged,
    ProducerSuperseded,
    QueueFull,
    RegisterLost,
    refuse_other_layout,
)
from sluice_queue.lane import Lane
from sluice_queue.register import (
    ENTRIES_MAX,
    SEGMENTS_MAX,
    AppendAttempt,
    Committed,
    Draft,
    Evicted,
    InFlight,
    NotCommitted,
    ProducerFenced,
    Register,
    RegisterRead,
    Writer,
    append,
    decide_append,
    encode_register,
    may_append,
)
from sluice_queue.register_client import SWAP_RETRY, RegisterClient, Runtime, spill
from sluice_store.port import ObjectStore
from sluice_store.retry import RetryBudget, RetrySettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """How a producer flushes.

    Attributes:
        flush_interval_s: Longest wait of a batch for others, seconds.
        flush_bytes: Referenced frame bytes that start a flush immediately, bytes.
        max_unflushed_bytes: Most referenced frame bytes that are accepted but not yet durable,
            bytes; `produce` waits above it.
        list_batches_max: Most batches in one work list, count.
        held_entries_max: Entries in the register before its older half moves to a segment, count,
            at most 4 096.
        retry: Bounds of one swap.
    """

    flush_interval_s: float = 0.1
    flush_bytes: int = 64 * 1024 * 1024
    max_unflushed_bytes: int = 256 * 1024 * 1024
    list_batches_max: int = 4096
    held_entries_max: int = ENTRIES_MAX
    retry: RetrySettings = SWAP_RETRY


PAUSE_S_MAX: Final = 4.0
_FIRST_PAUSE_SWAPS: Final = 10
_SHRINK: Final = 0.985


@dataclass(slots=True)
class Pacer:
    """The pause of one producer, and the time of its last committed swap.

    `pause_s` is the mean wait between two swaps. `swap_s` is the moving average of the duration of
    a swap, including its read.
    """

    pause_s: float = 0.0
    swap_s: float = 0.0
    committed_s: float = 0.0

    def wait_s(self, now_s: float, rng: random.Random) -> float:
        """Return how long to wait now before the next swap."""
        if not self.pause_s:
            return 0.0
        return max(0.0, self.committed_s + self.pause_s * rng.uniform(0.5, 1.5) - now_s)

    def conflicted(self) -> None:
        """Record that a swap conflicted with another writer's."""
        self.pause_s = min(PAUSE_S_MAX, max(2 * self.pause_s, _FIRST_PAUSE_SWAPS * self.swap_s))

    def committed(self, now_s: float, took_s: float) -> None:
        """Record that a swap was committed."""
        self.swap_s = took_s if not self.swap_s else 0.9 * self.swap_s + 0.1 * took_s
        self.committed_s = now_s
        self.pause_s *= _SHRINK
        if self.pause_s < self.swap_s:
            self.pause_s = 0.0


READ_FIRST_SWAPS: Final = 64
"""After a conflict, this many swaps begin with a read instead of the remembered state."""

GROUP_MAX: Final = ENTRIES_MAX // 2
"""Most entries in one swap, so that one spill always makes enough room."""

_FATAL: Final = (OutcomeUnknown, ProducerSuperseded, RegisterLost, LayoutChanged)
"""Errors after which an appender rejects every further append."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Caller:
    drafts: tuple[Draft, ...]
    first_sequence: int | None = None
    error: SluiceError | None = None


@dataclass(slots=True, kw_only=True)
class _Group:
    """The callers whose entries are committed in one write, and that write once it is sent.

    `in_doubt` is set while a sent write may have been applied without a response that confirms it.
    """

    callers: list[_Caller]
    sent: AppendAttempt | None = None
    in_doubt: bool = False
    body: bytes = b""
    after: Register | None = None
    drafts: tuple[Draft, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.drafts = tuple(draft for one in self.callers for draft in one.drafts)


class Appender:
    """One producer's append path to one lane; `counter` counts writes known to be applied."""

    def __init__(
        self,
        store: ObjectStore,
        lane: Lane,
        *,
        runtime: Runtime | None = None,
        settings: ProducerSettings | None = None,
        producer: tuple[bytes, int] | None = None,
    ) -> None:
        """Bind a producer to a lane.

        `producer` is the id and counter of an earlier process: the appender continues as the same
        producer and fences that process. Without it the producer gets a new id.
        """
        self._runtime = runtime if runtime is not None else Runtime()
        self._settings = settings if settings is not None else ProducerSettings()
        self._metrics = self._runtime.metrics
        self._client = RegisterClient(store, lane, self._runtime)
        self._lane = lane
        self._pending: list[_Caller] = []
        self._lock = asyncio.Lock()
        self._group: _Group | None = None
        self._seen: RegisterRead | None = None
        self._reads_first = 0
        self._collided = False
        self._pacer = Pacer()
        self._fatal_error: SluiceError | None = None
        fresh = (self._runtime.id_bytes(), 0)
        self.producer_id, self.counter = producer if producer is not None else fresh

    @property
    def client(self) -> RegisterClient:
        """The register's client; it tracks the store's time."""
        return self._client

    async def append(self, drafts: Sequence[Draft]) -> int:
        """Append entries in order and return the sequence of the first.

        Returns when they are durable in the register. Entries of one call are contiguous.

        Raises:
            BadUsage: There are no entries, or more than `GROUP_MAX`.
            OutcomeUnknown: No tries are left; the register may or may not contain the entries.
            ProducerSuperseded: Another process took over this producer's id; nothing was written.
            LayoutChanged: The number of lanes was changed; nothing was written.
            QueueFull: The lane cannot accept more entries; nothing was written.
        """
        if not 0 < len(drafts) <= GROUP_MAX:
            raise BadUsage(f"one append has 1 to {GROUP_MAX} entries, found=`{len(drafts)}`")
        waiting = _Caller(drafts=tuple(drafts))
        self._pending.append(waiting)
        try:
            async with self._lock:
                while waiting.first_sequence is None and waiting.error is None:
                    await self._commit_next()
        finally:
            # A cancelled caller whose entries are not in a group yet is removed.
            if waiting in self._pending:
                self._pending.remove(waiting)
        if waiting.error is not None:
            raise waiting.error
        return waiting.first_sequence if waiting.first_sequence is not None else 0

    async def _commit_next(self) -> None:
        """Commit the group in flight, or the next one, and set the outcome of its callers."""
        if self._group is None:
            await self._pause()
            self._group = _Group(callers=self._next_callers())
        group = self._group
        if self._fatal_error is not None:
            # No entry of this group was sent, but the outcome of an earlier write is unknown.
            self._group = None
            self._fail(group, self._fatal_error)
            return
        try:
            first = await self._commit(group)
        except SluiceError as error:
            self._group = None
            self._seen = None
            self._fail(group, self._reported_error(group, error))
            return
        self._group = None
        for one in group.callers:
            one.first_sequence = first
            first += len(one.drafts)

    async def _pause(self) -> None:
        """Wait for more callers while other producers contend for the register."""
        wait_s = self._pacer.wait_s(self._now_s(), self._runtime.rng)
        if wait_s:
            await self._runtime.clock.sleep(wait_s)

    def _now_s(self) -> float:
        return self._runtime.clock.monotonic_ns() / NS_PER_S

    def _reported_error(self, group: _Group, error: SluiceError) -> SluiceError:
        """Return the error for the callers: unknown exactly when a write is in doubt."""
        if isinstance(error, OutcomeUnknown) and not group.in_doubt:
            reason = "every swap conflicted with another writer, append again"
            return StoreUnavailable("append", self._lane.key, reason)
        if group.in_doubt and not isinstance(
            error, OutcomeUnknown | ProducerSuperseded | RegisterLost | LayoutChanged
        ):
            return OutcomeUnknown("append", self._lane.key, 1)
        return error

    def _next_callers(self) -> list[_Caller]:
        """Return as many waiting callers as fit into one swap."""
        taken: list[_Caller] = []
        total = 0
        while self._pending and total + len(self._pending[0].drafts) <= GROUP_MAX:
            one = self._pending.pop(0)
            total += len(one.drafts)
            taken.append(one)
        return taken

    def _fail(self, group: _Group, error: SluiceError) -> None:
        if isinstance(error, _FATAL):
            self._fatal_error = error
        for one in group.callers:
            one.error = error

    async def _commit(self, group: _Group) -> int:
        retries = RetryBudget("append", self._lane.key, self._runtime.backoff(self._settings.retry))
        while True:
            started_s = self._now_s()
            try:
                first = await self._step(group, retries)
            except StoreUnavailable as error:
                self._seen = None
                await retries.wait_or_raise(error)
                continue
            if first is not None:
                self._pacer.committed(self._now_s(), self._now_s() - started_s)
                return first

    async def _step(self, group: _Group, retries: RetryBudget) -> int | None:
        """Resolve the write in flight, or send the group once."""
        seen = self._seen
        if self._reads_first and group.sent is None:
            # Other producers write too, so the remembered state is probably stale. A read costs
            # less than a register sent in vain.
            seen, self._reads_first = None, self._reads_first - 1
        if seen is None:
            seen = await self._client.read_as(self.producer_id, self.counter, retries)
        self._seen = seen
        self._note_conflict(seen)
        if group.sent is not None:
            first = self._resolve(group, seen)
            if first is not None:
                return first
        if group.sent is None:
            await self._build(group, seen)
        return await self._send(group, seen, retries)

    def _note_conflict(self, seen: RegisterRead) -> None:
        """Expect more conflicts after one with another producer; the consumer conflicts rarely."""
        collided, self._collided = self._collided, False
        writers = seen.state.writers
        if collided and writers and writers[0].producer_id != self.producer_id:
            self._reads_first = READ_FIRST_SWAPS
            self._pacer.conflicted()

    def _resolve(self, group: _Group, seen: RegisterRead) -> int | None:
        """Decide the outcome of the write in flight from a read made after it."""
        if group.sent is None:
            return None
        verdict = decide_append(group.sent, seen)
        match verdict:
            case Committed(first_sequence=first):
                self.counter = group.sent.counter
                return first
            case InFlight():
                return None
            case NotCommitted():
                group.sent, group.in_doubt = None, False
            case Evicted():
                self._metrics.maybe_doubled.labels(self._lane.queue).inc()
                group.sent, group.in_doubt = None, False
            case ProducerFenced(counter=counter):
                raise ProducerSuperseded(self._lane.key, self.counter, counter)
            case _ as never:
                assert_never(never)
        return None

    async def _build(self, group: _Group, seen: RegisterRead) -> None:
        """Build the next state from the read one; a full register first spills its older half."""
        if over := may_append(seen, self.producer_id, self.counter):
            raise ProducerSuperseded(self._lane.key, self.counter, over.counter)
        refuse_other_layout(self._lane.key, self._lane.layout, seen.state.layout)
        state = await self._with_room(seen.state, len(group.drafts))
        writer = Writer(producer_id=self.producer_id, counter=self.counter + 1, first_sequence=0)
        group.after = append(state, group.drafts, writer, self._runtime.id_bytes())
        group.body = encode_register(group.after)

    async def _with_room(self, state: Register, wanted: int) -> Register:
        limit = min(self._settings.held_entries_max, ENTRIES_MAX)
        while state.count > 1 and state.count + wanted > limit:
            state = await self._spill(state)
        return state

    async def _spill(self, state: Register) -> Register:
        if len(state.segments) >= SEGMENTS_MAX:
            raise QueueFull(self._lane.key, state.waiting)
        moved = spill(self._lane.key, state)
        await self._client.write_segment(moved)
        return moved.after

    async def _send(self, group: _Group, seen: RegisterRead, retries: RetryBudget) -> int | None:
        """Send the group's bytes as a replacement of the state that was read."""
        after = group.after
        if after is None:
            return None
        group.sent = AppendAttempt(
            producer_id=self.producer_id,
            counter=self.counter + 1,
            on=seen.etag,
            revision=after.revision,
        )
        self._metrics.swaps.labels(self._lane.queue, "producer").inc()
        self._metrics.register_bytes.labels(self._lane.queue).inc(len(group.body))
        # Forgotten before the await: a cancelled caller must not keep a stale state.
        self._seen = None
        was_in_doubt, group.in_doubt = group.in_doubt, True
        try:
            outcome = await self._client.store.replace(
                self._lane.key, group.body, if_match=seen.etag
            )
        except StoreError:
            group.in_doubt = was_in_doubt
            raise
        match outcome:
            case Applied(etag=etag, date_ns=date_ns):
                self._client.observe_date(date_ns)
                self._seen = RegisterRead(state=after, etag=etag)
                self.counter += 1
                self._metrics.entries.labels(self._lane.queue).inc(len(group.drafts))
                return after.next_sequence - len(group.drafts)
            case Mismatch(date_ns=date_ns):
                self._client.observe_date(date_ns)
                self._metrics.conflicts.labels(self._lane.queue, "producer").inc()
                group.in_doubt = was_in_doubt
                self._collided = True
                if not was_in_doubt:
                    group.sent = None
            case Unknown():
                self._metrics.unknown.labels(self._lane.queue, "producer").inc()
        await retries.wait_or_raise()
        return None
