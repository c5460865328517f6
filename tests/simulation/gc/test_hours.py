"""After hours of everything at once no answered batch is missing, and every old orphan is gone."""

from dataclasses import replace
from random import Random

import pytest
from support.gc_story import Story
from support.simloop import SimLoop, seeds, simulate

from sluice_gc.proof import ALL_CLAUSES, Clauses
from sluice_protocol import deletion as d


def play(
    seed: int, hours: float, clauses: Clauses = ALL_CLAUSES, *, hostile: bool = False
) -> Story:
    async def main(loop: SimLoop, rng: Random) -> Story:
        story = Story(loop=loop, rng=rng, hours=hours, clauses=clauses, hostile=hostile)
        await story.play()
        return story

    return simulate(seed, main)


def check(story: Story) -> None:
    assert story.lost == []
    assert story.unreadable() == []
    assert story.standing_orphans() == []


@pytest.mark.parametrize("seed", seeds(2))
def test_an_hour_of_everything(seed: int) -> None:
    """Two rival collectors, dying gateways, lost answers: I2 and I7 hold and orphans go."""
    story = play(seed, 1)
    check(story)
    assert story.deleted > 5
    assert story.accepted > 100
    assert story.conflicts > 2


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(12))
def test_many_hours_of_everything(seed: int) -> None:
    """The same for six hours each."""
    check(play(seed, 6))


def test_same_seed_same_story() -> None:
    """A seed replays: same answers, same deletions, same refusals."""
    first, again = play(3, 0.3), play(3, 0.3)
    assert [first.deleted, first.accepted, first.refusals] == [
        again.deleted,
        again.accepted,
        again.refusals,
    ]
    assert sorted(first.store.versions) == sorted(again.store.versions)


def test_hostile_plans_lose_nothing() -> None:
    """Plans that list every blob, hour after hour: the clauses of the run alone hold I2."""
    check(play(1, 0.12, hostile=True))


def test_collector_without_names_is_caught() -> None:
    """The same plans, and a run that asks no manifest and no reference: batches are lost."""
    named = {d.audit_unnamed, d.references_absent, d.envelope_unnamed}
    left = tuple(check for check in d.DELETION_CLAUSES if check not in named)
    assert play(1, 0.25, replace(ALL_CLAUSES, orphan=left), hostile=True).lost
