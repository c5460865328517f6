"""Rebuilding the registers, states and work lists of lanes.

A lane whose register is lost or damaged has also lost its sequence numbers. The new register
continues one above the highest sequence that the lane's consumer persisted; for Spark's queue the
lake contains it. The lane's state is emptied, so every batch is enqueued again, and the consumer
drops the batches that it has. The same is done for a register whose next sequence is not
above what its consumer persisted: it is not the register that the consumer read from.

A consumer that still runs may have read the old register and persist a position of it later. It is
therefore fenced before the position is read: `fence` refuses what it has prepared, and a register
that can still be decoded gets the next epoch first. The new register is then written only over
that state.

Before something damaged is replaced, its bytes are copied to a key that names it as damaged. The
segments of the old register are moved in the same way, because the new register assigns sequences
that name the same segment keys. Only an operator deletes these copies.

A lost work list is written again with every batch of the lane accepted in the time span of its
entry. The index by time names the batches of a span, so the cost of a list does not depend on how
many batches are older. The manifests under `accepted/` decide what a list contains.
`sluice rebuild` repairs the index before it repairs lists. Lists that are still incomplete are
written from one listing of `accepted/`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.keys import (
    ACCEPTED,
    ACCEPTED_BY_TIME,
    QUEUE,
    damaged_copy_key,
    digest_of,
    hour_path,
    lane_of,
)
from sluice_protocol.manifests import AcceptedManifest, WorkList, encode_record
from sluice_protocol.outcomes import (
    Applied,
    CreateOutcome,
    Found,
    GetOutcome,
    NotFound,
    ReplaceOutcome,
)
from sluice_protocol.units import NS_PER_S, ETag, ObjectKey, UnixNs
from sluice_queue.errors import LaneDamaged, WorkListMissing
from sluice_queue.inspection import read_lane
from sluice_queue.lane import Lane, list_lanes
from sluice_queue.register import (
    SEALED,
    Descriptor,
    Register,
    RegisterRead,
    decode_register,
    encode_register,
    open_epoch,
    rebuilt_later,
)
from sluice_queue.register_client import RegisterClient, Runtime
from sluice_queue.worklists import read_work_list
from sluice_reconciler.concurrency import RequestLimit
from sluice_reconciler.indexes import (
    DerivedDifference,
    DifferenceKind,
    compare_object,
    decode_by_time,
    first_instant,
    parse_source,
    put_derived,
    read_source,
)
from sluice_reconciler.lanes.defects import DefectKind, LaneDefect, defect_text, find_defect
from sluice_reconciler.lanes.new_batches import identity_of_key
from sluice_reconciler.lanes.state import (
    LANE_PARTS,
    LaneRecord,
    LaneStateDamaged,
    damaged_state_key,
    decode_lane,
    encode_lane,
    lane_key,
    parts_prefix,
    term_of_part,
)
from sluice_store.port import ObjectStore
from sluice_store.retry import (
    WRITE_RETRY,
    Backoff,
    RetryBudget,
    delete_versions,
    overwrite_known,
)

REBUILD_NS: Final = 30 * NS_PER_S
"""Time from the writing of a register until the lane's state is empty; a longer one is confirmed.

A full pass that began before, with the former state of the lane, has left out batches.
"""
BATCHES_TOGETHER: Final = 200_000
"""Batches of the lists that are written from one reading of the index; about 300 bytes each."""

Span = tuple[int, int]
"""First and last time of acceptance, both inclusive, Unix ns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostList:
    """A queue entry whose work list is missing or unreadable."""

    lane: Lane
    entry: Descriptor

    @property
    def span(self) -> Span:
        """The times of acceptance of its batches."""
        return self.entry.first_accepted_at_ns, self.entry.last_accepted_at_ns


