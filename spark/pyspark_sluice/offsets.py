"""Offsets of the data source: positions in the lanes of a queue, and the entries of a batch."""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_queue.inspection import LaneSnapshot, list_lanes, read_lane
from sluice_queue.register import Descriptor
from sluice_spark.errors import CheckpointAhead
from sluice_store import read_authority
from sluice_store.port import ObjectStore

Offset = dict[str, int | str]
"""`{"authority": …, "queue": …, "<lane>": sequence, …}`: JSON as in Spark's checkpoint."""

_NAMES: Final = ("authority", "queue")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneEntry:
    """One queue entry and its lane; small enough to be pickled to a worker."""

    lane: int
    descriptor: Descriptor


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePositions:
    """A position in every lane of one queue of one authority.

    Attributes:
        lanes: Lane to a sequence, inclusive; a lane that is not named is at 0.
    """

    authority_id: str
    queue: str
    lanes: Mapping[int, int]

    def at(self, lane: int) -> int:
        """Return the position in a lane."""
        return self.lanes.get(lane, 0)

    def offset(self) -> Offset:
        """Return the positions as a Spark offset."""
        lanes = {str(lane): end for lane, end in sorted(self.lanes.items())}
        return {"authority": self.authority_id, "queue": self.queue} | lanes


def parse_offset(
    offset: Mapping[str, int | str], *, authority_id: str, queue: str
) -> LanePositions:
    """Read positions from a Spark offset; refuse those of another queue or deployment."""
    found = {name: offset.get(name) for name in _NAMES}
    if found != {"authority": authority_id, "queue": queue}:
        raise BadUsage(
            f"cannot resume: the checkpoint belongs to another queue; choose another checkpoint "
            f"folder or delete it, checkpoint=`{found['queue']} of {found['authority']}`, "
            f"queue=`{queue} of {authority_id}`"
        )
    lanes = {int(lane): int(end) for lane, end in offset.items() if lane not in _NAMES}
    return LanePositions(authority_id=authority_id, queue=queue, lanes=lanes)


def check_reachable(views: Sequence[LaneSnapshot], start: LanePositions) -> None:
    """Check that the queue has assigned every position after which a query continues.

    Without this check a query of a rebuilt queue would find nothing to read until each lane has
    passed the old position, and would then skip what came before.
    """
    latest = {view.lane.lane: view.latest for view in views}
    for lane, end in sorted(start.lanes.items()):
        if end > latest.get(lane, 0):
            raise CheckpointAhead(
                "cannot resume: the checkpoint is ahead of the queue, which was rebuilt; delete "
                f"the checkpoint, or choose another folder, lane=`{lane}`, checkpoint=`{end}`, "
                f"newest=`{latest.get(lane, 0)}`"
            )


async def read_lanes(
    store: ObjectStore, queue: str, after: Mapping[int, int] | None = None
) -> list[LaneSnapshot]:
    """Read every lane of a queue, with its pending entries after the positions in `after`."""
    lanes = await list_lanes(store, queue)
    starts = after or {}
    return [await read_lane(store, queue, one.lane, after=starts.get(one.lane)) for one in lanes]


async def read_start(store: ObjectStore, queue: str) -> LanePositions:
    """Return where a consumer without a checkpoint starts: after the acknowledged entries."""
    authority = await read_authority(store)
    lanes = {view.lane.lane: view.state.acked_through for view in await read_lanes(store, queue)}
    return LanePositions(authority_id=authority.authority_id, queue=queue, lanes=lanes)


async def read_latest(store: ObjectStore, queue: str) -> LanePositions:
    """Return the newest position of every lane."""
    authority = await read_authority(store)
    lanes = {view.lane.lane: view.latest for view in await read_lanes(store, queue)}
    return LanePositions(authority_id=authority.authority_id, queue=queue, lanes=lanes)


def _entries(view: LaneSnapshot, end: int | None) -> Iterator[LaneEntry]:
    for descriptor in view.descriptors:
        if end is None or descriptor.sequence <= end:
            yield LaneEntry(lane=view.lane.lane, descriptor=descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimit:
    """The size limit of a micro-batch; an entry is never split, and None is no limit."""

    frame_bytes: int | None
    batches: int | None

    def passed(self, frame_bytes: int, batches: int) -> bool:
        """Return True if the limit is exceeded."""
        over_bytes = self.frame_bytes is not None and frame_bytes > self.frame_bytes
        return over_bytes or (self.batches is not None and batches > self.batches)


def plan_micro_batch(
    views: Sequence[LaneSnapshot],
    start: LanePositions,
    limit: AdmissionLimit,
    target: LanePositions | None,
) -> LanePositions:
    """Return the end of the next micro-batch after `start`, at most `target`.

    `views` has every lane with its entries after `start`. The oldest entries come first, and at
    least one entry is read if any is pending.
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
    return LanePositions(authority_id=start.authority_id, queue=start.queue, lanes=lanes)


def entries_between(
    views: Sequence[LaneSnapshot], start: LanePositions, end: LanePositions
) -> list[LaneEntry]:
    """Return the pending entries after `start` up to `end`, in order and without gaps.

    Entries that were acknowledged meanwhile are in the lake and are omitted; if others are missing,
    raise `InvalidRecord`.
    """
    found: list[LaneEntry] = []
    for view in views:
        lane = view.lane.lane
        here = list(_entries(view, end.at(lane)))
        first = max(start.at(lane), view.state.acked_through) + 1
        expected = list(range(first, end.at(lane) + 1))
        if [entry.descriptor.sequence for entry in here] != expected:
            raise InvalidRecord(
                view.lane.key, f"some of the entries {first} to {end.at(lane)} are missing"
            )
        found += here
    return found


def pack_entries(entries: Iterable[LaneEntry], target_bytes: int) -> list[tuple[LaneEntry, ...]]:
    """Split entries, in order, into partitions of about `target_bytes` of frames."""
    packed: list[list[LaneEntry]] = []
    size_bytes = 0
    for entry in entries:
        if not packed or size_bytes + entry.descriptor.frame_bytes > target_bytes:
            packed.append([])
            size_bytes = 0
        packed[-1].append(entry)
        size_bytes += entry.descriptor.frame_bytes
    return [tuple(found) for found in packed]
