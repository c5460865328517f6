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

An approval of a plan by an operator names the exact bytes of the plan, so it does not extend to
another plan under the same key. It is created once. An operator who changes his mind stops the
plan, and a stopped plan is never executed. Where a run requires an approval, a missing, unreadable
or different one refuses the plan. The role that deletes blobs cannot write approvals (ADR 39).

Every swap of a register, every vacuumed file of a table and every removed record leaves a
noncurrent version or a delete marker on a versioned store. Under `EXPIRING` all of them are derived
data or state that only the current version defines. Under `PERMANENT` an older version can be the
only copy of accepted bytes, of a decision or of evidence.
Source: `docs/protocol.md`, Deletion.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

import msgspec

from sluice_protocol import keys
from sluice_protocol.keys import GC_APPROVALS
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
    HELD = "held"
    TABLE = "table"
    RULE = "rule"
    BLOB = "blob"
    LEDGER = "ledger"
    ROWS = "rows"
    CONSUMERS = "consumers"
    DEAD_LETTER = "dead_letter"
    CONFLICT = "conflict"


class ManifestLookup(StrEnum):
    """What was found at a key that can contain a manifest of the blob."""

    ABSENT = "absent"
    NAMES_OTHER = "names_other"
    """A manifest that was read in full and names another sha256."""
    EXPIRED = "expired"
    """A manifest that names it, and a verified tombstone that names both."""
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

    `started_at_ns` is the store's Date of a response before the first evidence request. It is
    `complete` if `accepted/` and `quarantine/` were listed from first to last key. `names_blob` is
    whether an unexpired manifest or its reverse reference named it; None if not looked up.
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
class ExpiryLookup:
    """What was read now about an expired batch; None is what was not read.

    `table_stays` is whether the log of the table contains the commit that the tombstone names.
    """

    held: bool | None
    table_stays: bool | None


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
        retry_horizon_ns: The authority's setting, never one of garbage collection.
        now_ns: The store's clock in a response to this check.
        versioning_enabled: Whether versioning is `Enabled` now.
        references: Number of reverse references of both kinds now, without those of expired
            manifests.
        envelope: What the two keys that the frame's envelope names contain now.
        expiry: For an expired batch: holds and its table now.
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
    expiry: ExpiryLookup | None = None
    listed: ListedNow | None = None
    current: CurrentRead | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MustKeep:
    """Keep the blob: the clause that keeps it, and the reason."""

    clause: Clause
    reason: str


@dataclass(frozen=True, slots=True)
class MayDelete:
    """Every clause is satisfied: exactly this version may be deleted."""


ClauseCheck = Callable[[Evidence], MustKeep | None]


def decide_deletion(evidence: Evidence, clauses: tuple[ClauseCheck, ...]) -> MustKeep | MayDelete:
    """Return the first reason to keep the candidate, or `MayDelete`.

    An empty list of clauses proves nothing, so it keeps.
    """
    if not clauses:
        return MustKeep(clause=Clause.CERTIFICATE, reason="no clause was checked")
    for check in clauses:
        kept = check(evidence)
        if kept is not None:
            return kept
    return MayDelete()


def versioning_enabled(evidence: Evidence) -> MustKeep | None:
    """Keep unless versioning is `Enabled`: only then does deleting a version spare a newer one."""
    if evidence.versioning_enabled is None:
        return MustKeep(clause=Clause.VERSIONING, reason="versioning was not read")
    if not evidence.versioning_enabled:
        return MustKeep(clause=Clause.VERSIONING, reason="versioning is not Enabled")
    return None


def incarnation_exact(evidence: Evidence) -> MustKeep | None:
    """Keep a version `null`: it is overwritten in place, so deleting it can remove a newer blob."""
    if evidence.candidate.incarnation in (NULL_VERSION, ""):
        return MustKeep(clause=Clause.INCARNATION, reason="the version is null")
    return None


