"""Reading and writing the parts of a lane's state.

A part is created under a fresh name before the first lane state that names it is swapped in. A
crash between the two leaves a part that no state names. The next owner deletes it.

Every few hundred batches add a run. Runs of about the same size are merged (a log-structured merge
tree, size-tiered): `FAN_IN` runs of one tier, and all later ones, become one run of the next tier,
or a smaller one if they contain the same boots. A changed boot is thereby rewritten once per tier,
and a boot that does not change is rewritten only with as many that do.

Only adjacent runs are merged, and the result takes their place, so a newer state of a boot is
always in a later run than an older one. Requests of combined batches are stored in the same way.
"""

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from sluice_protocol.errors import InvalidRecord, StoreError, StoreUnavailable
from sluice_protocol.keys import digest_of
from sluice_protocol.outcomes import Found, ObjectInfo
from sluice_protocol.units import ObjectKey
from sluice_queue.errors import LaneDamaged
from sluice_queue.inspection import read_lane
from sluice_queue.lane import Lane
from sluice_queue.register import writes_of
from sluice_queue.register_client import Runtime
from sluice_reconciler.lanes.enqueued import EnqueuedBatches, EnqueuedDelta
from sluice_reconciler.lanes.parts import (
    Boot,
    LanePart,
    decode_part,
    encode_part,
    key_of_boot,
    merge_parts,
)
from sluice_reconciler.lanes.state import (
    LaneRecord,
    LaneStateDamaged,
    PartReference,
    Run,
    StoredLaneState,
    lane_key,
    part_key,
    part_name,
    parts_prefix,
    read_lane_state,
    term_of_part,
)
from sluice_store.port import ObjectStore
from sluice_store.retry import WRITE_RETRY, CurrentDeletion, create_known, delete_current_version

RECENT_MAX: Final = 512
"""Recent batches in the lane state above which the next write moves them into a part."""

FAN_IN: Final = 8
"""Runs of one tier that are merged."""

PART_BOOTS_MAX: Final = 65_536
"""Boots in one part at most, about 3 MB. A larger run has several parts."""


def tier_of(boots: int) -> int:
    """Return the tier of a run; a run of the next one has up to `FAN_IN` times as many boots."""
    tier, bound = 0, 2 * RECENT_MAX
    while boots > bound:
        tier, bound = tier + 1, bound * FAN_IN
    return tier


def plan_merge(boots: Sequence[int]) -> int:
    """Return how many of the newest runs are merged now; 0 for none.

    The numbers of boots are the oldest run first.
    """
    newest_first = [tier_of(one) for one in reversed(boots)]
    # A run in front of a larger one is merged together with it.
    tiers = list(accumulate(newest_first, max))
    for tier in sorted(set(tiers)):
        if tiers.count(tier) >= FAN_IN:
            return sum(one <= tier for one in tiers)
    return 0


def nameable(listed: Iterable[str], named: Collection[str], owner_term: int) -> set[str]:
    """Return the listed objects that a lane state names now, or that some owner may yet name.

    An owner names only objects that it wrote, or that the state named when it took the lane over.
    The owner of `owner_term` has swapped a state in, so no other owner of its term or an earlier
    one can swap again. An object of an earlier term that this state does not name is therefore
    never named. Those of this term and of later ones are kept: their writers may be about to name
    them. `named` are the names in the state that the owner of this term swapped in.
    """
    return {name for name in listed if name in named or not _is_before(name, owner_term)}


def _is_before(name: str, owner_term: int) -> bool:
    term = term_of_part(name)
    return term is not None and term < owner_term


class OwnedObjects:
    """The objects that one owner writes for the states of its lane, under fresh names."""

    def __init__(self, store: ObjectStore, prefix: str, term: int, runtime: Runtime) -> None:
        self._store = store
        self._prefix = prefix
        self._term = term
        self._runtime = runtime
        self._known: set[str] = set()
        self._unnamed: set[str] = set()

    async def create(self, body: bytes) -> str:
        """Store an object, and return its name for the next lane state."""
        name = part_name(self._term, self._runtime.ids.ulid())
        self._known.add(name)
        backoff = self._runtime.backoff(WRITE_RETRY)
        key = ObjectKey(self._prefix + name)
        await create_known(self._store, key, body, backoff, retry_unsent=True)
        return name

    def swapped(self, named: set[str]) -> None:
        """Note that the current state names these objects, and that none will name another."""
        self._unnamed |= self._known - named
        self._known = named

    async def delete_unnamed(self) -> None:
        """Delete what this owner replaced, after readers had the time of some flushes."""
        if await self._delete(self._unnamed):
            self._unnamed.clear()

    async def collect(self, named: Collection[str]) -> None:
        """Delete what earlier owners left and no lane state will ever name.

        An error is left to the next owner, because no work depends on the deletion.
        """
        with contextlib.suppress(StoreError):
            async for page in self._store.list(self._prefix):
                listed = {one.key.removeprefix(self._prefix) for one in page.objects}
                await self._delete(listed - nameable(listed, named, self._term))

    async def _delete(self, names: Iterable[str]) -> bool:
        """Delete objects; return False after an error, for which the next call tries the rest."""
        with contextlib.suppress(StoreError):
            for name in sorted(names):
                key = ObjectKey(self._prefix + name)
                if await delete_current_version(self._store, key) is CurrentDeletion.UNVERSIONED:
                    break  # the others cannot be deleted either
                self._unnamed.discard(name)
            return True
        return False


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


