"""`sluice gc`: plans deletions, carries them out with a proof each, and tells why."""

import asyncio
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console

from sluice_cli.options import STORE_DEFAULT, Json, StoreUrl
from sluice_cli.output import emit, format_size, format_time
from sluice_gc.cycle import CycleReport, Cycles
from sluice_gc.inventory import InventorySource, read_inventory
from sluice_gc.metrics import GcMetrics
from sluice_gc.objects import load_keys, load_trusted
from sluice_gc.opening import open_engine
from sluice_gc.plan import Plan
from sluice_gc.planner import Planner, newest_plan_id, read_link
from sluice_gc.runner import Runner, RunReport
from sluice_gc.settings import (
    CycleSettings,
    EngineSettings,
    InventorySettings,
    PlanSettings,
    RunSettings,
)
from sluice_gc.show import BlobTold, explain_blob
from sluice_gc.trash import PurgeReport, purge_trash, restore_blob
from sluice_protocol.errors import BadUsage, ExitCode
from sluice_protocol.keys import AUTHORITY_SETTINGS, parse_digest
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import Digest, ObjectKey
from sluice_store import open_store
from sluice_store.authority import read_authority
from sluice_store.s3.settings import parse_s3_url

app = App(name="gc", help="Delete orphan blobs, only with a proof.")

_PLAN = PlanSettings()
_RUN = RunSettings()
_ENGINE = EngineSettings()
_CYCLE = CycleSettings()
_INVENTORY = InventorySettings()


@app.command
def plan(
    *,
    store: StoreUrl = STORE_DEFAULT,
    audit_id: Annotated[str | None, Parameter(help="The certificate; the newest if none.")] = None,
    settings: Annotated[PlanSettings, Parameter(name="*")] = _PLAN,
    inventory: Annotated[InventorySettings, Parameter(name="*")] = _INVENTORY,
    where: Annotated[EngineSettings, Parameter(name="*")] = _ENGINE,
    json: Json = False,
) -> int:
    """Lists what may go and why, on the ground of a certificate; deletes nothing."""
    made = asyncio.run(_plan(store, settings, where, inventory, audit_id))
    emit(made, as_json=json, human=lambda console: _draw_plan(console, made))
    return ExitCode.DONE.value


@app.command
def run(
    plan_id: Annotated[str | None, Parameter(help="The plan; the newest if none.")] = None,
    /,
    *,
    store: StoreUrl = STORE_DEFAULT,
    settings: Annotated[RunSettings, Parameter(name="*")] = _RUN,
    where: Annotated[EngineSettings, Parameter(name="*")] = _ENGINE,
    json: Json = False,
) -> int:
    """Proves every clause again for each candidate of a plan, and deletes those it lets go.

    It may be stopped at any time and run again.
    """
    report = asyncio.run(_run(store, plan_id, settings, where))
    emit(report, as_json=json, human=lambda console: _draw_report(console, report))
    open_ends = report.facts.unknown + report.facts.unread
    code = ExitCode.FOUND_WRONG if open_ends else ExitCode.DONE
    return int(code.value)


@app.command
def show(
    sha256: str,
    /,
    *,
    store: StoreUrl = STORE_DEFAULT,
    key_file: Path = _RUN.key_file,
    trusted_keys: tuple[str, ...] = (),
    json: Json = False,
) -> int:
    """Tells why a blob went, or which clause keeps it."""
    told = asyncio.run(_show(store, _parse(sha256), key_file, trusted_keys))
    emit(told, as_json=json, human=lambda console: _draw_blob(console, told))
    return ExitCode.DONE.value


@app.command
def undo(sha256: str, /, *, store: StoreUrl = STORE_DEFAULT, json: Json = False) -> int:
    """Puts a deleted blob back from the trash, while its copy is there."""
    digest = _parse(sha256)
    done = asyncio.run(_undo(store, digest))
    human = f"{digest} stands again" if done else f"{digest}: other bytes stand under its key"
    emit({"restored": done}, as_json=json, human=lambda console: console.print(human))
    code = ExitCode.DONE if done else ExitCode.FOUND_WRONG
    return int(code.value)


