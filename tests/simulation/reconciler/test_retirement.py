"""Lives leave the lane state after the retry horizon, and no late batch is lost or doubled.

The clock jumps by days. Old batches are announced again, new batches of retired lives arrive, and
blobs appear late, while reconcilers crash before and after each write.

`SLUICE_SIM_SEEDS=7,8` replays seeds 7 and 8.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import pytest
from support.reconciler_world import Crash, make_parts_small, simulate
from support.simloop import daily_seeds

from sluice_protocol.identity import Identity
from sluice_reconciler.lanes import new_batches as deciding
from sluice_reconciler.lanes import owner as lane_owner
from sluice_reconciler.lanes import part_log, state
from sluice_reconciler.lanes.enqueued import EnqueuedBatches
from sluice_reconciler.lanes.owner import LaneOwner
from sluice_reconciler.lanes.parts import Boot, LanePart, merge_parts
from sluice_reconciler.lanes.sequence_ranges import BootRanges, EnqueueStatus, ListedBatch
from sluice_reconciler.lanes.state import LaneRecord, ShownPass
from sluice_reconciler.passes.full_pass import BootComparison

DAILY = (1, 7)
"""Each planted bug is found by one of these seeds."""
BOOTS = 4


@pytest.fixture(autouse=True)
def retired(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make parts small and every rewrite worth while; return the numbers of retired lives."""
    make_parts_small(monkeypatch, fan_in=3)
    monkeypatch.setattr(state, "RETIRED_MIN", 1)
    counted: list[int] = []
    real = LaneOwner.retire

    async def retire(self: LaneOwner, settled_s: int, unsettled: Iterable[Identity]) -> int:
        counted.append(await real(self, settled_s, unsettled))
        return counted[-1]

    monkeypatch.setattr(LaneOwner, "retire", retire)
    return counted


@pytest.mark.parametrize("seed", daily_seeds(46, DAILY))
def test_no_batch_is_lost_or_doubled_while_lives_are_retired(retired: list[int], seed: int) -> None:
    accepted, table, missing, lived = simulate(seed, boots=BOOTS, years=True)
    assert sorted(table) == sorted(accepted), seed
    assert missing == [], seed
    assert lived > 2
    assert sum(retired) > 0 or seed not in DAILY, "lives are retired with every daily seed"


def _finds() -> bool:
    """Return True if a seed finds the bug; the daily seeds run first."""
    for seed in dict.fromkeys((*DAILY, *range(30))):
        try:
            accepted, table, missing, _ = simulate(seed, boots=BOOTS, years=True)
        except (Exception, Crash):
            return True
        if sorted(table) != sorted(accepted) or missing:
            return True
    return False


def _ahead(record: LaneRecord, shown: ShownPass, quiet_s: int) -> int | None:
    """The settled time is later than the pass."""
    settled_s = state.settled_time_s(record, shown, quiet_s)
    return None if settled_s is None else settled_s + 20 * 86_400


def _without_held_batches() -> Any:
    real = LaneOwner.retire

    async def retire(self: LaneOwner, settled_s: int, unsettled: Iterable[Identity]) -> int:
        del unsettled
        return await real(self, settled_s, [])

    return retire


def _in_every_merge(
    parts: Sequence[LanePart], lives_max: int, *, retired_before_s: int = 0
) -> Iterator[LanePart]:
    """Idle lives are left out when only the newest runs are merged, too."""
    newest_s = max(int(one.seen.max()) for one in parts)
    idle_s = retired_before_s or newest_s - 8 * 86_400
    return merge_parts(parts, lives_max, retired_before_s=idle_s)


def _without_settled_time() -> Any:
    real = LaneOwner._swap_in

    async def swap_in(self: LaneOwner, record: LaneRecord) -> None:
        old = self._stored.record
        await real(self, lane_owner.replace(record, settled_s=old.settled_s))

    return swap_in


def _restores_nothing(
    listed: Iterable[ListedBatch], settled_s: int, unsettled: Collection[tuple[int, int]]
) -> BootRanges:
    del listed, settled_s, unsettled
    return BootRanges()


def _restores_all(
    listed: Iterable[ListedBatch], settled_s: int, unsettled: Collection[tuple[int, int]]
) -> BootRanges:
    """Every listed batch counts as enqueued."""
    del settled_s
    return state.restore_ranges(listed, 2**40, unsettled)


def _is_new(self: EnqueuedBatches, who: Identity) -> EnqueueStatus:
    boot = self.boot(who.agent_id, who.boot_id)
    return EnqueueStatus.NEW if boot is None else boot.status(who.seq_start, who.seq_end)


def _unlogged() -> Any:
    """A restored life is kept in memory only."""
    real = EnqueuedBatches.restore

    def restore(self: EnqueuedBatches, life: Boot, ranges: BootRanges) -> None:
        before = self._unlogged
        real(self, life, ranges)
        self._unlogged = before

    return restore


def _all_settled(self: BootComparison, who: Identity, appeared_ns: int) -> bool:
    """The full pass takes every batch of a retired life for an enqueued one."""
    return not self.retired_before_s and _real_is_new(self, who, appeared_ns)


_real_is_new = BootComparison.is_new

PLANTED = [
    ("settled time ahead of the pass", lane_owner, "settled_time_s", lambda: _ahead),
    ("held batches forgotten", LaneOwner, "retire", _without_held_batches),
    ("lives retired in a partial merge", part_log, "merge_parts", lambda: _in_every_merge),
    ("settled time not stored", LaneOwner, "_swap_in", _without_settled_time),
    ("retired life restored empty", deciding, "restore_ranges", lambda: _restores_nothing),
    ("late batch restored as enqueued", deciding, "restore_ranges", lambda: _restores_all),
    ("retired life taken for a new one", EnqueuedBatches, "status", lambda: _is_new),
    ("restored life not stored", EnqueuedBatches, "restore", _unlogged),
    ("full pass skips retired lives", BootComparison, "is_new", lambda: _all_settled),
]


@pytest.mark.daily(2)
@pytest.mark.parametrize(("bug", "place", "name", "make"), PLANTED, ids=[one[0] for one in PLANTED])
def test_planted_bugs_are_found(
    bug: str, place: object, name: str, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    del bug
    monkeypatch.setattr(place, name, make())
    assert _finds()
