"""The owner of one lane of one queue: it enqueues each batch once, despite crashes and rivals.

The steps of one append, and what the next owner does after a crash behind each of them:

    1 write the work list                  no register names it; the collector deletes it
    2 write a part, with some flushes      no lane state names it; the next owner deletes it
    3 swap in the append intent            the append is not in the register: drop the intent
    4 append to the register               the append is in the register: it is enqueued
    5 add the intent to what is enqueued   as after step 4; stored with the next intent

Boots are retired by one swap too: it sets the settled time and names runs without these boots. A
crash before it leaves parts that no lane state names.

To take a lane over, a process raises the owner term in the lane's state by a swap, then writes it
into the register (`sluice_queue.takeover`). An earlier owner fails at its next swap of either
object and raises `LaneTakenOver`. It has then changed nothing that the new owner does not know.
"""

import dataclasses
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from sluice_protocol.errors import SluiceError, StoreUnavailable
from sluice_protocol.identity import Identity
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.outcomes import Applied, Exists, Mismatch, Unknown
from sluice_protocol.units import NS_PER_S
from sluice_queue.appender import Appender
from sluice_queue.errors import ProducerSuperseded
from sluice_queue.lane import Lane
from sluice_queue.register_client import SWAP_RETRY, Runtime
from sluice_queue.takeover import take_over
from sluice_queue.worklists import write_work_list
from sluice_reconciler.lanes.enqueued import EnqueuedBatches, IntendedBatch, in_order
from sluice_reconciler.lanes.part_log import (
    RECENT_MAX,
    LaneLog,
    PartCache,
    PartMissing,
    load_enqueued,
    read_enqueued,
    refuse_if_current,
)
from sluice_reconciler.lanes.request_log import RequestLog, SpilledRequests
from sluice_reconciler.lanes.sequence_ranges import EnqueueStatus
from sluice_reconciler.lanes.state import (
    LaneRecord,
    OwnerClaim,
    ShownPass,
    StoredLaneState,
    encode_lane,
    is_rewrite_due,
    lane_key,
    read_lane_state,
    settled_time_s,
)
from sluice_store.port import ObjectStore
from sluice_store.retry import RetryBudget


class LaneTakenOver(SluiceError):
    """Another reconciler took the lane over; read the lane's state before the next attempt."""

    def __init__(self, lane_key: str, owner_term: int) -> None:
        super().__init__(lane_key, owner_term)
        self.lane_key = lane_key
        self.owner_term = owner_term

    def __str__(self) -> str:
        return (
            "another reconciler took this lane over,"
            f" key=`{self.lane_key}`, owner_term=`{self.owner_term}`"
        )


class LaneClosed(SluiceError):
    """The number of lanes is being changed: no process may append to this lane any more."""

    def __init__(self, lane_key: str, lanes: int) -> None:
        super().__init__(lane_key, lanes)
        self.lane_key = lane_key
        self.lanes = lanes

    def __str__(self) -> str:
        return (
            "the number of lanes is being changed, and this lane is closed: if `sluice queue"
            f" lanes {self.lanes}` was interrupted, run it again, key=`{self.lane_key}`"
        )


