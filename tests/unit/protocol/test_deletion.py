"""Each clause of the proof keeps the blob alone, where no other clause would."""

from dataclasses import replace

import pytest

from sluice_protocol.blob_deletion import (
    DELETION_CLAUSES,
    NONCURRENT_CLAUSES,
    PLAN_CLAUSES,
    AuditResult,
    Candidate,
    Clause,
    ClauseCheck,
    CurrentRead,
    EnvelopeLookup,
    Evidence,
    ExpiryLookup,
    ListedNow,
    ManifestLookup,
    MayDelete,
    MustKeep,
    clock_fell,
    decide_deletion,
)
from sluice_protocol.keys import blob_key, digest_of
from sluice_protocol.units import ObjectVersion, UnixNs

DIGEST = digest_of(b"orphan")
OTHER = digest_of(b"other")
V1, V2 = ObjectVersion("v1"), ObjectVersion("v2")
HORIZON = 100

ORPHAN = Evidence(
    candidate=Candidate(
        key=blob_key(DIGEST),
        digest=DIGEST,
        incarnation=V1,
        last_modified_ns=UnixNs(1_000),
        size_bytes=6,
    ),
    retry_horizon_ns=HORIZON,
    now_ns=UnixNs(1_200),
    versioning_enabled=True,
    audit=AuditResult(audit_id="A", started_at_ns=UnixNs(1_101), complete=True, names_blob=False),
    references=0,
    envelope=EnvelopeLookup(accepted=ManifestLookup.ABSENT, quarantine=ManifestLookup.ABSENT),
    listed=ListedNow(incarnation=V1, last_modified_ns=UnixNs(1_000), current=True),
)
EXPIRED = replace(
    ORPHAN,
    envelope=EnvelopeLookup(accepted=ManifestLookup.EXPIRED, quarantine=ManifestLookup.ABSENT),
    expiry=ExpiryLookup(held=False, table_stays=True),
)
REFUSED = replace(
    EXPIRED,
    envelope=EnvelopeLookup(accepted=ManifestLookup.NAMES_OTHER, quarantine=ManifestLookup.EXPIRED),
)
SUPERSEDED = replace(
    ORPHAN,
    listed=ListedNow(incarnation=V1, last_modified_ns=UnixNs(1_000), current=False),
    current=CurrentRead(incarnation=V2, digest=DIGEST),
)


def _audit(**changed: object) -> Evidence:
    assert ORPHAN.audit is not None
    return replace(ORPHAN, audit=replace(ORPHAN.audit, **changed))


def _envelope(
    accepted: ManifestLookup = ManifestLookup.ABSENT,
    quarantine: ManifestLookup = ManifestLookup.ABSENT,
) -> Evidence:
    return replace(ORPHAN, envelope=EnvelopeLookup(accepted=accepted, quarantine=quarantine))


def _expiry(*, held: bool | None = False, table_stays: bool | None = True) -> Evidence:
    return replace(EXPIRED, expiry=ExpiryLookup(held=held, table_stays=table_stays))


def _listed(**changed: object) -> Evidence:
    assert ORPHAN.listed is not None
    return replace(ORPHAN, listed=replace(ORPHAN.listed, **changed))


def _null(evidence: Evidence) -> Evidence:
    null = ObjectVersion("null")
    assert evidence.listed is not None
    return replace(
        evidence,
        candidate=replace(evidence.candidate, incarnation=null),
        listed=replace(evidence.listed, incarnation=null),
    )


