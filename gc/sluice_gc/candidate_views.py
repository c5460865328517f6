"""The candidates of a plan for operators: each clause with the values that decided it.

A clause is decided by `sluice_protocol.blob_deletion`; this module describes the values. The result
is the same for the console and the command line. Nothing here proves a deletion: a run reads all
evidence again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from sluice_protocol.blob_deletion import (
    AuditResult,
    Candidate,
    Clause,
    ClauseCheck,
    Evidence,
    audit_unnamed,
    certificate_covers,
    incarnation_exact,
    old_enough,
    versioning_enabled,
)
from sluice_protocol.keys import blob_key
from sluice_protocol.timestamps import format_rfc3339
from sluice_protocol.units import NS_PER_S, Digest, ObjectVersion, UnixNs

_DAY_S: Final = 86_400

PLANNED: Final[Mapping[Clause, ClauseCheck]] = {
    Clause.VERSIONING: versioning_enabled,
    Clause.INCARNATION: incarnation_exact,
    Clause.AGE: old_enough,
    Clause.CERTIFICATE: certificate_covers,
    Clause.AUDIT: audit_unnamed,
}
"""The clauses that a plan checks, in their order."""
_OF_SUPERSEDED: Final = (Clause.VERSIONING, Clause.INCARNATION, Clause.AGE)
_READ_BY_RUN: Final = (Clause.REFERENCES, Clause.ENVELOPE, Clause.LISTED)
_READ_BY_RUN_SUPERSEDED: Final = (Clause.NONCURRENT, Clause.CURRENT)


class ClauseState(StrEnum):
    """Whether a clause allows the deletion."""

    HOLDS = "holds"
    KEEPS = "keeps"
    """It keeps the blob."""
    NOT_READ = "not_read"
    """It is checked by the run, immediately before the deletion."""


class ClauseFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One clause and the values that decided it.

    Attributes:
        state: Whether it allows the deletion.
        found: The values, or why it keeps the blob.
    """

    clause: str
    state: ClauseState
    found: str


class PlanCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """One object version that a plan names, with the clauses that the plan checked.

    Attributes:
        last_modified_unix_ns: When it was written, by the store's clock.
        age_s: Its age when the plan was made, in seconds, by the store's clock.
        superseded: Whether it is a noncurrent version of a named blob. Else no record names it.
    """

    sha256: str
    key: str
    incarnation: str
    size_bytes: int
    last_modified_unix_ns: int
    age_s: float
    superseded: bool
    clauses: tuple[ClauseFinding, ...]


class CandidatePage(msgspec.Struct, frozen=True, kw_only=True):
    """Some candidates of a plan, in the order of its files, which is that of the digests.

    Attributes:
        made_at_unix_ns: When the plan was made, by the store's clock.
        retry_horizon_s: The retry horizon of the authority, in seconds.
        signature_checked: Whether the signature of the plan was verified.
        candidates: At most as many as were requested.
        more: Whether further candidates follow; for a search, further ones that match.
    """

    plan_id: str
    made_at_unix_ns: int
    retry_horizon_s: int
    signature_checked: bool
    total: int
    candidates: tuple[PlanCandidate, ...]
    more: bool


class CandidateProof(msgspec.Struct, frozen=True, kw_only=True):
    """What a run of the plan read about a candidate immediately before it decided.

    Attributes:
        proved_at_unix_ns: The store's clock when the evidence was read; 0 if it was not read.
        verdict: `may_go` or `keep`.
        clauses: The clauses in their order, with the values that were read.
    """

    proof_key: str
    proved_at_unix_ns: int
    incarnation: str
    verdict: str
    clauses: tuple[ClauseFinding, ...]


class KeptVersion(msgspec.Struct, frozen=True, kw_only=True):
    """An object version that is in the audit, and that the plan keeps.

    Attributes:
        last_modified_unix_ns: By the store's clock.
        finding: The first clause that keeps it, and why.
    """

    incarnation: str
    size_bytes: int
    last_modified_unix_ns: int
    current: bool
    finding: ClauseFinding


