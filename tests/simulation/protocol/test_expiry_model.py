"""Every interleaving of expiry with uploads, deletion, holds and changes of the tables.

The product's expiry clauses decide about tombstones, and its deletion clauses about blobs. No
interleaving loses a record or ignores a hold, and each planted omission does.
"""

import dataclasses

import pytest
from msgspec.structs import replace
from support.model import explore
from support.model_expiry import ExpiryRules, Lake, without
from support.model_store import Blob, Bounds, Manifest, Rules, Store, Sweeper, World

from sluice_protocol import expiry as e
from sluice_protocol.blob_deletion import MustKeep

ACCEPTED = Store(blobs=(Blob("A", 1, 0),), manifest=Manifest("A", "u0", 0), next_number=10)
INGESTED = Lake(rows=frozenset("A"), ledger=frozenset("A"))
BRIEF = Bounds(time_max=6, faults_max=0)
OLD = 5
"""The first time at which a batch of time 0 may expire."""


def world(lake: Lake, *uploads: tuple[str, str, bool], now: int = OLD, acked: bool = True) -> World:
    told = frozenset({("200", "A")}) if acked else frozenset()
    return World(now, ACCEPTED, (), (Sweeper(),), waiting=uploads, acked=told, lake=lake)


def at_work(**changes: object) -> Lake:
    """Return the lake of an accepted batch; `accidents` may happen."""
    return replace(INGESTED, **changes)  # type: ignore[arg-type]


SOUND = {
    "it is ingested, expires and is deleted": (world(Lake(), now=0), BRIEF),
    "an operator and compaction": (world(at_work(accidents=2)), BRIEF),
    "a table that is restored": (world(at_work(accidents=2, older=frozenset())), BRIEF),
    "rows that ingestion lost": (world(Lake(accidents=1), now=0), BRIEF),
    "a slow reader": (world(at_work(slow_reader=True)), BRIEF),
    "a hold that is lifted": (world(at_work(held=True, accidents=1)), BRIEF),
    "another manifest of the same blob": (
        world(at_work(named_elsewhere=frozenset("A"))),
        BRIEF,
    ),
    "a clock that was behind": (world(at_work(behind=3), now=2), BRIEF),
    "a late duplicate": (world(at_work(), ("u1", "A", False)), Bounds(time_max=7, faults_max=0)),
    "a late retry, one fault": (
        world(at_work(), ("u1", "A", True)),
        Bounds(time_max=6, faults_max=1),
    ),
    "an erasure of a young batch": (world(at_work(erased=frozenset("A")), now=2), BRIEF),
    "an erasure, an operator and compaction": (
        world(at_work(erased=frozenset("A"), accidents=2), now=4),
        BRIEF,
    ),
    "an erasure and rows that ingestion lost": (
        world(Lake(erased=frozenset("A"), accidents=1), now=0),
        BRIEF,
    ),
    "an erasure that selects nothing of the batch": (
        world(at_work(erased=frozenset("B")), now=3),
        BRIEF,
    ),
    "an erasure and a late retry": (
        world(at_work(erased=frozenset("A")), ("u1", "A", True), now=3),
        BRIEF,
    ),
    "other bytes, late": (world(at_work(), ("u1", "B", False)), BRIEF),
    "a late duplicate whose blob is deleted again": (
        world(at_work(), ("u1", "A", False)),
        Bounds(time_max=10, faults_max=0, cycles_max=2),
    ),
    "a write that becomes visible late": (
        world(at_work(accidents=1), ("u1", "A", False)),
        Bounds(time_max=6, faults_max=0, held_max=1),
    ),
}


@pytest.mark.daily(9)
@pytest.mark.parametrize("name", SOUND)
def test_expiry_keeps_its_guarantees(name: str) -> None:
    start, bounds = SOUND[name]
    found = explore(start, Rules(), bounds)
    assert found.broken is None, "\n".join(found.trail)
    assert found.complete, f"stopped at {found.states} states"
    print(f"{name}: {found.states} states")


def test_a_batch_does_expire_and_its_blob_is_deleted() -> None:
    """The exploration above reaches what it is about: without the rows it would be a loss."""
    reached = explore(world(at_work()), Rules(expiry=ExpiryRules(manifest_stays=False)), BRIEF)
    assert reached.broken is not None
    assert "late delete applies" in reached.trail


def by_accepted_time(evidence: e.BatchEvidence) -> MustKeep | None:
    """Count the age from the time in the manifest alone."""
    return e.batch_old_enough(dataclasses.replace(evidence, appeared_at_ns=evidence.accepted_at_ns))


def audited_by_accepted_time(evidence: e.BatchEvidence) -> MustKeep | None:
    return e.audited_after(dataclasses.replace(evidence, appeared_at_ns=evidence.accepted_at_ns))


CLOCK = tuple(
    audited_by_accepted_time if one is e.audited_after else one
    for one in without(e.batch_old_enough, by_accepted_time)
)

PLANTED: dict[str, tuple[ExpiryRules, World]] = {
    "no read-back": (
        ExpiryRules(clauses=without(e.rows_equal)),
        world(Lake(accidents=1), now=0),
    ),
    "a stale version of the table": (
        ExpiryRules(run_reads_commit=False),
        world(at_work(accidents=2, older=frozenset())),
    ),
    "a shared blob": (
        ExpiryRules(by_manifest=False),
        world(at_work(named_elsewhere=frozenset("A"))),
    ),
    "a hold between plan and run": (
        ExpiryRules(run_reads_holds=False),
        world(at_work(accidents=1)),
    ),
    "a rebuild after expiry": (
        ExpiryRules(rebuild_refuses=False),
        world(at_work(accidents=1)),
    ),
    "a late duplicate of a manifest that ended": (
        ExpiryRules(manifest_stays=False),
        world(at_work(), ("u1", "A", False)),
    ),
    "a clock that was behind": (
        ExpiryRules(clauses=CLOCK),
        world(at_work(behind=3), now=2),
    ),
    "an erasure without read-back": (
        ExpiryRules(erasure=without(e.rows_equal, clauses=e.ERASURE_CLAUSES)),
        world(Lake(erased=frozenset("A"), accidents=1), now=0),
    ),
    "an erasure before the retry horizon": (
        ExpiryRules(erasure=without(e.audited_after, clauses=e.ERASURE_CLAUSES)),
        world(at_work(erased=frozenset("A")), now=1),
    ),
    "an erasure of batches that it does not select": (
        ExpiryRules(
            erasure=without(e.contains_matches, clauses=e.ERASURE_CLAUSES), erases_all=True
        ),
        world(at_work(), now=2),
    ),
    "an erasure of a batch that another consumer has not read": (
        ExpiryRules(erasure=without(e.consumed, clauses=e.ERASURE_CLAUSES)),
        world(at_work(erased=frozenset("A"), slow_reader=True), now=4),
    ),
    "a consumer that has not read it": (
        ExpiryRules(clauses=without(e.consumed)),
        world(at_work(slow_reader=True)),
    ),
}


@pytest.mark.daily(6)
@pytest.mark.parametrize("name", PLANTED)
def test_planted_omission_is_found(name: str) -> None:
    rules, start = PLANTED[name]
    found = explore(start, Rules(expiry=rules), BRIEF)
    assert found.broken is not None, f"not found in {found.states} states"
    print(f"{name}: {found.broken}", *found.trail, sep="\n  ")
