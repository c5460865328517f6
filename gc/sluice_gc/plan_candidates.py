"""The candidates of one plan, a page at a time, and everything about one of them.

A plan with 10^6 candidates has files of many row groups. A page reads the record of the plan, and
the last bytes and one or two row groups of one file. A search reads the row groups whose first and
last digest enclose what is searched.
"""

import asyncio
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa

from sluice_gc.candidate_views import (
    CandidateDetail,
    CandidatePage,
    CandidateProof,
    CandidateRow,
    PlanCandidate,
    ProofRow,
    plan_candidate,
    proved_clauses,
    run_clauses,
)
from sluice_gc.deletion_proof import proofs_prefix
from sluice_gc.evidence_files import (
    CANDIDATES,
    PROOFS,
    EvidenceFile,
    decode_table,
    digest_from_bytes,
)
from sluice_gc.kept_candidates import read_kept
from sluice_gc.key_ranges import parse_shard
from sluice_gc.plan import Plan, SignedPlan, plan_key, verify_plan
from sluice_gc.plan_inputs import check_plan_id
from sluice_gc.row_groups import RowGroups, open_row_groups
from sluice_gc.signing_keys import TrustedKeys
from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.keys import blob_key
from sluice_protocol.manifests import decode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.units import Digest, ObjectKey
from sluice_store.port import ObjectStore

PAGE_MAX: Final = 500
PREFIX_DIGITS_MIN: Final = 2
"""Fewer digits would need the files of several shards."""
PROOF_FILES_MAX: Final = 64
_DIGEST_DIGITS: Final = 64
_PREFIX: Final = re.compile(r"[0-9a-f]{2,64}", re.ASCII)
_GONE: Final = "the candidates were removed by rule or are lost: make a new plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenedPlan:
    plan: Plan
    signature_checked: bool


async def read_candidates(
    store: ObjectStore,
    plan_id: str,
    *,
    after: int = 0,
    limit: int = PAGE_MAX,
    prefix: str = "",
    trusted: TrustedKeys | None = None,
) -> CandidatePage | None:
    """Return some candidates of a plan; None if there is no such plan.

    Args:
        store: The deployment.
        plan_id: The plan.
        after: Candidates to pass over; with `prefix`, those that match.
        limit: How many are returned at most.
        prefix: Only blobs whose SHA-256 begins with these digits; empty for all.
        trusted: The keys that verify the plan; None does not verify its signature.

    Raises:
        BadUsage: The id or the prefix has another form.
        GcRefused: The signature of the plan is not valid.
        InvalidRecord: The plan or its files are damaged, missing, or of another version.
        StoreError: The store is unreachable or refused a request.
    """
    check_plan_id(plan_id)
    if prefix and _PREFIX.fullmatch(prefix) is None:
        raise BadUsage(
            f"search by {PREFIX_DIGITS_MIN} to {_DIGEST_DIGITS} lower-case hex digits of a SHA-256,"
            f" prefix=`{prefix[:80]}`"
        )
    opened = await _read_plan(store, plan_id, trusted)
    if opened is None:
        return None
    plan = opened.plan
    found = (
        await _matching(store, plan, prefix, after + limit + 1)
        if prefix
        else await _from(store, plan, after, limit + 1)
    )
    shown = found[after : after + limit] if prefix else found[:limit]
    return CandidatePage(
        plan_id=plan_id,
        made_at_unix_ns=plan.made_at_unix_ns,
        retry_horizon_s=plan.retry_horizon_s,
        signature_checked=opened.signature_checked,
        total=sum(one.rows for one in plan.candidates),
        candidates=tuple(plan_candidate(one) for one in shown),
        more=len(found) > (after + limit if prefix else limit),
    )


async def read_candidate(
    store: ObjectStore, plan_id: str, digest: Digest, *, trusted: TrustedKeys | None = None
) -> CandidateDetail | None:
    """Return what a plan and its runs state about one blob; None if there is no such plan.

    Raises:
        BadUsage: The id has another form.
        GcRefused: The signature of the plan is not valid, or evidence was altered.
        InvalidRecord: A file is damaged, missing, or of another version.
        StoreError: The store is unreachable or refused a request.
    """
    check_plan_id(plan_id)
    opened = await _read_plan(store, plan_id, trusted)
    if opened is None:
        return None
    plan = opened.plan
    rows = await _matching(store, plan, digest, PAGE_MAX)
    proofs, more = await _read_proofs(store, plan_id, digest) if rows else ([], False)
    detail = CandidateDetail(
        plan_id=plan_id,
        audit_id=plan.audit_id,
        sha256=digest,
        key=blob_key(digest),
        signature_checked=opened.signature_checked,
        candidates=tuple(_with_run(one) for one in rows),
        proofs=tuple(proofs),
        proofs_more=more,
    )
    if rows:
        return detail
    kept, reason = await read_kept(store, plan, digest)
    return msgspec.structs.replace(detail, kept=kept, reason=reason)


def _with_run(row: CandidateRow) -> PlanCandidate:
    one = plan_candidate(row)
    return msgspec.structs.replace(one, clauses=(*one.clauses, *run_clauses(row)))


