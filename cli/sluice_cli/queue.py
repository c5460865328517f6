"""`sluice queue`: the backlog of the queue, and its number of lanes."""

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from sluice_cli.shell.options import STORE_DEFAULT, Json, StoreUrl
from sluice_cli.shell.output import emit, format_size
from sluice_protocol.authority import Authority, LaneChange
from sluice_protocol.keys import INGEST_QUEUE
from sluice_protocol.timestamps import format_rfc3339
from sluice_queue.inspection import (
    LaneCondition,
    LaneOwnership,
    LaneStatus,
    OwnerName,
    OwnershipState,
)
from sluice_queue.lane import Lane
from sluice_queue.register_client import Runtime
from sluice_reconciler.lanes.defects import has_ledger, read_queue_status
from sluice_reconciler.lanes.membership import LiveMembers, read_live_members
from sluice_store.authority import read_authority
from sluice_store.port import ObjectStore
from sluice_store.url import StoreMode, open_store

if TYPE_CHECKING:
    from rich.console import Console

app = App(name="queue", help="Show the backlog of the queue, and change its number of lanes.")


@app.command
def status(
    *,
    queue: Annotated[str | None, Parameter(help="Only this queue.")] = None,
    store: StoreUrl = STORE_DEFAULT,
    json: Json = False,
) -> int:
    """Show every lane: appended, acknowledged and pending entries, and its owner.

    Returns:
        0, or 1 if a lane is lost or damaged.
    """
    lanes = asyncio.run(_status(store, queue))
    emit(lanes, as_json=json, human=lambda console: _draw(console, lanes, queue))
    return 1 if any(one.condition is not LaneCondition.SOUND for one in lanes) else 0


@app.command
def lanes(
    number: Annotated[int, Parameter(help="The new number of lanes, 1 to 1 000.")],
    /,
    *,
    store: StoreUrl = STORE_DEFAULT,
    json: Json = False,
) -> None:
    """Change the number of lanes of every queue, or continue a change that was interrupted.

    It waits until the consumers have acknowledged every pending entry. Gateways, reconcilers and
    consumers may run; until it ends, new batches are accepted and not enqueued.
    """
    change = asyncio.run(_change(store, number, json=json))
    emit(change, as_json=json, human=lambda console: _draw_change(console, change))


async def _change(url: str, number: int, *, json: bool) -> LaneChange:
    from sluice_reconciler.lanes.change import change_lanes  # noqa: PLC0415 - rarely needed

    def note(text: str) -> None:
        if not json:
            sys.stderr.write(f"{text}\n")

    async with open_store(url) as store:
        return await change_lanes(store, number, Runtime(), note)


def _draw_change(console: "Console", change: LaneChange) -> None:
    console.print(
        f"lanes {change.lanes_before} -> {change.lanes}: entries continue after sequence"
        f" {change.after_sequence}",
        markup=False,
    )


async def _status(url: str, queue: str | None) -> list[LaneStatus]:
    async with open_store(url, StoreMode.READ) as store:
        authority = await read_authority(store)
        members = await read_live_members(store)
        return await read_compared_lanes(store, url, authority, queue, members)


async def read_compared_lanes(
    store: ObjectStore,
    url: str,
    authority: Authority,
    queue: str | None = None,
    members: LiveMembers | None = None,
) -> list[LaneStatus]:
    """Read the status of every lane, or of one queue, and compare the lake's queue with the lake.

    `members` are the live reconcilers, which show the owners of lanes; None if not needed.
    """
    persisted = {}
    if queue in (None, INGEST_QUEUE):
        persisted = await _read_persisted(store, url, authority.lanes_ever)
    return await read_queue_status(
        store, authority.lanes, queue, persisted, members, layout=authority.layout
    )


async def _read_persisted(store: ObjectStore, url: str, lanes: int) -> dict[Lane, int]:
    """Return the last sequence of each lane that the lake contains; empty without a lake."""
    if not await has_ledger(store):
        return {}
    return await asyncio.to_thread(_read_lake, url, lanes)


def _read_lake(url: str, lanes: int) -> dict[Lane, int]:
    from sluice_lake.delta import find_table, read_lane_versions  # noqa: PLC0415 - an extra
    from sluice_lake.errors import TableRefused  # noqa: PLC0415 - an extra
    from sluice_lake.locations import lake_location  # noqa: PLC0415 - an extra
    from sluice_lake.tables import BATCHES  # noqa: PLC0415 - an extra

    try:
        ledger = find_table(url, BATCHES)
    except TableRefused:
        return {}  # `read_lake_problems` reports it
    if ledger is None:
        return {}
    positions = read_lane_versions(lake_location(url, BATCHES.name), ledger, range(lanes))
    return {
        Lane(queue=INGEST_QUEUE, lane=lane): sequence
        for lane, sequence in positions.items()
        if sequence > 0
    }


def _draw(console: "Console", lanes: list[LaneStatus], queue: str | None) -> None:
    if not lanes:
        which = "no lane" if queue is None else f"no lane of the queue `{queue}`"
        console.print(f"{which} has an entry yet; `sluice reconciler` fills its queues")
        return
    for one in lanes:
        console.print(f"{one.queue}.{one.lane:03d}  {_counts(one)}", markup=False)
        if one.ownership is not None:
            console.print(f"  {_owner(one.ownership)}", markup=False)


def _counts(one: LaneStatus) -> str:
    if one.condition is not LaneCondition.SOUND:
        return f"{one.condition.value}: {one.problem}"
    age = "" if one.oldest_waiting_s is None else f", the oldest for {one.oldest_waiting_s:.1f} s"
    consumer = f" of consumer {one.consumer_id[:8]}" if one.consumer_id else ""
    return (
        f"appended {one.latest}, acknowledged {one.acked_through},"
        f" pending {one.waiting} entries with {one.waiting_batches} batches{age};"
        f" epoch {one.epoch}{consumer}, register {format_size(one.register_bytes)},"
        f" {one.segments} segments"
    )


def _owner(found: LaneOwnership) -> str:
    """Return who owns a lane as one line."""
    names = "; ".join(_name(one) for one in found.owners)
    if found.state is OwnershipState.OWNED:
        shown = f"owner {names}"
    elif found.owners:
        shown = f"owner {found.state.value}, {names}"
    else:
        shown = f"owner {found.state.value}"
    return f"{shown}: {found.detail}" if found.detail else shown


def _name(one: OwnerName) -> str:
    """Return a reconciler by its machine and address, or by its id if it gave neither."""
    host = f"{one.host} (pid {one.pid})" if one.host and one.pid else one.host
    shown = " ".join(part for part in (host, one.url) if part) or one.member
    if one.since_unix_ns is None:
        return shown
    return f"{shown} since {format_rfc3339(one.since_unix_ns)}"