KEPT = [
    (Clause.VERSIONING, replace(ORPHAN, versioning_enabled=None)),
    (Clause.VERSIONING, replace(ORPHAN, versioning_enabled=False)),
    (Clause.INCARNATION, _null(ORPHAN)),
    (Clause.AGE, replace(ORPHAN, now_ns=None)),
    (Clause.AGE, replace(ORPHAN, now_ns=UnixNs(1_100))),
    (Clause.CERTIFICATE, _audit(complete=False)),
    (Clause.CERTIFICATE, _audit(started_at_ns=UnixNs(1_100))),
    (Clause.AUDIT, _audit(names_blob=None)),
    (Clause.AUDIT, _audit(names_blob=True)),
    (Clause.REFERENCES, replace(ORPHAN, references=None)),
    (Clause.REFERENCES, replace(ORPHAN, references=1)),
    (Clause.ENVELOPE, replace(ORPHAN, envelope=None)),
    (Clause.ENVELOPE, _envelope(accepted=ManifestLookup.NAMES_IT)),
    (Clause.ENVELOPE, _envelope(accepted=ManifestLookup.UNREADABLE)),
    (Clause.ENVELOPE, _envelope(quarantine=ManifestLookup.NAMES_IT)),
    (Clause.ENVELOPE, _envelope(quarantine=ManifestLookup.NAMES_OTHER)),
    (Clause.ENVELOPE, _envelope(quarantine=ManifestLookup.UNREADABLE)),
    (Clause.HELD, replace(EXPIRED, expiry=None)),
    (Clause.HELD, _expiry(held=True)),
    (Clause.HELD, _expiry(held=None)),
    (Clause.HELD, replace(REFUSED, expiry=None)),
    (Clause.HELD, replace(REFUSED, expiry=ExpiryLookup(held=True, table_stays=True))),
    (Clause.TABLE, _expiry(table_stays=False)),
    (Clause.TABLE, _expiry(table_stays=None)),
    (Clause.LISTED, replace(ORPHAN, listed=None)),
    (Clause.LISTED, _listed(incarnation=V2)),
    (Clause.LISTED, _listed(last_modified_ns=UnixNs(1_001))),
    (Clause.LISTED, _listed(current=False)),
]
KEPT_SUPERSEDED = [
    (Clause.VERSIONING, replace(SUPERSEDED, versioning_enabled=False)),
    (Clause.INCARNATION, _null(SUPERSEDED)),
    (Clause.AGE, replace(SUPERSEDED, now_ns=UnixNs(1_100))),
    (Clause.NONCURRENT, replace(SUPERSEDED, listed=None)),
    (Clause.NONCURRENT, replace(SUPERSEDED, listed=ORPHAN.listed)),
    (Clause.CURRENT, replace(SUPERSEDED, current=None)),
    (Clause.CURRENT, replace(SUPERSEDED, current=CurrentRead(incarnation=V1, digest=DIGEST))),
    (Clause.CURRENT, replace(SUPERSEDED, current=CurrentRead(incarnation=V2, digest=OTHER))),
]


def _without(clauses: tuple[ClauseCheck, ...], evidence: Evidence) -> tuple[ClauseCheck, ...]:
    return tuple(check for check in clauses if check(evidence) is None)


def test_orphan_past_its_horizon_may_be_deleted() -> None:
    """An orphan with every clause proved may be deleted, with or without another manifest."""
    assert decide_deletion(ORPHAN, PLAN_CLAUSES) == MayDelete()
    assert decide_deletion(ORPHAN, DELETION_CLAUSES) == MayDelete()
    assert (
        decide_deletion(_envelope(accepted=ManifestLookup.NAMES_OTHER), DELETION_CLAUSES)
        == MayDelete()
    )
    assert decide_deletion(SUPERSEDED, NONCURRENT_CLAUSES) == MayDelete()
    assert decide_deletion(EXPIRED, DELETION_CLAUSES) == MayDelete()
    assert decide_deletion(REFUSED, DELETION_CLAUSES) == MayDelete()


@pytest.mark.parametrize(("clause", "evidence"), KEPT)
def test_each_clause_alone_keeps(clause: Clause, evidence: Evidence) -> None:
    """One failed clause keeps the blob under its name; without that clause it would be deleted."""
    kept = decide_deletion(evidence, DELETION_CLAUSES)
    assert isinstance(kept, MustKeep)
    assert kept.clause is clause
    assert decide_deletion(evidence, _without(DELETION_CLAUSES, evidence)) == MayDelete()
    assert len(_without(DELETION_CLAUSES, evidence)) == len(DELETION_CLAUSES) - 1


@pytest.mark.parametrize(("clause", "evidence"), KEPT_SUPERSEDED)
def test_each_clause_of_a_noncurrent_version_keeps(clause: Clause, evidence: Evidence) -> None:
    """A noncurrent version may be deleted only if the current one was read and is correct."""
    kept = decide_deletion(evidence, NONCURRENT_CLAUSES)
    assert isinstance(kept, MustKeep)
    assert kept.clause is clause


def test_missing_evidence_keeps() -> None:
    """Evidence that was not read, and an empty list of clauses, never support a deletion."""
    bare = Evidence(candidate=ORPHAN.candidate, retry_horizon_ns=HORIZON)
    silent = [check.__name__ for check in DELETION_CLAUSES if check(bare) is None]
    assert silent == ["incarnation_exact", "expiry_stands"], "the envelope shows no expiry"
    assert isinstance(decide_deletion(ORPHAN, ()), MustKeep)


def test_missing_certificate_fails_two_clauses() -> None:
    found = [check(replace(ORPHAN, audit=None)) for check in DELETION_CLAUSES]
    assert [kept.clause for kept in found if kept] == [Clause.CERTIFICATE, Clause.AUDIT]


def test_clock_fell_only_past_half_the_margin() -> None:
    """A fall of more than half the margin stops deletion; a rise never does."""
    assert not clock_fell(1_000, 950, 100)
    assert clock_fell(1_000, 949, 100)
    assert not clock_fell(1_000, 5_000, 100)
