"""The proof that a blob version may be deleted: each clause is a function of the evidence.

A clause inspects the evidence and returns a reason to keep the blob, or None if the clause is
satisfied. Evidence that was not read, could not be read or does not match is a reason to keep:
`None` never supports a deletion. `decide_deletion` checks clauses in order and stops at the first
reason to keep. The same functions decide in a plan (`PLAN_CLAUSES`), at the moment of deletion
(`DELETION_CLAUSES`), for noncurrent versions of a referenced blob (`NONCURRENT_CLAUSES`), and in
every model and simulation.

Why these clauses keep every accepted blob. A gateway responds 200 only if the manifest appeared
less than `retry_horizon - margin` after it proved the blob. An audit that started later than the
version's Last-Modified plus `retry_horizon` has therefore read every manifest that depends on this
version. A later manifest depends on another version, which is not deleted with it.
Source: `docs/protocol.md`, Deletion.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sluice_protocol.units import NULL_VERSION, Digest, ObjectKey, ObjectVersion, UnixNs


class Clause(StrEnum):
    """The name of a clause, as proofs and `sluice gc show` print it."""

    VERSIONING = "versioning"
    INCARNATION = "incarnation"
    AGE = "age"
    CERTIFICATE = "certificate"
    AUDIT = "audit"
    REFERENCES = "references"
    ENVELOPE = "envelope"
    LISTED = "listed"
    NONCURRENT = "noncurrent"
    CURRENT = "current"


class ManifestLookup(StrEnum):
    """What was found at a key that can contain a manifest of the blob."""

    ABSENT = "absent"
    NAMES_OTHER = "names_other"
    """A manifest that was read in full and names another sha256."""
    NAMES_IT = "names_it"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One stored version of a raw blob, as a listing reported it."""

    key: ObjectKey
    digest: Digest
    incarnation: ObjectVersion
    last_modified_ns: UnixNs
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    """What a certificate reports about one sha256.

    Attributes:
        audit_id: The certificate.
        started_at_ns: The store's Date of a response received before the first evidence request.
        complete: Whether `accepted/` and `quarantine/` were listed from first to last key.
        names_blob: Whether any manifest or reverse reference named it; None if not looked up.
    """

    audit_id: str
    started_at_ns: UnixNs
    complete: bool
    names_blob: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeLookup:
    """What was found at the two keys that the blob's envelope names."""

    accepted: ManifestLookup
    quarantine: ManifestLookup


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedNow:
    """The candidate in a listing of its key's versions, made at deletion time."""

    incarnation: ObjectVersion
    last_modified_ns: UnixNs
    current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentRead:
    """The current version of the key, read whole and hashed."""

    incarnation: ObjectVersion
    digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that was read about one candidate; None is evidence that was not read.

    Attributes:
        candidate: The version in question.
        retry_horizon_ns: The authority's setting, never one of garbage collection.
        now_ns: The store's clock in a response to this check.
        versioning_enabled: Whether versioning is `Enabled` now.
        audit: What the certificate reports.
        references: Number of reverse references of both kinds now.
        envelope: What the two keys that the frame's envelope names contain now.
        listed: The candidate in a listing made now.
        current: The key's current version, read and hashed now.
    """

    candidate: Candidate
    retry_horizon_ns: int
    now_ns: UnixNs | None = None
    versioning_enabled: bool | None = None
    audit: AuditResult | None = None
    references: int | None = None
    envelope: EnvelopeLookup | None = None
    listed: ListedNow | None = None
    current: CurrentRead | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Keep the blob: the clause that keeps it, and the reason."""

    clause: Clause
    reason: str


@dataclass(frozen=True, slots=True)
class MayDelete:
    """Every clause is satisfied: exactly this version may be deleted."""


ClauseCheck = Callable[[Evidence], Keep | None]


def decide_deletion(evidence: Evidence, clauses: tuple[ClauseCheck, ...]) -> Keep | MayDelete:
    """Return the first reason to keep the candidate, or `MayDelete`.

    An empty list of clauses proves nothing, so it keeps.
    """
    if not clauses:
        return Keep(clause=Clause.CERTIFICATE, reason="no clause was checked")
    for check in clauses:
        kept = check(evidence)
        if kept is not None:
            return kept
    return MayDelete()


def versioning_enabled(evidence: Evidence) -> Keep | None:
    """Keep unless versioning is `Enabled`: only then does deleting a version spare a newer one."""
    if evidence.versioning_enabled is None:
        return Keep(clause=Clause.VERSIONING, reason="versioning was not read")
    if not evidence.versioning_enabled:
        return Keep(clause=Clause.VERSIONING, reason="versioning is not Enabled")
    return None


def incarnation_exact(evidence: Evidence) -> Keep | None:
    """Keep a version `null`: it is overwritten in place, so deleting it can remove a newer blob."""
    if evidence.candidate.incarnation in (NULL_VERSION, ""):
        return Keep(clause=Clause.INCARNATION, reason="the version is null")
    return None


