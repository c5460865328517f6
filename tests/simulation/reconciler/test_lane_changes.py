"""Every batch is handed to the consumer once while the number of lanes changes.

Commands are killed before and after each write and repeated; reconcilers crash and may know an
earlier number of lanes, and so may the consumer.

`SLUICE_SIM_SEEDS=7,8` replays seeds 7 and 8.
"""

from collections.abc import Iterable
from typing import Any

import pytest
from support.lane_change_world import simulate
from support.reconciler_world import Crash, make_parts_small
from support.simloop import daily_seeds

from sluice_queue import appender, consumer, takeover
from sluice_reconciler.lanes import change, state
from sluice_reconciler.lanes.owner import LaneOwner
from sluice_reconciler.lanes.parts import LanePart

SEEDS = 30
DAILY = (0, 1)
NUMBERS = (4, 3, 6, 1)
BOOTS = 4


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make parts small and every rewrite worth while."""
    make_parts_small(monkeypatch)
    monkeypatch.setattr(state, "RETIRED_MIN", 1)


@pytest.mark.parametrize("seed", daily_seeds(SEEDS, DAILY))
def test_every_batch_is_handed_over_once(seed: int) -> None:
    world = simulate(seed, NUMBERS, boots=BOOTS)
    assert world.wrong() == [], seed
    assert world.kills > 0, seed


@pytest.mark.parametrize("seed", daily_seeds(SEEDS, DAILY))
def test_every_batch_is_handed_over_once_while_lives_are_retired(seed: int) -> None:
    world = simulate(seed, NUMBERS, boots=BOOTS, years=True)
    assert world.wrong() == [], seed


def _finds(seeds: Iterable[int] = range(SEEDS), *, years: bool = False) -> bool:
    """Return True if a seed finds the bug."""
    for seed in seeds:
        try:
            if simulate(seed, NUMBERS, boots=BOOTS, years=years).wrong():
                return True
        except (Exception, Crash):
            return True
    return False


def _nothing_stops_old_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the lane states are closed nor the registers sealed."""

    async def close_for(self: LaneOwner, lanes: int) -> None:
        del lanes
        await self.close()

    monkeypatch.setattr(LaneOwner, "close_for", close_for)
    monkeypatch.setattr(change, "SEALED", 0)
    for user in (appender, takeover, consumer):
        monkeypatch.setattr(user, "refuse_other_layout", lambda *_: None)


def _moved_boots_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    real = LanePart.of_lane

    def of_lane(self: LanePart, lane: int, lanes: int) -> LanePart | None:
        return None if lane else real(self, lane, lanes)

    monkeypatch.setattr(LanePart, "of_lane", of_lane)


def _settled_times_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change._Change, "_settled", lambda *_: iter(()))


def _registers_keep_their_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    real = change.continue_after

    def continue_after(seen: Any, sequence: int, layout: int, nonce: bytes) -> Any:
        del sequence
        return real(seen, seen.acked_through, layout, nonce)

    monkeypatch.setattr(change, "continue_after", continue_after)


@pytest.mark.parametrize(
    "bug", [_nothing_stops_old_processes, _moved_boots_are_lost, _registers_keep_their_sequences]
)
def test_planted_bugs_are_found(bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    assert _finds()


def test_a_planted_bug_in_settled_times_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One seed in thirty finds it: lives must be retired between two changes."""
    _settled_times_are_lost(monkeypatch)
    assert _finds((40, 157, 167, 171), years=True)
