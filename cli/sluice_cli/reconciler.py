"""`sluice reconciler`: discover, index and enqueue accepted batches."""

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from sluice_cli.shell.options import STORE_DEFAULT, Json, StoreUrl
from sluice_cli.shell.output import emit
from sluice_protocol.timestamps import format_rfc3339
from sluice_protocol.units import UnixNs
from sluice_reconciler.settings import ReconcilerOptions

if TYPE_CHECKING:
    from rich.console import Console

    from sluice_reconciler.discovery import DiscoveryStatus
    from sluice_reconciler.passes.full_pass import PassReport
    from sluice_reconciler.passes.scanners import InventoryScanResult

_DEFAULTS = ReconcilerOptions()


app = App(name="reconciler", help="Discover, index and enqueue accepted batches.")


@app.default
def reconciler(
    *,
    store: StoreUrl = STORE_DEFAULT,
    once: Annotated[bool, Parameter(negative="", help="Run one full pass and exit.")] = False,
    inventory: Annotated[
        str | None,
        Parameter(help="Process an S3 Inventory report: STORE_URL#KEY of its manifest.json."),
    ] = None,
    settings: Annotated[ReconcilerOptions, Parameter(name="*")] = _DEFAULTS,
    json: Json = False,
) -> int:
    """Run until SIGTERM, or process one full pass or one inventory report.

    Returns:
        0, or 1 if a batch was held back or left, a register is lost, or a file of the report is
        unreadable.
    """
    from sluice_reconciler.app import run_inventory, run_once, serve_reconciler  # noqa: PLC0415 - imports the web server

    if inventory is not None:
        found = asyncio.run(run_inventory(store, settings, inventory))
        emit(found, as_json=json, human=lambda console: _draw_inventory(console, found))
        return 1 if found.unreadable or found.outcome.held_back else 0
    if not once:
        asyncio.run(serve_reconciler(store, settings))
        return 0
    report = asyncio.run(run_once(store, settings))
    totals = replace(report.boots, boots=())
    emit(
        replace(report, boots=totals),
        as_json=json,
        human=lambda console: _draw_pass(console, report),
    )
    return 1 if report.held_back or report.outcome.left or report.registers_lost else 0


@app.command
def status(*, store: StoreUrl = STORE_DEFAULT, json: Json = False) -> int:
    """Show through which time accepted batches are enqueued, and each gateway process.

    Returns:
        0, or 1 if a gateway process has lapsed or its journal is unreadable.
    """
    # The reader is imported here, so that the help is quick.
    from sluice_reconciler.discovery import (  # noqa: PLC0415
        ProcessState,
        read_discovery_status,
    )
    from sluice_store import StoreMode, open_deployment  # noqa: PLC0415

    async def read() -> "DiscoveryStatus":
        async with open_deployment(store, StoreMode.READ) as opened:
            return await read_discovery_status(opened)

    found = asyncio.run(read())
    emit(found, as_json=json, human=lambda console: _draw_status(console, found))
    faults = (ProcessState.LAPSED, ProcessState.UNREADABLE)
    return 1 if any(one.state in faults for one in found.processes) else 0


def _through_text(found: "DiscoveryStatus") -> str:
    if found.has_ended:
        return "and now: no gateway is open"
    newest = ", the newest report of a gateway" if found.is_caught_up else ""
    return f"{found.behind_s or 0:.0f} s ago{newest}"


def _draw_status(console: "Console", found: "DiscoveryStatus") -> None:
    if found.complete_through_unix_ns is None or found.behind_s is None:
        console.print("no full pass has ended yet; start `sluice reconciler`")
    else:
        through = format_rfc3339(UnixNs(found.complete_through_unix_ns))
        console.print(f"complete through {through}, {_through_text(found)}")
    console.print(f"decided by {'journals' if found.journaled else 'full passes'}")
    if found.held_by is not None and not found.is_caught_up:
        console.print(f"held by {found.held_by}")
    if found.pass_age_s is not None:
        state = f", one is running ({found.pass_listed} listed)" if found.pass_running else ""
        console.print(f"last full pass began {found.pass_age_s:.0f} s ago{state}")
    if found.missed:
        console.print(f"journals missed {found.missed} batches, which the full pass enqueued")
    for one in found.processes:
        console.print(
            f"{one.gateway}  {one.state.value}  {one.behind_s:.0f} s behind,"
            f" silent for {one.silent_s:.0f} s, object {one.processed},"
            f" {one.unprocessed} unprocessed, process {one.process}"
        )
    if found.processes_more:
        console.print(f"{found.processes_more} older processes are not shown")


def _draw_inventory(console: "Console", found: "InventoryScanResult") -> None:
    console.print(
        f"report, {found.age_s:.0f} s old: {found.named} accepted batches, {found.foreign} other "
        f"keys, enqueued {found.outcome.enqueued}"
    )
    for reason in found.unreadable:
        console.print(f"unreadable: {reason}")


def _draw_pass(console: "Console", report: "PassReport") -> None:
    done = report.outcome
    console.print(
        f"listed {report.listed} accepted batches: enqueued {done.enqueued},"
        f" indexed {done.indexed} entries, held back {report.held_back},"
        f" quarantine references written {report.quarantined}"
    )
    if done.left:
        console.print(f"left {done.left}: their lanes could not be written, run it again")
    for key in report.registers_lost:
        console.print(f"register lost: {key}; run `sluice rebuild`")