def old_enough(evidence: Evidence) -> Keep | None:
    """Clause 1: the age by the store's clock is above the retry horizon."""
    if evidence.now_ns is None:
        return Keep(clause=Clause.AGE, reason="the store's clock was not read")
    age_ns = evidence.now_ns - evidence.candidate.last_modified_ns
    if age_ns <= evidence.retry_horizon_ns:
        return Keep(clause=Clause.AGE, reason="younger than the retry horizon")
    return None


def certificate_covers(evidence: Evidence) -> Keep | None:
    """Clause 2: a complete audit started later than Last-Modified plus the retry horizon."""
    if evidence.audit is None:
        return Keep(clause=Clause.CERTIFICATE, reason="no certificate")
    if not evidence.audit.complete:
        return Keep(clause=Clause.CERTIFICATE, reason="the certificate is not complete")
    ends_at_ns = evidence.candidate.last_modified_ns + evidence.retry_horizon_ns
    if evidence.audit.started_at_ns <= ends_at_ns:
        return Keep(clause=Clause.CERTIFICATE, reason="the audit started before the horizon ended")
    return None


def audit_unnamed(evidence: Evidence) -> Keep | None:
    """Clause 3: no manifest and no reverse reference named it in that audit."""
    if evidence.audit is None or evidence.audit.names_blob is None:
        return Keep(clause=Clause.AUDIT, reason="the audit result was not read")
    if evidence.audit.names_blob:
        return Keep(clause=Clause.AUDIT, reason="named in the audit")
    return None


def references_absent(evidence: Evidence) -> Keep | None:
    """Clause 3: no reverse reference of either kind exists now."""
    if evidence.references is None:
        return Keep(clause=Clause.REFERENCES, reason="reverse references were not read")
    if evidence.references:
        return Keep(clause=Clause.REFERENCES, reason="a reverse reference names it")
    return None


def envelope_unnamed(evidence: Evidence) -> Keep | None:
    """Clause 3: neither key that the blob's envelope names contains a manifest of it now.

    The quarantine key contains the sha256, so any object there keeps the blob.
    """
    look = evidence.envelope
    if look is None:
        return Keep(clause=Clause.ENVELOPE, reason="the envelope is unreadable")
    if look.accepted not in (ManifestLookup.ABSENT, ManifestLookup.NAMES_OTHER):
        return Keep(clause=Clause.ENVELOPE, reason=f"accepted manifest: {look.accepted.value}")
    if look.quarantine is not ManifestLookup.ABSENT:
        return Keep(clause=Clause.ENVELOPE, reason=f"quarantine manifest: {look.quarantine.value}")
    return None


def still_listed(evidence: Evidence) -> Keep | None:
    """Clause 4: it is still the current version, with the same Last-Modified."""
    listed, candidate = evidence.listed, evidence.candidate
    if listed is None or listed.incarnation != candidate.incarnation:
        return Keep(clause=Clause.LISTED, reason="no longer listed")
    if listed.last_modified_ns != candidate.last_modified_ns:
        return Keep(clause=Clause.LISTED, reason="listed with another Last-Modified")
    if not listed.current:
        return Keep(clause=Clause.LISTED, reason="another version is current")
    return None


def listed_noncurrent(evidence: Evidence) -> Keep | None:
    """For a noncurrent version: it is still listed, and it is not the current version."""
    listed, candidate = evidence.listed, evidence.candidate
    if listed is None or listed.incarnation != candidate.incarnation:
        return Keep(clause=Clause.NONCURRENT, reason="no longer listed")
    if listed.last_modified_ns != candidate.last_modified_ns:
        return Keep(clause=Clause.NONCURRENT, reason="listed with another Last-Modified")
    if listed.current:
        return Keep(clause=Clause.NONCURRENT, reason="it is the current version")
    return None


def current_verified(evidence: Evidence) -> Keep | None:
    """For a noncurrent version: another version is current and its bytes hash to the key."""
    current, candidate = evidence.current, evidence.candidate
    if current is None:
        return Keep(clause=Clause.CURRENT, reason="the current version was not read")
    if current.incarnation == candidate.incarnation:
        return Keep(clause=Clause.CURRENT, reason="it is the current version")
    if current.digest != candidate.digest:
        return Keep(clause=Clause.CURRENT, reason="the current version is corrupt")
    return None


PLAN_CLAUSES: Final[tuple[ClauseCheck, ...]] = (
    versioning_enabled,
    incarnation_exact,
    old_enough,
    certificate_covers,
    audit_unnamed,
)
"""What a plan can check without reading each blob."""

DELETION_CLAUSES: Final[tuple[ClauseCheck, ...]] = (
    *PLAN_CLAUSES,
    references_absent,
    envelope_unnamed,
    still_listed,
)
"""What is read again and checked when an unreferenced version is deleted."""

NONCURRENT_CLAUSES: Final[tuple[ClauseCheck, ...]] = (
    versioning_enabled,
    incarnation_exact,
    old_enough,
    listed_noncurrent,
    current_verified,
)
"""What is checked when a noncurrent version of a referenced blob is deleted."""


def clock_fell(highest_ns: int, now_ns: int, margin_ns: int) -> bool:
    """Return True if the store's clock fell by more than half the margin: deletion stops."""
    return highest_ns - now_ns > margin_ns // 2
