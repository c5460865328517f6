"""Exactly once despite crashes, rivals and lost writes; the same simulation finds planted bugs.

`SLUICE_SIM_SEEDS=7,8` replays seeds 7 and 8.
"""

import os
from collections import Counter
from typing import Any

import pytest
from support.reconciler_world import Crash, simulate

from sluice_queue import takeover
from sluice_queue.appender import Appender
from sluice_queue.inspection import read_lane
from sluice_queue.lane import Lane, Runtime
from sluice_reconciler import lane_owner
from sluice_reconciler.lane_owner import LaneOwner
from sluice_store.port import ObjectStore

SEEDS = [int(one) for one in os.environ.get("SLUICE_SIM_SEEDS", "").split(",") if one] or range(20)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_batch_is_enqueued_once_despite_crashes_and_rivals(seed: int) -> None:
    """No accepted batch is lost, enqueued twice, or left without index entries."""
    accepted, table, missing, lived = simulate(seed)
    doubled = [who for who, count in Counter(table).items() if count > 1]
    assert doubled == [], seed
    assert sorted(table) == sorted(accepted), seed
    assert missing == [], seed
    assert lived > 2


def test_the_same_seed_gives_the_same_run() -> None:
    assert simulate(3) == simulate(3)


async def _unfenced(  # The new owner reads the register but does not fence the earlier owner.
    store: ObjectStore, lane: Lane, *, producer_id: bytes, term: int, writes: int, runtime: Runtime
) -> takeover.TakenOver:
    view = await read_lane(store, lane.queue, lane.lane, entries_max=0)
    found = view.state.writer(producer_id)
    appended = takeover.writes_of(found.counter) if found is not None else 0
    counter = takeover.counter_of(term, appended)
    appender = Appender(store, lane, runtime=runtime, producer=(producer_id, counter))
    return takeover.TakenOver(appender=appender, writes=appended, forgotten=False)


def _claims(appended: int) -> Any:
    real = lane_owner.take_over

    async def take_over(store: ObjectStore, lane: Lane, **known: Any) -> takeover.TakenOver:
        taken = await real(store, lane, **known)
        return takeover.TakenOver(
            appender=taken.appender, writes=known["writes"] + appended, forgotten=False
        )

    return take_over


def _without_intent() -> Any:
    real = LaneOwner._write

    async def write(self: LaneOwner, *, writes: int, pending: Any) -> None:
        del pending
        await real(self, writes=writes, pending=())

    return write


def _finds(seeds: range) -> bool:
    for seed in seeds:
        try:
            accepted, table, missing, _ = simulate(seed)
        except (Exception, Crash):
            return True
        if sorted(table) != sorted(accepted) or missing:
            return True
    return False


@pytest.mark.parametrize(
    "bug", ["no fence", "no intent", "append reported missing", "append reported present"]
)
def test_planted_bugs_are_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any one step of the protocol, a batch is lost or doubled within a few seeds."""
    match bug:
        case "no fence":
            monkeypatch.setattr(lane_owner, "take_over", _unfenced)
        case "no intent":
            monkeypatch.setattr(LaneOwner, "_write", _without_intent())
        case "append reported missing":
            monkeypatch.setattr(lane_owner, "take_over", _claims(0))
        case _:
            monkeypatch.setattr(lane_owner, "take_over", _claims(1))
    assert _finds(range(20))
