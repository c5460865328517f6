"""`sluice audit`: certifies what the store holds, and checks certificates."""

import asyncio
import base64
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import App, Parameter
from rich.console import Console

from sluice_cli.options import STORE_DEFAULT, Json, NewStoreUrl, StoreUrl
from sluice_cli.output import emit, format_size, format_time
from sluice_gc.audit import Auditor
from sluice_gc.certificate import Certificate, key_id_of
from sluice_gc.chain import has_certificates, verify_evidence, verify_store_chain
from sluice_gc.estimate import AuditEstimate, estimate_audit
from sluice_gc.evidence import FINDINGS
from sluice_gc.objects import Trusted, load_keys, load_trusted, make_key_file, read_tables
from sluice_gc.opening import open_engine
from sluice_gc.planner import read_link
from sluice_gc.settings import AuditSettings, EngineSettings
from sluice_protocol.errors import BadUsage, ExitCode
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_store import open_store
from sluice_store.url import parse_local_path

app = App(name="audit", help="Audit the store and certify what was seen.")

_DEFAULTS = AuditSettings()
_ENGINE = EngineSettings()
_FINDINGS_SHOWN = 1000

KeyFile = Annotated[Path, Parameter(help="The auditor's Ed25519 private key, PEM.")]
TrustedKeys = Annotated[
    tuple[str, ...],
    Parameter(help="Base64 of raw public keys to trust; the key file is then not read."),
]


