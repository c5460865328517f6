"""Owns one lane of one queue: enqueues each batch once, over crashes and against rivals.

One flush, and what a crash after each step leaves:

    1 write the work list                  a list that no register names; the collector takes it
    2 swap the note: pending = its batches  the next life asks the register: not landed, forget it
    3 append to the register               the next life asks the register: landed, keep it
    4 fold pending into the ledger          stored with the next note; until then as after step 3

Taking over: raise `life` in the lane's state by a swap, then put it into the register
(`sluice_queue.takeover`). A rival of an earlier life fails at its next swap of either object and
raises `LaneLost`; it has then changed nothing that the new life does not know.
"""

from collections.abc import Sequence

from sluice_protocol.errors import SluiceError, StoreUnavailable
from sluice_protocol.identity import Identity
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.outcomes import Applied, Exists, Mismatch, Unknown
from sluice_queue.appender import Appender
from sluice_queue.errors import ProducerSuperseded
from sluice_queue.lane import Lane, Runtime
from sluice_queue.settings import SWAP_RETRY
from sluice_queue.takeover import take_over
from sluice_queue.worklists import write_work_list
from sluice_reconciler.lane_state import (
    LaneRecord,
    Ledger,
    PendingBatch,
    StoredLaneState,
    encode_lane,
    lane_key,
    read_lane_state,
)
from sluice_reconciler.sequence_ranges import EnqueueStatus
from sluice_store.port import ObjectStore
from sluice_store.retry import RetryBudget


class LaneTakenOver(SluiceError):
    """Another reconciler took the lane over; read its state before going on."""

    def __init__(self, lane_key: str, life: int) -> None:
        """Carries the key of the lane's state and the life that was overtaken."""
        super().__init__(lane_key, life)
        self.lane_key = lane_key
        self.life = life

    def __str__(self) -> str:
        """Says which lane."""
        return f"another reconciler took this lane over, key=`{self.lane_key}`, life=`{self.life}`"


class LaneOwner:
    """One process's hold on one lane. Make it with `LaneOwner.take`."""

    def __init__(
        self,
        store: ObjectStore,
        lane: Lane,
        stored: StoredLaneState,
        appender: Appender,
        runtime: Runtime,
    ) -> None:
        """Takes a lane that `take` won."""
        self._store = store
        self._lane = lane
        self._stored = stored
        self._appender = appender
        self._runtime = runtime
        self._retry = SWAP_RETRY
        self.ledger = Ledger(stored.record.boots)
        self.forgotten = False

    @classmethod
    async def take(cls, store: ObjectStore, lane: Lane, runtime: Runtime) -> "LaneOwner":
        """Takes the lane over and settles what an earlier life left pending.

        Raises:
            LaneLost: A rival took it over at the same time.
            RegisterLost: The lane's register is gone, or another one.
            OutcomeUnknown: The bounds of a write are spent.
            StoreError: The store refused.
        """
        stored = await _raise_life(store, lane, runtime)
        record = stored.record
        try:
            taken = await take_over(
                store,
                lane,
                producer_id=bytes.fromhex(record.producer_id),
                term=record.life,
                writes=record.writes,
                runtime=runtime,
            )
        except ProducerSuperseded as error:
            raise LaneTakenOver(lane_key(lane), record.life) from error
        owner = cls(store, lane, stored, taken.appender, runtime)
        owner.forgotten = taken.forgotten and bool(record.pending)
        if taken.writes > record.writes:
            for one in record.pending:
                owner.ledger.add(one)
        await owner._write(writes=max(taken.writes, record.writes), pending=())
        return owner

    async def enqueue(self, batches: Sequence[AcceptedManifest]) -> int:
        """Enqueues the batches that were not, in one work list; gives how many those were.

        All belong to agents of this lane. A batch that stands inside a run must be sorted out by
        the caller before (`Standing.MAYBE`): here it counts as not enqueued.

        Raises:
            LaneLost: A rival took the lane over; what of this call landed, its state knows.
            OutcomeUnknown: The bounds are spent; take the lane again to learn what landed.
            StoreError: The store refused.
        """
        once = {one.identity: one for one in batches}
        fresh = [one for who, one in once.items() if self._is_fresh(who)]
        if not fresh:
            return 0
        draft = await write_work_list(self._appender.client, fresh, retry=self._retry)
        pending = tuple(_pending(one.identity) for one in fresh)
        writes = self._stored.record.writes
        await self._write(writes=writes, pending=pending)
        try:
            await self._appender.append([draft])
        except ProducerSuperseded as error:
            raise LaneTakenOver(lane_key(self._lane), self._stored.record.life) from error
        for one in pending:
            self.ledger.add(one)
        self._stored = StoredLaneState(
            record=_with(self._stored.record, writes=writes + 1, pending=()),
            etag=self._stored.etag,
        )
        return len(fresh)

    def _is_fresh(self, who: Identity) -> bool:
        return self.ledger.standing(who) is not EnqueueStatus.DONE

    async def close(self) -> None:
        """Stores the ledger as it stands, so that the next life has nothing to settle.

        Raises:
            LaneLost: A rival took the lane over.
        """
        await self._write(writes=self._stored.record.writes, pending=())

    async def _write(self, *, writes: int, pending: tuple[PendingBatch, ...]) -> None:
        """Swaps the lane's state; only this life's own state is ever replaced."""
        record = LaneRecord(
            queue=self._lane.queue,
            lane=self._lane.lane,
            nonce=self._runtime.id_bytes().hex(),
            producer_id=self._stored.record.producer_id,
            life=self._stored.record.life,
            writes=writes,
            pending=pending,
            boots=self.ledger.stored(),
        )
        self._stored = await _swap(self._store, self._lane, self._stored, record, self._runtime)