class LaneOwner:
    """One process's ownership of one lane. Create it with `LaneOwner.take`."""

    def __init__(
        self,
        store: ObjectStore,
        stored: StoredLaneState,
        appender: Appender,
        runtime: Runtime,
        enqueued: EnqueuedBatches,
        log: LaneLog,
    ) -> None:
        self._store = store
        self._lane = stored.record.of_lane
        self._stored = stored
        self._appender = appender
        self._runtime = runtime
        self._retry = SWAP_RETRY
        self._log = log
        term = stored.record.owner_term
        self._requests = RequestLog(store, self._lane, term, runtime)
        self.repeated_parts = 0
        """Parts of enqueued batches that repeat other batches of the lane."""
        self.enqueued = enqueued
        self.forgotten = False
        """Whether the register no longer shows what became of an append intent."""
        self.in_doubt = False
        """Whether an `enqueue` was begun and did not return. Only taking the lane again shows
        whether its batches are in the register, so this object may no longer be used."""

    @classmethod
    async def take(
        cls,
        store: ObjectStore,
        lane: Lane,
        runtime: Runtime,
        cache: PartCache | None = None,
        claim: OwnerClaim | None = None,
    ) -> "LaneOwner":
        """Take the lane over and resolve the append intent of an earlier owner.

        `cache` has parts of the lane's state that were read before. The claim has no time; None is
        a claim without a name. Raise `LaneTakenOver` if a rival took the lane over at the same
        time.

        Raises:
            RegisterLost: The lane's register is missing or was replaced.
            LaneClosed: The number of lanes is being changed.
        """
        cache = cache if cache is not None else PartCache()
        # Most parts are read before the earlier owner is fenced.
        await read_enqueued(store, lane, cache)
        stored = await _raise_owner_term(store, lane, runtime, claim)
        record = stored.record
        try:
            enqueued = await load_enqueued(store, stored, cache)
        except PartMissing as missing:
            await refuse_if_current(store, stored, missing)
            raise LaneTakenOver(lane_key(lane), record.owner_term) from missing
        log = LaneLog(store, lane, record.owner_term, cache, runtime)
        log.swapped(record)
        try:
            taken = await take_over(
                store,
                lane,
                producer_id=bytes.fromhex(record.producer_id),
                term=record.owner_term,
                writes=record.writes,
                runtime=runtime,
            )
        except ProducerSuperseded as error:
            raise LaneTakenOver(lane_key(lane), record.owner_term) from error
        if taken.writes > record.writes:
            for batch in record.pending:
                enqueued.add(batch)
        owner = cls(store, stored, taken.appender, runtime, enqueued, log)
        await owner._requests.load(record, enqueued.recent)
        owner.forgotten = taken.forgotten and bool(record.pending)
        await owner._write(writes=max(taken.writes, record.writes), pending=())
        await log.collect(owner._stored.record)
        await owner._requests.collect(owner._stored.record)
        return owner

    async def enqueue(self, batches: Sequence[AcceptedManifest]) -> int:
        """Enqueue the batches that were not enqueued yet, in one work list.

        All batches must belong to agents of this lane. A batch whose status is
        `EnqueueStatus.MAYBE` is treated as not enqueued: the caller decides those before. Return
        the number of enqueued batches. If a rival took the lane over, its state contains what this
        call appended; after `OutcomeUnknown`, take the lane again to learn that.
        """
        by_identity = {one.identity: one for one in batches}
        self.enqueued.load((one.agent_id, one.boot_id) for one in batches)
        new = [one for who, one in by_identity.items() if self._is_new(who)]
        if not new:
            return 0
        judged = self._requests.window.judge(new)
        draft = await write_work_list(self._appender.client, judged.batches, retry=self._retry)
        pending = tuple(_pending(one.identity) for one in new)
        writes = self._stored.record.writes
        self.in_doubt = True  # also if the caller is cancelled
        await self._write(writes=writes, pending=pending)
        try:
            await self._appender.append([draft])
        except ProducerSuperseded as error:
            raise LaneTakenOver(lane_key(self._lane), self._stored.record.owner_term) from error
        for batch in pending:
            self.enqueued.add(batch)
        self._requests.window.add(judged)
        self.repeated_parts += judged.repeated
        record = replace(self._stored.record, writes=writes + 1, pending=())
        self._stored = dataclasses.replace(self._stored, record=record)
        self.in_doubt = False
        return len(new)

    def _is_new(self, who: Identity) -> bool:
        return self.enqueued.status(who) is not EnqueueStatus.DONE

    async def close(self) -> None:
        """Store the state and release the lane: the next owner has no append intent to resolve."""
        await self._write(writes=self._stored.record.writes, pending=(), released=True)

    async def close_for(self, lanes: int) -> None:
        """Close the lane permanently, because another number of lanes follows; then release it."""
        await self._write(
            writes=self._stored.record.writes, pending=(), released=True, closed_for=lanes
        )

    def settled_time_s(self, shown: ShownPass, quiet_s: int) -> int | None:
        """Return the settled time that a pass shows, if a rewrite is worthwhile."""
        settled_s = settled_time_s(self._stored.record, shown, quiet_s)
        if settled_s is None or not is_rewrite_due(self.enqueued.count_boots(settled_s)):
            return None
        return settled_s

    async def retire(self, settled_s: int, unsettled: Iterable[Identity]) -> int:
        """Retire the boots that were given no batch since the settled time.

        Return their number. `settled_s` is from `settled_time_s`, and `unsettled` is every batch of
        the lane that is held back and not enqueued.
        """
        held = {*self.enqueued.unsettled, *map(_pending, unsettled)}
        old, enqueued = self._stored.record, self.enqueued
        before = enqueued.count_boots(settled_s).total
        written = await self._log.rewrite(enqueued, old.runs, self._now_s, settled_s)
        requests = await self._requests.spill()
        record = replace(
            old,
            nonce=self._runtime.id_bytes().hex(),
            pending=(),
            recent=enqueued.recent[written.delta.recent if written.delta is not None else 0 :],
            runs=written.runs,
            settled_s=settled_s,
            settled_lanes=tuple(one for one in old.settled_lanes if one.settled_s > settled_s),
            unsettled=in_order(held),
            requests=requests.named,
            released=False,
        )
        await self._swap_in(record, requests)
        enqueued.settle(self._log.parts_of(record), written.delta)
        enqueued.settle_before(settled_s, held)
        return max(0, before - enqueued.count_boots(settled_s).total)

    @property
    def _now_s(self) -> int:
        """The store's clock in seconds, rounded up, after the last batch was enqueued."""
        return self._stored.date_ns // NS_PER_S + 1

    async def _write(
        self,
        *,
        writes: int,
        pending: tuple[IntendedBatch, ...],
        released: bool = False,
        closed_for: int = 0,
    ) -> None:
        """Swap the lane's state. Only a state that this owner wrote is ever replaced."""
        old, enqueued, delta = self._stored.record, self.enqueued, None
        runs, requests = old.runs, self._requests.unchanged()
        if len(enqueued.recent) > RECENT_MAX or enqueued.must_spill:
            written = await self._log.spill(enqueued, runs, self._now_s)
            runs, delta = written.runs, written.delta
        if delta is not None or self._requests.window.must_spill:
            # Before recent batches are named no more: a new owner reads their requests.
            requests = await self._requests.spill()
        record = replace(
            old,
            nonce=self._runtime.id_bytes().hex(),
            writes=writes,
            pending=pending,
            recent=enqueued.recent[delta.recent if delta is not None else 0 :],
            runs=runs,
            released=released,
            closed_for=closed_for,
            ledger_since_unix_ns=old.ledger_since_unix_ns or self._stored.date_ns,
            unsettled=enqueued.unsettled,
            requests=requests.named,
        )
        await self._swap_in(record, requests)
        if delta is not None:
            enqueued.settle(self._log.parts_of(record), delta)

    def forget_requests(self, before_s: int) -> None:
        """Forget requests that were accepted before a time, with the next run that is written."""
        self._requests.forgets_before_s = max(self._requests.forgets_before_s, before_s)

    @property
    def requests(self) -> int:
        """How many requests of combined batches the lane remembers."""
        return len(self._requests.window)

    async def _swap_in(self, record: LaneRecord, requests: SpilledRequests) -> None:
        self._stored = await _swap(self._store, self._lane, self._stored, record, self._runtime)
        self._log.swapped(record)
        self._requests.swapped(requests)