class _Named:
    """The keys of accepted manifests by lane, in the order of their times."""

    def __init__(self, found: Iterable[tuple[int, int, ObjectKey]]) -> None:
        """Create it from lanes, times and keys, which may be repeated."""
        self._keys: dict[int, list[tuple[int, ObjectKey]]] = {}
        for lane, at_ns, key in sorted(set(found)):
            self._keys.setdefault(lane, []).append((at_ns, key))

    def of(self, lost: LostList) -> list[ObjectKey]:
        """Return the keys of the batches that a list may contain, in key order."""
        first_ns, last_ns = lost.span
        keys = self._keys.get(lost.lane.lane, [])
        since = bisect_left(keys, first_ns, key=lambda one: one[0])
        until = bisect_right(keys, last_ns, key=lambda one: one[0])
        return sorted({key for _, key in keys[since:until]})


class LostLists:
    """Writes lost work lists of one store again."""

    def __init__(
        self, store: ObjectStore, requests: RequestLimit, lanes_per_queue: int, backoff: Backoff
    ) -> None:
        self._store = store
        self._requests = requests
        self._lanes_per_queue = lanes_per_queue
        self._backoff = backoff

    async def write(self, lost: Iterable[LostList]) -> None:
        """Write lists; each may contain more batches than before, which its consumer drops.

        A list with batches that are not accepted is an error after all others are written.
        """
        left: list[LostList] = []
        for some in _divide(sorted(lost, key=lambda one: one.span)):
            named = _Named([one async for one in self._indexed(some)])
            left += [one for one in some if await self._write(one, named)]
        if not left:
            return
        named = _Named([one async for one in self._accepted(left)])
        problems = [(one, await self._write(one, named)) for one in left]
        for one, problem in problems:
            if problem:
                raise InvalidRecord(one.entry.location, problem)

    async def _write(self, lost: LostList, named: _Named) -> str:
        """Write one list if all its batches are named; return why not otherwise."""
        first_ns, last_ns = lost.span
        read = partial(read_source, self._store)
        sources = await self._requests.each(named.of(lost), read)
        found = [one.manifest for one in sources if one is not None]
        batches = tuple(one for one in found if first_ns <= one.accepted_at_unix_ns <= last_ns)
        problem = why_incomplete(lost.entry, batches)
        if not problem:
            record = WorkList(queue=lost.lane.queue, lane=lost.lane.lane, batches=batches)
            body = encode_record(record)
            await overwrite_known(self._store, lost.entry.location, body, self._backoff)
        return problem

    async def _indexed(self, some: Sequence[LostList]) -> AsyncIterator[tuple[int, int, ObjectKey]]:
        """Return lane, time and key of the batches of some lists that are in the index by time."""
        lanes = {one.lane.lane for one in some}
        for first_ns, last_ns in merge_time_spans(one.span for one in some):
            async for found in self._requests.read(
                self._store,
                ACCEPTED_BY_TIME,
                partial(_begins_until, last_ns),
                start_after=f"{ACCEPTED_BY_TIME}{hour_path(first_ns)}/{first_ns:020d}",
                end_at=f"{ACCEPTED_BY_TIME}{hour_path(last_ns)}/:",
            ):
                for place, body in found:
                    try:
                        entries = decode_by_time(place, body)
                    except InvalidRecord:
                        continue  # a rebuild reports it and writes its entries alone
                    for key, manifest in entries.items():
                        lane = lane_of(manifest.agent_id, self._lanes_per_queue)
                        if lane in lanes:
                            yield lane, manifest.accepted_at_unix_ns, key

    async def _accepted(
        self, some: Sequence[LostList]
    ) -> AsyncIterator[tuple[int, int, ObjectKey]]:
        """Return lane, time and key of the batches of some lists, by reading every manifest."""
        lanes = {one.lane.lane for one in some}
        spans = merge_time_spans(one.span for one in some)

        def lane_at(key: ObjectKey) -> int | None:
            who = identity_of_key(key)
            return None if who is None else lane_of(who.agent_id, self._lanes_per_queue)

        async for found in self._requests.read(
            self._store, ACCEPTED, lambda key: lane_at(key) in lanes
        ):
            for key, body in found:
                source = parse_source(key, body)
                if source is None:
                    continue
                at_ns = source.manifest.accepted_at_unix_ns
                if any(first_ns <= at_ns <= last_ns for first_ns, last_ns in spans):
                    yield lane_of(source.manifest.agent_id, self._lanes_per_queue), at_ns, key


