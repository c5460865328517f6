"""The commands of `sluice gc`: plan deletions, approve and stop plans, execute and explain them."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import App, Parameter

from sluice_cli.shell.operator import operator_name
from sluice_cli.shell.options import ENGINE, STORE_DEFAULT, Json, StoreUrl, VerificationKeys
from sluice_cli.shell.output import emit, format_size, format_time, print_columns
from sluice_gc.settings import (
    CycleSettings,
    EngineName,
    ExpirySettings,
    PlanSettings,
    RunSettings,
)
from sluice_protocol.blob_deletion import ApprovalRuling, PlanApproval, PlanState
from sluice_protocol.errors import BadUsage, ExitCode
from sluice_protocol.keys import parse_digest
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import Digest, UnixNs
from sluice_store import StoreMode, open_deployment
from sluice_store.retry import Backoff

if TYPE_CHECKING:
    from rich.console import Console

    from sluice_gc.blob_explanation import BlobExplanation
    from sluice_gc.candidate_views import (
        CandidateDetail,
        CandidatePage,
        ClauseFinding,
        PlanCandidate,
    )
    from sluice_gc.cycle import CycleReport
    from sluice_gc.plan_runner import RunReport
    from sluice_gc.trash import PurgeReport, RestoreReport
    from sluice_gc.version_expiry import ExpiryReport
    from sluice_protocol.collection_records import Plan
    from sluice_reconciler.audit_summaries import PlanOverview, UnreadableRecord
    from sluice_store.port import ObjectStore


PLANS_MAX: Final = 100
APPROVED: Final = "approved"
EXPIRED: Final = "expired"
UNREADABLE: Final = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPlan:
    """One plan.

    Attributes:
        made_at_unix_ns: The store's clock when it was made; None if the plan cannot be read.
        state: `planned`, `approved`, `finished`, `stopped`, `expired` (its evidence is no longer
            kept), or `unreadable` (damaged, or not completed).
        blobs: Object versions that it names.
        size_bytes: Their size.
        approved_by: Empty if no operator approved it.
        note: Why it was stopped, why its approval does not count, or why it cannot be read.
    """

    plan_id: str
    made_at_unix_ns: int | None
    state: str
    blobs: int
    size_bytes: int
    approved_by: str
    note: str


def plans(
    *,
    limit: Annotated[int, Parameter(help="Most plans to list, up to 100.")] = 20,
    store: StoreUrl = STORE_DEFAULT,
    json: Json = False,
) -> int:
    """List the newest plans: time, state, what each names, and who approved it.

    Signatures are not verified; a run verifies them.
    """
    if not 1 <= limit <= PLANS_MAX:
        raise BadUsage(f"--limit must be 1 to {PLANS_MAX}, limit=`{limit}`")
    found = asyncio.run(_read_plans(store, limit))
    emit(found, as_json=json, human=lambda console: _draw_plans(console, found))
    return ExitCode.DONE.value


async def _read_plans(url: str, limit: int) -> tuple[ListedPlan, ...]:
    from sluice_gc.evidence_retention import OPEN_PLAN_NS  # noqa: PLC0415 - quick help
    from sluice_reconciler.audit_summaries import list_newest_plans  # noqa: PLC0415 - quick help
    from sluice_store.authority import read_store_time  # noqa: PLC0415 - quick help

    async with open_deployment(url, StoreMode.READ) as store:
        found = await list_newest_plans(store, limit)
        open_since_ns = UnixNs(await read_store_time(store) - OPEN_PLAN_NS)
    return tuple(describe_plan(one, open_since_ns) for one in found)


def describe_plan(plan: "PlanOverview | UnreadableRecord", open_since_ns: UnixNs) -> ListedPlan:
    """Return the row of a plan; the evidence of plans made before `open_since_ns` is gone."""
    from sluice_reconciler.audit_summaries import UnreadableRecord  # noqa: PLC0415 - quick help

    if isinstance(plan, UnreadableRecord):
        return ListedPlan(
            plan_id=plan.key.split("/")[-2],
            made_at_unix_ns=None,
            state=UNREADABLE,
            blobs=0,
            size_bytes=0,
            approved_by="",
            note=plan.unreadable,
        )
    named = (plan.orphans, plan.superseded)
    return ListedPlan(
        plan_id=plan.plan_id,
        made_at_unix_ns=plan.made_at_unix_ns,
        state=_state(plan, open_since_ns),
        blobs=sum(one["incarnations"] for one in named),
        size_bytes=sum(one["bytes"] for one in named),
        approved_by="" if plan.approval is None else plan.approval.by,
        note=plan.stopped or plan.approval_problem,
    )


def _state(plan: "PlanOverview", open_since_ns: UnixNs) -> str:
    if plan.state != PlanState.PLANNED:
        return plan.state
    if plan.made_at_unix_ns < open_since_ns:
        return EXPIRED
    return APPROVED if plan.approval is not None and not plan.approval_problem else plan.state


def _draw_plans(console: "Console", found: tuple[ListedPlan, ...]) -> None:
    if not found:
        console.print("no plans: `sluice gc plan` makes one")
        return
    rows = [("plan", "made", "state", "blobs", "size", "approved by", "note")]
    rows += [
        (
            one.plan_id,
            "" if one.made_at_unix_ns is None else format_time(one.made_at_unix_ns),
            one.state,
            str(one.blobs),
            format_size(one.size_bytes),
            one.approved_by,
            one.note,
        )
        for one in found
    ]
    print_columns(console, rows)


CANDIDATES_MAX: Final = 500
_DIGEST_DIGITS: Final = 64


def candidates(
    plan_id: Annotated[str | None, Parameter(help="The plan; by default the newest.")] = None,
    /,
    *,
    sha256: Annotated[
        str,
        Parameter(help="Only blobs that begin with these digits; with all 64, everything of one."),
    ] = "",
    after: Annotated[int, Parameter(help="Pass over this many candidates.")] = 0,
    limit: Annotated[int, Parameter(help="Most candidates to list, up to 500.")] = 50,
    store: StoreUrl = STORE_DEFAULT,
    key_file: Annotated[
        Path | None,
        Parameter(help="Verify the plan's signature with this key of the auditor, or these keys."),
    ] = None,
    json: Json = False,
) -> int:
    """List the candidates of a plan with the clauses of each, or explain one blob.

    Exit with 1 if there is no such plan, or if the plan does not name the blob.
    """
    from sluice_gc.candidate_views import CandidateDetail  # noqa: PLC0415 - quick help

    if not 1 <= limit <= CANDIDATES_MAX or after < 0:
        raise BadUsage(
            f"--limit must be 1 to {CANDIDATES_MAX} and --after at least 0, limit=`{limit}`"
        )
    found = asyncio.run(_read_candidates(store, plan_id, sha256, (after, limit), key_file))
    emit(found, as_json=json, human=lambda console: _draw_candidates(console, found, after))
    named = found is not None and bool(not isinstance(found, CandidateDetail) or found.candidates)
    return int((ExitCode.DONE if named else ExitCode.FOUND_WRONG).value)


async def _read_candidates(
    url: str,
    plan_id: str | None,
    sha256: str,
    part: tuple[int, int],
    key_file: Path | None,
) -> "CandidatePage | CandidateDetail | None":
    from sluice_gc.plan import newest_plan_id  # noqa: PLC0415 - quick help
    from sluice_gc.plan_candidates import read_candidate, read_candidates  # noqa: PLC0415 - quick help
    from sluice_gc.signing_keys import load_trusted  # noqa: PLC0415 - quick help

    trusted = load_trusted(key_file) if key_file else None
    after, limit = part
    async with open_deployment(url, StoreMode.READ) as store:
        chosen = plan_id or await newest_plan_id(store)
        if len(sha256) == _DIGEST_DIGITS:
            try:
                digest = parse_digest(sha256)
            except ValueError as error:
                raise BadUsage(f"not lower-case hexadecimal digits, sha256=`{sha256}`") from error
            return await read_candidate(store, chosen, digest, trusted=trusted)
        return await read_candidates(
            store, chosen, after=after, limit=limit, prefix=sha256, trusted=trusted
        )


def _draw_candidates(
    console: "Console", found: "CandidatePage | CandidateDetail | None", after: int
) -> None:
    from sluice_gc.candidate_views import CandidatePage  # noqa: PLC0415 - quick help

    if found is None:
        console.print("no such plan: it was removed or never made")
    elif isinstance(found, CandidatePage):
        _draw_page(console, found, after)
    else:
        _draw_detail(console, found)


def _draw_page(console: "Console", page: "CandidatePage", after: int) -> None:
    checked = "" if page.signature_checked else ", its signature is not verified (--key-file)"
    console.print(f"plan {page.plan_id}: {page.total} candidates{checked}")
    for one in page.candidates:
        _draw_candidate(console, one)
    if page.more:
        console.print(f"more: continue with --after {after + len(page.candidates)}")


def _draw_candidate(console: "Console", one: "PlanCandidate") -> None:
    from sluice_gc.candidate_views import days_text  # noqa: PLC0415 - quick help

    kind = "superseded" if one.superseded else "orphan"
    size, age = format_size(one.size_bytes), days_text(one.age_s)
    console.print(f"{one.sha256}  {size}, {age} old, {kind}\n  {one.key}")
    _draw_clauses(console, one.clauses)


def _draw_clauses(console: "Console", clauses: "tuple[ClauseFinding, ...]") -> None:
    for one in clauses:
        console.print(f"    {one.clause:12} {one.state.replace('_', ' '):9} {one.found}")


def _draw_detail(console: "Console", found: "CandidateDetail") -> None:
    console.print(f"blob {found.sha256} in plan {found.plan_id}, audit {found.audit_id}")
    for one in found.candidates:
        _draw_candidate(console, one)
    for proof in found.proofs:
        at = format_time(proof.proved_at_unix_ns)
        console.print(f"  {at} {proof.verdict}: version {proof.incarnation}\n  {proof.proof_key}")
        _draw_clauses(console, proof.clauses)
    if found.reason:
        console.print(f"  {found.reason}")
    for kept in found.kept:
        since = format_time(kept.last_modified_unix_ns)
        console.print(f"  version {kept.incarnation} of {since}, {format_size(kept.size_bytes)}")
        _draw_clauses(console, (kept.finding,))


REASON_CHARS_MAX = 1000


def approve(
    plan_id: str,
    /,
    *,
    note: Annotated[str, Parameter(help="Why; kept in the record.")] = "",
    sha256: Annotated[
        str | None, Parameter(help="Approve only the plan of these bytes, in hex.")
    ] = None,
    store: StoreUrl = STORE_DEFAULT,
    json: Json = False,
) -> int:
    """Approve a plan, as `require_approval` of a run demands.

    An approval names the exact bytes of the plan. It is permanent; stop the plan to withdraw it.
    """
    result = asyncio.run(_approve(store, plan_id, note, sha256))
    if isinstance(result, ApprovalRuling):
        emit(
            {"plan_id": plan_id, "refused": result.value},
            as_json=json,
            human=lambda console: console.print(f"plan {plan_id} not approved: {result.value}"),
        )
        return int(ExitCode.FOUND_WRONG.value)
    text = f"plan {plan_id} approved by {result.by}"
    emit(result, as_json=json, human=lambda console: console.print(text))
    return int(ExitCode.DONE.value)


def stop(
    plan_id: str,
    /,
    *,
    reason: Annotated[str, Parameter(help="Why; it is shown by every later run.")],
    store: StoreUrl = STORE_DEFAULT,
    json: Json = False,
) -> int:
    """Stop a plan permanently; a running one ends before its next batch."""
    stopped = asyncio.run(_stop(store, plan_id, reason))
    text = "stopped" if stopped else "unknown or finished"
    emit(
        {"plan_id": plan_id, "stopped": stopped},
        as_json=json,
        human=lambda console: console.print(f"plan {plan_id}: {text}"),
    )
    return int((ExitCode.DONE if stopped else ExitCode.FOUND_WRONG).value)


async def _approve(
    url: str, plan_id: str, note: str, sha256: str | None
) -> PlanApproval | ApprovalRuling:
    from sluice_gc.plan import approve_plan  # noqa: PLC0415 - quick help

    _check_text("note", note)
    async with open_deployment(url) as store:
        return await approve_plan(
            store,
            plan_id,
            shown_sha256=Digest(sha256) if sha256 else await _stored_sha256(store, plan_id),
            by=operator_name(),
            note=note,
            backoff=Backoff.seeded_by(SystemClock()),
        )


async def _stored_sha256(store: "ObjectStore", plan_id: str) -> Digest:
    from sluice_gc.plan import check_plan_id, plan_key  # noqa: PLC0415 - quick help
    from sluice_protocol.keys import digest_of  # noqa: PLC0415 - quick help
    from sluice_protocol.outcomes import Found  # noqa: PLC0415 - quick help

    check_plan_id(plan_id)
    found = await store.get(plan_key(plan_id))
    return digest_of(found.body if isinstance(found, Found) else b"")


async def _stop(url: str, plan_id: str, reason: str) -> bool:
    from sluice_gc.plan import stop_plan  # noqa: PLC0415 - quick help

    if not reason.strip():
        raise BadUsage("reason must not be empty")
    _check_text("reason", reason)
    async with open_deployment(url) as store:
        by, backoff = operator_name(), Backoff.seeded_by(SystemClock())
        return await stop_plan(store, plan_id, by=by, reason=reason.strip(), backoff=backoff)


def _check_text(name: str, text: str) -> None:
    if len(text) > REASON_CHARS_MAX:
        raise BadUsage(f"{name} must have at most {REASON_CHARS_MAX} characters")


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
    engine: Annotated[EngineName, ENGINE] = "local",
    json: Json = False,
) -> int:
    """List what may be deleted according to a certificate, and why. Delete nothing."""
    made = asyncio.run(_plan(store, settings, engine, inventory, audit_id))
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
    inventory: str,
    audit_id: str | None,
) -> "Plan":
    from sluice_gc.planner import Planner  # noqa: PLC0415 - quick help
    from sluice_gc.signing_keys import load_keys  # noqa: PLC0415 - quick help
    from sluice_gc.task_engine import open_task_engine  # noqa: PLC0415 - quick help

    keys = load_keys(settings.key_file, settings.trusted_keys)
    async with open_task_engine(url, engine) as (store, tasks):
        planner = Planner(store, tasks, keys, SystemClock(), SystemIds())
        candidates = None
        if inventory:
            from sluice_gc.inventory_candidates import open_inventory  # noqa: PLC0415 - only here

            candidates = await open_inventory(store, url, inventory)
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