@app.command
def purge(
    *,
    store: StoreUrl = STORE_DEFAULT,
    key_file: Path = _RUN.key_file,
    trusted_keys: tuple[str, ...] = (),
    json: Json = False,
) -> int:
    """Deletes copies from the trash whose undo window is over, by the clauses of a blob."""
    report = asyncio.run(_purge(store, key_file, trusted_keys))
    text = f"{report.purged} copies purged, {report.kept} stay"
    emit(report, as_json=json, human=lambda console: console.print(text))
    return ExitCode.DONE.value


def _parse(sha256: str) -> Digest:
    try:
        return parse_digest(sha256)
    except ValueError as error:
        raise BadUsage(f"a blob is named by 64 lower-case hex digits, sha256=`{sha256}`") from error


async def _undo(url: str, digest: Digest) -> bool:
    async with open_store(url) as store:
        return await restore_blob(store, digest, SystemClock())


async def _purge(url: str, key_file: Path, trusted_keys: tuple[str, ...]) -> PurgeReport:
    trusted = load_trusted(key_file, trusted_keys)
    async with open_store(url) as store:
        link = await read_link(store, trusted, None)
        return await purge_trash(
            store, await read_authority(store), link, SystemIds().ulid(), clock=SystemClock()
        )


@app.command
def cycle(
    *,
    store: StoreUrl = STORE_DEFAULT,
    settings: Annotated[CycleSettings, Parameter(name="*")] = _CYCLE,
    where: Annotated[EngineSettings, Parameter(name="*")] = _ENGINE,
    json: Json = False,
) -> int:
    """Audits, carries out the plan whose grace is over, and plans again; for unattended use.

    It fails closed: exit 1 when a rule refused or something is wrong, 3 when the store is away.
    """
    report = asyncio.run(_cycle(store, settings, where))
    emit(report, as_json=json, human=lambda console: _draw_cycle(console, report))
    code = ExitCode.FOUND_WRONG if report.found_wrong else ExitCode.DONE
    return int(code.value)


async def _cycle(url: str, settings: CycleSettings, where: EngineSettings) -> CycleReport:
    keys = load_keys(settings.key_file, settings.trusted_keys)
    clock, metrics = SystemClock(), GcMetrics()
    async with open_engine(url, where) as (store, engine):
        cycles = Cycles(store, engine, keys, clock, SystemIds(), metrics=metrics)
        while True:
            try:
                report = await cycles.cycle(settings)
            finally:
                if settings.metrics_file is not None:
                    metrics.write(settings.metrics_file)
            if settings.every_s <= 0:
                return report
            await clock.sleep(settings.every_s)


async def _plan(
    url: str,
    settings: PlanSettings,
    where: EngineSettings,
    inventory: InventorySettings,
    audit_id: str | None,
) -> Plan:
    keys = load_keys(settings.key_file, settings.trusted_keys)
    async with open_engine(url, where) as (store, engine):
        planner = Planner(store, engine, keys, SystemClock(), SystemIds())
        table = None
        if inventory.inventory_store:
            source = _inventory_source(url, inventory)
            now_ns = (await store.head(AUTHORITY_SETTINGS)).date_ns
            async with open_store(inventory.inventory_store) as lists:
                key = ObjectKey(inventory.inventory_manifest)
                table = await read_inventory(lists, key, source, now_ns)
        return await planner.plan(settings, audit_id, table)


