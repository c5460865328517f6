"""Proofs as rows: written before anything is deleted, never changed."""

from collections.abc import Sequence

import pyarrow as pa

from sluice_gc.evidence import PROOFS, raw
from sluice_gc.proof import Proof
from sluice_protocol.blob_deletion import Keep
from sluice_protocol.keys import GC_PROOFS, accepted_key, quarantine_key
from sluice_protocol.units import Digest, ObjectKey

Value = bytes | str | int | bool | None


def proofs_prefix(digest: Digest) -> str:
    """Gives the prefix of every file that may hold proofs about a blob."""
    return f"{GC_PROOFS}sha256={digest[:2]}/"


def proof_key(plan_id: str, hh: str, batch: int, attempt: int) -> ObjectKey:
    """Gives the key of one attempt at a batch; `hh` is the first byte of all its digests."""
    return ObjectKey(f"{GC_PROOFS}sha256={hh}/{plan_id}-{batch:06d}-{attempt:03d}.parquet")


def proofs_table(plan_id: str, proofs: Sequence[Proof]) -> pa.Table:
    """Gives rows of `PROOFS`."""
    rows = [_row(plan_id, one) for one in proofs]
    return pa.Table.from_pylist(rows, schema=PROOFS)


def _row(plan_id: str, proof: Proof) -> dict[str, Value]:
    case, evidence = proof.case, proof.evidence
    candidate = case.candidate
    return {
        "sha256": raw(candidate.digest),
        "incarnation": candidate.incarnation,
        "last_modified_ns": candidate.last_modified_ns,
        "size_bytes": candidate.size_bytes,
        "superseded": case.superseded,
        "versioning_enabled": case.versioning_enabled,
        "now_ns": evidence.now_ns or 0,
        "retry_horizon_ns": case.retry_horizon_ns,
        "audit_id": case.audit.audit_id,
        "audit_started_at_ns": case.audit.started_at_ns,
        "named_in_audit": bool(case.audit.names_blob),
        "plan_id": plan_id,
        "references_read": evidence.references,
        **_envelope(proof),
        "listed_current": evidence.listed.current if evidence.listed else None,
        "current_incarnation": evidence.current.incarnation if evidence.current else None,
        **_verdict(proof),
    }


def _envelope(proof: Proof) -> dict[str, Value]:
    identity, look = proof.identity, proof.evidence.envelope
    digest = proof.case.candidate.digest
    return {
        "envelope_accepted_key": accepted_key(identity) if identity else None,
        "envelope_accepted": look.accepted.value if look else None,
        "envelope_quarantine_key": quarantine_key(identity, digest) if identity else None,
        "envelope_quarantine": look.quarantine.value if look else None,
    }


def _verdict(proof: Proof) -> dict[str, Value]:
    verdict = proof.verdict
    if isinstance(verdict, Keep):
        return {"verdict": "keep", "clause": verdict.clause.value, "reason": verdict.reason}
    return {"verdict": "may_go", "clause": None, "reason": None}
