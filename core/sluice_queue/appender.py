"""Appends ready entries to one lane: group commit, one swap in flight, every outcome resolved.

Callers of `append` pile up while a swap is in flight; whoever comes next takes all of them into
one swap. There is no background task: the caller that holds the lock does the work, and the write
in flight is state of the appender, so a caller that is cancelled leaves it to the next one.

An appender that spent its bounds raises `OutcomeUnknown` and refuses from then on. Whoever has a
durable note of (producer id, counter) opens a new one with them, and `resolve` tells what became
of the last write.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, assert_never

from sluice_protocol.errors import (
    InvalidRecord,
    OutcomeUnknown,
    SluiceError,
    StoreError,
    StoreUnavailable,
)
from sluice_protocol.keys import segment_key
from sluice_protocol.outcomes import Applied, Exists, Found, Mismatch, NotFound, Unknown
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_queue.decisions import (
    AppendAttempt,
    Committed,
    Evicted,
    InFlight,
    NotCommitted,
    ProducerFenced,
    RegisterRead,
    decide_append,
    may_append,
)
from sluice_queue.entries import Draft
from sluice_queue.errors import ProducerSuperseded, QueueFull, RegisterLost
from sluice_queue.lane import Lane, RegisterClient, Runtime
from sluice_queue.pacing import Pacer
from sluice_queue.register import (
    ENTRIES_MAX,
    SEGMENTS_MAX,
    Register,
    Writer,
    append,
    encode_register,
    spill,
)
from sluice_queue.settings import ProducerSettings
from sluice_store.port import ObjectStore
from sluice_store.retry import RetryBudget

READ_FIRST_SWAPS = 64
"""After a conflict, so many swaps begin with a read instead of the state that was remembered."""

GROUP_MAX = ENTRIES_MAX // 2
"""Most entries in one swap, so that one spill always makes room."""

_FINAL: Final = (OutcomeUnknown, ProducerSuperseded, RegisterLost)
"""After these an appender refuses for ever."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Waiting:
    drafts: tuple[Draft, ...]
    first_sequence: int | None = None
    error: SluiceError | None = None


