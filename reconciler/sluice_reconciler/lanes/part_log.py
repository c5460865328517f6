"""Reading and writing the parts of a lane's state.

A part is created under a fresh name before the first lane state that names it is swapped in. A
crash between the two leaves a part that no state names. The next owner deletes it.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sluice_protocol.errors import InvalidRecord, StoreUnavailable
from sluice_protocol.keys import digest_of
from sluice_protocol.outcomes import Found, ObjectInfo
from sluice_queue.errors import LaneDamaged
from sluice_queue.inspection import read_lane
from sluice_queue.lane import Lane, Runtime
from sluice_queue.write_proofs import writes_of
from sluice_reconciler.lanes.enqueued import EnqueuedBatches, EnqueuedDelta
from sluice_reconciler.lanes.parts import (
    Boot,
    LanePart,
    decode_part,
    encode_part,
    key_of_boot,
    merge_parts,
)
from sluice_reconciler.lanes.request_log import RequestLog
from sluice_reconciler.lanes.runs import PART_BOOTS_MAX, OwnedObjects, plan_merge
from sluice_reconciler.lanes.state import (
    LaneRecord,
    LaneStateDamaged,
    PartReference,
    Run,
    StoredLaneState,
    lane_key,
    part_key,
    parts_prefix,
    read_lane_state,
)
from sluice_store.port import ObjectStore

REREADS_MAX: Final = 20
"""How often a lane state is read again because its owner merged the parts that it named."""

INLINE_BOOTS_MAX: Final = 4096
"""Boots up to which a merge runs on the event loop; a larger one runs in a thread."""


class PartMissing(Exception):
    """A part that a lane state names does not exist."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(slots=True)
class PartCache:
    """The parts of one lane that were read or written before, by name; parts never change."""

    parts: dict[str, LanePart] = field(default_factory=dict)

    def keep_only(self, record: LaneRecord) -> None:
        """Drop every part that a lane state does not name."""
        named = {part.name for part in record.parts()}
        self.parts = {name: part for name, part in self.parts.items() if name in named}


async def read_part(store: ObjectStore, lane: Lane, reference: PartReference) -> LanePart:
    """Read a part.

    Raises:
        LaneStateDamaged: Its bytes are not those that the lane state names.
    """
    key = part_key(lane, reference.name)
    read = await store.get(key)
    if not isinstance(read, Found):
        raise PartMissing(reference.name)
    if digest_of(read.body) != reference.sha256:
        raise LaneStateDamaged(key, "its bytes are not those that the lane state names")
    try:
        return decode_part(key, read.body)
    except InvalidRecord as error:
        raise LaneStateDamaged(key, error.reason) from error


async def load_ledger(
    store: ObjectStore, stored: StoredLaneState, cache: PartCache, of: Boot | None = None
) -> EnqueuedBatches:
    """Read the parts that a lane state names, and return the ledger.

    Parts in `cache` are not read again, and others are added to it. With `of`, only parts that may
    contain this boot are read.
    """
    record = stored.record
    cache.keep_only(record)
    runs: list[list[LanePart]] = []
    for run in record.runs:
        parts: list[LanePart] = []
        for one in run:
            if of is not None and not one.first <= key_of_boot(of)[0] <= one.last:
                continue
            if one.name not in cache.parts:
                cache.parts[one.name] = await read_part(store, record.of_lane, one)
            parts.append(cache.parts[one.name])
        runs.append(parts)
    return EnqueuedBatches(
        runs,
        record.recent,
        settled_s=record.settled_s,
        unsettled=record.unsettled,
    )


async def read_ledger(
    store: ObjectStore, lane: Lane, cache: PartCache | None = None, of: Boot | None = None
) -> tuple[EnqueuedBatches, bool]:
    """Read what a lane was given, without taking the lane over.

    Batches of an append intent are included if the register contains the append. If the register is
    damaged, they are not: the lane is halted until a rebuild enqueues every batch again. `cache`
    and `of` are as in `load_ledger`. Return also whether a process owns the lane, or owned it and
    did not release it.
    """
    cache = cache if cache is not None else PartCache()
    for _ in range(REREADS_MAX):
        stored = await read_lane_state(store, lane)
        if stored is None:
            return EnqueuedBatches(), False
        try:
            ledger = await load_ledger(store, stored, cache, of)
        except PartMissing as missing:
            await refuse_if_current(store, stored, missing)
            continue
        if stored.record.pending and await _is_appended(store, lane, stored.record):
            for batch in stored.record.pending:
                ledger.add(batch)
        return ledger, stored.record.has_owner
    raise StoreUnavailable("read", lane_key(lane), "the lane state changed during each read")


async def refuse_if_current(
    store: ObjectStore, stored: StoredLaneState, missing: PartMissing
) -> None:
    """Raise `LaneStateDamaged` if a lane state is still current, so that its part is lost.

    Otherwise it was replaced after it was read: its parts may be merged.
    """
    lane = stored.record.of_lane
    now = await store.head(lane_key(lane))
    if isinstance(now, ObjectInfo) and now.etag == stored.etag:
        raise LaneStateDamaged(part_key(lane, missing.name), "part is missing") from missing


