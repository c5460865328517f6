"""A correctly signed plan that lists every blob; only the clauses of the run protect them."""

import pyarrow as pa
from support.gc_world import KEY, KEYS

from sluice_gc.audit.certificate import Certificate
from sluice_gc.audit.certificate_chain import read_newest
from sluice_gc.evidence_files import BLOBS, CANDIDATES, EvidenceFile, put_table, read_tables
from sluice_gc.plan.plan import Plan, PlanSummary, VersionTally, plan_key, sign_plan
from sluice_protocol.keys import GC_PLANS
from sluice_protocol.system_clock import SystemClock
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff, OtherBytes, create_once


async def hostile_plan(store: ObjectStore, plan_id: str, *, noncurrent: bool = False) -> Plan:
    """Return a plan that lists everything in the newest audit, signed with the correct key."""
    link = await read_newest(store, KEYS.trusted)
    assert link is not None
    certificate = link.certificate
    files: list[EvidenceFile] = []
    backoff = Backoff.seeded_by(SystemClock())
    for file in certificate.files("blobs"):
        blobs = await read_tables(store, [file], BLOBS)
        rows = [row for row in blobs.to_pylist() if row["current"] is not noncurrent]
        table = pa.Table.from_pylist(
            [_candidate(row, certificate, noncurrent=noncurrent) for row in rows], CANDIDATES
        )
        if rows:
            folder = f"{GC_PLANS}{plan_id}/"
            files.append(
                await put_table(store, folder, "candidates", file.place, table, backoff=backoff)
            )
    nothing = VersionTally()
    summary = PlanSummary(
        blobs=nothing, orphans=nothing, superseded=nothing, kept={}, by_size=(), by_age=()
    )
    plan = Plan(
        plan_id=plan_id,
        authority_id=certificate.authority_id,
        retry_horizon_s=certificate.retry_horizon_s,
        audit_id=certificate.audit_id,
        certificate_sha256=link.sha256,
        made_at_unix_ns=certificate.finished_at_unix_ns,
        summary=summary,
        candidates=tuple(files),
    )
    written = await create_once(store, plan_key(plan_id), sign_plan(plan, KEY), backoff)
    assert not isinstance(written, OtherBytes)
    return plan


def _candidate(
    row: dict[str, object], certificate: Certificate, *, noncurrent: bool
) -> dict[str, object]:
    return {
        **{name: row[name] for name in ("sha256", "incarnation", "last_modified_ns", "size_bytes")},
        "superseded": noncurrent,
        "versioning_enabled": True,
        "now_ns": 0,
        "retry_horizon_ns": 0,
        "audit_id": certificate.audit_id,
        "audit_started_at_ns": 0,
        "named_in_audit": False,
    }
