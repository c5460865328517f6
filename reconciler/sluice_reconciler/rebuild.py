"""Rebuilding everything derived: indexes, registers and work lists.

`differences` writes nothing: it compares sources and derived objects in both directions. `repair`
creates a new register where one is lost, writes missing objects and replaces wrong ones. It deletes
by-time entries without a source, and writes lost work lists of pending entries. The caller then
makes a full pass.

A lane whose register is lost has also lost its sequence numbers. The new register continues one
above the highest sequence that the lane's consumer persisted; for Spark's queue the lake contains
it. The lane's ledger is emptied, so every batch is enqueued again, and the consumer's own ledger
drops the batches that it has. The same is done for a register whose next sequence is not above
what its consumer persisted: it is not the register that the consumer read from.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final

from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.keys import (
    ACCEPTED,
    ACCEPTED_BY_TIME,
    QUARANTINE,
    RAW_BLOBS_BY_TIME,
    lane_of,
    parse_quarantine_key,
)
from sluice_protocol.manifests import AcceptedManifest, WorkList, decode_accepted, encode_record
from sluice_protocol.outcomes import Applied, Exists, Found, NotFound, ObjectInfo, Unknown
from sluice_protocol.units import ObjectKey
from sluice_queue.entries import Descriptor
from sluice_queue.errors import WorkListMissing
from sluice_queue.inspection import list_lanes, read_lane
from sluice_queue.lane import Lane, Runtime
from sluice_queue.register import Register, decode_register, encode_register
from sluice_queue.worklists import read_work_list
from sluice_reconciler.concurrency import RequestLimit
from sluice_reconciler.differences import (
    DerivedDifference,
    DifferenceKind,
    IndexComparison,
    compare_object,
    read_source,
)
from sluice_reconciler.indexes import by_blob_of, by_time_of, put_derived, quarantine_entry, unpack
from sluice_reconciler.lane_state import (
    LaneRecord,
    encode_lane,
    is_register_lost,
    lane_key,
    read_lane_state,
)
from sluice_reconciler.new_batches import identity_of
from sluice_store.port import ListedObject, ObjectStore
from sluice_store.retry import WRITE_RETRY

_DELETED_WITHOUT_SOURCE: Final = (ACCEPTED_BY_TIME, RAW_BLOBS_BY_TIME)
"""Index roots where a repair deletes entries without a source. A reverse reference is kept: it can
only keep a blob alive, and evidence must not be deleted."""

VERSIONS_MAX: Final = 100
"""Versions of one derived object that a repair deletes at most."""


class LaneRebuild:
    """The registers and work lists of one store."""

    def __init__(
        self,
        store: ObjectStore,
        requests: RequestLimit,
        lanes: Sequence[Lane],
        runtime: Runtime,
        persisted: Mapping[Lane, int],
    ) -> None:
        self._store = store
        self._requests = requests
        self._lanes = lanes
        self._lanes_per_queue = 1 + max((lane.lane for lane in lanes), default=0)
        self._runtime = runtime
        self._persisted = persisted

    async def differences(self) -> list[DerivedDifference]:
        """Return the registers and the work lists of pending entries that are lost.

        Raises:
            StoreError: The store is unreachable or refused a request.
        """
        found: list[DerivedDifference] = []
        for lane in self._lanes:
            wrong = await self._register_defect(lane)
            if wrong is not None:
                detail = "its lane was given batches; a rebuild continues behind its consumer"
                found.append(DerivedDifference(key=lane.key, wrong=wrong, detail=detail))
        missing = DifferenceKind.MISSING
        for lane in await list_lanes(self._store):
            for entry in await self._lost_lists(lane):
                detail = f"entry {entry.sequence} of {lane.queue}.{lane.lane:03d}"
                found.append(DerivedDifference(key=entry.location, wrong=missing, detail=detail))
        return found

    async def _register_defect(self, lane: Lane) -> DifferenceKind | None:
        """Return whether a register is lost, or is not the one that its consumer read from."""
        persisted = self._persisted.get(lane, 0)
        lost = await is_register_lost(self._store, lane)
        read = await self._store.get(lane.key)
        if isinstance(read, Found):
            behind = decode_register(lane.key, read.body).next_sequence <= persisted
            return DifferenceKind.DIFFERENT if lost or behind else None
        return DifferenceKind.MISSING if lost or persisted > 0 else None

    async def _lost_lists(self, lane: Lane) -> list[Descriptor]:
        view = await read_lane(self._store, lane.queue, lane.lane)

        async def is_lost(entry: Descriptor) -> bool:
            try:
                await read_work_list(self._store, lane, entry)
            except (WorkListMissing, InvalidRecord):
                return True
            return False

        lost = await self._requests.each(view.descriptors, is_lost)
        return [entry for entry, missing in zip(view.descriptors, lost, strict=True) if missing]

    async def repair_registers(
        self, first_sequence: int | None
    ) -> AsyncIterator[DerivedDifference]:
        """Replace lost registers; return the difference of each.

        Raises:
            BadUsage: A register is lost, and the sequence where it continues is not known.
            StoreError: The store is unreachable or refused a request.
        """
        for lane in self._lanes:
            wrong = await self._register_defect(lane)
            if wrong is not None:
                yield await self._replace_register(lane, wrong, first_sequence)

    async def _replace_register(
        self, lane: Lane, wrong: DifferenceKind, first_sequence: int | None
    ) -> DerivedDifference:
        """Empty the lane's ledger, then write a register that continues behind its consumer."""
        first = self._persisted[lane] + 1 if lane in self._persisted else first_sequence
        if first is None or first < 1:
            raise BadUsage(
                "register of a lane is lost: give --first-sequence, one above the highest sequence"
                f" that its consumer persisted, register=`{lane.key}`"
            )
        stored = await read_lane_state(self._store, lane)
        record = LaneRecord(
            queue=lane.queue,
            lane=lane.lane,
            nonce=self._runtime.id_bytes().hex(),
            producer_id=self._runtime.id_bytes().hex(),
            owner_term=stored.record.owner_term + 1 if stored is not None else 0,
        )
        await self._store.overwrite(lane_key(lane), encode_lane(record))
        state = Register(
            revision=1,
            nonce=self._runtime.id_bytes(),
            next_sequence=first,
            acked_through=first - 1,
        )
        body = encode_register(state)
        put = self._store.create if wrong is DifferenceKind.MISSING else self._store.overwrite
        match await put(lane.key, body):
            case Applied():
                detail = f"replaced; sequences continue at {first}"
                return DerivedDifference(key=lane.key, wrong=wrong, detail=detail)
            case Exists() | Unknown():
                raise BadUsage(
                    f"register was written meanwhile: repeat the command, register=`{lane.key}`"
                )

    async def repair_lists(self) -> None:
        """Write every lost work list again.

        Raises:
            InvalidRecord: Fewer batches are accepted than a list contained.
            StoreError: The store is unreachable or refused a request.
        """
        for lane in await list_lanes(self._store):
            await self._repair_lists(lane)

    async def _repair_lists(self, lane: Lane) -> None:
        """Write each lost list again: every batch of the lane accepted in the entry's time span.

        The list may contain more batches than before; the consumer's ledger drops those it has.
        """
        for entry in await self._lost_lists(lane):
            batches = [one async for one in self._accepted_in(lane, entry)]
            if len(batches) < entry.batches:
                raise InvalidRecord(entry.location, "fewer batches are accepted than it contained")
            body = encode_record(WorkList(queue=lane.queue, lane=lane.lane, batches=tuple(batches)))
            await self._store.overwrite(entry.location, body)

    async def _accepted_in(self, lane: Lane, entry: Descriptor) -> AsyncIterator[AcceptedManifest]:
        span = range(entry.first_accepted_at_ns, entry.last_accepted_at_ns + 1)
        async for page in self._store.list(ACCEPTED):
            keys = [one.key for one in page.objects if self._is_of_lane(one.key, lane)]
            for read in await self._requests.each(keys, self._store.get):
                if isinstance(read, Found):
                    try:
                        manifest = decode_accepted(read.info.key, read.body)
                    except InvalidRecord:
                        continue
                    if manifest.accepted_at_unix_ns in span:
                        yield manifest

    def _is_of_lane(self, key: ObjectKey, lane: Lane) -> bool:
        who = identity_of(key)
        return who is not None and lane_of(who.agent_id, self._lanes_per_queue) == lane.lane


