"""The commands of `sluice audit`: certify the contents of a store, and verify certificates."""

import asyncio
import base64
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from cyclopts import App, Parameter

from sluice_cli.shell.options import (
    ENGINE,
    EXISTING_STORE,
    STORE_DEFAULT,
    Json,
    NewStoreUrl,
    StoreUrl,
    VerificationKeys,
)
from sluice_cli.shell.output import emit, format_size, format_time
from sluice_gc.auditor import (
    AuditEstimate,
    AuditReport,
    audit_store,
    estimate_audit,
    read_audit_report,
)
from sluice_gc.certificate import read_certificate_or_newest
from sluice_gc.evidence_retention import PruneReport, prune_evidence
from sluice_gc.settings import AuditSettings, EngineName
from sluice_gc.signing_keys import TrustedKeys, key_id_of, load_trusted, make_key_file
from sluice_gc.store_verification import ChainReport, verify_store
from sluice_gc.task_engine import open_task_engine
from sluice_protocol.errors import ExitCode
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_store import StoreMode, open_deployment

if TYPE_CHECKING:
    from rich.console import Console

app = App(name="audit", help="Audit a store and certify its contents.")

_DEFAULTS = AuditSettings()

ESTIMATED_CORES: Final = 64
"""Executor cores of an estimate: the hours fall as the cores rise, the price stays."""

KeyFile = Annotated[Path, Parameter(help="The auditor's Ed25519 private key, in PEM.")]


class KeyMade(msgspec.Struct, frozen=True, kw_only=True):
    """The public half of a new key."""

    key_file: str
    key_id: str
    public_key: str


@app.command
def key(*, key_file: KeyFile = _DEFAULTS.key_file, json: Json = False) -> int:
    """Create the auditor's key. Others trust its public half."""
    public = make_key_file(key_file)
    created = KeyMade(
        key_file=str(key_file),
        key_id=key_id_of(public),
        public_key=base64.b64encode(public.public_bytes_raw()).decode(),
    )

    def human(console: "Console") -> None:
        console.print(
            f"key {created.key_id} in {created.key_file}\npublic key {created.public_key}"
        )

    emit(created, as_json=json, human=human)
    return ExitCode.DONE.value


@app.command
def run(
    *,
    store: NewStoreUrl = STORE_DEFAULT,
    settings: Annotated[AuditSettings, Parameter(name="*")] = _DEFAULTS,
    engine: Annotated[EngineName, ENGINE] = "local",
    estimate: Annotated[
        int | None,
        Parameter(help="Print what an audit of this many accepted batches costs, and exit."),
    ] = None,
    json: Json = False,
) -> int:
    """Audit the whole store and write a certificate. Exit with 1 if an operator must act."""
    if estimate is not None:
        return _print_estimate(estimate_audit(estimate, ESTIMATED_CORES), as_json=json)
    EXISTING_STORE.check(store)
    EXISTING_STORE.show(store)
    return _print_audit(asyncio.run(_run(store, settings, engine)), as_json=json)


@app.command
def show(
    audit_id: str | None = None,
    /,
    *,
    store: StoreUrl = STORE_DEFAULT,
    key_file: VerificationKeys = _DEFAULTS.key_file,
    json: Json = False,
) -> int:
    """Show a certificate, by default the newest, and the findings of its audit."""
    trusted = load_trusted(key_file)
    return _print_audit(asyncio.run(_show(store, audit_id, trusted)), as_json=json)


@app.command
def verify(
    *,
    store: StoreUrl = STORE_DEFAULT,
    key_file: VerificationKeys = _DEFAULTS.key_file,
    evidence: Annotated[
        bool,
        Parameter(negative="", help="Also verify the evidence files that are kept."),
    ] = False,
    json: Json = False,
) -> int:
    """Verify every certificate, its signature and its chain position.

    A copy of `audit/v1/` is sufficient.
    """
    trusted = load_trusted(key_file)
    view = asyncio.run(_verify(store, trusted, evidence=evidence))

    def human(console: "Console") -> None:
        console.print(f"{view.certificates} certificates are valid, newest {view.head_audit_id}")
        if evidence:
            console.print(f"{view.evidence_files} evidence files are unchanged")
        if view.evidence_kept_from:
            console.print(f"evidence before certificate #{view.evidence_kept_from} is not kept")

    emit(view, as_json=json, human=human)
    return ExitCode.DONE.value


