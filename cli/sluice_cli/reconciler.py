"""`sluice reconciler`: discover, index and enqueue accepted batches."""

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from sluice_cli.options import STORE_DEFAULT, Json, StoreUrl
from sluice_cli.output import emit
from sluice_reconciler.settings import ReconcilerSettings

if TYPE_CHECKING:
    from rich.console import Console

    from sluice_reconciler.full_pass import PassReport
    from sluice_reconciler.scanners import InventoryScanResult

_DEFAULTS = ReconcilerSettings()


def reconciler(
    *,
    store: StoreUrl = STORE_DEFAULT,
    once: Annotated[bool, Parameter(negative="", help="Run one full pass and exit.")] = False,
    inventory: Annotated[
        str | None,
        Parameter(help="Process an S3 Inventory report: STORE_URL#KEY of its manifest.json."),
    ] = None,
    settings: Annotated[ReconcilerSettings, Parameter(name="*")] = _DEFAULTS,
    json: Json = False,
) -> int:
    """Run until SIGTERM, or process one full pass or one inventory report.

    Returns:
        0, or 1 if a batch was held back or left, a register is lost, or a file of the report is
        unreadable.
    """
    # The web server is imported here, so that the help is quick.
    from sluice_reconciler.app import run_inventory, run_once, serve  # noqa: PLC0415

    if inventory is not None:
        found = asyncio.run(run_inventory(store, settings, inventory))
        emit(found, as_json=json, human=lambda console: _draw_inventory(console, found))
        return 1 if found.unreadable or found.outcome.held_back else 0
    if not once:
        asyncio.run(serve(store, settings))
        return 0
    report = asyncio.run(run_once(store, settings))
    emit(replace(report, boots=()), as_json=json, human=lambda console: _draw(console, report))
    return 1 if report.held_back or report.outcome.left or report.registers_lost else 0


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
