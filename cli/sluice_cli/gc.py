"""The commands of `sluice gc`: plan deletions, execute them with a proof each, explain them."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from sluice_cli.gc_plans import approve, candidates, plans, stop
from sluice_cli.shell.options import ENGINE, STORE_DEFAULT, Json, StoreUrl, VerificationKeys
from sluice_cli.shell.output import emit, format_size, format_time
from sluice_gc.settings import (
    CycleSettings,
    EngineName,
    ExpirySettings,
    PlanSettings,
    RunSettings,
)
from sluice_protocol.errors import BadUsage, ExitCode
from sluice_protocol.keys import parse_digest
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import Digest
from sluice_store import StoreMode, open_deployment

if TYPE_CHECKING:
    from rich.console import Console

    from sluice_gc.blob_explanation import BlobExplanation
    from sluice_gc.cycle import CycleReport
    from sluice_gc.plan_runner import RunReport
    from sluice_gc.trash import PurgeReport, RestoreReport
    from sluice_gc.version_expiry import ExpiryReport
    from sluice_protocol.collection_records import Plan

app = App(name="gc", help="Delete orphan blobs, each with a proof.")
app.command(approve)
app.command(candidates)
app.command(plans)
app.command(stop)

_PLAN = PlanSettings()
_RUN = RunSettings()
_CYCLE = CycleSettings()
_EXPIRY = ExpirySettings()


@app.command
def plan(
    *,
    store: StoreUrl = STORE_DEFAULT,
    audit_id: Annotated[
        str | None, Parameter(help="The certificate to use; by default the newest.")
    ] = None,
    settings: Annotated[PlanSettings, Parameter(name="*")] = _PLAN,
    inventory: Annotated[
        str,
        Parameter(help="An S3 Inventory with candidates: STORE_URL#KEY of its manifest.json."),
    ] = "",
    inventory_bucket: Annotated[
        str, Parameter(help="The bucket that it must describe; by default that of the store.")
    ] = "",
    engine: Annotated[EngineName, ENGINE] = "local",
    json: Json = False,
) -> int:
    """List what may be deleted according to a certificate, and why. Delete nothing."""
    made = asyncio.run(_plan(store, settings, engine, (inventory, inventory_bucket), audit_id))
    emit(made, as_json=json, human=lambda console: _draw_plan(console, made))
    return ExitCode.DONE.value


@app.command
def run(
    plan_id: Annotated[
        str | None, Parameter(help="The plan to execute; by default the newest.")
    ] = None,
    /,
    *,
    store: StoreUrl = STORE_DEFAULT,
    settings: Annotated[RunSettings, Parameter(name="*")] = _RUN,
    engine: Annotated[EngineName, ENGINE] = "local",
    json: Json = False,
) -> int:
    """Prove every clause again for each candidate of a plan, and delete what is proved.

    The command may be killed and restarted at any time.
    """
    report = asyncio.run(_run(store, plan_id, settings, engine))
    emit(report, as_json=json, human=lambda console: _draw_report(console, report))
    code = ExitCode.FOUND_WRONG if report.found_wrong else ExitCode.DONE
    return int(code.value)


@app.command
def show(
    sha256: str,
    /,
    *,
    store: StoreUrl = STORE_DEFAULT,
    key_file: VerificationKeys = _RUN.key_file,
    json: Json = False,
) -> int:
    """Show why a blob was deleted, or which clause keeps it."""
    explanation = asyncio.run(_show(store, _parse(sha256), key_file))
    emit(explanation, as_json=json, human=lambda console: _draw_blob(console, explanation))
    return ExitCode.DONE.value


@app.command
def undo(sha256: str, /, *, store: StoreUrl = STORE_DEFAULT, json: Json = False) -> int:
    """Restore a deleted blob from its copy in the trash."""
    digest = _parse(sha256)
    report = asyncio.run(_undo(store, digest))
    result = "restored" if report.restored else "not restored: other bytes exist under its key"
    emit(report, as_json=json, human=lambda console: console.print(f"{digest} {result}"))
    code = ExitCode.FOUND_WRONG if report.found_wrong else ExitCode.DONE
    return int(code.value)


@app.command
def purge(
    *,
    store: StoreUrl = STORE_DEFAULT,
    key_file: VerificationKeys = _RUN.key_file,
    json: Json = False,
) -> int:
    """Delete copies whose undo window is over, under the clauses of a blob."""
    report = asyncio.run(_purge(store, key_file))
    text = f"{report.purged} copies deleted, {report.kept} kept"
    emit(report, as_json=json, human=lambda console: console.print(text))
    return ExitCode.DONE.value


def _parse(sha256: str) -> Digest:
    try:
        return parse_digest(sha256)
    except ValueError as error:
        raise BadUsage(f"not 64 lower-case hexadecimal digits, sha256=`{sha256}`") from error


async def _undo(url: str, digest: Digest) -> "RestoreReport":
    from sluice_gc.trash import restore_blob  # noqa: PLC0415 - quick help

    async with open_deployment(url) as store:
        return await restore_blob(store, digest, SystemClock())


async def _purge(url: str, key_file: Path) -> "PurgeReport":
    from sluice_gc.signing_keys import load_trusted  # noqa: PLC0415 - quick help
    from sluice_gc.trash import purge_trash  # noqa: PLC0415 - quick help

    trusted = load_trusted(key_file)
    async with open_deployment(url) as store:
        return await purge_trash(store, trusted, SystemIds().ulid(), clock=SystemClock())


@app.command
def cycle(
    *,
    store: StoreUrl = STORE_DEFAULT,
    settings: Annotated[CycleSettings, Parameter(name="*")] = _CYCLE,
    engine: Annotated[EngineName, ENGINE] = "local",
    json: Json = False,
) -> int:
    """Audit, execute the plan whose grace period is over, and plan again, unattended.

    Exit with 1 if a rule refused or an operator must act, and with 3 if the store is unreachable.
    """
    report = asyncio.run(_cycle(store, settings, engine))
    emit(report, as_json=json, human=lambda console: _draw_cycle(console, report))
    code = ExitCode.FOUND_WRONG if report.found_wrong else ExitCode.DONE
    return int(code.value)


@app.command
def noncurrent(
    *,
    store: StoreUrl = STORE_DEFAULT,
    settings: Annotated[ExpirySettings, Parameter(name="*")] = _EXPIRY,
    start_after: Annotated[
        str, Parameter(help="Continue after this key, which the previous run reported.")
    ] = "",
    json: Json = False,
) -> int:
    """Delete expired noncurrent versions where the store has no lifecycle.

    Exit with 1 if the outcome of a deletion is unknown, or if the store denied one.
    """
    report = asyncio.run(_noncurrent(store, settings, start_after))
    emit(report, as_json=json, human=lambda console: _draw_expiry(console, report, settings))
    wrong = report.unknown or report.kept.get("denied", 0)
    return int((ExitCode.FOUND_WRONG if wrong else ExitCode.DONE).value)


async def _noncurrent(url: str, settings: ExpirySettings, start_after: str) -> "ExpiryReport":
    from sluice_gc.version_expiry import expire_versions  # noqa: PLC0415 - quick help

    async with open_deployment(url) as store:
        return await expire_versions(store, settings, start_after=start_after)


def _draw_expiry(console: "Console", report: "ExpiryReport", settings: ExpirySettings) -> None:
    done = "to delete" if settings.dry_run else "deleted"
    total, size = sum(report.deleted.values()), format_size(report.deleted_bytes)
    console.print(f"{total} of {report.listed} versions {done} ({size})")
    for prefix, count in report.deleted.items():
        console.print(f"  {prefix:24} {count:>10}")
    for reason, count in report.kept.items():
        console.print(f"  kept: {reason:18} {count:>10}")
    if report.unknown:
        console.print(f"  {report.unknown} deletions are not confirmed: run it again")
    if report.resume_after is not None:
        console.print(f"  not finished: continue with --start-after '{report.resume_after}'")


async def _cycle(url: str, settings: CycleSettings, engine: EngineName) -> "CycleReport":
    from sluice_gc.cycle import CycleRunner, GcMetrics  # noqa: PLC0415 - quick help
    from sluice_gc.signing_keys import load_keys  # noqa: PLC0415 - quick help
    from sluice_gc.task_engine import open_task_engine  # noqa: PLC0415 - quick help

    keys = load_keys(settings.key_file, settings.trusted_keys)
    async with open_task_engine(url, engine) as (store, tasks):
        cycles = CycleRunner(store, tasks, keys, SystemClock(), SystemIds(), metrics=GcMetrics())
        return await cycles.cycle(settings)


async def _plan(
    url: str,
    settings: PlanSettings,
    engine: EngineName,
    inventory: tuple[str, str],
    audit_id: str | None,
) -> "Plan":
    from sluice_gc.planner import Planner  # noqa: PLC0415 - quick help
    from sluice_gc.signing_keys import load_keys  # noqa: PLC0415 - quick help
    from sluice_gc.task_engine import open_task_engine  # noqa: PLC0415 - quick help

    keys = load_keys(settings.key_file, settings.trusted_keys)
    async with open_task_engine(url, engine) as (store, tasks):
        planner = Planner(store, tasks, keys, SystemClock(), SystemIds())
        candidates = None
        if inventory[0]:
            from sluice_gc.inventory_candidates import open_inventory  # noqa: PLC0415 - only here

            candidates = await open_inventory(store, url, *inventory)
        return await planner.plan(settings, audit_id, candidates)


async def _run(
    url: str, plan_id: str | None, settings: RunSettings, engine: EngineName
) -> "RunReport":
    from sluice_gc.plan_runner import PlanRunner  # noqa: PLC0415 - quick help
    from sluice_gc.signing_keys import load_trusted  # noqa: PLC0415 - quick help
    from sluice_gc.task_engine import open_task_engine  # noqa: PLC0415 - quick help

    trusted = load_trusted(settings.key_file)
    async with open_task_engine(url, engine) as (store, tasks):
        return await PlanRunner(store, tasks, trusted, SystemClock()).run(plan_id, settings)


async def _show(url: str, digest: Digest, key_file: Path) -> "BlobExplanation":
    from sluice_gc.blob_explanation import explain_blob  # noqa: PLC0415 - quick help
    from sluice_gc.signing_keys import load_trusted  # noqa: PLC0415 - quick help

    trusted = load_trusted(key_file)
    async with open_deployment(url, StoreMode.READ) as store:
        return await explain_blob(store, trusted, digest)


def _draw_plan(console: "Console", made: "Plan") -> None:
    summary = made.summary
    console.print(f"plan {made.plan_id}, based on audit {made.audit_id}")
    for name, tally in (
        ("blobs", summary.blobs),
        ("deletable orphans", summary.orphans),
        ("deletable noncurrent", summary.superseded),
        *((f"kept: {clause}", tally) for clause, tally in summary.kept.items()),
    ):
        console.print(f"  {name:24} {tally.incarnations:>10} {format_size(tally.bytes):>10}")
    for unit, buckets in (("bytes", summary.by_size), ("days", summary.by_age)):
        for one in buckets:
            if one.tally.incarnations:
                limit = f"up to {one.up_to} {unit}" if one.up_to else f"more {unit}"
                size = format_size(one.tally.bytes)
                console.print(f"    {limit:22} {one.tally.incarnations:>10} {size:>10}")


def _draw_report(console: "Console", report: "RunReport") -> None:
    facts = report.facts
    size = format_size(facts.deleted_bytes)
    if report.dry_run:
        console.print(
            f"plan {report.plan_id}: {facts.would_go} deletable, nothing was deleted (dry run)"
        )
    else:
        console.print(f"plan {report.plan_id}: {facts.deleted} deleted ({size})")
    for clause, count in facts.kept.items():
        console.print(f"  kept: {clause:18} {count:>10}")
    if facts.unknown:
        console.print(f"  {facts.unknown} deletions are not confirmed: run the plan again")
    if facts.unread:
        console.print(f"  {facts.unread} could not be read and are kept: run the plan again")
    if facts.skipped:
        console.print(f"  {facts.skipped} batches were done by an earlier run")


def _draw_cycle(console: "Console", report: "CycleReport") -> None:
    console.print(f"audit {report.audit_id}: {report.counts.orphans} orphans")
    if report.ran_plan_id is None:
        console.print("no plan was due")
    else:
        deleted = report.facts.deleted
        console.print(f"plan {report.ran_plan_id}: {deleted} deleted, kept {report.facts.kept}")
    console.print(f"new plan {report.made_plan_id}")


def _draw_blob(console: "Console", blob: "BlobExplanation") -> None:
    console.print(f"blob {blob.sha256}")
    console.print(f"  named in audit {blob.audit_id}: {blob.named_in_audit}")
    if not blob.incarnations:
        console.print("  no object version exists")
    for one in blob.incarnations:
        why = f"{one.clause}: {one.reason}" if one.clause else "every clause allows the deletion"
        since = format_time(one.last_modified_unix_ns)
        console.print(f"  object version {one.incarnation} of {since}: {one.verdict} ({why})")
    for proof in blob.proofs:
        why = f" ({proof.clause}: {proof.reason})" if proof.clause else ""
        at = format_time(proof.proved_at_unix_ns)
        console.print(
            f"  {at} {proof.verdict}{why}: object version {proof.incarnation},"
            f" plan {proof.plan_id}, audit {proof.audit_id}\n    {proof.proof_key}"
        )
