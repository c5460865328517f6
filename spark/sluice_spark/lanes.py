"""What the source knows of the queue: offsets, admission, and partitions packed by bytes."""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_queue.entries import Descriptor
from sluice_queue.inspection import LaneSnapshot, list_lanes, read_lane
from sluice_store import read_authority
from sluice_store.port import ObjectStore

Offset = dict[str, int | str]
"""`{"authority": …, "queue": …, "<lane>": sequence, …}`: JSON as Spark's checkpoint keeps it."""

_NAMES: Final = ("authority", "queue")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One queue entry and its lane; small enough to be pickled to a worker."""

    lane: int
    descriptor: Descriptor


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """A position in every lane of one queue of one authority.

    Attributes:
        authority_id: The authority that the queue belongs to.
        queue: Name of the queue.
        lanes: Lane to a sequence, inclusive; a lane that is not named stands at 0.
    """

    authority_id: str
    queue: str
    lanes: Mapping[int, int]

    def at(self, lane: int) -> int:
        """Gives the position in a lane."""
        return self.lanes.get(lane, 0)

    def offset(self) -> Offset:
        """Gives the position as Spark keeps it."""
        lanes = {str(lane): end for lane, end in sorted(self.lanes.items())}
        return {"authority": self.authority_id, "queue": self.queue} | lanes


def parse_offset(offset: Mapping[str, int | str], *, authority_id: str, queue: str) -> Ends:
    """Reads a position that Spark kept.

    Raises:
        BadUsage: It is of another queue or another deployment.
    """
    found = {name: offset.get(name) for name in _NAMES}
    if found != {"authority": authority_id, "queue": queue}:
        raise BadUsage(
            "this checkpoint is of another queue: give another checkpoint folder or delete it,"
            f" checkpoint=`{found['queue']} of {found['authority']}`,"
            f" queue=`{queue} of {authority_id}`"
        )
    lanes = {int(lane): int(end) for lane, end in offset.items() if lane not in _NAMES}
    return Ends(authority_id=authority_id, queue=queue, lanes=lanes)


async def read_lanes(
    store: ObjectStore, queue: str, after: Mapping[int, int] | None = None
) -> list[LaneSnapshot]:
    """Reads every lane of a queue, and its entries behind `after` that still wait."""
    lanes = await list_lanes(store, queue)
    starts = after or {}
    return [await read_lane(store, queue, one.lane, after=starts.get(one.lane)) for one in lanes]


async def read_start(store: ObjectStore, queue: str) -> Ends:
    """Gives where a consumer without a checkpoint begins: behind what is acknowledged."""
    authority = await read_authority(store)
    lanes = {view.lane.lane: view.state.acked_through for view in await read_lanes(store, queue)}
    return Ends(authority_id=authority.authority_id, queue=queue, lanes=lanes)


async def read_latest(store: ObjectStore, queue: str) -> Ends:
    """Gives the newest position of every lane."""
    authority = await read_authority(store)
    lanes = {view.lane.lane: view.latest for view in await read_lanes(store, queue)}
    return Ends(authority_id=authority.authority_id, queue=queue, lanes=lanes)


def _entries(view: LaneSnapshot, end: int | None) -> Iterator[Entry]:
    for descriptor in view.descriptors:
        if end is None or descriptor.sequence <= end:
            yield Entry(lane=view.lane.lane, descriptor=descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How much one micro-batch takes; an entry is never cut.

    Attributes:
        frame_bytes: Sum of frame sizes, bytes; None for no limit.
        batches: Number of accepted batches; None for no limit.
    """

    frame_bytes: int | None
    batches: int | None

    def passed(self, frame_bytes: int, batches: int) -> bool:
        """Tells whether so much is more than the limit."""
        over_bytes = self.frame_bytes is not None and frame_bytes > self.frame_bytes
        return over_bytes or (self.batches is not None and batches > self.batches)


def admit(views: Sequence[LaneSnapshot], start: Ends, limit: Limit, target: Ends | None) -> Ends:
    """Gives how far the next micro-batch goes: oldest entries first, at least one when one waits.

    Args:
        views: Every lane with its entries behind `start`.
        start: Where the last micro-batch ended.
        limit: How much is taken at most.
        target: Nothing behind it is taken; None for everything.
    """
    lanes = {
        view.lane.lane: max(start.at(view.lane.lane), view.state.acked_through) for view in views
    }
    lanes = dict(start.lanes) | lanes
    ends = [target.at(view.lane.lane) if target is not None else None for view in views]
    queues = [_entries(view, end) for view, end in zip(views, ends, strict=True)]
    taken_bytes = taken = 0
    for entry in heapq.merge(*queues, key=lambda one: one.descriptor.ingested_at_ns):
        taken_bytes += entry.descriptor.frame_bytes
        taken += entry.descriptor.batches
        if taken > entry.descriptor.batches and limit.passed(taken_bytes, taken):
            break
        lanes[entry.lane] = entry.descriptor.sequence
    return Ends(authority_id=start.authority_id, queue=start.queue, lanes=lanes)


def between(views: Sequence[LaneSnapshot], start: Ends, end: Ends) -> list[Entry]:
    """Gives the entries behind `start` up to `end` that still wait, in order, without gaps.

    What is acknowledged meanwhile is in the lake and is left out.

    Raises:
        InvalidRecord: Entries that must still wait are not there.
    """
    found: list[Entry] = []
    for view in views:
        lane = view.lane.lane
        here = list(_entries(view, end.at(lane)))
        first = max(start.at(lane), view.state.acked_through) + 1
        expected = list(range(first, end.at(lane) + 1))
        if [entry.descriptor.sequence for entry in here] != expected:
            raise InvalidRecord(
                view.lane.key, f"entries {first} to {end.at(lane)} are not all there"
            )
        found += here
    return found


def pack(entries: Iterable[Entry], target_bytes: int) -> list[tuple[Entry, ...]]:
    """Packs entries, in order, into partitions of about `target_bytes` of frames."""
    packed: list[list[Entry]] = []
    size_bytes = 0
    for entry in entries:
        if not packed or size_bytes + entry.descriptor.frame_bytes > target_bytes:
            packed.append([])
            size_bytes = 0
        packed[-1].append(entry)
        size_bytes += entry.descriptor.frame_bytes
    return [tuple(found) for found in packed]