def old_enough(evidence: Evidence) -> MustKeep | None:
    """Clause 1: the age by the store's clock is above the retry horizon."""
    if evidence.now_ns is None:
        return MustKeep(clause=Clause.AGE, reason="the store's clock was not read")
    age_ns = evidence.now_ns - evidence.candidate.last_modified_ns
    if age_ns <= evidence.retry_horizon_ns:
        return MustKeep(clause=Clause.AGE, reason="younger than the retry horizon")
    return None


def certificate_covers(evidence: Evidence) -> MustKeep | None:
    """Clause 2: a complete audit started later than Last-Modified plus the retry horizon."""
    if evidence.audit is None:
        return MustKeep(clause=Clause.CERTIFICATE, reason="no certificate")
    if not evidence.audit.complete:
        return MustKeep(clause=Clause.CERTIFICATE, reason="the certificate is not complete")
    ends_at_ns = evidence.candidate.last_modified_ns + evidence.retry_horizon_ns
    if evidence.audit.started_at_ns <= ends_at_ns:
        return MustKeep(
            clause=Clause.CERTIFICATE, reason="the audit started before the horizon ended"
        )
    return None


def audit_unnamed(evidence: Evidence) -> MustKeep | None:
    """Clause 3: in that audit no reverse reference and no unexpired manifest named it."""
    if evidence.audit is None or evidence.audit.names_blob is None:
        return MustKeep(clause=Clause.AUDIT, reason="the audit result was not read")
    if evidence.audit.names_blob:
        return MustKeep(clause=Clause.AUDIT, reason="named in the audit")
    return None


def references_absent(evidence: Evidence) -> MustKeep | None:
    """Clause 3: no reverse reference of either kind exists now."""
    if evidence.references is None:
        return MustKeep(clause=Clause.REFERENCES, reason="reverse references were not read")
    if evidence.references:
        return MustKeep(clause=Clause.REFERENCES, reason="a reverse reference names it")
    return None


def envelope_unnamed(evidence: Evidence) -> MustKeep | None:
    """Clause 3: neither key that the blob's envelope names contains a manifest of it now.

    The quarantine key contains the sha256, so any object there keeps the blob, unless a verified
    tombstone names the refused bytes.
    """
    look = evidence.envelope
    if look is None:
        return MustKeep(clause=Clause.ENVELOPE, reason="the envelope is unreadable")
    unnamed = (ManifestLookup.ABSENT, ManifestLookup.NAMES_OTHER, ManifestLookup.EXPIRED)
    if look.accepted not in unnamed:
        return MustKeep(clause=Clause.ENVELOPE, reason=f"accepted manifest: {look.accepted.value}")
    if look.quarantine not in (ManifestLookup.ABSENT, ManifestLookup.EXPIRED):
        return MustKeep(
            clause=Clause.ENVELOPE, reason=f"quarantine manifest: {look.quarantine.value}"
        )
    return None


def expiry_stands(evidence: Evidence) -> MustKeep | None:
    """Clause 5: no hold covers an expired batch, and its table follows the state in its tombstone.

    A blob whose manifest is absent or names other bytes is no batch, so nothing holds it.
    """
    names = evidence.envelope
    if names is None or ManifestLookup.EXPIRED not in (names.accepted, names.quarantine):
        return None
    look = evidence.expiry
    if look is None or look.held is None or look.held:
        return MustKeep(clause=Clause.HELD, reason="a hold covers it, or holds were not read")
    if not look.table_stays:
        return MustKeep(
            clause=Clause.TABLE, reason="its table was replaced, or its state is too old to tell"
        )
    return None


def still_listed(evidence: Evidence) -> MustKeep | None:
    """Clause 4: it is still the current version, with the same Last-Modified."""
    listed, candidate = evidence.listed, evidence.candidate
    if listed is None or listed.incarnation != candidate.incarnation:
        return MustKeep(clause=Clause.LISTED, reason="no longer listed")
    if listed.last_modified_ns != candidate.last_modified_ns:
        return MustKeep(clause=Clause.LISTED, reason="listed with another Last-Modified")
    if not listed.current:
        return MustKeep(clause=Clause.LISTED, reason="another version is current")
    return None


