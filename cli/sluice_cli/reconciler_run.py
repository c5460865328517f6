"""Run a reconciler. A plain command line of it is read without the command-line library."""

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sluice_cli.output import emit
from sluice_cli.plain_commands import FLAG, STORE, PlainCommand, PlainOption
from sluice_reconciler.settings import ReconcilerOptions

if TYPE_CHECKING:
    from rich.console import Console

    from sluice_reconciler.passes.full_pass import PassReport
    from sluice_reconciler.passes.scanners import InventoryScanResult


def run(
    *, store: str, once: bool, inventory: str | None, settings: ReconcilerOptions, json: bool
) -> int:
    """Run until SIGTERM, or process one full pass or one report; return the exit code."""
    from sluice_reconciler.app import run_inventory, run_once, serve  # noqa: PLC0415 - imports the web server

    if inventory is not None:
        found = asyncio.run(run_inventory(store, settings, inventory))
        emit(found, as_json=json, human=lambda console: _draw_inventory(console, found))
        return 1 if found.unreadable or found.outcome.held_back else 0
    if not once:
        asyncio.run(serve(store, settings))
        return 0
    report = asyncio.run(run_once(store, settings))
    totals = replace(report.boots, boots=())
    emit(replace(report, boots=totals), as_json=json, human=lambda console: _draw(console, report))
    return 1 if report.held_back or report.outcome.left or report.registers_lost else 0


PLAIN: Final = PlainCommand(
    settings=ReconcilerOptions,
    options={
        "store": STORE,
        "once": FLAG,
        "inventory": PlainOption(kind=str | None, default=None),
        "json": FLAG,
    },
    run=run,
)


def _draw_inventory(console: "Console", found: "InventoryScanResult") -> None:
    console.print(
        f"report, {found.age_s:.0f} s old: {found.named} accepted batches, {found.foreign} other "
        f"keys, enqueued {found.outcome.enqueued}"
    )
    for reason in found.unreadable:
        console.print(f"unreadable: {reason}")


def _draw(console: "Console", report: "PassReport") -> None:
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