def _pending(who: Identity) -> IntendedBatch:
    return IntendedBatch(
        agent_id=who.agent_id,
        boot_id=who.boot_id,
        seq_start=who.seq_start,
        seq_end=who.seq_end,
    )


async def _swap(
    store: ObjectStore,
    lane: Lane,
    stored: StoredLaneState,
    record: LaneRecord,
    runtime: Runtime,
) -> StoredLaneState:
    """Replace the state that was read. The nonce identifies a write of unknown outcome."""
    key, body = lane_key(lane), encode_lane(record)
    budget = RetryBudget("swap", key, runtime.backoff(SWAP_RETRY))
    while True:
        try:
            outcome = await store.replace(key, body, if_match=stored.etag)
            match outcome:
                case Applied(etag=etag, date_ns=date_ns):
                    return StoredLaneState(record=record, etag=etag, date_ns=date_ns)
                case Mismatch() | Unknown():
                    now = await read_lane_state(store, lane)
        except StoreUnavailable as error:
            await budget.wait_or_raise(error)
            continue
        if now is not None and now.record.nonce == record.nonce:
            return now
        if now is None or now.etag != stored.etag:
            raise LaneTakenOver(key, record.owner_term)
        await budget.wait_or_raise()


async def _raise_owner_term(
    store: ObjectStore, lane: Lane, runtime: Runtime, claim: OwnerClaim | None = None
) -> StoredLaneState:
    """Write the next owner term into the lane's state; create the state if there is none."""
    budget = RetryBudget("take", lane_key(lane), runtime.backoff(SWAP_RETRY))
    while True:
        stored = await read_lane_state(store, lane)
        if stored is None:
            await _create(store, lane, runtime)
        else:
            old = stored.record
            if old.closed_for:
                raise LaneClosed(lane_key(lane), old.closed_for)
            record = replace(
                old,
                nonce=runtime.id_bytes().hex(),
                owner_term=old.owner_term + 1,
                released=False,
                owner=replace(claim, since_unix_ns=stored.date_ns) if claim else None,
            )
            try:
                return await _swap(store, lane, stored, record, runtime)
            except LaneTakenOver:
                pass  # A rival swapped first: raise the term above its own.
        await budget.wait_or_raise()


async def _create(store: ObjectStore, lane: Lane, runtime: Runtime) -> None:
    """Create an empty state. Whatever the outcome, the next read returns the one that exists."""
    record = LaneRecord(
        queue=lane.queue,
        lane=lane.lane,
        layout=lane.layout,
        nonce=runtime.id_bytes().hex(),
        producer_id=runtime.id_bytes().hex(),
    )
    match await store.create(lane_key(lane), encode_lane(record)):
        case Applied() | Exists() | Unknown():
            return