class CandidateDetail(msgspec.Struct, frozen=True, kw_only=True):
    """Why a plan names one blob, what its runs proved about it, or why the plan does not name it.

    Attributes:
        audit_id: The audit that the plan is based on.
        signature_checked: Whether the signature of the plan was verified.
        candidates: Its object versions that the plan names.
        proofs: What the runs of this plan proved about them, in the order of time.
        proofs_more: Whether there are more proof files than were read.
        kept: If the plan names no version: the versions in the audit, each with what keeps it.
        reason: If the plan names no version: why, in a sentence. Else empty.
    """

    plan_id: str
    audit_id: str
    sha256: str
    key: str
    signature_checked: bool
    candidates: tuple[PlanCandidate, ...] = ()
    proofs: tuple[CandidateProof, ...] = ()
    proofs_more: bool = False
    kept: tuple[KeptVersion, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRow:
    """One row of a plan's file of candidates."""

    digest: Digest
    incarnation: str
    last_modified_ns: int
    size_bytes: int
    superseded: bool
    versioning_enabled: bool
    now_ns: int
    retry_horizon_ns: int
    audit_id: str
    audit_started_at_ns: int
    named_in_audit: bool

    @property
    def evidence(self) -> Evidence:
        """The evidence of the plan."""
        return Evidence(
            candidate=Candidate(
                key=blob_key(self.digest),
                digest=self.digest,
                incarnation=ObjectVersion(self.incarnation),
                last_modified_ns=UnixNs(self.last_modified_ns),
                size_bytes=self.size_bytes,
            ),
            retry_horizon_ns=self.retry_horizon_ns,
            now_ns=UnixNs(self.now_ns),
            versioning_enabled=self.versioning_enabled,
            audit=AuditResult(
                audit_id=self.audit_id,
                started_at_ns=UnixNs(self.audit_started_at_ns),
                complete=True,
                names_blob=self.named_in_audit,
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofRow:
    """What a row of proofs contains in addition to those of `CandidateRow`."""

    row: CandidateRow
    verdict: str
    clause: str | None
    reason: str | None
    references_read: int | None
    envelope_accepted_key: str | None
    envelope_accepted: str | None
    envelope_quarantine_key: str | None
    envelope_quarantine: str | None
    listed_current: bool | None
    current_incarnation: str | None


def plan_candidate(row: CandidateRow) -> PlanCandidate:
    """Return a candidate with the clauses that a plan checks."""
    return PlanCandidate(
        sha256=row.digest,
        key=blob_key(row.digest),
        incarnation=row.incarnation,
        size_bytes=row.size_bytes,
        last_modified_unix_ns=row.last_modified_ns,
        age_s=(row.now_ns - row.last_modified_ns) / NS_PER_S,
        superseded=row.superseded,
        clauses=tuple(_planned_finding(clause, row) for clause in _planned(row)),
    )


def run_clauses(row: CandidateRow) -> tuple[ClauseFinding, ...]:
    """Return the clauses that only a run checks, before it did."""
    clauses = _READ_BY_RUN_SUPERSEDED if row.superseded else _READ_BY_RUN
    return tuple(
        ClauseFinding(clause=one.value, state=ClauseState.NOT_READ, found=_TO_READ[one])
        for one in clauses
    )


def proved_clauses(proof: ProofRow) -> tuple[ClauseFinding, ...]:
    """Return every clause in order; the ones behind a clause that keeps the blob are not read."""
    row = proof.row
    later = _READ_BY_RUN_SUPERSEDED if row.superseded else _READ_BY_RUN
    found: list[ClauseFinding] = []
    state = ClauseState.HOLDS
    for clause in (*_planned(row), *later):
        if clause.value == proof.clause:
            state = ClauseState.KEEPS
            text = f"{proof.reason or 'kept'}: {_proved_values(clause, proof)}"
        elif state is ClauseState.HOLDS:
            text = _proved_values(clause, proof)
        else:
            state, text = ClauseState.NOT_READ, "not reached: an earlier clause keeps the blob"
        found.append(ClauseFinding(clause=clause.value, state=state, found=text))
    return tuple(found)


def kept_finding(clause: Clause, row: CandidateRow) -> ClauseFinding:
    """Return why a plan keeps an object version of its audit, by the first clause that does."""
    if clause is Clause.LISTED:
        text = "a noncurrent version of a blob that no record names; its current version goes first"
    else:
        text = _planned_finding(clause, row).found
    return ClauseFinding(clause=clause.value, state=ClauseState.KEEPS, found=text)


def days_text(seconds: float) -> str:
    """Return a duration in days, or in hours below two days."""
    if abs(seconds) < 2 * _DAY_S:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / _DAY_S:.1f} days"


def _planned(row: CandidateRow) -> tuple[Clause, ...]:
    return _OF_SUPERSEDED if row.superseded else tuple(PLANNED)


def _planned_finding(clause: Clause, row: CandidateRow) -> ClauseFinding:
    kept = PLANNED[clause](row.evidence)
    values = _planned_values(clause, row)
    return ClauseFinding(
        clause=clause.value,
        state=ClauseState.HOLDS if kept is None else ClauseState.KEEPS,
        found=values if kept is None or clause is Clause.AUDIT else f"{kept.reason}: {values}",
    )


def _planned_values(clause: Clause, row: CandidateRow) -> str:
    horizon_s = row.retry_horizon_ns / NS_PER_S
    match clause:
        case Clause.VERSIONING:
            return "versioning is Enabled" if row.versioning_enabled else "versioning is off"
        case Clause.INCARNATION:
            return f"version id {row.incarnation or 'empty'}"
        case Clause.AGE:
            age_s = (row.now_ns - row.last_modified_ns) / NS_PER_S
            return f"{days_text(age_s)} old; the retry horizon is {days_text(horizon_s)}"
        case Clause.CERTIFICATE:
            began = row.audit_started_at_ns
            past_s = (began - row.last_modified_ns) / NS_PER_S - horizon_s
            when = "after" if past_s >= 0 else "before"
            return (
                f"audit {row.audit_id} began {format_rfc3339(began)[:19]}Z,"
                f" {days_text(abs(past_s))} {when} the horizon of this version ended"
            )
        case _:
            named = "a record named it" if row.named_in_audit else "no record named it"
            return f"{named} in audit {row.audit_id}"


def _proved_values(clause: Clause, proof: ProofRow) -> str:
    match clause:
        case Clause.REFERENCES:
            number = proof.references_read
            return "not read" if number is None else f"{number} reverse references"
        case Clause.ENVELOPE:
            return _envelope_values(proof)
        case Clause.LISTED | Clause.NONCURRENT:
            return _LISTED_VALUES[proof.listed_current]
        case Clause.CURRENT:
            return f"the current version is {proof.current_incarnation or 'not readable'}"
        case _:
            return _planned_values(clause, proof.row)


def _envelope_values(proof: ProofRow) -> str:
    if proof.envelope_accepted_key is None:
        return "the envelope of the frame is not readable"
    return (
        f"{proof.envelope_accepted_key}: {proof.envelope_accepted or 'not read'},"
        f" {proof.envelope_quarantine_key}: {proof.envelope_quarantine or 'not read'}"
    )


_LISTED_VALUES: Final = {
    None: "it is not listed",
    True: "listed as the current version",
    False: "listed as a noncurrent version",
}
_TO_READ: Final = {
    Clause.REFERENCES: "no reverse reference exists",
    Clause.ENVELOPE: "neither key that the frame names contains a manifest of this blob",
    Clause.LISTED: "it is still the current version, with the same time",
    Clause.NONCURRENT: "it is still listed, and is not the current version",
    Clause.CURRENT: "the bytes of the current version hash to its key",
}
