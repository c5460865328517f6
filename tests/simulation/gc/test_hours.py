"""After hours of concurrent work no accepted batch is missing, and every old orphan is deleted.

An operator decides about conflicts during that time. A decision is never lost, and uploads of a
quarantined agent and boot are refused.
"""

from dataclasses import replace
from random import Random

import pytest
from support.gc_simulation import DeploymentSimulation, Tidy, drop_both, drop_one, keep
from support.repetitions import times
from support.simloop import SimLoop, seeds, simulate

from sluice_gc.deletion_proof import ALL_CLAUSES, ClauseSets
from sluice_protocol import blob_deletion as d


def play(
    seed: int,
    hours: float,
    clauses: ClauseSets = ALL_CLAUSES,
    *,
    hostile: bool = False,
    tidy: Tidy = keep,
) -> DeploymentSimulation:
    async def main(loop: SimLoop, rng: Random) -> DeploymentSimulation:
        story = DeploymentSimulation(
            loop=loop, rng=rng, hours=hours, clauses=clauses, hostile=hostile, tidy=tidy
        )
        await story.play()
        return story

    return simulate(seed, main)


def check(story: DeploymentSimulation) -> None:
    assert story.lost == []
    assert story.unreadable() == []
    assert story.standing_orphans() == []
    assert story.operator.vanished() == []
    assert story.strays == []
    assert story.late == []


def facts(story: DeploymentSimulation) -> list[object]:
    return [story.deleted, story.accepted, story.refusals, story.refused, story.operator.decided]


@pytest.mark.parametrize("seed", seeds(1))
def test_eighteen_simulated_minutes_lose_nothing(seed: int) -> None:
    """I2 and I7 are true with concurrent collectors, crashes, decisions and lost responses."""
    story = play(seed, 0.3)
    check(story)
    assert story.deleted > 2
    assert story.accepted > 100
    assert story.conflicts > 2
    assert {"accept_existing", "quarantine_identity"} == set(story.operator.decided)
    assert story.refused > 0
    assert story.reconciler.lost > 20


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(times(1)))
def test_three_simulated_hours_lose_nothing(seed: int) -> None:
    """I2 and I7 are true for three simulated hours."""
    check(play(seed, 3))


@pytest.mark.long
def test_seed_replays_the_simulation() -> None:
    """A seed leads to the same responses, deletions, refusals and decisions."""
    first, again = play(3, 0.04), play(3, 0.04)
    assert facts(first) == facts(again)
    assert sorted(first.store.versions) == sorted(again.store.versions)


@pytest.mark.long
def test_hostile_plans_lose_nothing() -> None:
    """If plans list every blob, the clauses of the run alone ensure I2."""
    check(play(1, 0.04, hostile=True))


def test_collector_that_ignores_names_is_detected() -> None:
    """A run that reads no manifest and no reference loses batches."""
    named = {d.audit_unnamed, d.references_absent, d.envelope_unnamed}
    left = tuple(check for check in d.DELETION_CLAUSES if check not in named)
    assert play(1, 0.04, replace(ALL_CLAUSES, orphan=left), hostile=True).lost


def test_operator_that_removes_evidence_is_detected() -> None:
    """A decision that removes quarantine manifest and reference loses quarantined blobs."""
    story = play(1, 0.04, tidy=drop_both)
    assert story.lost
    assert story.operator.vanished()


@pytest.mark.long
def test_manifest_or_reference_keeps_a_quarantined_blob() -> None:
    """The manifest alone and the reference alone protect a decided blob."""
    stories = [play(seed, 0.15, tidy=drop_one) for seed in range(4)]
    vanished = sum(len(story.operator.vanished()) for story in stories)
    assert 0 < vanished < sum(len(story.operator.names) for story in stories)
    assert [story.lost for story in stories] == [[]] * 4
    assert [story.unreadable() for story in stories] == [[]] * 4