async def check_parts(store: ObjectStore, stored: StoredLaneState, *, read: bool) -> None:
    """Check that every part that a lane state names exists, if that state is still current.

    With `read`, also compare the bytes of each part with its digest.
    """
    named = list(stored.record.parts())
    if not named:
        return
    lane = stored.record.of_lane
    prefix = parts_prefix(lane)
    listed = {
        one.key.removeprefix(prefix) async for page in store.list(prefix) for one in page.objects
    }
    for one in named:
        try:
            if one.name not in listed:
                # An owner that merged it meanwhile has replaced the state.
                await refuse_if_current(store, stored, PartMissing(one.name))
                return
            if read:
                await read_part(store, lane, one)
        except PartMissing as missing:
            await refuse_if_current(store, stored, missing)
            return


async def _is_appended(store: ObjectStore, lane: Lane, record: LaneRecord) -> bool:
    """Return True if the register contains the append whose intent the state contains."""
    try:
        view = await read_lane(store, lane.queue, lane.lane, entries_max=0)
    except LaneDamaged:
        return False
    writer = view.state.writer(bytes.fromhex(record.producer_id))
    return writer is not None and writes_of(writer.counter) > record.writes


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRuns:
    """The runs of the next lane state, whose parts all exist.

    `delta` has the changes that the newest run contains; None without changes.
    """

    runs: tuple[Run, ...]
    delta: EnqueuedDelta | None


class LaneLog:
    """Writes the parts of one owner of one lane, and deletes those that it replaced."""

    def __init__(
        self, store: ObjectStore, lane: Lane, term: int, cache: PartCache, runtime: Runtime
    ) -> None:
        self._objects = OwnedObjects(store, parts_prefix(lane), term, runtime)
        self._cache = cache
        self.requests = RequestLog(store, lane, term, runtime)

    async def spill(
        self, ledger: EnqueuedBatches, runs: tuple[Run, ...], now_s: int
    ) -> WrittenRuns:
        """Write the changes of a ledger as a new run, and merge runs.

        Nothing names the new parts until the caller has swapped in a lane state with the result.
        `now_s` is the store's clock, at or after the last enqueueing.
        """
        await self._objects.delete_unnamed()
        delta = ledger.delta(now_s)
        if delta is None:
            return WrittenRuns(runs=runs, delta=None)
        boots = [sum(one.lives for one in run) for run in runs]
        merged = plan_merge([*boots, len(delta.part)])
        kept = runs[: len(runs) + 1 - merged] if merged else runs
        inputs = [self._cache.parts[one.name] for run in runs[len(kept) :] for one in run]
        if not inputs and len(delta.part) <= PART_BOOTS_MAX:
            outputs = [delta.part]
        else:
            outputs = await self._merge([*inputs, delta.part])
        run = tuple([await self._write(part) for part in outputs])
        return WrittenRuns(runs=(*kept, run), delta=delta)

    async def rewrite(
        self, ledger: EnqueuedBatches, runs: tuple[Run, ...], now_s: int, settled_s: int
    ) -> WrittenRuns:
        """Write the changes of a ledger and all runs as one run without the idle boots.

        Boots that were given no batch since `settled_s` are left out; otherwise as `spill`.
        """
        await self._objects.delete_unnamed()
        delta = ledger.delta(now_s)
        inputs = [self._cache.parts[one.name] for run in runs for one in run]
        if delta is not None:
            inputs.append(delta.part)
        outputs = await self._merge(inputs, settled_s)
        run = tuple([await self._write(part) for part in outputs])
        return WrittenRuns(runs=(run,) if run else (), delta=delta)

    async def _merge(self, parts: Sequence[LanePart], settled_s: int = 0) -> list[LanePart]:
        def work() -> list[LanePart]:
            return list(merge_parts(parts, PART_BOOTS_MAX, retired_before_s=settled_s))

        if sum(map(len, parts)) <= INLINE_BOOTS_MAX:
            return work()
        return await asyncio.to_thread(work)

    async def _write(self, part: LanePart) -> PartReference:
        body = encode_part(part)
        name = await self._objects.create(body)
        self._cache.parts[name] = part
        first, last = part.span
        return PartReference(
            name=name, sha256=digest_of(body), lives=len(part), first=first, last=last
        )

    def parts_of(self, record: LaneRecord) -> list[list[LanePart]]:
        """Return the parts that a lane state of this owner names."""
        return [[self._cache.parts[one.name] for one in run] for run in record.runs]

    def swapped(self, record: LaneRecord) -> None:
        """Note that this state is current, so that no other part of this owner is named again."""
        self._objects.swapped({part.name for part in record.parts()})
        self._cache.keep_only(record)

    async def collect(self, record: LaneRecord) -> None:
        """Delete what earlier owners left and no lane state will ever name.

        `record` is the state that this owner swapped in.
        """
        await self._objects.collect({part.name for part in record.parts()})
        await self.requests.collect(record)