def why_incomplete(entry: Descriptor, batches: Sequence[AcceptedManifest]) -> str:
    """Return why batches cannot be all those that the list of an entry contained, or nothing."""
    if len(batches) < entry.batches:
        return "fewer batches are accepted than it contained"
    times = {one.accepted_at_unix_ns for one in batches}
    if not {entry.first_accepted_at_ns, entry.last_accepted_at_ns} <= times:
        return "its first or its last batch is not accepted"
    return ""


def merge_time_spans(spans: Iterable[Span]) -> list[Span]:
    """Return the spans in order, with those that overlap as one."""
    merged: list[Span] = []
    for first_ns, last_ns in sorted(spans):
        if merged and first_ns <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], last_ns)
        else:
            merged.append((first_ns, last_ns))
    return merged


def _begins_until(last_ns: int, key: ObjectKey) -> bool:
    first_ns = first_instant(key)
    return first_ns is not None and first_ns <= last_ns


def _divide(lost: Iterable[LostList]) -> Iterator[list[LostList]]:
    """Divide lists so that the keys of the batches of each part fit into memory."""
    part, batches = list[LostList](), 0
    for one in lost:
        if part and batches + one.entry.batches > BATCHES_TOGETHER:
            yield part
            part, batches = [], 0
        part.append(one)
        batches += one.entry.batches
    if part:
        yield part


Fence = Callable[[Lane], Awaitable[int]]
"""Refuses what the consumer of a lane has prepared, and returns the sequence that it persisted."""

_DIFFERENCES: Final = {
    DefectKind.REGISTER_MISSING: DifferenceKind.MISSING,
    DefectKind.REGISTER_REPLACED: DifferenceKind.DIFFERENT,
    DefectKind.REGISTER_DAMAGED: DifferenceKind.UNREADABLE,
    DefectKind.STATE_DAMAGED: DifferenceKind.UNREADABLE,
}


def _omitted(lane: Lane, detail: str) -> DerivedDifference:
    return DerivedDifference(key=lane.key, wrong=DifferenceKind.UNREADABLE, detail=detail)