@dataclass(slots=True, kw_only=True)
class _Group:
    """The callers whose entries go into one write, and the write itself once it was sent.

    `doubt` is set while a sent write may have landed without an answer that says so.
    """

    callers: list[_Waiting]
    sent: AppendAttempt | None = None
    doubt: bool = False
    body: bytes = b""
    after: Register | None = None
    drafts: tuple[Draft, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.drafts = tuple(draft for one in self.callers for draft in one.drafts)


class Appender:
    """One producer's way into one lane.

    Attributes:
        producer_id: 16 bytes that stand for this producer in the register.
        counter: Writes of it that are known to have landed.
    """

    def __init__(
        self,
        store: ObjectStore,
        lane: Lane,
        *,
        runtime: Runtime | None = None,
        settings: ProducerSettings | None = None,
        producer: tuple[bytes, int] | None = None,
    ) -> None:
        """Binds a producer to a lane.

        Args:
            store: Where the register lies.
            lane: Which lane.
            runtime: Time, ids and chance.
            settings: Bounds.
            producer: Id and counter of an earlier life, to go on as the same producer and to fence
                that life off; a fresh id otherwise.
        """
        self._runtime = runtime if runtime is not None else Runtime()
        self._settings = settings if settings is not None else ProducerSettings()
        self._metrics = self._runtime.metrics
        self._client = RegisterClient(store, lane, self._runtime)
        self._lane = lane
        self._pending: list[_Waiting] = []
        self._lock = asyncio.Lock()
        self._group: _Group | None = None
        self._seen: RegisterRead | None = None
        self._wary = 0
        self._collided = False
        self._pacer = Pacer()
        self._broken: SluiceError | None = None
        fresh = (self._runtime.id_bytes(), 0)
        self.producer_id, self.counter = producer if producer is not None else fresh

    @property
    def client(self) -> RegisterClient:
        """The register's client; it knows the store's time."""
        return self._client

    async def append(self, drafts: Sequence[Draft]) -> int:
        """Appends entries in order and gives the sequence of the first.

        Returns when they are durable in the register. Entries of one call are contiguous.

        Raises:
            OutcomeUnknown: The bounds are spent; the entries may stand in the register or not.
            ProducerSuperseded: Another process took over this producer's id; nothing was written.
            QueueFull: The lane can take no more; nothing was written.
            StoreError: The store refused; nothing was written.
        """
        if not 0 < len(drafts) <= GROUP_MAX:
            raise QueueFull(self._lane.key, len(drafts))
        waiting = _Waiting(drafts=tuple(drafts))
        self._pending.append(waiting)
        try:
            async with self._lock:
                while waiting.first_sequence is None and waiting.error is None:
                    await self._commit_next()
        finally:
            # A cancelled caller whose entries nobody took yet leaves nothing behind.
            if waiting in self._pending:
                self._pending.remove(waiting)
        if waiting.error is not None:
            raise waiting.error
        return waiting.first_sequence if waiting.first_sequence is not None else 0

    async def _commit_next(self) -> None:
        """Commits the group in flight, or the next one; tells its callers the outcome."""
        if self._group is None:
            await self._pause()
            self._group = _Group(callers=self._take())
        group = self._group
        if self._broken is not None:
            # Nothing of these was sent, but what an earlier write did is not known: stop here.
            self._group = None
            self._fail(group, self._broken)
            return
        try:
            first = await self._commit(group)
        except SluiceError as error:
            self._group = None
            self._seen = None
            self._fail(group, self._told(group, error))
            return
        self._group = None
        for one in group.callers:
            one.first_sequence = first
            first += len(one.drafts)

    async def _pause(self) -> None:
        """Lets callers pile up while other producers contend for the register."""
        wait_s = self._pacer.wait_s(self._now_s(), self._runtime.rng)
        if wait_s:
            await self._runtime.clock.sleep(wait_s)

    def _now_s(self) -> float:
        return self._runtime.clock.monotonic_ns() / NS_PER_S

    def _told(self, group: _Group, error: SluiceError) -> SluiceError:
        """Gives what the callers may be told: unknown exactly when a write is in doubt."""
        if isinstance(error, OutcomeUnknown) and not group.doubt:
            reason = "every swap met another writer's, append again"
            return StoreUnavailable("append", self._lane.key, reason)
        if group.doubt and not isinstance(
            error, OutcomeUnknown | ProducerSuperseded | RegisterLost
        ):
            return OutcomeUnknown("append", self._lane.key, 1)
        return error

    def _take(self) -> list[_Waiting]:
        """Takes as many waiting callers as one swap may carry."""
        taken: list[_Waiting] = []
        total = 0
        while self._pending and total + len(self._pending[0].drafts) <= GROUP_MAX:
            one = self._pending.pop(0)
            total += len(one.drafts)
            taken.append(one)
        return taken

    def _fail(self, group: _Group, error: SluiceError) -> None:
        if isinstance(error, _FINAL):
            self._broken = error
        for one in group.callers:
            one.error = error

    async def _commit(self, group: _Group) -> int:
        """Drives one group until its entries stand; gives the first sequence."""
        budget = RetryBudget("append", self._lane.key, self._runtime.backoff(self._settings.retry))
        while True:
            started_s = self._now_s()
            try:
                first = await self._step(group, budget)
            except StoreUnavailable as error:
                self._seen = None
                await budget.wait_or_raise(error)
                continue
            if first is not None:
                self._pacer.landed(self._now_s(), self._now_s() - started_s)
                return first

    async def _step(self, group: _Group, budget: RetryBudget) -> int | None:
        """Resolves or sends the group once."""
        seen = self._seen
        if self._wary and group.sent is None:
            # Others write too: what is remembered is likely old, and a read costs less than a
            # register sent in vain.
            seen, self._wary = None, self._wary - 1
        if seen is None:
            seen = await self._client.read_as(self.producer_id, self.counter, budget)
        self._seen = seen
        self._learn(seen)
        if group.sent is not None:
            first = self._resolve(group, seen)
            if first is not None:
                return first
        if group.sent is None:
            await self._build(group, seen)
        return await self._send(group, seen, budget)

    def _learn(self, seen: RegisterRead) -> None:
        """After a conflict: with another producer there will be more, with the consumer not."""
        collided, self._collided = self._collided, False
        writers = seen.state.writers
        if collided and writers and writers[0].producer_id != self.producer_id:
            self._wary = READ_FIRST_SWAPS
            self._pacer.conflicted()

    def _resolve(self, group: _Group, seen: RegisterRead) -> int | None:
        """Judges the write in flight by a read made after it."""
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
                group.sent, group.doubt = None, False
            case Evicted():
                self._metrics.maybe_doubled.labels(self._lane.queue).inc()
                group.sent, group.doubt = None, False
            case ProducerFenced(counter=counter):
                raise ProducerSuperseded(self._lane.key, self.counter, counter)
            case _ as never:
                assert_never(never)
        return None

    async def _build(self, group: _Group, seen: RegisterRead) -> None:
        """Makes the next state on what was seen; a full register first spills its older half."""
        if over := may_append(seen, self.producer_id, self.counter):
            raise ProducerSuperseded(self._lane.key, self.counter, over.counter)
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
        ref = moved.ref
        key = segment_key(self._lane.queue, self._lane.lane, ref.first, ref.last)
        match await self._client.store.create(key, moved.body):
            case Applied():
                self._metrics.segments.labels(self._lane.queue).inc()
            case Exists() | Unknown():
                # Sequences are given once, so whoever wrote this key wrote these bytes.
                await self._check_segment(key, moved.body)
        return moved.after

    async def _check_segment(self, segment: ObjectKey, body: bytes) -> None:
        match await self._client.store.get(segment):
            case Found(body=found) if found == body:
                return
            case Found():
                raise InvalidRecord(segment, "another segment stands under these sequences")
            case NotFound():
                raise StoreUnavailable("create", segment, "segment not yet there, try again")

    async def _send(self, group: _Group, seen: RegisterRead, budget: RetryBudget) -> int | None:
        """Sends the group's bytes on the state that was seen."""
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
        # Forgotten before the await: a cancelled caller must not leave a stale state behind.
        self._seen = None
        doubted, group.doubt = group.doubt, True
        try:
            outcome = await self._client.store.replace(
                self._lane.key, group.body, if_match=seen.etag
            )
        except StoreError:
            group.doubt = doubted
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
                group.doubt = doubted
                self._collided = True
                if not doubted:
                    group.sent = None
            case Unknown():
                self._metrics.unknown.labels(self._lane.queue, "producer").inc()
        await budget.wait_or_raise()
        return None
