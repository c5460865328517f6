"""The one consumer of a lane: epoch, read-ahead, acknowledgements.

`open` claims the next epoch under a new owner id. From then on every read and every write checks
that the register has this epoch and owner, and raises `Fenced` if it does not. Three cursors:

    acked_through   durable, in the register; moved by `ack_through` and by every 100th `ack`
    acked           in memory, moved by `ack`, ahead of the durable one by at most 99
    handed_out      in memory, moved by `next_descriptors` before anything is fetched

`ack_through(n)` does not check that everything below n was processed. A caller that fetches out of
order acknowledges only the highest sequence below which every entry is processed. A lost descriptor
stalls the lane; opening the lane again hands out everything after `acked_through` again.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

from sluice_protocol.errors import Fenced, StoreUnavailable
from sluice_protocol.manifests import WorkList
from sluice_protocol.outcomes import Applied, Mismatch, Unknown
from sluice_protocol.units import ETag
from sluice_queue.errors import AckRefused, ResumeRefused, refuse_other_layout
from sluice_queue.inspection import read_entries
from sluice_queue.lane import Lane
from sluice_queue.register import (
    Acked,
    Descriptor,
    EpochClaim,
    InFlight,
    Overtaken,
    Register,
    RegisterRead,
    RetryAck,
    RetryOpen,
    decide_ack,
    decide_open,
    dequeue,
    open_epoch,
    owns_epoch,
)
from sluice_queue.register_client import SWAP_RETRY, RegisterClient, Runtime
from sluice_queue.worklists import read_work_list
from sluice_store.port import ObjectStore
from sluice_store.retry import RetryBudget

ACKS_PER_DEQUEUE: Final = 100
"""Calls of `ack` that share one write to the register."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchHandle:
    """A reader of work lists; cheap to copy, safe to use from many tasks, moves no cursor."""

    store: ObjectStore
    lane: Lane

    async def fetch(self, descriptor: Descriptor) -> WorkList:
        """Read the work list of a descriptor; if it is missing, stop the lane, never skip it."""
        return await read_work_list(self.store, self.lane, descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumedBatch:
    """One entry with its work list."""

    descriptor: Descriptor
    work_list: WorkList


class Consumer:
    """The owner of one epoch of one lane; open it with `Consumer.open`."""

    def __init__(
        self,
        client: RegisterClient,
        holder: EpochClaim,
        acked_through: int,
    ) -> None:
        self._client = client
        self._holder = holder
        self._metrics = client.runtime.metrics
        self._durable = acked_through
        self._acked = acked_through
        self._handed_out = acked_through
        self._ahead: deque[Descriptor] = deque()

    @classmethod
    async def open(  # noqa: PLR0913 - the parts of the lane's name
        cls,
        store: ObjectStore,
        *,
        queue: str,
        lane: int,
        layout: int = 0,
        after: int = 0,
        resume_after: int | None = None,
        runtime: Runtime | None = None,
    ) -> "Consumer":
        """Claim the lane's next epoch and fence every earlier consumer.

        `resume_after` is the last sequence that the caller stored with its own results. It is
        acknowledged immediately, and the next descriptor is the one after it. `ResumeRefused` means
        that the lane is past it, or has not reached it: entries would be lost or repeated.
        `LayoutChanged` means that the register is not of this layout of lanes.
        """
        with_tools = runtime if runtime is not None else Runtime()
        client = RegisterClient(
            store, Lane(queue=queue, lane=lane, layout=layout, after=after), with_tools
        )
        holder, state = await _open(client, resume_after)
        consumer = cls(client, holder, state.acked_through)
        if resume_after is not None and resume_after > state.acked_through:
            await consumer.ack_through(resume_after)
        return consumer

    @property
    def epoch(self) -> int:
        """The epoch that this consumer claimed."""
        return self._holder.epoch

    @property
    def owner_id(self) -> bytes:
        """The id under which this consumer claimed its epoch; the register contains it."""
        return self._holder.owner

    @property
    def acked_through(self) -> int:
        """The durable acknowledged sequence that this consumer last read or wrote."""
        return self._durable

    async def next_descriptors(self, max_count: int) -> tuple[Descriptor, ...]:
        """Hand out up to `max_count` contiguous descriptors after those handed out before.

        Reads the register once, so that a fence is noticed; fetches no work list.
        """
        state = (await self._read()).state
        if not self._ahead:
            entries = await read_entries(
                self._client.store,
                self._client.lane,
                state,
                after=self._handed_out,
                entries_max=None if not state.segments else max(max_count, 1),
            )
            self._ahead.extend(entries)
        found = tuple(self._ahead.popleft() for _ in range(min(max_count, len(self._ahead))))
        if found:
            self._handed_out = found[-1].sequence
        return found

    async def next_batch(self) -> ConsumedBatch | None:
        """Hand out and fetch the next entry, if any; the cursor stays before a missing list."""
        found = await self.next_descriptors(1)
        if not found:
            return None
        try:
            work_list = await self.fetch_handle().fetch(found[0])
        except BaseException:
            self._ahead.appendleft(found[0])
            self._handed_out = found[0].sequence - 1
            raise
        return ConsumedBatch(descriptor=found[0], work_list=work_list)

    def fetch_handle(self) -> FetchHandle:
        """Return a handle that fetches work lists concurrently."""
        return FetchHandle(store=self._client.store, lane=self._client.lane)

    async def ack(self, sequence: int) -> None:
        """Acknowledge the next entry, no other; durable with every 100th call or `flush_acks`."""
        if sequence != self._acked + 1 or sequence > self._handed_out:
            reason = f"acknowledge in order, expected=`{self._acked + 1}`"
            raise AckRefused(self._client.lane.key, sequence, reason)
        if sequence - self._durable >= ACKS_PER_DEQUEUE:
            await self.ack_through(sequence)
        self._acked = sequence

    async def flush_acks(self) -> None:
        """Make every `ack` so far durable."""
        if self._acked > self._durable:
            await self.ack_through(self._acked)

    async def ack_through(self, sequence: int) -> None:
        """Move the durable acknowledged sequence to `sequence` and dequeue up to it, in one write.

        State changes only on success; the same call may be repeated after any error but `Fenced`.

        Raises:
            AckRefused: It is not above `acked_through`, or the lane has not assigned it yet.
        """
        lane = self._client.lane
        if sequence <= self._durable:
            reason = f"already acknowledged, acked_through=`{self._durable}`"
            raise AckRefused(lane.key, sequence, reason)
        retries = RetryBudget("ack", lane.key, self._client.runtime.backoff(SWAP_RETRY))
        while True:
            try:
                if await self._try_ack(sequence):
                    break
            except StoreUnavailable as error:
                await retries.wait_or_raise(error)
                continue
            await retries.wait_or_raise()
        self._durable = sequence
        self._acked = max(self._acked, sequence)
        self._handed_out = max(self._handed_out, sequence)
        while self._ahead and self._ahead[0].sequence <= sequence:
            self._ahead.popleft()

    async def _try_ack(self, sequence: int) -> bool:
        lane = self._client.lane
        seen = await self._read()
        match decide_ack(self._holder, sequence, seen):
            case Acked():
                return True
            case Overtaken(epoch=epoch):
                raise Fenced(lane.key, self._holder.epoch, epoch)
            case RetryAck():
                pass
        if sequence >= seen.state.next_sequence:
            reason = (
                f"the lane has not assigned this sequence yet, next=`{seen.state.next_sequence}`"
            )
            raise AckRefused(lane.key, sequence, reason)
        after = dequeue(lane.key, seen.state, sequence, self._client.runtime.id_bytes())
        return await self._swap(seen, after)

    async def _swap(self, seen: RegisterRead, after: Register) -> bool:
        queue = self._client.lane.queue
        self._metrics.swaps.labels(queue, "consumer").inc()
        match await self._client.swap(seen, after):
            case Applied(date_ns=date_ns):
                self._client.observe_date(date_ns)
                return True
            case Mismatch(date_ns=date_ns):
                self._client.observe_date(date_ns)
                self._metrics.conflicts.labels(queue, "consumer").inc()
            case Unknown():
                self._metrics.unknown.labels(queue, "consumer").inc()
        return False

    async def _read(self) -> RegisterRead:
        lane = self._client.lane
        seen = await self._client.read()
        if seen is None or not owns_epoch(seen.state, self._holder):
            self._metrics.fenced.labels(lane.queue).inc()
            raise Fenced(lane.key, self._holder.epoch, seen.state.epoch if seen is not None else 0)
        return seen


async def _open(client: RegisterClient, resume_after: int | None) -> tuple[EpochClaim, Register]:
    """Swap in the next epoch under a new owner id; return the claim and the state with it."""
    retries = RetryBudget("open", client.lane.key, client.runtime.backoff(SWAP_RETRY))
    opening = _Opening(client=client, resume_after=resume_after, owner=client.runtime.id_bytes())
    while True:
        try:
            won = await opening.step(await client.read_or_create(retries))
        except StoreUnavailable as error:
            await retries.wait_or_raise(error)
            continue
        if won is not None:
            return won
        await retries.wait_or_raise()


@dataclass(slots=True, kw_only=True)
class _Opening:
    """The write that claims the next epoch, once it is sent."""

    client: RegisterClient
    resume_after: int | None
    owner: bytes
    on: ETag | None = None
    after: Register | None = None

    async def step(self, seen: RegisterRead) -> tuple[EpochClaim, Register] | None:
        """Decide the write in flight, or build and send one; return a confirmed claim."""
        if self.after is not None and self.on is not None:
            match decide_open(self._claim(self.after), self.on, seen):
                case EpochClaim() as claim:
                    return claim, seen.state
                case RetryOpen():
                    self.after = None
                case InFlight():
                    pass  # the same bytes again: only one of the two writes can be applied
        return await self._send(seen)

    async def _send(self, seen: RegisterRead) -> tuple[EpochClaim, Register] | None:
        if self.after is None:
            lane = self.client.lane
            refuse_other_layout(lane.key, lane.layout, seen.state.layout)
            _check_resume(self.client.lane, seen.state, self.resume_after)
            self.after = open_epoch(seen.state, self.owner, self.client.runtime.id_bytes())
            self.on = seen.etag
        match await self.client.swap(seen, self.after):
            case Applied(date_ns=date_ns):
                self.client.observe_date(date_ns)
                return self._claim(self.after), self.after
            case Mismatch() | Unknown():
                return None

    def _claim(self, after: Register) -> EpochClaim:
        return EpochClaim(epoch=after.epoch, owner=self.owner)


def _check_resume(lane: Lane, state: Register, resume_after: int | None) -> None:
    if resume_after is None:
        return
    if resume_after < state.acked_through:
        reason = (
            f"entries after the stored sequence are acknowledged and deleted: what the consumer "
            f"stored is lost or an older copy; rebuild it from the accepted batches (the lake: "
            f"docs/spark.md), acked_through=`{state.acked_through}`"
        )
        raise ResumeRefused(lane.key, resume_after, reason)
    if resume_after >= state.next_sequence:
        reason = (
            f"the lane has not assigned the stored sequence: it is another lane, "
            f"next_sequence=`{state.next_sequence}`"
        )
        raise ResumeRefused(lane.key, resume_after, reason)
