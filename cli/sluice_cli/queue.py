"""`sluice queue`: the backlog of the queue."""

import asyncio
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console

from sluice_cli.options import STORE_DEFAULT, Json, StoreUrl
from sluice_cli.output import emit, format_size
from sluice_queue.inspection import LaneStatus, read_status
from sluice_store.url import open_store

app = App(name="queue", help="Show the backlog of the queue.")


@app.command
def status(
    *,
    queue: Annotated[str | None, Parameter(help="Only this queue.")] = None,
    store: StoreUrl = STORE_DEFAULT,
    json: Json = False,
) -> int:
    """Show every lane: appended, acknowledged and pending entries."""
    lanes = asyncio.run(_status(store, queue))
    emit(lanes, as_json=json, human=lambda console: _draw(console, lanes, queue))
    return 0


async def _status(url: str, queue: str | None) -> list[LaneStatus]:
    async with open_store(url) as store:
        return await read_status(store, queue)


def _draw(console: Console, lanes: list[LaneStatus], queue: str | None) -> None:
    if not lanes:
        which = "no lane" if queue is None else f"no lane of the queue `{queue}`"
        console.print(f"{which} has an entry yet; `sluice reconciler` fills its queues")
        return
    for one in lanes:
        age = (
            "" if one.oldest_waiting_s is None else f", the oldest for {one.oldest_waiting_s:.1f} s"
        )
        console.print(
            f"{one.queue}.{one.lane:03d}  appended {one.latest}, acknowledged {one.acked_through},"
            f" pending {one.waiting} entries with {one.waiting_batches} batches{age};"
            f" epoch {one.epoch}, register {format_size(one.register_bytes)},"
            f" {one.segments} segments"
        )
