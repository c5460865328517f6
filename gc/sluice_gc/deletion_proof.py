"""The proof for one deletion: evidence read immediately before it, the verdict, and its record.

`sluice_protocol.blob_deletion` decides; this module only reads. Evidence that cannot be read stays
None, and None keeps the blob.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from sluice_gc.errors import GcRefused, RefusalRule
from sluice_gc.evidence_files import PROOFS, digest_bytes
from sluice_gc.tombstones import ExpiredBatches
from sluice_protocol.authority import VISIBILITY_S_MAX
from sluice_protocol.blob_deletion import (
    DELETION_CLAUSES,
    NONCURRENT_CLAUSES,
    AuditResult,
    Candidate,
    ClauseCheck,
    CurrentRead,
    EnvelopeLookup,
    Evidence,
    ExpiryLookup,
    ListedNow,
    ManifestLookup,
    MayDelete,
    MustKeep,
    decide_deletion,
)
from sluice_protocol.collection_records import Certificate
from sluice_protocol.errors import InvalidRecord, SluiceError, StoreUnavailable
from sluice_protocol.frame import HEAD_BYTES_MAX, decode_head
from sluice_protocol.identity import Identity
from sluice_protocol.keys import (
    ACCEPTED_BY_BLOB,
    GC_PROOFS,
    accepted_by_blob_prefix,
    accepted_key,
    digest_of,
    parse_by_blob_key,
    quarantine_by_blob_prefix,
    quarantine_key,
)
from sluice_protocol.manifests import decode_accepted, decode_conflict
from sluice_protocol.outcomes import Found, NotFound, ObjectInfo
from sluice_protocol.units import NS_PER_S, Digest, ObjectKey, UnixNs
from sluice_store.port import ListedIncarnation, ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ClauseSets:
    """The clauses that a run checks; a test omits one to show that it is needed."""

    orphan: tuple[ClauseCheck, ...] = DELETION_CLAUSES
    noncurrent: tuple[ClauseCheck, ...] = NONCURRENT_CLAUSES


ALL_CLAUSES: Final = ClauseSets()
_APPEARANCE_NS: Final = (VISIBILITY_S_MAX + 1) * NS_PER_S
"""By how much the Last-Modified of an object may precede its visibility. A store may truncate it to
seconds, hence the additional second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateCase:
    """One candidate and what the run knows about it before it reads more.

    All of this was read again. The version is `noncurrent` if it is one of a referenced blob.
    """

    candidate: Candidate
    noncurrent: bool
    audit: AuditResult
    retry_horizon_ns: int
    versioning_enabled: bool

    @property
    def bare(self) -> Evidence:
        """Return the evidence before more is read."""
        return Evidence(
            candidate=self.candidate,
            retry_horizon_ns=self.retry_horizon_ns,
            versioning_enabled=self.versioning_enabled,
            audit=self.audit,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionProof:
    """A candidate, everything that was read about it, and the verdict.

    The identity is that of the envelope, None if it is unreadable.
    """

    case: CandidateCase
    evidence: Evidence
    identity: Identity | None
    verdict: MustKeep | MayDelete


def listed_candidate(listed: ListedIncarnation, digest: Digest) -> Candidate:
    """Return the candidate for one listed object version of a blob or of its copy."""
    return Candidate(
        key=listed.key,
        digest=digest,
        incarnation=listed.incarnation,
        last_modified_ns=listed.last_modified_ns,
        size_bytes=listed.size_bytes,
    )


def audit_result(certificate: Certificate, *, names_blob: bool) -> AuditResult:
    """Return what a verified certificate proves about one blob."""
    return AuditResult(
        audit_id=certificate.audit_id,
        started_at_ns=UnixNs(certificate.started_at_unix_ns),
        complete=True,
        names_blob=names_blob,
    )


async def prove_deletion(
    store: ObjectStore,
    case: CandidateCase,
    clauses: ClauseSets = ALL_CLAUSES,
    *,
    expired: ExpiredBatches,
) -> DeletionProof:
    """Read the evidence for one candidate and decide whether it may be deleted.

    `expired` knows the tombstones and the holds that were read for this batch of candidates. The
    listing is read last, so that the deleted version is the version that was checked. If the
    store is unreachable, the candidate is kept. Raise `GcRefused` if a manifest exists that the
    audit should have seen: the audit is not complete.
    """
    evidence, identity = case.bare, None
    try:
        if case.noncurrent:
            evidence = replace(evidence, current=await _read_current(store, case.candidate))
        else:
            count = await _count_references(store, case, expired)
            identity = await _read_identity(store, case.candidate)
            look, expiry = await _look_up_envelope(store, case, identity, expired)
            evidence = replace(evidence, references=count, envelope=look, expiry=expiry)
        listed, now_ns = await _read_listed(store, case.candidate)
        evidence = replace(evidence, listed=listed, now_ns=now_ns)
    except StoreUnavailable:
        pass  # unread evidence is None, which keeps the candidate until the next run
    verdict = decide_deletion(evidence, clauses.noncurrent if case.noncurrent else clauses.orphan)
    return DeletionProof(case=case, evidence=evidence, identity=identity, verdict=verdict)


async def _count_references(
    store: ObjectStore, case: CandidateCase, expired: ExpiredBatches
) -> int:
    """Count the reverse references of both kinds, without those of expired manifests."""
    digest = case.candidate.digest
    count = 0
    for prefix in (accepted_by_blob_prefix(digest), quarantine_by_blob_prefix(digest)):
        async for page in store.list(prefix):
            for one in page.objects:
                if await _is_of_expired(store, one.key, expired):
                    continue
                _check_seen(case, one.key, one.last_modified_ns)
                count += 1
    return count


async def _is_of_expired(store: ObjectStore, key: str, expired: ExpiredBatches) -> bool:
    """Return True if a reverse reference is that of an expired manifest."""
    try:
        reference = parse_by_blob_key(key)
        if not key.startswith(ACCEPTED_BY_BLOB):
            _, expiry = await _look_up_refused(
                store, quarantine_key(reference.identity, reference.digest), expired
            )
            return expiry is not None
        place = accepted_key(reference.identity)
        read = await store.get(place)
        if not isinstance(read, Found):
            return False
        manifest = decode_accepted(place, read.body)
    except InvalidRecord:
        return False
    return manifest.digest == reference.digest and await expired.look_up(manifest) is not None


async def _look_up_refused(
    store: ObjectStore, place: ObjectKey, expired: ExpiredBatches
) -> tuple[ObjectInfo | None, ExpiryLookup | None]:
    """Return a quarantine manifest, and what is known about the expiry of the refused bytes."""
    read = await store.get(place)
    if not isinstance(read, Found):
        return None, None
    try:
        return read.info, await expired.look_up(decode_conflict(place, read.body))
    except InvalidRecord:
        return read.info, None


async def _read_identity(store: ObjectStore, candidate: Candidate) -> Identity | None:
    """Return the identity in the frame's envelope; None if it is unreadable."""
    read = await store.get(candidate.key, first=0, last=HEAD_BYTES_MAX - 1)
    if not isinstance(read, Found) or read.info.incarnation != candidate.incarnation:
        return None
    try:
        return decode_head(read.body).envelope.identity
    except SluiceError:
        return None


async def _look_up_envelope(
    store: ObjectStore, case: CandidateCase, identity: Identity | None, expired: ExpiredBatches
) -> tuple[EnvelopeLookup | None, ExpiryLookup | None]:
    if identity is None:
        return None, None
    digest = case.candidate.digest
    accepted, expiry = await _look_up_accepted(store, case, accepted_key(identity), expired)
    quarantined, refusal = await _look_up_refused(store, quarantine_key(identity, digest), expired)
    if quarantined is None:
        found = ManifestLookup.ABSENT
    elif refusal is not None:
        found = ManifestLookup.EXPIRED
        expiry = refusal if expiry is None else replace(expiry, held=expiry.held or refusal.held)
    else:
        found = ManifestLookup.NAMES_IT
        _check_seen(case, quarantined.key, quarantined.last_modified_ns)
    return EnvelopeLookup(accepted=accepted, quarantine=found), expiry


async def _look_up_accepted(
    store: ObjectStore, case: CandidateCase, key: ObjectKey, expired: ExpiredBatches
) -> tuple[ManifestLookup, ExpiryLookup | None]:
    read = await store.get(key)
    if isinstance(read, NotFound):
        return ManifestLookup.ABSENT, None
    try:
        manifest = decode_accepted(key, read.body)
    except InvalidRecord:
        return ManifestLookup.UNREADABLE, None
    if manifest.digest != case.candidate.digest:
        return ManifestLookup.NAMES_OTHER, None
    expiry = await expired.look_up(manifest)
    if expiry is not None:
        return ManifestLookup.EXPIRED, expiry
    _check_seen(case, key, read.info.last_modified_ns)
    return ManifestLookup.NAMES_IT, None


def _check_seen(case: CandidateCase, key: str, last_modified_ns: UnixNs) -> None:
    """Stop the run if the audit missed a name that was visible before it started."""
    visible_ns = last_modified_ns + _APPEARANCE_NS
    if visible_ns < case.audit.started_at_ns and not case.audit.names_blob:
        raise GcRefused(
            RefusalRule.AUDIT_MISSED_A_MANIFEST,
            f"audit {case.audit.audit_id} missed a manifest or reference, key={key};"
            " do not use this audit, run a new one",
        )


async def _read_listed(store: ObjectStore, candidate: Candidate) -> tuple[ListedNow | None, UnixNs]:
    found = None
    now_ns = UnixNs(0)
    async for page in store.list_incarnations(candidate.key):
        now_ns = UnixNs(max(now_ns, page.date_ns))
        for one in page.incarnations:
            is_it = one.key == candidate.key and one.incarnation == candidate.incarnation
            if is_it and not one.marker:
                found = ListedNow(
                    incarnation=one.incarnation,
                    last_modified_ns=one.last_modified_ns,
                    current=one.current,
                )
    return found, now_ns


async def _read_current(store: ObjectStore, candidate: Candidate) -> CurrentRead | None:
    read = await store.get(candidate.key)
    if not isinstance(read, Found) or read.info.incarnation is None:
        return None
    return CurrentRead(incarnation=read.info.incarnation, digest=Digest(digest_of(read.body)))


Value = bytes | str | int | bool | None


def proofs_prefix(digest: Digest) -> str:
    """Return the prefix of every file that may contain proofs about a blob."""
    return f"{GC_PROOFS}sha256={digest[0]}/"


def proof_key(
    plan_id: str, first: Digest, last: Digest, number: int, attempt: int = 0
) -> ObjectKey:
    """Return the key of one attempt at a batch; its digests have the same first digit.

    The key contains the range of the digests, so that a reader skips the files of others.
    """
    name = f"{plan_id}-{number:06d}-{attempt:03d}-{first[:_RANGE_DIGITS]}-{last[:_RANGE_DIGITS]}"
    return ObjectKey(f"{proofs_prefix(first)}{name}.parquet.z")


def may_prove(key: ObjectKey, digest: Digest) -> bool:
    """Return True if a file may contain proofs about a blob, by the range in its key."""
    *_, first, last = key.removesuffix(".parquet.z").split("-")
    return first <= digest[:_RANGE_DIGITS] <= last


_RANGE_DIGITS: Final = 8


def proofs_table(plan_id: str, proofs: Sequence[DeletionProof]) -> pa.Table:
    """Return rows of `PROOFS`."""
    rows = [_row(plan_id, one) for one in proofs]
    return pa.Table.from_pylist(rows, schema=PROOFS)


def _row(plan_id: str, proof: DeletionProof) -> dict[str, Value]:
    case, evidence = proof.case, proof.evidence
    candidate = case.candidate
    return {
        "sha256": digest_bytes(candidate.digest),
        "incarnation": candidate.incarnation,
        "last_modified_ns": candidate.last_modified_ns,
        "size_bytes": candidate.size_bytes,
        "superseded": case.noncurrent,
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


def _envelope(proof: DeletionProof) -> dict[str, Value]:
    identity, look = proof.identity, proof.evidence.envelope
    digest = proof.case.candidate.digest
    return {
        "envelope_accepted_key": accepted_key(identity) if identity else None,
        "envelope_accepted": look.accepted.value if look else None,
        "envelope_quarantine_key": quarantine_key(identity, digest) if identity else None,
        "envelope_quarantine": look.quarantine.value if look else None,
    }


def _verdict(proof: DeletionProof) -> dict[str, Value]:
    verdict = proof.verdict
    if isinstance(verdict, MustKeep):
        return {"verdict": "keep", "clause": verdict.clause.value, "reason": verdict.reason}
    return {"verdict": "may_go", "clause": None, "reason": None}
