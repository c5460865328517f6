"""`sluice queue`: how far behind the consumers are."""

import asyncio
from dataclasses import dataclass
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console

from sluice_cli.common import STORE_DEFAULT, Json, StoreUrl
from sluice_cli.output import emit, format_size
from sluice_protocol.units import NS_PER_S
from sluice_queue.view import LaneView, list_lanes, read_lane
from sluice_store.url import open_store

app = App(name="queue", help="Tell how far behind the queue is.")


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


@app.command
def status(
    *,
    queue: Annotated[str | None, Parameter(help="Only this queue.")] = None,
    store: StoreUrl = STORE_DEFAULT,
    json: Json = False,
) -> int:
    """Shows every lane: what was given, what is acknowledged, how old the oldest waiting is."""
    lanes = asyncio.run(_status(store, queue))
    emit(lanes, as_json=json, human=lambda console: _draw(console, lanes))
    return 0


async def _status(url: str, queue: str | None) -> list[LaneStatus]:
    async with open_store(url) as store:
        found = await list_lanes(store, queue)
        return [_of(await read_lane(store, one.queue, one.lane)) for one in found]


def _of(view: LaneView) -> LaneStatus:
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


def _draw(console: Console, lanes: list[LaneStatus]) -> None:
    if not lanes:
        console.print("no lane has an entry yet; run `sluice reconciler`")
        return
    for one in lanes:
        age = (
            "" if one.oldest_waiting_s is None else f", the oldest for {one.oldest_waiting_s:.1f} s"
        )
        console.print(
            f"{one.queue}.{one.lane:03d}  given {one.latest}, acknowledged {one.acked_through},"
            f" waiting {one.waiting} entries with {one.waiting_batches} batches{age};"
            f" epoch {one.epoch}, register {format_size(one.register_bytes)},"
            f" {one.segments} segments"
        )
