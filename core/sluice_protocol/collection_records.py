"""The stored records of audits and plans of deletion, which their writers and other readers share.

`sluice_gc` signs, verifies and writes them. The reconciler shows them to operators.
"""

from collections import Counter
from typing import Final, Literal

import msgspec

from sluice_protocol.units import Digest, ObjectKey


class KeyRange(msgspec.Struct, frozen=True, kw_only=True):
    """A completely listed range: the keys with `start_after < key <= end_at` under one prefix.

    Attributes:
        start_after: Empty for the first range of the prefix.
        end_at: None for the last range of the prefix.
        root: Merkle root over the entries, in the order of the listing.
        first_date_unix_ns: By the store's clock.
        last_date_unix_ns: By the store's clock.
        parts: The number of listed ranges merged into it; `root` is then the Merkle root over
            theirs. 1 for a range that was listed as a whole.
    """

    start_after: str
    end_at: str | None
    pages: int
    objects: int
    root: Digest
    first_date_unix_ns: int
    last_date_unix_ns: int
    parts: int = 1


class PrefixCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """A prefix that was listed from the first key to the last."""

    prefix: str
    ranges: tuple[KeyRange, ...]
    objects: int
    root: Digest


class EvidenceFile(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one Parquet file of evidence.

    Attributes:
        kind: `manifests`, `named`, `tombstones`, `names`, `blobs`, `eligible`, `expired`,
            `expiring`, `findings`, `ranges`, `files` or `candidates`. A certificate does not list
            files of `named` and `tombstones`, which only its audit reads.
        place: Name of the shard or of the key range.
        prefix: For `manifests`: the prefix of the keys.
        first_key: For `manifests`: the first key, empty if there is none.
        last_key: For `manifests`: the last key, empty if there is none.
    """

    kind: str
    place: str
    key: ObjectKey
    sha256: Digest
    size_bytes: int
    rows: int
    prefix: str = ""
    first_key: str = ""
    last_key: str = ""


WRONG_COUNTS: Final = (
    *("missing_blobs", "unreadable_manifests", "corrupt_blobs", "misnamed", "foreign"),
    "refused_tombstones",
)
"""Counts of an audit on which an operator must act."""


_WITHOUT_ZERO: Final = (
    *("expired", "refused_tombstones"),
    *("expiring", "expiring_bytes", "expiring_soon", "expiring_soon_bytes"),
)


class AuditCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of an audit, in objects unless the name has another unit.

    The counts of `_WITHOUT_ZERO` are absent instead of 0, so that the bytes of a certificate of a
    store where nothing expires are those of earlier versions, and signatures stay valid.

    Attributes:
        expiring: Batches with a blob that are older than the raw retention and have not expired.
        expiring_soon: Batches that become so old within a week.
    """

    accepted: int = 0
    quarantined: int = 0
    bodies_read: int = 0
    references: int = 0
    incarnations: int = 0
    incarnations_bytes: int = 0
    names: int = 0
    orphans: int = 0
    superseded: int = 0
    missing_blobs: int = 0
    unreadable_manifests: int = 0
    corrupt_blobs: int = 0
    deep_read: int = 0
    misnamed: int = 0
    foreign: int = 0
    dangling_references: int = 0
    references_repaired: int = 0
    gaps: int = 0
    overlaps: int = 0
    expired: int | msgspec.UnsetType = msgspec.UNSET
    refused_tombstones: int | msgspec.UnsetType = msgspec.UNSET
    expiring: int | msgspec.UnsetType = msgspec.UNSET
    expiring_bytes: int | msgspec.UnsetType = msgspec.UNSET
    expiring_soon: int | msgspec.UnsetType = msgspec.UNSET
    expiring_soon_bytes: int | msgspec.UnsetType = msgspec.UNSET

    @property
    def found_wrong(self) -> bool:
        """Return True if an operator must act on a finding."""
        return any(getattr(self, name) for name in WRONG_COUNTS)

    def plus(self, other: "AuditCounts") -> "AuditCounts":
        """Return the sum of each field."""
        mine, more = msgspec.structs.asdict(self), msgspec.structs.asdict(other)
        sums = {name: (mine[name] or 0) + (more[name] or 0) for name in mine}
        found = {name: sums[name] or msgspec.UNSET for name in _WITHOUT_ZERO}
        return AuditCounts(**(sums | found))


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one complete audit.

    Attributes:
        chain_index: 0 for the first certificate of the authority.
        previous_audit_id: The previous certificate; empty for the first one.
        previous_sha256: The sha256 of its stored bytes; empty for the first one.
        started_at_unix_ns: The store's Date before the first evidence request.
        finished_at_unix_ns: The store's Date in the last response with evidence.
        deep: The share of blobs that were read and hashed, 0.0 to 1.0.
        coverage: One entry per audited prefix, in the order of `AUDITED_PREFIXES`; without an entry
            for blobs if they were not listed.
        evidence_kept_from: The lowest chain position whose evidence is kept since this certificate
            exists.
    """

    schema: Literal["sluice.audit_certificate.v2"] = "sluice.audit_certificate.v2"
    authority_id: str
    retry_horizon_s: int
    audit_id: str
    chain_index: int
    previous_audit_id: str
    previous_sha256: str
    started_at_unix_ns: int
    finished_at_unix_ns: int
    clock_skew_ns: int
    deep: float
    shards: int
    coverage: tuple[PrefixCoverage, ...]
    merkle_root: Digest
    counts: AuditCounts
    evidence: tuple[EvidenceFile, ...]
    evidence_kept_from: int = 0

    def files(self, kind: str) -> tuple[EvidenceFile, ...]:
        """Return the evidence files of one kind, in the order of `place`."""
        return tuple(one for one in self.evidence if one.kind == kind)


class SignedCertificate(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate with the signature of the auditor.

    Attributes:
        key_id: `key_id_of` the public key.
        signature: Ed25519, base64, over a domain line and the record's canonical bytes.
    """

    certificate: Certificate
    key_id: str
    signature: str


class VersionTally(msgspec.Struct, frozen=True, kw_only=True):
    """A number of object versions and their bytes."""

    incarnations: int = 0
    bytes: int = 0

    def plus(self, other: "VersionTally") -> "VersionTally":
        """Return the sum."""
        return VersionTally(
            incarnations=self.incarnations + other.incarnations, bytes=self.bytes + other.bytes
        )


class TallyBucket(msgspec.Struct, frozen=True, kw_only=True):
    """The candidates up to a limit in bytes or days; the last bucket has no limit."""

    up_to: int | None
    tally: VersionTally


class PlanSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The candidates of a plan, and what it keeps.

    Attributes:
        kept: By the first clause that keeps it.
        expired: Blobs of expired batches, absent without any; `orphans` are the others without a
            name.
    """

    blobs: VersionTally
    orphans: VersionTally
    superseded: VersionTally
    kept: dict[str, VersionTally]
    by_size: tuple[TallyBucket, ...]
    by_age: tuple[TallyBucket, ...]
    expired: VersionTally | msgspec.UnsetType = msgspec.UNSET

    @property
    def expired_tally(self) -> VersionTally:
        """Blobs of expired batches."""
        return self.expired or VersionTally()

    def plus(self, other: "PlanSummary") -> "PlanSummary":
        """Return the sum of the summaries of two shards, which have the same clauses and limits."""
        return PlanSummary(
            blobs=self.blobs.plus(other.blobs),
            orphans=self.orphans.plus(other.orphans),
            superseded=self.superseded.plus(other.superseded),
            expired=self.expired_tally.plus(other.expired) if other.expired else self.expired,
            kept={clause: tally.plus(other.kept[clause]) for clause, tally in self.kept.items()},
            by_size=_bucket_sums(self.by_size, other.by_size),
            by_age=_bucket_sums(self.by_age, other.by_age),
        )


def _bucket_sums(
    ours: tuple[TallyBucket, ...], others: tuple[TallyBucket, ...]
) -> tuple[TallyBucket, ...]:
    return tuple(
        TallyBucket(up_to=one.up_to, tally=one.tally.plus(other.tally))
        for one, other in zip(ours, others, strict=True)
    )


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The list of deletable object versions, based on one certificate.

    Attributes:
        certificate_sha256: Of the certificate's stored bytes.
    """

    schema: Literal["sluice.gc_plan.v1"] = "sluice.gc_plan.v1"
    plan_id: str
    authority_id: str
    retry_horizon_s: int
    audit_id: str
    certificate_sha256: Digest
    made_at_unix_ns: int
    summary: PlanSummary
    candidates: tuple[EvidenceFile, ...]


class SignedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan with the signature of its author."""

    plan: Plan
    key_id: str
    signature: str


class PlanStopped(msgspec.Struct, frozen=True, kw_only=True):
    """The record that a safety rule was violated: the plan is stopped permanently."""

    schema: Literal["sluice.gc_stopped.v1"] = "sluice.gc_stopped.v1"
    plan_id: str
    rule: str
    reason: str


class SweepFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a sweep.

    Attributes:
        would_go: In a dry run: object versions that all clauses allow to delete.
        kept: Kept candidates, by clause.
        unknown: Deletions that are not confirmed; the next run checks them.
        unread: Candidates kept because evidence could not be read; the next run retries.
        skipped: Batches that an earlier run finished.
    """

    deleted: int = 0
    deleted_bytes: int = 0
    would_go: int = 0
    kept: dict[str, int] = {}
    unknown: int = 0
    unread: int = 0
    batches: int = 0
    skipped: int = 0

    @property
    def complete(self) -> bool:
        """Return True if every deletion is confirmed and all evidence was read."""
        return not self.unknown and not self.unread

    def plus(self, other: "SweepFacts") -> "SweepFacts":
        """Return the sum."""
        return SweepFacts(
            deleted=self.deleted + other.deleted,
            deleted_bytes=self.deleted_bytes + other.deleted_bytes,
            would_go=self.would_go + other.would_go,
            kept=dict(Counter(self.kept) + Counter(other.kept)),
            unknown=self.unknown + other.unknown,
            unread=self.unread + other.unread,
            batches=self.batches + other.batches,
            skipped=self.skipped + other.skipped,
        )


class BatchDone(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a finished batch."""

    schema: Literal["sluice.gc_batch.v1"] = "sluice.gc_batch.v1"
    plan_id: str
    facts: SweepFacts
