"""`sluice maintain`: run all maintenance of a store, and show its state."""

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import App, Parameter

from sluice_cli.shell.options import STORE_DEFAULT, Json, StoreUrl
from sluice_cli.shell.output import emit
from sluice_maintain.settings import MaintainSettings
from sluice_maintain.tasks import TaskName
from sluice_protocol.errors import BadUsage, ExitCode

if TYPE_CHECKING:
    from rich.console import Console

    from sluice_maintain.app import MaintenancePlan
    from sluice_maintain.status import MaintenanceStatus

app = App(name="maintain", help="Run all maintenance of a store by policies.")

_DEFAULTS = MaintainSettings()
_WORKER: Final = (sys.executable, "-m", "sluice_cli", "maintain", "worker")


@app.default
def maintain(
    *,
    store: StoreUrl = STORE_DEFAULT,
    once: Annotated[bool, Parameter(negative="", help="Run what is due, then exit.")] = False,
    dry_run: Annotated[
        bool, Parameter(negative="", help="Show what would run now; change nothing.")
    ] = False,
    settings: Annotated[MaintainSettings, Parameter(name="*")] = _DEFAULTS,
    json: Json = False,
) -> int:
    """Run ingestion, compaction, rollups, indexes, retention, audits and garbage collection.

    It runs until SIGTERM. Several processes may run concurrently: leases in the store share the
    work between them. `sluice.toml` has tables such as `[maintain.compact]`, `[maintain.every_s]`.

    Returns:
        0; with `--once` 1 if a task has a problem.
    """
    # Spark's jobs and the web server are imported here, so that the help is quick.
    from sluice_maintain.app import plan_now, run_due, serve_maintenance  # noqa: PLC0415

    if once and dry_run:
        raise BadUsage("cannot run maintenance: --once and --dry-run exclude each other")
    if dry_run:
        plan = asyncio.run(plan_now(store, settings))
        emit(
            {"start": plan.decision.start, "tasks": plan.status.tasks, "missing": plan.missing},
            as_json=json,
            human=lambda console: _draw_plan(console, plan),
        )
        return ExitCode.DONE.value
    if once:
        return _show(asyncio.run(run_due(store, settings, _WORKER)), as_json=json)
    asyncio.run(serve_maintenance(store, settings, _WORKER))
    return ExitCode.DONE.value


@app.command
def status(*, store: StoreUrl = STORE_DEFAULT, json: Json = False) -> int:
    """Show the last and the next run of every task.

    Returns:
        0, or 1 if a task failed, is halted or is overdue.
    """
    from sluice_maintain.status import read_status_at  # noqa: PLC0415 - quick help

    return _show(asyncio.run(read_status_at(store)), as_json=json)


@app.command
def resume(task: TaskName, /, *, store: StoreUrl = STORE_DEFAULT, json: Json = False) -> int:
    """Let a halted, failing or fenced task run now; first remove the cause that `status` shows.

    Returns:
        0, or 1 if the task is not halted, failing or fenced.
    """
    from sluice_maintain.app import resume_task  # noqa: PLC0415 - quick help

    resumed = asyncio.run(resume_task(store, task))
    text = f"{task} runs again" if resumed else f"{task} is not halted, failing or fenced"
    emit({"resumed": resumed}, as_json=json, human=lambda console: console.print(text))
    return 0 if resumed else 1


@app.command(show=False)
def worker() -> int:
    """Run jobs that `sluice maintain` sends on standard input."""
    from sluice_maintain.worker import run_job_worker  # noqa: PLC0415 - imports Spark's jobs

    run_job_worker()
    return ExitCode.DONE.value


def _show(found: "MaintenanceStatus", *, as_json: bool) -> int:
    from sluice_maintain.status_page import render_text  # noqa: PLC0415 - quick help

    def draw(console: "Console") -> None:
        console.print(render_text(found), markup=False, end="", soft_wrap=True)

    emit(found, as_json=as_json, human=draw)
    return 1 if found.found_wrong else 0


def _draw_plan(console: "Console", plan: "MaintenancePlan") -> None:
    from sluice_maintain.status_page import describe_state, instant_text  # noqa: PLC0415 - quick help

    start = plan.decision.start
    console.print(f"would start now: {', '.join(start) or 'nothing'} (dry run)")
    for one in plan.status.tasks:
        if one.task not in start:
            when = instant_text(one.next_run_unix_ns)
            until = f" until {when}" if when else ""
            console.print(f"  {one.task:10} {describe_state(one.state)}{until}", markup=False)
    for task, rights in plan.missing.items():
        console.print(f"  missing rights of {task}: {', '.join(rights)}", markup=False)