def _pending(who: Identity) -> PendingBatch:
    return PendingBatch(
        agent_id=who.agent_id,
        boot_id=who.boot_id,
        seq_start=who.seq_start,
        seq_end=who.seq_end,
    )


def _with(record: LaneRecord, *, writes: int, pending: tuple[PendingBatch, ...]) -> LaneRecord:
    """Gives the record with other counts; its boots are stored anew with the next write."""
    return LaneRecord(
        queue=record.queue,
        lane=record.lane,
        nonce=record.nonce,
        producer_id=record.producer_id,
        life=record.life,
        writes=writes,
        pending=pending,
    )


async def _swap(
    store: ObjectStore, lane: Lane, stored: StoredLaneState, record: LaneRecord, runtime: Runtime
) -> StoredLaneState:
    """Replaces the state that was read; an unknown outcome is settled by the record's nonce.

    Raises:
        LaneLost: Another state stands.
        OutcomeUnknown: The bounds are spent.
    """
    key, body = lane_key(lane), encode_lane(record)
    budget = RetryBudget("swap", key, runtime.backoff(SWAP_RETRY))
    while True:
        try:
            outcome = await store.replace(key, body, if_match=stored.etag)
            match outcome:
                case Applied(etag=etag):
                    return StoredLaneState(record=record, etag=etag)
                case Mismatch() | Unknown():
                    now = await read_lane_state(store, lane)
        except StoreUnavailable as error:
            await budget.wait_or_raise(error)
            continue
        if now is not None and now.record.nonce == record.nonce:
            return now
        if now is None or now.etag != stored.etag:
            raise LaneTakenOver(key, record.life)
        await budget.wait_or_raise()


async def _raise_life(store: ObjectStore, lane: Lane, runtime: Runtime) -> StoredLaneState:
    """Puts the next life into the lane's state; creates the state where none stands."""
    budget = RetryBudget("take", lane_key(lane), runtime.backoff(SWAP_RETRY))
    while True:
        stored = await read_lane_state(store, lane)
        if stored is None:
            await _create(store, lane, runtime)
        else:
            old = stored.record
            record = LaneRecord(
                queue=old.queue,
                lane=old.lane,
                nonce=runtime.id_bytes().hex(),
                producer_id=old.producer_id,
                life=old.life + 1,
                writes=old.writes,
                pending=old.pending,
                boots=old.boots,
            )
            try:
                return await _swap(store, lane, stored, record, runtime)
            except LaneTakenOver:
                pass  # a rival swapped first: raise the life above its own
        await budget.wait_or_raise()


async def _create(store: ObjectStore, lane: Lane, runtime: Runtime) -> None:
    """Creates an empty state; whatever comes of it, the next read shows one that all agree on."""
    record = LaneRecord(
        queue=lane.queue,
        lane=lane.lane,
        nonce=runtime.id_bytes().hex(),
        producer_id=runtime.id_bytes().hex(),
    )
    match await store.create(lane_key(lane), encode_lane(record)):
        case Applied() | Exists() | Unknown():
            return