@app.command
def prune(
    *,
    store: StoreUrl = STORE_DEFAULT,
    key_file: VerificationKeys = _DEFAULTS.key_file,
    dry_run: Annotated[bool, Parameter(negative="", help="Remove nothing.")] = False,
    json: Json = False,
) -> int:
    """Remove the evidence that the newest certificate no longer keeps."""
    trusted = load_trusted(key_file)
    report = asyncio.run(_prune(store, trusted, dry_run=dry_run))
    done = "to remove" if dry_run else "removed"

    def human(console: "Console") -> None:
        console.print(
            f"{report.files} evidence files {done} ({format_size(report.bytes)}); "
            f"kept from certificate #{report.kept_from}"
        )

    emit(report, as_json=json, human=human)
    return int((ExitCode.FOUND_WRONG if report.unknown else ExitCode.DONE).value)


async def _prune(url: str, trusted: TrustedKeys, *, dry_run: bool) -> PruneReport:
    async with open_deployment(url) as store:
        return await prune_evidence(store, trusted, dry_run=dry_run)


async def _run(url: str, settings: AuditSettings, engine: EngineName) -> AuditReport:
    async with open_task_engine(url, engine) as (store, tasks):
        return await audit_store(store, tasks, settings, SystemClock(), SystemIds())


async def _show(url: str, audit_id: str | None, trusted: TrustedKeys) -> AuditReport:
    async with open_deployment(url, StoreMode.READ) as store:
        certificate = (await read_certificate_or_newest(store, trusted, audit_id)).certificate
        return await read_audit_report(store, certificate)


async def _verify(url: str, trusted: TrustedKeys, *, evidence: bool) -> ChainReport:
    async with open_deployment(url, StoreMode.READ) as store:
        return await verify_store(store, trusted, evidence=evidence)


def _print_estimate(estimate: AuditEstimate, *, as_json: bool) -> int:
    def human(console: "Console") -> None:
        console.print(
            f"audit of {estimate.batches:,} batches on {estimate.cores} cores, S3 us-east-1"
        )
        share = f"{estimate.following_new_share:.0%} new"
        for name, price in (("first", estimate.first), (f"next, {share}", estimate.following)):
            console.print(
                f"  {name:16} {price.usd:>10,.2f} USD: {price.list_requests:,} LIST,"
                f" {price.get_requests:,} GET, {price.hours} h of listing,"
                f" {price.evidence_gib} GiB of evidence"
            )

    emit(estimate, as_json=as_json, human=human)
    return ExitCode.DONE.value


def _print_audit(report: AuditReport, *, as_json: bool) -> int:
    emit(report, as_json=as_json, human=lambda console: _draw(console, report))
    code = ExitCode.FOUND_WRONG if report.found_wrong else ExitCode.DONE
    return int(code.value)


def _draw(console: "Console", report: AuditReport) -> None:
    certificate, counts = report.certificate, report.certificate.counts
    started = format_time(certificate.started_at_unix_ns)
    console.print(f"audit {certificate.audit_id}, certificate #{certificate.chain_index}")
    console.print(f"started {started}, retry horizon {certificate.retry_horizon_s} s")
    console.print(f"Merkle root {certificate.merkle_root}")
    for covered in certificate.coverage:
        pages = sum(one.pages for one in covered.ranges)
        ranges = len(covered.ranges)
        console.print(
            f"  {covered.prefix:24} {covered.objects:>10} listed, {pages} pages, {ranges} ranges"
        )
    size = format_size(counts.incarnations_bytes)
    console.print(f"blobs {counts.incarnations} ({size}), orphans {counts.orphans}")
    for name, value in msgspec.to_builtins(counts).items():
        if value and name not in {"incarnations", "incarnations_bytes", "orphans"}:
            console.print(f"  {name.replace('_', ' '):24} {value:>10}")
    if report.removed:
        console.print("the list of findings was removed by rule; the counts remain")
    for kind, place, detail in report.findings:
        console.print(f"  {kind}: {place} {detail}".rstrip())
