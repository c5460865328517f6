"""`sluice conflicts`: list, show and resolve identity conflicts, directly on the store."""

import asyncio
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from sluice_cli.shell.operator import is_confirmed, operator_name
from sluice_cli.shell.options import STORE_DEFAULT, Json, StoreUrl
from sluice_cli.shell.output import emit, print_columns
from sluice_protocol.conflicts import (
    ACCEPT_EXISTING,
    ConflictPage,
    ConflictView,
    Decision,
    DecisionAction,
    ResolveRequest,
    parse_conflict_id,
)
from sluice_protocol.errors import BadUsage, ExitCode
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.timestamps import format_rfc3339
from sluice_store import ObjectStore, StoreMode, open_deployment
from sluice_store.conflicts import DecisionsReader, StoredConflicts

if TYPE_CHECKING:
    from rich.console import Console

app = App(name="conflicts", help="List, show and resolve conflicts.")


@app.command(name="list")
def list_command(
    *,
    store: StoreUrl = STORE_DEFAULT,
    agent: Annotated[str | None, Parameter(help="Only this agent.")] = None,
    after: Annotated[str | None, Parameter(help="Start after this conflict id.")] = None,
    limit: Annotated[int, Parameter(help="Maximum number of conflicts, up to 500.")] = 100,
    json: Json = False,
) -> int:
    """List conflicts in key order; exit 1 while one of them is open."""
    page = asyncio.run(_list(store, agent, after, limit))
    emit(page, as_json=json, human=lambda console: _draw_page(console, page))
    return int(any(item.state == "open" for item in page.conflicts))


@app.command
def show(conflict_id: str, /, *, store: StoreUrl = STORE_DEFAULT, json: Json = False) -> int:
    """Show both sides of one conflict and how their records differ."""
    view = asyncio.run(_show(store, conflict_id))
    emit(view, as_json=json, human=lambda console: _draw_view(console, view))
    return 0


@app.command
def resolve(
    conflict_id: str,
    action: DecisionAction,
    /,
    *,
    store: StoreUrl = STORE_DEFAULT,
    note: Annotated[str, Parameter(help="Why; kept in the record.")] = "",
    yes: Annotated[
        bool, Parameter(negative="", help="Block the agent's boot without confirmation.")
    ] = False,
    json: Json = False,
) -> int:
    """Record a decision: `accept_existing`, or `quarantine_identity` to block the agent's boot.

    A block is permanent, so it is confirmed at the terminal, or by `--yes`. Exit with 1 if the
    operator declines; nothing is recorded then.
    """
    if action != ACCEPT_EXISTING and not _is_confirmed(conflict_id, yes=yes):
        return ExitCode.FOUND_WRONG.value
    decision = asyncio.run(_resolve(store, conflict_id, action, note))
    emit(decision, as_json=json, human=lambda console: console.print(f"decided: {action}"))
    return 0


def _is_confirmed(conflict_id: str, *, yes: bool) -> bool:
    who = parse_conflict_id(conflict_id).identity
    blocked = f"block all batches of agent `{who.agent_id}`, boot `{who.boot_id}`"
    return is_confirmed(
        f"{blocked}, permanently?",
        yes=yes,
        refusal=f"quarantine_identity cannot be taken back: it would {blocked}, permanently;"
        f" check `sluice conflicts show {conflict_id}`, then use --yes",
    )


async def _list(url: str, agent: str | None, after: str | None, limit: int) -> ConflictPage:
    async with open_deployment(url, StoreMode.READ) as store:
        return await _conflicts_of(store).list_page(
            agents=None if agent is None else [agent],
            after=None if after is None else parse_conflict_id(after),
            limit=limit,
        )


async def _show(url: str, conflict_id: str) -> ConflictView:
    name = parse_conflict_id(conflict_id)
    async with open_deployment(url, StoreMode.READ) as store:
        view = await _conflicts_of(store).show(name)
    if view is None:
        raise BadUsage(f"no such conflict: see `sluice conflicts list`, id=`{conflict_id}`")
    return view


async def _resolve(url: str, conflict_id: str, action: DecisionAction, note: str) -> Decision:
    name = parse_conflict_id(conflict_id)
    wanted = ResolveRequest(action=action, note=note)
    async with open_deployment(url) as store:
        decided_by = operator_name()
        decision = await _conflicts_of(store).resolve(name, wanted, decided_by=decided_by)
    if decision is None:
        raise BadUsage(f"no such conflict: see `sluice conflicts list`, id=`{conflict_id}`")
    return decision


def _conflicts_of(store: ObjectStore) -> StoredConflicts:
    return StoredConflicts(store, DecisionsReader(store), clock=SystemClock(), ids=SystemIds())


def _draw_page(console: "Console", page: ConflictPage) -> None:
    if not page.conflicts:
        console.print("no conflicts")
        return
    rows = [("first seen", "agent", "boot", "sequence", "state", "id")]
    rows += [
        (
            format_rfc3339(item.first_seen_unix_ns),
            item.agent_id,
            item.boot_id,
            f"{item.seq_start}-{item.seq_end}",
            item.state,
            item.id,
        )
        for item in page.conflicts
    ]
    print_columns(console, rows)


def _draw_view(console: "Console", view: ConflictView) -> None:
    item, sides = view.conflict, view.quarantine
    console.print(f"{item.agent_id} {item.boot_id} {item.seq_start}-{item.seq_end}: {item.state}")
    console.print(f"  accepted  {sides.accepted_frame_sha256}  {sides.accepted_raw_blob_key}")
    console.print(f"  submitted {sides.submitted_frame_sha256}  {sides.submitted_raw_blob_key}")
    found = view.difference
    if found is None:
        console.print("  records: a blob cannot be read")
        return
    console.print(
        f"  records: {found.accepted_count} accepted, {found.submitted_count} submitted,"
        f" {found.differing_count} differ, first at sequence {found.first_seq}"
    )
    console.print(f"  accepted  record {found.accepted_record}", markup=False)
    console.print(f"  submitted record {found.submitted_record}", markup=False)