class Rebuild:
    """The comparison and the repair of everything derived in one store."""

    def __init__(
        self,
        store: ObjectStore,
        requests: RequestLimit,
        lanes: Sequence[Lane],
        runtime: Runtime,
        persisted: Mapping[Lane, int] | None = None,
    ) -> None:
        """Create a rebuild; nothing is read yet.

        Args:
            store: The acceptance authority.
            requests: The bound on requests in flight.
            lanes: Every lane of every queue that batches are appended to.
            runtime: Source of ids.
            persisted: The last sequence that each lane's consumer persisted, where it is known.
        """
        self._store = store
        self._requests = requests
        self._backoff = runtime.backoff(WRITE_RETRY)
        known = persisted if persisted is not None else {}
        self._lanes = LaneRebuild(store, requests, lanes, runtime, known)

    async def differences(self) -> AsyncIterator[DerivedDifference]:
        """Return every derived object that is missing, extra, different or unreadable.

        Raises:
            StoreError: The store is unreachable or refused a request; the differences returned so
                far are correct.
        """
        comparison = IndexComparison(self._store, self._requests)
        async for difference in self._differences(comparison):
            yield difference

    async def _differences(self, comparison: IndexComparison) -> AsyncIterator[DerivedDifference]:
        async for difference in comparison.run():
            yield difference
        for difference in await self._lanes.differences():
            yield difference

    async def repair(
        self, *, first_sequence: int | None = None
    ) -> AsyncIterator[DerivedDifference]:
        """Repair every difference and return them; make a full pass afterwards.

        Args:
            first_sequence: Where the sequences of a lost register continue if it is not known what
                its consumer persisted.

        Raises:
            BadUsage: A register is lost, and the sequence where it continues is not known.
            StoreError: The store is unreachable or refused a request; what was repaired so far is
                correct.
        """
        async for lost in self._lanes.repair_registers(first_sequence):
            yield lost
        # All differences are found before any is repaired: a repair would hide its cause.
        comparison = IndexComparison(self._store, self._requests)
        for difference in [one async for one in self._differences(comparison)]:
            yield difference
        await self._repair_indexes(comparison)
        await self._lanes.repair_lists()

    async def _repair_indexes(self, comparison: IndexComparison) -> None:
        async def index(listed: ListedObject) -> None:
            await self._index(listed, comparison)

        await self._each(ACCEPTED, index)
        await self._each(QUARANTINE, self._index_quarantine)
        for root in _DELETED_WITHOUT_SOURCE:
            leftover = await comparison.without_source(root)
            for one in leftover:
                if one.pack is None:
                    await self._delete(one.key)
            for pack in {one.pack for one in leftover if one.pack is not None}:
                await self._unpack(pack, {one.key for one in leftover if one.pack == pack})

    async def _each(self, prefix: str, do: Callable[[ListedObject], Awaitable[None]]) -> None:
        async for page in self._store.list(prefix):
            await self._requests.each(page.objects, do)

    async def _unpack(self, key: ObjectKey, wrong: set[ObjectKey]) -> None:
        """Write the correct entries of a packed object separately, then delete it."""
        read = await self._store.get(key)
        if isinstance(read, Found):
            for entry, body in unpack(key, read.body):
                if entry not in wrong:
                    await put_derived(self._store, entry, body, self._backoff)
            await self._delete(key)

    async def _delete(self, key: ObjectKey) -> None:
        # Deleting the current version restores the one before it: repeat until none is left.
        for _ in range(VERSIONS_MAX):
            match await self._store.head(key):
                case ObjectInfo(incarnation=incarnation) if incarnation is not None:
                    await self._store.delete(key, incarnation)
                case ObjectInfo() | NotFound():
                    return

    async def _index(self, listed: ListedObject, comparison: IndexComparison) -> None:
        batch = await read_source(self._store, listed.key)
        if batch is None:
            return
        by_time, raw = by_time_of(batch)
        if await comparison.compare_entry(by_time) is not None:
            await self._put_or_replace(by_time.key, by_time.body)
        await self._put_or_replace(*by_blob_of(batch))
        if await comparison.compare_entry(raw, any_body=True) is not None:
            await put_derived(self._store, raw.key, raw.body, self._backoff)

    async def _put_or_replace(self, key: ObjectKey, body: bytes) -> None:
        """Write a derived object if it is missing or has other bytes."""
        created = await put_derived(self._store, key, body, self._backoff)
        if not created and await compare_object(self._store, key, body) is not None:
            await self._store.overwrite(key, body)

    async def _index_quarantine(self, listed: ListedObject) -> None:
        try:
            who, submitted = parse_quarantine_key(listed.key)
        except InvalidRecord:
            return
        await self._put_or_replace(*quarantine_entry(listed.key, who, submitted))
