"""Reads, at deletion time, the evidence that each clause of the proof is judged by.

Nothing is decided here: `sluice_protocol.blob_deletion` decides. Evidence that cannot be read stays
None, which keeps the blob.
"""

from dataclasses import dataclass, replace
from typing import Final

from sluice_gc.errors import GcRefused, Refusal
from sluice_protocol.blob_deletion import (
    DELETION_CLAUSES,
    NONCURRENT_CLAUSES,
    AuditResult,
    Candidate,
    ClauseCheck,
    CurrentRead,
    EnvelopeLookup,
    Evidence,
    Keep,
    ListedNow,
    ManifestLookup,
    MayDelete,
    decide_deletion,
)
from sluice_protocol.errors import InvalidRecord, SluiceError, StoreUnavailable
from sluice_protocol.frame import HEAD_BYTES_MAX, decode_head
from sluice_protocol.identity import Identity
from sluice_protocol.keys import (
    accepted_by_blob_prefix,
    accepted_key,
    digest_of,
    quarantine_by_blob_prefix,
    quarantine_key,
)
from sluice_protocol.manifests import decode_accepted
from sluice_protocol.outcomes import Found, NotFound
from sluice_protocol.units import NS_PER_S, Digest, ObjectKey, UnixNs
from sluice_store.port import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Clauses:
    """The clauses that a run judges by; a test may take one out to show that it is needed."""

    orphan: tuple[ClauseCheck, ...] = DELETION_CLAUSES
    superseded: tuple[ClauseCheck, ...] = NONCURRENT_CLAUSES


ALL_CLAUSES: Final = Clauses()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One candidate with what a run already knows of it.

    Attributes:
        candidate: The incarnation.
        superseded: Whether it is a noncurrent version of a referenced blob.
        audit: What the certificate says of it, looked up again.
        retry_horizon_ns: The authority's, read again.
        versioning_enabled: Read before this batch.
    """

    candidate: Candidate
    superseded: bool
    audit: AuditResult
    retry_horizon_ns: int
    versioning_enabled: bool

    @property
    def bare(self) -> Evidence:
        """The evidence before anything more is read."""
        return Evidence(
            candidate=self.candidate,
            retry_horizon_ns=self.retry_horizon_ns,
            versioning_enabled=self.versioning_enabled,
            audit=self.audit,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A candidate, all that was read about it, and the verdict.

    Attributes:
        case: The candidate.
        evidence: What was read.
        identity: Whose keys the envelope names, or None when it is unreadable.
        verdict: What the clauses say.
    """

    case: Case
    evidence: Evidence
    identity: Identity | None
    verdict: Keep | MayDelete


async def prove(store: ObjectStore, case: Case, clauses: Clauses = ALL_CLAUSES) -> Proof:
    """Reads the evidence for one candidate and judges it.

    The listing comes last, so that what is deleted is what was looked at.

    Raises:
        GcRefused: A manifest stands that the audit should have seen: the audit is not complete.
        StoreError: A refusal of the store; a read without an answer keeps the candidate instead.
    """
    evidence, identity = case.bare, None
    try:
        if case.superseded:
            evidence = replace(evidence, current=await _read_current(store, case.candidate))
        else:
            evidence = replace(evidence, references=await _count_references(store, case))
            identity = await _read_identity(store, case.candidate)
            evidence = replace(evidence, envelope=await _look(store, case, identity))
        listed, now_ns = await _read_listed(store, case.candidate)
        evidence = replace(evidence, listed=listed, now_ns=now_ns)
    except StoreUnavailable:
        pass  # what was not read stays None and keeps the candidate; the next run asks again
    verdict = decide_deletion(evidence, clauses.superseded if case.superseded else clauses.orphan)
    return Proof(case=case, evidence=evidence, identity=identity, verdict=verdict)


async def _count_references(store: ObjectStore, case: Case) -> int:
    digest = case.candidate.digest
    count = 0
    for prefix in (accepted_by_blob_prefix(digest), quarantine_by_blob_prefix(digest)):
        async for page in store.list(prefix):
            for one in page.objects:
                _check_seen(case, one.key, one.last_modified_ns)
                count += 1
    return count


async def _read_identity(store: ObjectStore, candidate: Candidate) -> Identity | None:
    """Gives the identity that the frame's own envelope names; None when it is unreadable."""
    read = await store.get(candidate.key, first=0, last=HEAD_BYTES_MAX - 1)
    if not isinstance(read, Found) or read.info.incarnation != candidate.incarnation:
        return None
    try:
        return decode_head(read.body).envelope.identity
    except StoreUnavailable:
        raise
    except SluiceError:
        return None


async def _look(store: ObjectStore, case: Case, identity: Identity | None) -> EnvelopeLookup | None:
    if identity is None:
        return None
    digest = case.candidate.digest
    accepted = await _look_accepted(store, case, accepted_key(identity))
    quarantined = await store.head(quarantine_key(identity, digest))
    if isinstance(quarantined, NotFound):
        return EnvelopeLookup(accepted=accepted, quarantine=ManifestLookup.ABSENT)
    _check_seen(case, quarantined.key, quarantined.last_modified_ns)
    return EnvelopeLookup(accepted=accepted, quarantine=ManifestLookup.NAMES_IT)


async def _look_accepted(store: ObjectStore, case: Case, key: ObjectKey) -> ManifestLookup:
    read = await store.get(key)
    if isinstance(read, NotFound):
        return ManifestLookup.ABSENT
    try:
        named = decode_accepted(key, read.body).digest
    except InvalidRecord:
        return ManifestLookup.UNREADABLE
    if named != case.candidate.digest:
        return ManifestLookup.NAMES_OTHER
    _check_seen(case, key, read.info.last_modified_ns)
    return ManifestLookup.NAMES_IT


def _check_seen(case: Case, key: str, last_modified_ns: UnixNs) -> None:
    """Stops everything when the audit missed a name that stood before it started.

    A second is left for stores that cut Last-Modified to whole seconds.
    """
    if last_modified_ns < case.audit.started_at_ns - NS_PER_S and not case.audit.names_blob:
        raise GcRefused(
            Refusal.AUDIT_MISSED_A_MANIFEST,
            f"audit {case.audit.audit_id} did not see {key}: do not trust it, audit again",
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