def listed_noncurrent(evidence: Evidence) -> MustKeep | None:
    """For a noncurrent version: it is still listed, and it is not the current version."""
    listed, candidate = evidence.listed, evidence.candidate
    if listed is None or listed.incarnation != candidate.incarnation:
        return MustKeep(clause=Clause.NONCURRENT, reason="no longer listed")
    if listed.last_modified_ns != candidate.last_modified_ns:
        return MustKeep(clause=Clause.NONCURRENT, reason="listed with another Last-Modified")
    if listed.current:
        return MustKeep(clause=Clause.NONCURRENT, reason="it is the current version")
    return None


def current_verified(evidence: Evidence) -> MustKeep | None:
    """For a noncurrent version: another version is current and its bytes hash to the key."""
    current, candidate = evidence.current, evidence.candidate
    if current is None:
        return MustKeep(clause=Clause.CURRENT, reason="the current version was not read")
    if current.incarnation == candidate.incarnation:
        return MustKeep(clause=Clause.CURRENT, reason="it is the current version")
    if current.digest != candidate.digest:
        return MustKeep(clause=Clause.CURRENT, reason="the current version is corrupt")
    return None


PLAN_CLAUSES: Final[tuple[ClauseCheck, ...]] = (
    versioning_enabled,
    incarnation_exact,
    old_enough,
    certificate_covers,
    audit_unnamed,
)
"""The clauses that a plan can check without reading each blob."""

DELETION_CLAUSES: Final[tuple[ClauseCheck, ...]] = (
    *PLAN_CLAUSES,
    references_absent,
    envelope_unnamed,
    expiry_stands,
    still_listed,
)
"""The clauses whose evidence is read again when an unreferenced version is deleted."""

NONCURRENT_CLAUSES: Final[tuple[ClauseCheck, ...]] = (
    versioning_enabled,
    incarnation_exact,
    old_enough,
    listed_noncurrent,
    current_verified,
)
"""The clauses for deleting a noncurrent version of a referenced blob."""


def clock_fell(highest_ns: int, now_ns: int, margin_ns: int) -> bool:
    """Return True if the store's clock fell by more than half the margin: deletion stops."""
    return highest_ns - now_ns > margin_ns // 2


class PlanApproval(msgspec.Struct, frozen=True, kw_only=True):
    """The decision of an operator that a plan may be executed.

    `plan_sha256` is that of the stored bytes of the plan. The time is that of the store's clock.
    """

    schema: Literal["sluice.gc_approval.v1"] = "sluice.gc_approval.v1"
    plan_id: str
    plan_sha256: Digest
    by: str
    note: str
    approved_at_unix_ns: int


class PlanState(StrEnum):
    """The state of a stored plan."""

    PLANNED = "planned"
    STOPPED = "stopped"
    FINISHED = "finished"


class ApprovalRuling(StrEnum):
    """Whether a plan may be approved, or why not."""

    ALLOWED = "allowed"
    UNKNOWN = "unknown"
    """There is no such plan."""
    STOPPED = "stopped"
    FINISHED = "finished"
    OTHER_BYTES = "other_bytes"
    """The stored plan is not the one that the operator saw."""


class ExecutionRuling(StrEnum):
    """Whether the approval of a plan allows its execution, or why not."""

    ALLOWED = "allowed"
    NOT_APPROVED = "not_approved"
    OTHER_BYTES = "other_bytes"
    """The approval is of other bytes, or of another plan."""


def approval_key(plan_id: str) -> ObjectKey:
    """Return the key of the approval of a plan."""
    return ObjectKey(f"{GC_APPROVALS}{plan_id}.json")


