"""Writing lost work lists again: every batch of the lane accepted in the time span of the entry.

The index by time names the batches of a span, so the cost of a list does not depend on how many
batches are older. The manifests under `accepted/` decide what a list contains. `sluice rebuild`
repairs the index before it repairs lists. Lists that are not complete all the same are written from
one listing of `accepted/`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import ACCEPTED, ACCEPTED_BY_TIME, hour_path, lane_of
from sluice_protocol.manifests import AcceptedManifest, WorkList, encode_record
from sluice_protocol.units import ObjectKey
from sluice_queue.entries import Descriptor
from sluice_queue.lane import Lane
from sluice_reconciler.concurrency import RequestLimit
from sluice_reconciler.differences import parse_source, read_source
from sluice_reconciler.indexes import decode_by_time, first_instant
from sluice_reconciler.lanes.new_batches import identity_of
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff, overwrite_known

BATCHES_TOGETHER: Final = 200_000
"""Batches of the lists that are written from one reading of the index; about 300 bytes each."""

Span = tuple[int, int]
"""First and last time of acceptance, both inclusive, Unix ns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostList:
    """A queue entry whose work list is missing or unreadable.

    Attributes:
        lane: The lane.
        entry: The entry.
    """

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

        Raises:
            InvalidRecord: A list contained batches that are not accepted; the others are written.
            OutcomeUnknown: The retries of a write are spent.
            StoreError: The store is unreachable or refused a request.
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
        problem = find_missing(lost.entry, batches)
        if not problem:
            record = WorkList(queue=lost.lane.queue, lane=lost.lane.lane, batches=batches)
            body = encode_record(record)
            await overwrite_known(self._store, lost.entry.location, body, self._backoff)
        return problem

    async def _indexed(self, some: Sequence[LostList]) -> AsyncIterator[tuple[int, int, ObjectKey]]:
        """Return lane, time and key of the batches of some lists that are in the index by time."""
        lanes = {one.lane.lane for one in some}
        for first_ns, last_ns in merge_spans(one.span for one in some):
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
        spans = merge_spans(one.span for one in some)

        def lane_at(key: ObjectKey) -> int | None:
            who = identity_of(key)
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


def find_missing(entry: Descriptor, batches: Sequence[AcceptedManifest]) -> str:
    """Return why batches cannot be all those that the list of an entry contained, or nothing."""
    if len(batches) < entry.batches:
        return "fewer batches are accepted than it contained"
    times = {one.accepted_at_unix_ns for one in batches}
    if not {entry.first_accepted_at_ns, entry.last_accepted_at_ns} <= times:
        return "its first or its last batch is not accepted"
    return ""


def merge_spans(spans: Iterable[Span]) -> list[Span]:
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
