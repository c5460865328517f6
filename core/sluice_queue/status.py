"""How far behind each lane is."""

from dataclasses import dataclass

from sluice_protocol.units import NS_PER_S
from sluice_queue.view import LaneView, list_lanes, read_lane
from sluice_store.port import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneStatus:
    """One lane as a person sees it.

    Attributes:
        queue: Name of the queue.
        lane: Number of the lane.
        latest: Highest sequence given so far, 0 for none.
        acked_through: Highest sequence acknowledged.
        waiting: Entries not acknowledged.
        waiting_batches: Batches in them.
        oldest_waiting_s: Age of the oldest waiting batch since its acceptance, seconds, or None.
        epoch: Epoch of the consumer, 0 before the first.
        segments: Segments that the register names.
        register_bytes: Size of the register.
    """

    queue: str
    lane: int
    latest: int
    acked_through: int
    waiting: int
    waiting_batches: int
    oldest_waiting_s: float | None
    epoch: int
    segments: int
    register_bytes: int


async def read_status(store: ObjectStore, queue: str | None = None) -> list[LaneStatus]:
    """Gives the status of every lane, of one queue or of all.

    Raises:
        StoreError: The store did not answer.
        InvalidRecord: A register or segment is malformed.
    """
    lanes = await list_lanes(store, queue)
    return [status_of(await read_lane(store, one.queue, one.lane)) for one in lanes]


def status_of(view: LaneView) -> LaneStatus:
    """Gives the status that a view shows."""
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
        segments=len(view.state.segments),
        register_bytes=view.register_bytes,
    )