def decide_approval(
    *, state: PlanState | None, stored_sha256: Digest | None, shown_sha256: Digest
) -> ApprovalRuling:
    """Decide whether an operator may approve a plan.

    `state` and `stored_sha256` are None if there is no such plan. The operator saw `shown_sha256`.
    """
    if state is None or stored_sha256 is None:
        return ApprovalRuling.UNKNOWN
    if state is PlanState.STOPPED:
        return ApprovalRuling.STOPPED
    if state is PlanState.FINISHED:
        return ApprovalRuling.FINISHED
    if stored_sha256 != shown_sha256:
        return ApprovalRuling.OTHER_BYTES
    return ApprovalRuling.ALLOWED


def decide_execution(
    *, required: bool, plan_id: str, plan_sha256: Digest, approval: PlanApproval | None
) -> ExecutionRuling:
    """Decide whether a plan may be executed as far as its approval is concerned.

    The settings of the run decide whether an approval is `required`. `plan_sha256` is that of the
    bytes that would be executed.
    """
    if not required:
        return ExecutionRuling.ALLOWED
    if approval is None:
        return ExecutionRuling.NOT_APPROVED
    if (approval.plan_id, approval.plan_sha256) != (plan_id, plan_sha256):
        return ExecutionRuling.OTHER_BYTES
    return ExecutionRuling.ALLOWED


EXPIRING: Final = (
    *(keys.GATEWAYS, keys.INDEX, keys.LAKE, keys.MAINTAIN, keys.WORK_LISTS),
    *(keys.QUEUE, keys.RECONCILER, keys.ROLLUP),
)
"""Prefixes whose noncurrent versions and delete markers expire, in the order of their keys."""

SWEPT: Final = tuple(prefix for prefix in EXPIRING if prefix != keys.GATEWAYS)
"""Those under which a task deletes versions where the store has no lifecycle. Journals are created
once, and the reconciler, which alone may delete them, deletes exact versions. So nothing noncurrent
is left there, and no further role needs a right to delete."""

PERMANENT: Final = (
    *(keys.ACCEPTED, keys.RAW_BLOBS, keys.QUARANTINE, keys.AUDIT, "gc/v1/"),
    *(keys.DECISIONS, keys.DELETES, keys.PROMOTIONS, keys.AUTHORITY, keys.RETENTION),
    keys.EXPIRED,
    *(keys.ACCEPTED_BY_BLOB, keys.QUARANTINE_BY_BLOB),
)
"""Prefixes under which no version expires. GC deletes blobs there, with a proof, and the reconciler
references of expired batches."""


class VersionRuling(StrEnum):
    """What happens to one version, and why."""

    DELETE = "delete"
    PERMANENT = "permanent"
    """It is not under a prefix whose versions expire."""
    CURRENT = "current"
    """A read of the key returns it, or it is a marker that hides an older version."""
    NULL = "null"
    """The next write without versioning would replace it under the same id."""
    YOUNG = "young"
    """It was superseded less than the retention ago."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredVersion:
    """One version as listed.

    `hides` is True if another version of the key remains below it. `superseded_at_ns` is when the
    next newer version was written, or None if it is the newest.
    """

    key: ObjectKey
    incarnation: ObjectVersion
    current: bool
    marker: bool
    hides: bool
    last_modified_ns: UnixNs
    superseded_at_ns: UnixNs | None


def decide_version(version: StoredVersion, *, now_ns: int, retention_ns: int) -> VersionRuling:
    """Decide about one version, as S3 does for `NoncurrentVersionExpiration`.

    A version counts from the moment at which it was superseded, not from its own time: a register
    may have been current for years. A delete marker goes only after everything below it, because
    the store would make the version below it current. `now_ns` is the store's clock.
    """
    if not version.key.startswith(EXPIRING):
        return VersionRuling.PERMANENT
    if version.incarnation == NULL_VERSION:
        return VersionRuling.NULL
    if version.current:
        if not version.marker or version.hides:
            return VersionRuling.CURRENT
        since_ns = version.last_modified_ns
    elif version.superseded_at_ns is None:
        return VersionRuling.CURRENT
    else:
        since_ns = version.superseded_at_ns
    return VersionRuling.DELETE if since_ns + retention_ns <= now_ns else VersionRuling.YOUNG