class AuditView(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate as a person or program reads it, with what the audit found wrong."""

    certificate: Certificate
    findings: tuple[tuple[str, str, str], ...]


class KeyMade(msgspec.Struct, frozen=True, kw_only=True):
    """The public half of a key that was just made."""

    key_file: str
    key_id: str
    public_key: str


class ChainView(msgspec.Struct, frozen=True, kw_only=True):
    """A chain of certificates that holds."""

    certificates: int
    head_audit_id: str | None
    head_started_at_unix_ns: int | None
    evidence_files: int


@app.command
def key(*, key_file: KeyFile = _DEFAULTS.key_file, json: Json = False) -> int:
    """Makes the auditor's key: its public half is what others trust."""
    public = make_key_file(key_file)
    made = KeyMade(
        key_file=str(key_file),
        key_id=key_id_of(public),
        public_key=base64.b64encode(public.public_bytes_raw()).decode(),
    )

    def human(console: Console) -> None:
        console.print(f"key {made.key_id} in {made.key_file}\npublic key {made.public_key}")

    emit(made, as_json=json, human=human)
    return ExitCode.DONE.value


@app.command
def run(
    *,
    store: NewStoreUrl = STORE_DEFAULT,
    settings: Annotated[AuditSettings, Parameter(name="*")] = _DEFAULTS,
    where: Annotated[EngineSettings, Parameter(name="*")] = _ENGINE,
    estimate: Annotated[
        bool, Parameter(negative="", help="Print what an audit would cost, and stop.")
    ] = False,
    estimate_batches: int = 1_000_000_000,
    estimate_cores: int = 64,
    json: Json = False,
) -> int:
    """Audits the whole store and writes a certificate; exit 1 when it found something wrong."""
    if estimate:
        return _print_estimate(estimate_audit(estimate_batches, estimate_cores), as_json=json)
    require_store(store)
    return _print_audit(asyncio.run(_run(store, settings, where)), as_json=json)


@app.command
def show(
    audit_id: str | None = None,
    /,
    *,
    store: StoreUrl = STORE_DEFAULT,
    key_file: KeyFile = _DEFAULTS.key_file,
    trusted_keys: TrustedKeys = (),
    json: Json = False,
) -> int:
    """Shows one certificate, the newest by default, and what that audit found wrong."""
    trusted = load_trusted(key_file, trusted_keys)
    return _print_audit(asyncio.run(_show(store, audit_id, trusted)), as_json=json)


@app.command
def verify(
    *,
    store: StoreUrl = STORE_DEFAULT,
    key_file: KeyFile = _DEFAULTS.key_file,
    trusted_keys: TrustedKeys = (),
    evidence: Annotated[
        bool, Parameter(negative="", help="Read the newest certificate's evidence too.")
    ] = False,
    json: Json = False,
) -> int:
    """Checks every certificate, its signature and its place; a copy of `audit/v1/` is enough."""
    trusted = load_trusted(key_file, trusted_keys)
    view = asyncio.run(_verify(store, trusted, evidence=evidence))

    def human(console: Console) -> None:
        console.print(f"{view.certificates} certificates hold, head {view.head_audit_id}")
        if evidence:
            console.print(f"{view.evidence_files} files of evidence are as they were")

    emit(view, as_json=json, human=human)
    return ExitCode.DONE.value


def require_store(url: str) -> None:
    """Refuses a directory that is not there: an audit must not make an empty store.

    Raises:
        BadUsage: There is no such directory.
    """
    if url.startswith("file://") and not parse_local_path(url).is_dir():
        raise BadUsage(f"no store stands there: run `sluice init --store {url}` first")


async def _run(url: str, settings: AuditSettings, where: EngineSettings) -> AuditView:
    async with open_engine(url, where) as (store, engine):
        if not settings.key_file.exists() and not await has_certificates(store):
            make_key_file(settings.key_file)
        keys = load_keys(settings.key_file)
        auditor = Auditor(store, engine, keys, SystemClock(), SystemIds())
        certificate = await auditor.audit(settings)
        table = await read_tables(store, certificate.files("findings"), FINDINGS)
    return _view(certificate, table.to_pylist())


async def _show(url: str, audit_id: str | None, trusted: Trusted) -> AuditView:
    async with open_store(url) as store:
        certificate = (await read_link(store, trusted, audit_id)).certificate
        table = await read_tables(store, certificate.files("findings"), FINDINGS)
    return _view(certificate, table.to_pylist())


async def _verify(url: str, trusted: Trusted, *, evidence: bool) -> ChainView:
    async with open_store(url) as store:
        chain = await verify_store_chain(store, trusted)
        files = await verify_evidence(store, chain[-1]) if evidence and chain else 0
    return ChainView(
        certificates=len(chain),
        head_audit_id=chain[-1].audit_id if chain else None,
        head_started_at_unix_ns=chain[-1].started_at_unix_ns if chain else None,
        evidence_files=files,
    )


def _print_estimate(told: AuditEstimate, *, as_json: bool) -> int:
    def human(console: Console) -> None:
        console.print(f"audit of {told.batches:,} batches on {told.cores} cores, S3 us-east-1")
        share = f"{told.following_new_share:.0%} new"
        for name, price in (("first", told.first), (f"next, {share}", told.following)):
            console.print(
                f"  {name:16} {price.usd:>10,.2f} USD: {price.list_requests:,} LIST,"
                f" {price.get_requests:,} GET, {price.hours} h of listing,"
                f" {price.evidence_gib} GiB of evidence"
            )

    emit(told, as_json=as_json, human=human)
    return ExitCode.DONE.value


def _view(certificate: Certificate, rows: list[dict[str, str]]) -> AuditView:
    shown = rows[:_FINDINGS_SHOWN]
    return AuditView(
        certificate=certificate,
        findings=tuple((row["kind"], row["key"], row["detail"]) for row in shown),
    )


def _print_audit(view: AuditView, *, as_json: bool) -> int:
    emit(view, as_json=as_json, human=lambda console: _draw(console, view))
    counts = view.certificate.counts
    wrong = (
        counts.missing_blobs
        + counts.unreadable_manifests
        + counts.corrupt_blobs
        + counts.misnamed
        + counts.foreign
    )
    code = ExitCode.FOUND_WRONG if wrong else ExitCode.DONE
    return int(code.value)


def _draw(console: Console, view: AuditView) -> None:
    certificate, counts = view.certificate, view.certificate.counts
    started = format_time(certificate.started_at_unix_ns)
    console.print(f"audit {certificate.audit_id}, certificate #{certificate.chain_index}")
    console.print(f"started {started}, horizon {certificate.retry_horizon_s} s")
    console.print(f"Merkle root {certificate.merkle_root}")
    for covered in certificate.coverage:
        pages = sum(one.pages for one in covered.ranges)
        ranges = len(covered.ranges)
        console.print(
            f"  {covered.prefix:24} {covered.objects:>10} listed, {pages} pages, {ranges} ranges"
        )
    size = format_size(counts.incarnations_bytes)
    console.print(f"blobs {counts.incarnations} ({size}), orphans {counts.orphans}")
    for name, value in msgspec.structs.asdict(counts).items():
        if value and name not in {"incarnations", "incarnations_bytes", "orphans"}:
            console.print(f"  {name.replace('_', ' '):24} {value:>10}")
    for kind, place, detail in view.findings:
        console.print(f"  {kind}: {place} {detail}".rstrip())
