"""Read-only views of lanes: they claim no epoch and change nothing."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from sluice_protocol.authority import Authority
from sluice_protocol.keys import segment_key
from sluice_protocol.outcomes import Found, NotFound
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_queue.errors import LaneDamaged
from sluice_queue.lane import Lane, list_lanes
from sluice_queue.register import (
    Descriptor,
    Register,
    SegmentRef,
    body_descriptors,
    decode_register,
)
from sluice_queue.register_client import decode_segment
from sluice_store.port import ObjectStore, run_concurrently

LANES_AT_ONCE: Final = 16
"""Lanes that are read concurrently; each takes a few requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSnapshot:
    """The state of a lane at one moment.

    The register is empty, with size 0, if none exists yet. `descriptors` has no gaps and starts
    with the first that was requested. `date_ns` is the store's clock in the response.
    """

    lane: Lane
    state: Register
    descriptors: tuple[Descriptor, ...]
    date_ns: UnixNs
    register_bytes: int = 0

    @property
    def latest(self) -> int:
        """The highest sequence assigned so far; 0 for a lane without entries."""
        return self.state.next_sequence - 1


async def read_lane(
    store: ObjectStore,
    queue: str,
    lane: int,
    *,
    after: int | None = None,
    entries_max: int | None = None,
) -> LaneSnapshot:
    """Read a lane's register and its pending entries, including those in segments.

    Only entries after the sequence `after` are returned, at most `entries_max`; 0 reads only the
    header. Acknowledged entries are never returned.
    """
    place = Lane(queue=queue, lane=lane)
    match await store.get(place.key):
        case NotFound(date_ns=date_ns):
            empty = Register(revision=0, nonce=bytes(16))
            return LaneSnapshot(lane=place, state=empty, descriptors=(), date_ns=date_ns)
        case Found(info=info, body=body):
            state = decode_register(place.key, body)
            start = max(after if after is not None else 0, state.acked_through)
            entries = await read_entries(store, place, state, after=start, entries_max=entries_max)
            return LaneSnapshot(
                lane=place,
                state=state,
                descriptors=entries,
                date_ns=info.date_ns,
                register_bytes=len(body),
            )


def handed_over(authority: Authority, lane: int, state: Register) -> int:
    """Return the last entry of a lane of the ingest queue that the tables must contain.

    A change of the number of lanes moves the register on to a sequence that no entry of the lane
    has. Until an entry behind it is acknowledged, the change states the last one before it. If no
    producer in the register wrote before the change, the register is new.
    """
    changes = authority.changes
    if not changes or state.acked_through > changes[-1].after_sequence:
        return state.acked_through
    last = changes[-1]
    was_used = any(0 < one.first_sequence <= last.after_sequence for one in state.writers)
    return last.ends.get(f"{lane:03d}", 0) if was_used else 0


async def read_entries(
    store: ObjectStore, lane: Lane, state: Register, *, after: int, entries_max: int | None
) -> tuple[Descriptor, ...]:
    """Return the entries of a state after `after`, from its segments and its body."""
    limit = entries_max if entries_max is not None else state.waiting
    found: list[Descriptor] = []
    for ref in state.segments:
        if ref.last > after and len(found) < limit:
            found += [one for one in await read_segment(store, lane, ref) if one.sequence > after]
    if len(found) < limit:
        in_body = body_descriptors(lane.key, state)
        found += [one for one in in_body if one.sequence > after]
    return tuple(found[:limit])


async def read_segment(store: ObjectStore, lane: Lane, ref: SegmentRef) -> tuple[Descriptor, ...]:
    """Read one segment."""
    key = segment_key(lane.queue, lane.lane, ref.first, ref.last)
    match await store.get(key):
        case NotFound():
            raise LaneDamaged(key, "segment named by the register is missing")
        case Found(body=body):
            if len(body) != ref.size_bytes:
                raise LaneDamaged(key, f"segment is not {ref.size_bytes} bytes long")
            return decode_segment(key, body)


class LaneCondition(StrEnum):
    """Whether a lane works, or is halted until `sluice rebuild`."""

    SOUND = "sound"
    LOST = "lost"
    DAMAGED = "damaged"