async def _read_plan(
    store: ObjectStore, plan_id: str, trusted: TrustedKeys | None
) -> _OpenedPlan | None:
    key = plan_key(plan_id)
    read = await store.get(key)
    if not isinstance(read, Found):
        return None
    if trusted:
        return _OpenedPlan(plan=verify_plan(plan_id, read.body, trusted), signature_checked=True)
    plan = decode_record(key, read.body, SignedPlan).plan
    if plan.plan_id != plan_id:
        raise InvalidRecord(key, f"it contains another plan, found={plan.plan_id}")
    return _OpenedPlan(plan=plan, signature_checked=False)


async def _from(store: ObjectStore, plan: Plan, after: int, wanted: int) -> list[CandidateRow]:
    """Return the rows from a place on; files before it are not opened."""
    found: list[CandidateRow] = []
    first = 0
    for file in plan.candidates:
        if after < first + file.rows and len(found) < wanted:
            start = max(0, after - first)
            async for at, table in (await _open(store, file)).rows(start):
                begin = max(0, start - at)
                found += _rows(table.slice(begin, wanted - len(found)))
                if len(found) >= wanted:
                    break
        first += file.rows
    return found


async def _open(store: ObjectStore, file: EvidenceFile) -> RowGroups:
    opened = await open_row_groups(store, file, CANDIDATES)
    if opened is None:
        raise InvalidRecord(file.key, _GONE)
    return opened


async def _matching(store: ObjectStore, plan: Plan, prefix: str, wanted: int) -> list[CandidateRow]:
    """Return the rows whose digest begins with some digits, at least two."""
    low = bytes.fromhex(prefix.ljust(_DIGEST_DIGITS, "0"))
    high = bytes.fromhex(prefix.ljust(_DIGEST_DIGITS, "f"))
    found: list[CandidateRow] = []
    for file in plan.candidates:
        if Digest(low.hex()) not in parse_shard(file.place):
            continue
        async for table in (await _open(store, file)).rows_between(low, high):
            found += await asyncio.to_thread(_rows_between, table, low, high)
            if len(found) >= wanted:
                break
    return found[:wanted]


def _rows_between(table: pa.Table, low: bytes, high: bytes) -> list[CandidateRow]:
    """Return the rows between two digests; they may be in any order."""
    digests = table["sha256"].to_pylist()
    places = [at for at, one in enumerate(digests) if low <= one <= high]
    return _rows(table.take(pa.array(places, pa.int64())))


def _rows(table: pa.Table) -> list[CandidateRow]:
    return [candidate_row(row) for row in table.to_pylist()]


_ROW_FIELDS: Final = [name for name in CANDIDATES.names if name != "sha256"]


def candidate_row(row: dict[str, Any]) -> CandidateRow:
    """Return the values of a row of `CANDIDATES` or `PROOFS`."""
    fields = {name: row[name] for name in _ROW_FIELDS}
    return CandidateRow(digest=digest_from_bytes(row["sha256"]), **fields)


async def _read_proofs(
    store: ObjectStore, plan_id: str, digest: Digest
) -> tuple[list[CandidateProof], bool]:
    """Return the proofs of a plan about a blob, and whether there are more files than are read."""
    keys: list[ObjectKey] = []
    async for page in store.list(f"{proofs_prefix(digest)}{plan_id}-"):
        keys += [one.key for one in page.objects]
        if len(keys) > PROOF_FILES_MAX:
            break
    found: list[CandidateProof] = []
    for key in keys[:PROOF_FILES_MAX]:
        read = await store.get(key)
        if isinstance(read, Found):
            found += await asyncio.to_thread(_proofs, key, read.body, digest)
    return sorted(found, key=lambda one: one.proved_at_unix_ns), len(keys) > PROOF_FILES_MAX


def _proofs(key: ObjectKey, body: bytes, digest: Digest) -> list[CandidateProof]:
    try:
        table = decode_table(body, PROOFS)
    except (ValueError, OSError, pa.ArrowException) as error:
        raise InvalidRecord(key, f"the file of proofs is damaged: {error}") from error
    wanted = bytes.fromhex(digest)
    places = [at for at, one in enumerate(table["sha256"].to_pylist()) if one == wanted]
    return list(_proofs_of(key, table.take(pa.array(places, pa.int64())).to_pylist()))


_PROOF_FIELDS: Final = (
    *("verdict", "clause", "reason", "references_read", "envelope_accepted_key"),
    *("envelope_accepted", "envelope_quarantine_key", "envelope_quarantine", "listed_current"),
    "current_incarnation",
)


def _proofs_of(key: ObjectKey, rows: Iterable[dict[str, Any]]) -> Iterator[CandidateProof]:
    for row in rows:
        fields = {name: row[name] for name in _PROOF_FIELDS}
        yield CandidateProof(
            proof_key=key,
            proved_at_unix_ns=row["now_ns"],
            incarnation=row["incarnation"],
            verdict=row["verdict"],
            clauses=proved_clauses(ProofRow(row=candidate_row(row), **fields)),
        )