class LaneRebuild:
    """The registers, lane states and work lists of one store."""

    def __init__(
        self,
        store: ObjectStore,
        requests: RequestLimit,
        lanes: Sequence[Lane],
        runtime: Runtime,
        persisted: Mapping[Lane, int],
        fence: Fence | None = None,
    ) -> None:
        self._store = store
        self._requests = requests
        self._lanes = lanes
        self._lanes_per_queue = 1 + max((lane.lane for lane in lanes), default=0)
        self._runtime = runtime
        self._persisted = dict(persisted)
        self._fence = fence

    async def differences(self) -> list[DerivedDifference]:
        """Return what is lost or damaged: registers, lane states, work lists of pending entries."""
        defects = [one for lane in self._lanes if (one := await self._defect(lane)) is not None]
        found = [
            DerivedDifference(key=one.key, wrong=_DIFFERENCES[one.kind], detail=defect_text(one))
            for one in defects
        ]
        omitted = await self._damaged_omitted()
        found += [_omitted(lane, damage.reason) for lane, damage in omitted.items()]
        halted = {*(one.lane for one in defects), *omitted}
        for lane in await list_lanes(self._store):
            if lane in halted:
                continue
            try:
                lost = await self._lost_lists(lane)
            except LaneDamaged as error:
                detail = f"{error.reason}; repeat the command with --queues {lane.queue}"
                unreadable = DifferenceKind.UNREADABLE
                found.append(DerivedDifference(key=lane.key, wrong=unreadable, detail=detail))
                continue
            for entry in lost:
                detail = f"entry {entry.sequence} of {lane.queue}.{lane.lane:03d}"
                missing = DifferenceKind.MISSING
                found.append(DerivedDifference(key=entry.location, wrong=missing, detail=detail))
        return found

    async def _defect(self, lane: Lane) -> LaneDefect | None:
        persisted = self._persisted.get(lane, 0)
        return await find_defect(self._store, lane, persisted=persisted, segments=True)

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

    async def repair_lanes(self, first_sequence: int | None) -> AsyncIterator[DerivedDifference]:
        """Replace lost and damaged registers and lane states; return the difference of each.

        Raise `BadUsage` if a register is lost, and the sequence where it continues is not known.
        """
        for lane in self._lanes:
            defect = await self._defect(lane)
            if defect is None and await self._is_unused(lane):
                # The first entries of a lane may be in a commit that is not made yet.
                await self._read_persisted(lane)
                defect = await self._defect(lane)
            if defect is None:
                continue
            if defect.kind is DefectKind.STATE_DAMAGED:
                yield await self._replace_state(lane, defect)
            else:
                yield await self._replace_register(lane, defect, first_sequence)
        for lane, damage in (await self._damaged_omitted()).items():
            yield await self._seal_omitted(lane, damage)

    async def _damaged_omitted(self) -> dict[Lane, LaneDamaged]:
        """Return the lanes of these queues with a damaged register that the layout omits."""
        queues = {lane.queue for lane in self._lanes}
        found: dict[Lane, LaneDamaged] = {}
        for lane in await list_lanes(self._store):
            if lane.queue in queues and lane.lane >= self._lanes_per_queue:
                try:
                    await read_lane(self._store, lane.queue, lane.lane)
                except LaneDamaged as error:
                    found[lane] = error
        return found

    async def _seal_omitted(self, lane: Lane, damage: LaneDamaged) -> DerivedDifference:
        """Write the register of a lane again that no layout uses: it was emptied and sealed."""
        kept = await self._keep_copy(lane, lane.key)
        await self._move_segments(lane)
        after = max(one.after for one in self._lanes)
        state = Register(
            revision=1,
            nonce=self._runtime.id_bytes(),
            layout=SEALED,
            next_sequence=after + 1,
            acked_through=after,
        )
        etag = await self._damaged_etag(lane)
        outcome = await self._store.replace(lane.key, encode_register(state), if_match=etag)
        if not isinstance(outcome, Applied):
            raise _written_meanwhile(lane.key)
        return _omitted(lane, f"{damage.reason}; kept as {kept}; replaced by an empty one")

    async def _is_unused(self, lane: Lane) -> bool:
        """Return True if a lane has no register, and its consumer has persisted nothing of it."""
        if self._persisted.get(lane) != 0:
            return False
        return isinstance(await self._store.get(lane.key), NotFound)

    async def _read_persisted(self, lane: Lane) -> None:
        """Read again what the consumer of a lane has persisted; after this it persists no more."""
        if self._fence is not None and lane in self._persisted:
            self._persisted[lane] = await self._fence(lane)

    async def _replace_state(self, lane: Lane, defect: LaneDefect) -> DerivedDifference:
        kept = await self._empty_state(lane, defect.key)
        copied = f"kept as {kept}" if kept is not None else "no copy, because it does not exist"
        return DerivedDifference(
            key=defect.key,
            wrong=_DIFFERENCES[defect.kind],
            detail=f"{defect.detail}; {copied}; every batch is enqueued again",
        )

    async def _replace_register(
        self, lane: Lane, defect: LaneDefect, first_sequence: int | None
    ) -> DerivedDifference:
        """Write a register that continues behind its consumer, then empty the state of the lane.

        In this order a command that was interrupted can be repeated: the old state counts appends
        that the new register does not contain, so the lane stays halted.
        """
        if lane not in self._persisted and (first_sequence is None or first_sequence < 1):
            raise BadUsage(
                "register of a lane is lost or damaged: give --first-sequence, one above the"
                f" highest sequence that its consumer persisted, register=`{lane.key}`"
            )
        kept = None
        if defect.kind is DefectKind.REGISTER_DAMAGED:
            kept = await self._keep_copy(lane, lane.key)
        fenced = await self._fence_consumer(lane)
        await self._read_persisted(lane)
        first = self._persisted[lane] + 1 if lane in self._persisted else first_sequence or 1
        first = max(first, lane.after + 1)  # lower ones are of earlier layouts
        await self._move_segments(lane)
        state = Register(
            revision=1,
            nonce=self._runtime.id_bytes(),
            layout=lane.layout,
            next_sequence=first,
            acked_through=first - 1,
            rebuilt_ns=UnixNs(await self._now_ns(lane) + REBUILD_NS),
        )
        await self._write_register(lane, defect, fenced, state)
        await self._empty_state(lane)
        await self._confirm(lane, state.rebuilt_ns)
        where = "" if kept is None else f"; kept as {kept}"
        return DerivedDifference(
            key=lane.key,
            wrong=_DIFFERENCES[defect.kind],
            detail=f"{defect.detail}{where}; replaced; sequences continue at {first}",
        )

    async def _now_ns(self, lane: Lane) -> UnixNs:
        """Return the store's clock."""
        read = await self._store.get(lane.key)
        return read.info.date_ns if isinstance(read, Found) else read.date_ns

    async def _confirm(self, lane: Lane, rebuilt_ns: UnixNs) -> None:
        """Name a later time in the register if the state of the lane was emptied after it."""
        client = RegisterClient(self._store, lane, self._runtime)
        budget = RetryBudget("swap", lane.key, self._runtime.backoff(WRITE_RETRY))
        while (now_ns := await self._now_ns(lane)) >= rebuilt_ns:
            seen = await client.read()
            if seen is None:
                raise _written_meanwhile(lane.key)
            later = rebuilt_later(seen.state, now_ns, self._runtime.id_bytes())
            if isinstance(await client.swap(seen, later), Applied):
                return
            await budget.wait_or_raise()

    async def _fence_consumer(self, lane: Lane) -> RegisterRead | None:
        """Claim the next epoch of a register that can be decoded; return the state with the claim.

        A register that was restored from a copy may still name a running consumer.
        """
        client = RegisterClient(self._store, lane, self._runtime)
        try:
            seen = await client.read()
        except LaneDamaged:
            return None
        if seen is None:
            return None
        claim = open_epoch(seen.state, self._runtime.id_bytes(), self._runtime.id_bytes())
        outcome = await client.swap(seen, claim)
        if not isinstance(outcome, Applied):
            raise _written_meanwhile(lane.key)
        return RegisterRead(state=claim, etag=outcome.etag)

    async def _write_register(
        self, lane: Lane, defect: LaneDefect, fenced: RegisterRead | None, state: Register
    ) -> None:
        body = encode_register(state)
        outcome: CreateOutcome | ReplaceOutcome
        if fenced is None and defect.kind is DefectKind.REGISTER_MISSING:
            outcome = await self._store.create(lane.key, body)
        else:
            etag = await self._damaged_etag(lane) if fenced is None else fenced.etag
            outcome = await self._store.replace(lane.key, body, if_match=etag)
        if not isinstance(outcome, Applied):
            raise _written_meanwhile(lane.key)

    async def _damaged_etag(self, lane: Lane) -> ETag:
        """Return the ETag of a register that cannot be decoded; another rebuild may replace it.

        Raises:
            BadUsage: It can be decoded, or there is none.
        """
        read = await self._store.get(lane.key)
        if isinstance(read, Found):
            try:
                decode_register(lane.key, read.body)
            except LaneDamaged:
                return read.info.etag
        raise _written_meanwhile(lane.key)

    async def _empty_state(self, lane: Lane, damaged: ObjectKey | None = None) -> ObjectKey | None:
        """Write an empty state over the one that is read; return the key of a damaged one's copy.

        The next owner deletes the parts of the old state. `damaged` is the lane state, or the part
        of it, that is damaged; a state that is sound again is then kept.
        """
        key, kept = lane_key(lane), None
        nonce = self._runtime.id_bytes().hex()
        budget = RetryBudget("swap", key, self._runtime.backoff(WRITE_RETRY))
        while True:
            read = await self._store.get(key)
            record, broken = await self._emptied(lane, read, nonce)
            if record is None:
                return kept
            if damaged is not None and await self._defect(lane) is None:
                raise _written_meanwhile(key)
            if (broken := damaged or broken) is not None:
                kept = await self._keep_copy(lane, broken) or kept
            body = encode_lane(record)
            outcome: CreateOutcome | ReplaceOutcome
            if isinstance(read, Found):
                outcome = await self._store.replace(key, body, if_match=read.info.etag)
            else:
                outcome = await self._store.create(key, body)
            if isinstance(outcome, Applied):
                return kept
            await budget.wait_or_raise(outcome)

    async def _emptied(
        self, lane: Lane, read: GetOutcome, nonce: str
    ) -> tuple[LaneRecord | None, ObjectKey | None]:
        """Return the empty state after the one that was read, and the key of a damaged one.

        There is none if the state that was read has the nonce: it was written by a lost response.
        """
        key, broken = lane_key(lane), None
        term = closed_for = 0
        if isinstance(read, Found):
            try:
                before = decode_lane(key, read.body)
            except LaneStateDamaged:
                broken = key
                term = 1 + await self._last_term(lane)
            else:
                if before.nonce == nonce:
                    return None, None
                term, closed_for = before.owner_term + 1, before.closed_for
        record = LaneRecord(
            queue=lane.queue,
            lane=lane.lane,
            layout=lane.layout,
            nonce=nonce,
            producer_id=self._runtime.id_bytes().hex(),
            owner_term=term,
            closed_for=closed_for,
        )
        return record, broken

    async def _last_term(self, lane: Lane) -> int:
        """Return the highest owner term that wrote a part; 0 if there is no part."""
        prefix, last = parts_prefix(lane), 0
        async for page in self._store.list(prefix):
            terms = [term_of_part(one.key.removeprefix(prefix)) for one in page.objects]
            last = max([last, *(term for term in terms if term is not None)])
        return last

    async def _keep_copy(self, lane: Lane, key: ObjectKey) -> ObjectKey | None:
        """Copy a damaged object to a key that names it as such; only an operator deletes it."""
        read = await self._store.get(key)
        if not isinstance(read, Found):
            return None
        sha256 = digest_of(read.body)
        of_state = key == lane_key(lane) or key.startswith(LANE_PARTS)
        copy = (
            damaged_state_key(lane, sha256)
            if of_state
            else damaged_copy_key(lane.queue, lane.lane, sha256)
        )
        await put_derived(self._store, copy, read.body, self._runtime.backoff(WRITE_RETRY))
        if await compare_object(self._store, copy, read.body) is not None:
            raise InvalidRecord(copy, "the copy of a damaged object has other bytes")
        return copy

    async def _move_segments(self, lane: Lane) -> None:
        """Copy and delete the segments of a lane, whose keys the new register will use again."""
        async for page in self._store.list(f"{QUEUE}{lane.queue}.{lane.lane:03d}/segments/"):
            for one in page.objects:
                await self._keep_copy(lane, one.key)
                await delete_versions(self._store, one.key)

    async def repair_lists(self) -> None:
        """Write every lost work list again; the index by time was repaired before.

        Fewer accepted batches than a list contained are an error after all others are written.
        """
        lost: list[LostList] = []
        for lane in await list_lanes(self._store):
            with suppress(LaneDamaged):  # reported as a difference: it is of another queue
                lost += [LostList(lane=lane, entry=one) for one in await self._lost_lists(lane)]
        backoff = self._runtime.backoff(WRITE_RETRY)
        await LostLists(self._store, self._requests, self._lanes_per_queue, backoff).write(lost)


def _written_meanwhile(key: ObjectKey) -> BadUsage:
    return BadUsage(f"a lane was written meanwhile: repeat the command, key=`{key}`")