class OwnershipState(StrEnum):
    """Whether a reconciler owns a lane: only the owner appends to it."""

    OWNED = "owned"
    UNOWNED = "unowned"
    UNKNOWN = "unknown"
    LAPSED = "lapsed"
    DISPUTED = "disputed"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerName:
    """One reconciler, as its claim or its member record names it.

    Texts are empty and `pid` is 0 if they are unknown. `since_unix_ns` is when it claimed the lane,
    by the store's clock; None if that is unknown, or if it claims the lane with its next batch.
    `is_running` is whether its heartbeat is current; None if it writes none.
    """

    member: str
    url: str
    host: str
    pid: int
    since_unix_ns: int | None
    is_running: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneOwnership:
    """Who owns a lane.

    Attributes:
        owners: The processes that report the lane; the last known one of a lapsed lane.
        detail: What is unusual and what to do; empty if nothing is.
        unchanged_s: Time since an owner wrote the lane state, or a reconciler started, stopped or
            died, seconds; None if that is not known.
    """

    state: OwnershipState
    owners: tuple[OwnerName, ...] = ()
    detail: str = ""
    unchanged_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneStatus:
    """The status of one lane, as the command line and metrics report it.

    The numbers of a lane whose register cannot be read are 0.

    Attributes:
        latest: Highest sequence assigned so far, 0 for none.
        oldest_waiting_s: Time since the acceptance of the oldest pending batch, seconds, or None.
        epoch: Epoch of the consumer, 0 before the first.
        consumer_id: The id of that consumer in the register, 32 hex digits; empty before the first.
        problem: What is wrong and what to do; empty for a sound lane.
        ownership: Which reconciler appends to the lane; None if that was not read.
        clock_ahead_s: How far the store's clock is ahead of this machine's, seconds.
    """

    queue: str
    lane: int
    latest: int = 0
    acked_through: int = 0
    waiting: int = 0
    waiting_batches: int = 0
    oldest_waiting_s: float | None = None
    epoch: int = 0
    consumer_id: str = ""
    segments: int = 0
    register_bytes: int = 0
    condition: LaneCondition = LaneCondition.SOUND
    problem: str = ""
    ownership: LaneOwnership | None = None
    clock_ahead_s: float = 0.0


async def read_lane_status(store: ObjectStore, queue: str | None = None) -> list[LaneStatus]:
    """Read the status of every lane that has a register, of one queue or of all."""
    found: dict[Lane, LaneStatus] = {}

    async def read(lane: Lane) -> None:
        found[lane] = await _read_status(store, lane)

    lanes = await list_lanes(store, queue)
    await run_concurrently(lanes, read, concurrency=LANES_AT_ONCE)
    return [found[lane] for lane in lanes]


async def _read_status(store: ObjectStore, lane: Lane) -> LaneStatus:
    try:
        view = await read_lane(store, lane.queue, lane.lane)
        ahead_s = (view.date_ns - SystemClock().now_ns()) / NS_PER_S
        return replace(lane_status_of(view), clock_ahead_s=ahead_s)
    except LaneDamaged as error:
        return LaneStatus(
            queue=lane.queue,
            lane=lane.lane,
            condition=LaneCondition.DAMAGED,
            problem=str(error),
        )


def lane_status_of(view: LaneSnapshot) -> LaneStatus:
    """Return the status of a lane from its snapshot."""
    oldest = min((one.first_accepted_at_ns for one in view.descriptors), default=None)
    return LaneStatus(
        queue=view.lane.queue,
        lane=view.lane.lane,
        latest=view.latest,
        acked_through=view.state.acked_through,
        waiting=view.state.waiting,
        waiting_batches=sum(one.batches for one in view.descriptors),
        oldest_waiting_s=None if oldest is None else max(0, view.date_ns - oldest) / NS_PER_S,
        epoch=view.state.epoch,
        consumer_id=view.state.owner.hex() if view.state.epoch else "",
        segments=len(view.state.segments),
        register_bytes=view.register_bytes,
    )