async def load_enqueued(
    store: ObjectStore, stored: StoredLaneState, cache: PartCache, of: Boot | None = None
) -> EnqueuedBatches:
    """Read the parts that a lane state names, and return what the lane was given.

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
        settled_lanes=[(one.lanes, one.lane, one.settled_s) for one in record.settled_lanes],
        unsettled=record.unsettled,
    )


async def read_enqueued(
    store: ObjectStore, lane: Lane, cache: PartCache | None = None, of: Boot | None = None
) -> tuple[EnqueuedBatches, bool]:
    """Read what a lane was given, without taking the lane over.

    Batches of an append intent are included if the register contains the append. If the register is
    damaged, they are not: the lane is halted until a rebuild enqueues every batch again. `cache`
    and `of` are as in `load_enqueued`. Return also whether a process owns the lane, or owned it and
    did not release it.
    """
    cache = cache if cache is not None else PartCache()
    for _ in range(REREADS_MAX):
        stored = await read_lane_state(store, lane)
        if stored is None:
            return EnqueuedBatches(), False
        try:
            enqueued = await load_enqueued(store, stored, cache, of)
        except PartMissing as missing:
            await refuse_if_current(store, stored, missing)
            continue
        if stored.record.pending and await _is_appended(store, lane, stored.record):
            for batch in stored.record.pending:
                enqueued.add(batch)
        return enqueued, stored.record.has_owner
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

    With `read`, also compare the bytes of each part with its sha256.
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

    async def spill(
        self, enqueued: EnqueuedBatches, runs: tuple[Run, ...], now_s: int
    ) -> WrittenRuns:
        """Write what changed as a new run, and merge runs.

        Nothing names the new parts until the caller has swapped in a lane state with the result.
        `now_s` is the store's clock, at or after the last enqueueing.
        """
        await self._objects.delete_unnamed()
        delta = enqueued.delta(now_s)
        if delta is None:
            return WrittenRuns(runs=runs, delta=None)
        boots = [sum(one.boots for one in run) for run in runs]
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
        self, enqueued: EnqueuedBatches, runs: tuple[Run, ...], now_s: int, settled_s: int
    ) -> WrittenRuns:
        """Write what changed and all runs as one run without the idle boots.

        Boots that were given no batch since `settled_s` are left out; otherwise as `spill`.
        """
        await self._objects.delete_unnamed()
        delta = enqueued.delta(now_s)
        inputs = [self._cache.parts[one.name] for run in runs for one in run]
        if delta is not None:
            inputs.append(delta.part)
        outputs = await self._merge(inputs, settled_s)
        run = tuple([await self._write(part) for part in outputs])
        return WrittenRuns(runs=(run,) if run else (), delta=delta)

    async def write_run(self, parts: Sequence[LanePart]) -> Run:
        """Write parts, the oldest first, as one run that no lane state names yet."""
        return tuple([await self._write(part) for part in await self._merge(parts)])

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
            name=name, sha256=digest_of(body), boots=len(part), first=first, last=last
        )

    def parts_of(self, record: LaneRecord) -> list[list[LanePart]]:
        """Return the parts that a lane state of this owner names."""
        return [[self._cache.parts[one.name] for one in run] for run in record.runs]

    def swapped(self, record: LaneRecord) -> None:
        """Note that this state is current, so that no other part of this owner is named again."""
        self._objects.swapped({part.name for part in record.parts()})
        self._cache.keep_only(record)

    async def collect(self, record: LaneRecord) -> None:
        """Delete the parts that earlier owners left and no lane state will ever name.

        `record` is the state that this owner swapped in.
        """
        await self._objects.collect({part.name for part in record.parts()})