def _inventory_source(url: str, inventory: InventorySettings) -> InventorySource:
    """Gives what the inventory must be of: the bucket and prefix of the store, or as named."""
    bucket, prefix = inventory.inventory_bucket, ""
    if url.startswith("s3://"):
        settings = parse_s3_url(url)
        bucket, prefix = bucket or settings.bucket, settings.prefix
    if not bucket:
        raise BadUsage("name the bucket that the inventory must be of: --inventory-bucket")
    return InventorySource(bucket=bucket, prefix=prefix, age_s_max=inventory.inventory_age_s_max)


async def _run(
    url: str, plan_id: str | None, settings: RunSettings, where: EngineSettings
) -> RunReport:
    trusted = load_trusted(settings.key_file, settings.trusted_keys)
    async with open_engine(url, where) as (store, engine):
        runner = Runner(store, engine, trusted, SystemClock())
        return await runner.run(plan_id or await newest_plan_id(store), settings)


async def _show(
    url: str, digest: Digest, key_file: Path, trusted_keys: tuple[str, ...]
) -> BlobTold:
    trusted = load_trusted(key_file, trusted_keys)
    async with open_store(url) as store:
        return await explain_blob(store, trusted, digest)


def _draw_plan(console: Console, made: Plan) -> None:
    summary = made.summary
    console.print(f"plan {made.plan_id}, on audit {made.audit_id}")
    for name, tally in (
        ("blobs", summary.blobs),
        ("orphans that may go", summary.orphans),
        ("superseded that may go", summary.superseded),
        *((f"kept: {clause}", tally) for clause, tally in summary.kept.items()),
    ):
        console.print(f"  {name:24} {tally.incarnations:>10} {format_size(tally.bytes):>10}")
    for unit, buckets in (("bytes", summary.by_size), ("days", summary.by_age)):
        for one in buckets:
            if one.tally.incarnations:
                limit = f"up to {one.up_to} {unit}" if one.up_to else f"more {unit}"
                size = format_size(one.tally.bytes)
                console.print(f"    {limit:22} {one.tally.incarnations:>10} {size:>10}")


def _draw_report(console: Console, report: RunReport) -> None:
    facts = report.facts
    size = format_size(facts.deleted_bytes)
    if report.dry_run:
        console.print(f"plan {report.plan_id}: {facts.would_go} would go, nothing was deleted")
    else:
        console.print(f"plan {report.plan_id}: {facts.deleted} deleted ({size})")
    for clause, count in facts.kept.items():
        console.print(f"  kept: {clause:18} {count:>10}")
    if facts.unknown:
        console.print(f"  {facts.unknown} deletions are not confirmed: run the plan again")
    if facts.unread:
        console.print(f"  {facts.unread} could not be read and stay: run the plan again")
    if facts.skipped:
        console.print(f"  {facts.skipped} batches were done before")


def _draw_cycle(console: Console, report: CycleReport) -> None:
    console.print(f"audit {report.audit_id}: {report.counts.orphans} orphans")
    if report.ran_plan_id is None:
        console.print("no plan was due")
    else:
        deleted = report.facts.deleted
        console.print(f"plan {report.ran_plan_id}: {deleted} deleted, kept {report.facts.kept}")
    console.print(f"new plan {report.made_plan_id}")


def _draw_blob(console: Console, told: BlobTold) -> None:
    console.print(f"blob {told.sha256}")
    console.print(f"  named in audit {told.audit_id}: {told.named_in_audit}")
    if not told.incarnations:
        console.print("  no incarnation stands")
    for one in told.incarnations:
        why = f"{one.clause}: {one.reason}" if one.clause else "every clause lets it go"
        since = format_time(one.last_modified_unix_ns)
        console.print(f"  incarnation {one.incarnation} of {since}: {one.verdict} ({why})")
    for proof in told.proofs:
        why = f" ({proof.clause}: {proof.reason})" if proof.clause else ""
        at = format_time(proof.proved_at_unix_ns)
        console.print(
            f"  {at} {proof.verdict}{why}: incarnation {proof.incarnation}, plan {proof.plan_id},"
            f" audit {proof.audit_id}\n    {proof.proof_key}"
        )
