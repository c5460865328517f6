"""Lanes whose register or work lists are lost: told, and made again from what was accepted.

A lane whose register is gone has also lost which sequences it gave. It is created anew from one
above the highest that its consumer persisted, which for Spark's queue the lake tells; its ledger is
emptied, so that every batch is enqueued again and the consumer's own ledger drops what it has. So
for a register that is there and has not come as far as its consumer: it is not the one it was.

Makes everything derived again from `accepted/`, `quarantine/` and `raw-blobs/`, and compares.

`verify` writes nothing: it walks the sources and the derived objects in both directions and reports
each difference. `repair` writes what is missing or wrong, drops by-time entries that nothing stands
behind, and rebuilds work lists that waiting entries have lost; a full pass ends it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.keys import (
    ACCEPTED,
    ACCEPTED_BY_BLOB,
    ACCEPTED_BY_TIME,
    QUARANTINE,
    QUARANTINE_BY_BLOB,
    RAW_BLOBS_BY_TIME,
    accepted_key,
    digest_of,
    lane_of,
    parse_accepted_key,
    parse_pack_key,
    parse_quarantine_key,
)
from sluice_protocol.manifests import (
    AcceptedManifest,
    BlobReference,
    WorkList,
    decode_accepted,
    decode_record,
    encode_record,
)
from sluice_protocol.outcomes import Applied, Exists, Found, NotFound, ObjectInfo, Unknown
from sluice_protocol.units import ObjectKey
from sluice_queue.entries import Descriptor
from sluice_queue.errors import WorkListMissing
from sluice_queue.inspection import list_lanes, read_lane
from sluice_queue.lane import Lane, Runtime
from sluice_queue.register import Register, decode_register, encode_register
from sluice_queue.worklists import read_work_list
from sluice_reconciler.differences import DerivedDifference, DifferenceKind
from sluice_reconciler.indexes import (
    PackIndex,
    by_blob_of,
    by_time_of,
    put_derived,
    quarantine_entry,
    unpack,
)
from sluice_reconciler.lane_state import (
    LaneRecord,
    encode_lane,
    is_register_lost,
    lane_key,
    read_lane_state,
)
from sluice_reconciler.pipeline import BatchPipeline
from sluice_reconciler.verify import VerifiedBatch
from sluice_store.port import ListedObject


class LaneRebuild:
    """The lanes of one store."""

    def __init__(
        self, intake: BatchPipeline, runtime: Runtime, persisted: Mapping[Lane, int]
    ) -> None:
        """As `Rebuild`."""
        self._intake = intake
        self._store = intake.store
        self._runtime = runtime
        self._persisted = persisted

    async def differences(self) -> list[DerivedDifference]:
        """Looks at registers, lane states, and the lists of waiting entries."""
        found: list[DerivedDifference] = []
        for desk in self._intake.desks.values():
            wrong = await self._register_wrong(desk.lane)
            if wrong is not None:
                detail = "its lane was given batches; rebuild goes on behind its consumer"
                found.append(DerivedDifference(key=desk.lane.key, wrong=wrong, detail=detail))
        for lane in await list_lanes(self._store):
            for entry in await self._lost_lists(lane):
                detail = f"entry {entry.sequence} of {lane.queue}.{lane.lane:03d}"
                found.append(
                    DerivedDifference(
                        key=entry.location, wrong=DifferenceKind.MISSING, detail=detail
                    )
                )
        return found

    async def _register_wrong(self, lane: Lane) -> DifferenceKind | None:
        """Tells whether a register is lost, or is not the one that its consumer read from."""
        persisted = self._persisted.get(lane, 0)
        lost = await is_register_lost(self._store, lane)
        read = await self._store.get(lane.key)
        if isinstance(read, Found):
            behind = decode_register(lane.key, read.body).next_sequence <= persisted
            return DifferenceKind.DIFFERENT if lost or behind else None
        return DifferenceKind.MISSING if lost or persisted > 0 else None

    async def _lost_lists(self, lane: Lane) -> list[Descriptor]:
        view = await read_lane(self._store, lane.queue, lane.lane)

        async def lost(entry: Descriptor) -> bool:
            try:
                await read_work_list(self._store, lane, entry)
            except (WorkListMissing, InvalidRecord):
                return True
            return False

        gone = await self._intake.each(view.descriptors, lost)
        return [entry for entry, is_gone in zip(view.descriptors, gone, strict=True) if is_gone]

    async def mend_registers(self, first_sequence: int | None) -> AsyncIterator[DerivedDifference]:
        """Makes lost registers anew and gives each.

        Raises:
            BadUsage: A register is lost and nobody tells where it goes on.
        """
        for desk in self._intake.desks.values():
            wrong = await self._register_wrong(desk.lane)
            if wrong is not None:
                yield await self._new_register(desk.lane, wrong, first_sequence)

    async def mend_lists(self) -> None:
        """Writes every lost work list again."""
        for lane in await list_lanes(self._store):
            await self._mend_lists(lane)

    async def _new_register(
        self, lane: Lane, wrong: DifferenceKind, first_sequence: int | None
    ) -> DerivedDifference:
        """Empties the lane's ledger, then makes a register that goes on behind its consumer."""
        first = self._persisted[lane] + 1 if lane in self._persisted else first_sequence
        if first is None or first < 1:
            raise BadUsage(
                "a lane's register is lost: give --first-sequence, one above the highest sequence"
                f" that its consumer persisted, register=`{lane.key}`"
            )
        stored = await read_lane_state(self._store, lane)
        record = LaneRecord(
            queue=lane.queue,
            lane=lane.lane,
            nonce=self._runtime.id_bytes().hex(),
            producer_id=self._runtime.id_bytes().hex(),
            life=stored.record.life + 1 if stored is not None else 0,
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
                detail = f"created anew from {first}"
                return DerivedDifference(key=lane.key, wrong=wrong, detail=detail)
            case Exists() | Unknown():
                raise BadUsage(f"the register came back, run again, register=`{lane.key}`")

    async def _mend_lists(self, lane: Lane) -> None:
        """Writes each lost list again: every batch of the lane accepted in the entry's span.

        That is what the entry stood for and perhaps more; the consumer's ledger drops the rest.
        """
        for entry in await self._lost_lists(lane):
            batches = [one async for one in self._accepted_in(lane, entry)]
            if len(batches) < entry.batches:
                raise InvalidRecord(entry.location, "fewer batches are accepted than it held")
            body = encode_record(WorkList(queue=lane.queue, lane=lane.lane, batches=tuple(batches)))
            await self._store.overwrite(entry.location, body)

    async def _accepted_in(self, lane: Lane, entry: Descriptor) -> AsyncIterator[AcceptedManifest]:
        span = range(entry.first_accepted_at_ns, entry.last_accepted_at_ns + 1)
        async for page in self._store.list(ACCEPTED):
            mine = [one.key for one in page.objects if self._of_lane(one.key, lane)]
            for read in await self._intake.each(mine, self._store.get):
                if isinstance(read, Found):
                    try:
                        manifest = decode_accepted(read.info.key, read.body)
                    except InvalidRecord:
                        continue
                    if manifest.accepted_at_unix_ns in span:
                        yield manifest

    def _of_lane(self, key: ObjectKey, lane: Lane) -> bool:
        try:
            return lane_of(parse_accepted_key(key).agent_id, self._intake.lanes) == lane.lane
        except InvalidRecord:
            return False


_ROOTS = (ACCEPTED_BY_TIME, ACCEPTED_BY_BLOB, RAW_BLOBS_BY_TIME, QUARANTINE_BY_BLOB)

_DROPPED = (ACCEPTED_BY_TIME, RAW_BLOBS_BY_TIME)
"""Where a repair deletes what nothing stands behind. A reverse reference stays: it can only keep a
blob alive, and nobody may delete evidence."""
VERSIONS_MAX = 100
"""Versions of one derived object that a repair deletes at most."""


class Rebuild:
    """Walks sources and derived objects of one store."""

    def __init__(
        self, intake: BatchPipeline, runtime: Runtime, persisted: Mapping[Lane, int] | None = None
    ) -> None:
        """Binds the walk to an intake, whose concurrency it uses.

        Args:
            intake: The store and its desks.
            runtime: Ids.
            persisted: The last sequence that the consumer of a lane persisted, where it is known.
        """
        self._intake = intake
        self._store = intake.store
        self._lanes = LaneRebuild(intake, runtime, persisted if persisted is not None else {})
        self._packed = PackIndex(self._store)

    async def differences(self) -> AsyncIterator[DerivedDifference]:
        """Reports every derived object that is missing, extra, different or unreadable.

        Raises:
            StoreError: The store did not answer; what was reported is right.
        """
        self._packed = PackIndex(self._store)
        for prefix, check in (
            (ACCEPTED, self._check_accepted),
            (QUARANTINE, self._check_quarantine),
            *((root, self._check_derived) for root in _ROOTS),
        ):
            async for found in self._each(prefix, check):
                yield found
        for difference in await self._lanes.differences():
            yield difference

    async def _each(
        self, prefix: str, check: Callable[[ListedObject], Awaitable[Sequence[DerivedDifference]]]
    ) -> AsyncIterator[DerivedDifference]:
        async for page in self._store.list(prefix):
            for found in await self._intake.each(page.objects, check):
                for difference in found:
                    yield difference

    async def _check_accepted(self, listed: ListedObject) -> Sequence[DerivedDifference]:
        """Compares the three index entries of one accepted manifest."""
        match await self._store.get(listed.key):
            case NotFound():
                return ()
            case Found(info=info, body=body):
                pass
        try:
            manifest = decode_accepted(listed.key, body)
        except InvalidRecord:
            return ()  # the full pass marks it; nothing can be derived from it
        sound = VerifiedBatch(key=listed.key, manifest=manifest, body=body, date_ns=info.date_ns)
        by_time, raw = by_time_of(sound)
        found = [
            await self._compare_entry(by_time.key, by_time.body),
            await self._compare(*by_blob_of(sound)),
            # Two batches with the same bytes share this entry, so its body may name either.
            await self._compare_entry(raw.key, None),
        ]
        return [one for one in found if one is not None]

    async def _check_quarantine(self, listed: ListedObject) -> Sequence[DerivedDifference]:
        try:
            who, submitted = parse_quarantine_key(listed.key)
        except InvalidRecord:
            return ()
        found = await self._compare(*quarantine_entry(listed.key, who, submitted))
        return (found,) if found is not None else ()

    async def _compare(self, key: ObjectKey, body: bytes | None) -> DerivedDifference | None:
        match await self._store.get(key):
            case NotFound():
                return DerivedDifference(key=key, wrong=DifferenceKind.MISSING)
            case Found(body=found) if body is not None and found != body:
                return DerivedDifference(key=key, wrong=DifferenceKind.DIFFERENT)
            case Found():
                return None

    async def _compare_entry(self, key: ObjectKey, body: bytes | None) -> DerivedDifference | None:
        """Compares a by-time entry, which stands alone or in a pack."""
        found = await self._compare(key, body)
        if found is None or found.wrong is not DifferenceKind.MISSING:
            return found
        return None if await self._is_packed(key, body) else found

    async def _is_packed(self, key: ObjectKey, body: bytes | None) -> bool:
        digest = await self._packed.digest(key)
        return digest is not None and (body is None or digest == digest_of(body))

    async def _check_derived(self, listed: ListedObject) -> Sequence[DerivedDifference]:
        """Asks whether anything stands behind a derived object, or behind each entry of a pack."""
        match await self._store.get(listed.key):
            case NotFound():
                return ()
            case Found(body=body):
                pass
        try:
            entries = unpack(listed.key, body)
        except InvalidRecord as error:
            return (
                DerivedDifference(
                    key=listed.key, wrong=DifferenceKind.UNREADABLE, detail=error.reason
                ),
            )
        pack = listed.key if parse_pack_key(listed.key) is not None else None
        found = [await self._check_entry(*entry, pack) for entry in entries]
        return [one for one in found if one is not None]

    async def _check_entry(
        self, key: ObjectKey, body: bytes, pack: ObjectKey | None
    ) -> DerivedDifference | None:
        try:
            source = self._source(key, body)
            right = await self._derived(key, source)
        except InvalidRecord as error:
            return DerivedDifference(
                key=key, wrong=DifferenceKind.UNREADABLE, detail=error.reason, pack=pack
            )
        if right is None:
            return DerivedDifference(key=key, wrong=DifferenceKind.EXTRA, detail=source, pack=pack)
        if pack is not None and right != body:
            return DerivedDifference(
                key=key, wrong=DifferenceKind.DIFFERENT, detail=source, pack=pack
            )
        return None  # one that stands alone was compared from its source

    @staticmethod
    def _source(key: ObjectKey, body: bytes) -> ObjectKey:
        """Gives the manifest that a derived object says it stands for."""
        if key.startswith(ACCEPTED_BY_TIME):
            return accepted_key(decode_record(key, body, AcceptedManifest).identity)
        return ObjectKey(decode_record(key, body, BlobReference).manifest_key)

    async def _derived(self, key: ObjectKey, source: ObjectKey) -> bytes | None:
        """Gives what the source derives under this very key; None without such a source."""
        match await self._store.get(source):
            case NotFound():
                return None
            case Found(info=info, body=body):
                pass
        if source.startswith(QUARANTINE):
            who, submitted = parse_quarantine_key(source)
            place, reference = quarantine_entry(source, who, submitted)
            return reference if place == key else None
        manifest = decode_accepted(source, body)
        sound = VerifiedBatch(key=source, manifest=manifest, body=body, date_ns=info.date_ns)
        alone = {one.key: one.body for one in by_time_of(sound)}
        return dict([*alone.items(), by_blob_of(sound)]).get(key)

    # --- repairs -------------------------------------------------------------------------------

    async def repair(
        self, *, first_sequence: int | None = None
    ) -> AsyncIterator[DerivedDifference]:
        """Mends every difference and gives each one as it is mended; then make a full pass.

        Args:
            first_sequence: Where the sequences of lost registers go on whose consumer's place is
                not known.

        Raises:
            BadUsage: A register is lost and nobody tells where it goes on.
            StoreError: The store did not answer; what was mended is right.
        """
        async for lost in self._lanes.mend_registers(first_sequence):
            yield lost
        # All are found before any is mended, or a mend would hide what it caused.
        for one in [one async for one in self.differences()]:
            yield one
        await self._mend_indexes()
        await self._lanes.mend_lists()

    async def _mend_indexes(self) -> None:
        async for _ in self._each(ACCEPTED, self._index):
            pass
        async for _ in self._each(QUARANTINE, self._refer):
            pass
        for root in _DROPPED:
            leftover = [one async for one in self._each(root, self._check_derived)]
            for one in leftover:
                if one.pack is None:
                    await self._drop(one.key)
            for pack in {one.pack for one in leftover if one.pack is not None}:
                await self._cut(pack, {one.key for one in leftover if one.pack == pack})

    async def _cut(self, key: ObjectKey, wrong: set[ObjectKey]) -> None:
        """Writes a pack again without what does not belong there, then drops the old one."""
        read = await self._store.get(key)
        if isinstance(read, Found):
            for one, body in unpack(key, read.body):
                if one not in wrong:
                    await put_derived(self._store, one, body, self._intake.backoff)
            await self._drop(key)

    async def _drop(self, key: ObjectKey) -> None:
        # Deleting the current version brings the one before it back: go on until nothing stands.
        for _ in range(VERSIONS_MAX):
            match await self._store.head(key):
                case ObjectInfo(incarnation=incarnation) if incarnation is not None:
                    await self._store.delete(key, incarnation)
                case ObjectInfo() | NotFound():
                    return

    async def _index(self, listed: ListedObject) -> Sequence[DerivedDifference]:
        read = await self._store.get(listed.key)
        if isinstance(read, Found):
            try:
                manifest = decode_accepted(listed.key, read.body)
            except InvalidRecord:
                return ()
            sound = VerifiedBatch(
                key=listed.key, manifest=manifest, body=read.body, date_ns=read.info.date_ns
            )
            by_time, raw = by_time_of(sound)
            if await self._compare_entry(by_time.key, by_time.body) is not None:
                await self._put_right(by_time.key, by_time.body)
            await self._put_right(*by_blob_of(sound))
            if await self._compare_entry(raw.key, None) is not None:
                await put_derived(self._store, raw.key, raw.body, self._intake.backoff)
        return ()

    async def _put_right(self, key: ObjectKey, body: bytes) -> None:
        """Writes a derived object where it is missing or has other bytes."""
        created = await put_derived(self._store, key, body, self._intake.backoff)
        if not created and await self._compare(key, body):
            await self._store.overwrite(key, body)

    async def _refer(self, listed: ListedObject) -> Sequence[DerivedDifference]:
        try:
            who, submitted = parse_quarantine_key(listed.key)
        except InvalidRecord:
            return ()
        await self._put_right(*quarantine_entry(listed.key, who, submitted))
        return ()
