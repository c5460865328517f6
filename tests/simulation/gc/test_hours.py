"""After hours of everything at once no answered batch is missing, and every old orphan is gone.

An operator decides about conflicts all the while: what is decided is never forgotten, and a
quarantined agent and boot is turned away.
"""

from dataclasses import replace
from random import Random

import pytest
from support.gc_operator import Tidy, drop_both, drop_one, keep
from support.gc_story import Story
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
) -> Story:
    async def main(loop: SimLoop, rng: Random) -> Story:
        story = Story(loop=loop, rng=rng, hours=hours, clauses=clauses, hostile=hostile, tidy=tidy)
        await story.play()
        return story

    return simulate(seed, main)


def check(story: Story) -> None:
    assert story.lost == []
    assert story.unreadable() == []
    assert story.standing_orphans() == []
    assert story.operator.vanished() == []
    assert story.strays == []
    assert story.late == []


def facts(story: Story) -> list[object]:
    return [story.deleted, story.accepted, story.refusals, story.refused, story.operator.decided]


@pytest.mark.parametrize("seed", seeds(2))
def test_an_hour_of_everything(seed: int) -> None:
    """Rival collectors, dying gateways, decisions, lost answers and events: I2, I7; orphans go."""
    story = play(seed, 1)
    check(story)
    assert story.deleted > 5
    assert story.accepted > 100
    assert story.conflicts > 2
    assert {"accept_existing", "quarantine_identity"} == set(story.operator.decided)
    assert story.refused > 2
    assert story.reconciler.lost > 20


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(12))
def test_many_hours_of_everything(seed: int) -> None:
    """The same for six hours each."""
    check(play(seed, 6))


def test_same_seed_same_story() -> None:
    """A seed replays: same answers, same deletions, same refusals, same decisions."""
    first, again = play(3, 0.2), play(3, 0.2)
    assert facts(first) == facts(again)
    assert sorted(first.store.versions) == sorted(again.store.versions)


def test_hostile_plans_lose_nothing() -> None:
    """Plans that list every blob, hour after hour: the clauses of the run alone hold I2."""
    check(play(1, 0.12, hostile=True))


def test_collector_without_names_is_caught() -> None:
    """The same plans, and a run that asks no manifest and no reference: batches are lost."""
    named = {d.audit_unnamed, d.references_absent, d.envelope_unnamed}
    left = tuple(check for check in d.DELETION_CLAUSES if check not in named)
    assert play(1, 0.15, replace(ALL_CLAUSES, orphan=left), hostile=True).lost


def test_operator_who_forgets_is_caught() -> None:
    """A decision that drops quarantine manifest and reference lets quarantined blobs go."""
    story = play(1, 0.15, tidy=drop_both)
    assert story.lost
    assert story.operator.vanished()


def test_either_evidence_keeps_a_quarantined_blob() -> None:
    """The manifest alone and the reference alone still protect what was decided."""
    story = play(1, 0.15, tidy=drop_one)
    assert 0 < len(story.operator.vanished()) < len(story.operator.names)
    assert story.lost == []
    assert story.unreadable() == []
