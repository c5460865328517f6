"""`sluice reconciler`: discovers, indexes and enqueues what was accepted."""

import asyncio
from dataclasses import replace
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from sluice_cli.common import STORE_DEFAULT, Json, StoreUrl
from sluice_cli.output import emit
from sluice_reconciler.app import run_once, serve
from sluice_reconciler.full_pass import PassReport
from sluice_reconciler.logs import configure_logs
from sluice_reconciler.settings import ReconcilerSettings

_DEFAULTS = ReconcilerSettings()


def reconciler(
    *,
    store: StoreUrl = STORE_DEFAULT,
    once: Annotated[bool, Parameter(negative="", help="One full pass, then leave.")] = False,
    settings: Annotated[ReconcilerSettings, Parameter(name="*")] = _DEFAULTS,
    json: Json = False,
) -> int:
    """Serves until SIGTERM, or makes one full pass.

    Returns:
        0; 1 when a pass with `--once` held something back.
    """
    configure_logs()
    if not once:
        asyncio.run(serve(store, settings))
        return 0
    report = asyncio.run(run_once(store, settings))
    emit(replace(report, boots=()), as_json=json, human=lambda console: _draw(console, report))
    return 1 if report.held_back else 0


def _draw(console: Console, report: PassReport) -> None:
    done = report.outcome
    console.print(
        f"listed {report.listed} accepted batches: enqueued {done.enqueued},"
        f" indexed {done.indexed} entries, held back {report.held_back},"
        f" quarantine references written {report.quarantined}"
    )
