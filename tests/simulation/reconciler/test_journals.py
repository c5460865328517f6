"""The published time is never ahead of the truth; the same simulation finds planted bugs.

`SLUICE_SIM_SEEDS=7,8` replays seeds 7 and 8.
"""

import os
from typing import Any

import pytest
from support.journal_world import simulate

from sluice_protocol.units import UnixNs
from sluice_reconciler.discovery import DiscoveryClaim
from sluice_reconciler.journals.progress import BrokenJournal, ProcessJournal
from sluice_reconciler.journals.route import JournalRoute

SEEDS = [int(one) for one in os.environ.get("SLUICE_SIM_SEEDS", "").split(",") if one] or range(4)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_time_is_published_before_every_acknowledged_batch_is_enqueued(seed: int) -> None:
    found = simulate(seed)
    assert found.violations == (), seed
    assert found.lost == (), seed
    assert found.doubled == 0, seed
    assert found.advanced, seed
    assert found.journaled, seed
    assert min(found.lives) > 2


def test_the_same_seed_gives_the_same_run() -> None:
    assert simulate(3, rounds=40) == simulate(3, rounds=40)


async def _publish_then_process(self: JournalRoute, due: Any) -> Any:
    """Publish the frontier before the append."""
    left = [(one, dict(one.left)) for one in due]
    for one in due:
        one.attempted, one.left = True, {}
    self._published_at_ns = None
    await self._publish()
    for one, keys in left:
        one.left = keys
    return await _PROCESS(self, due)


_PROCESS = JournalRoute._process_objects
_READ = JournalRoute._read_objects


async def _store_position_first(self: JournalRoute) -> None:
    """Store the numbers of what was read, before it is processed."""
    await _READ(self)
    numbers = {process: one.read_through for process, one in self._journals.items()}
    await self._parts.discovery.claim(DiscoveryClaim(journals=numbers))


def _count_pass_that_runs(self: JournalRoute) -> UnixNs:
    """Take a full pass for complete although none has begun."""
    return self._parts.clock.now_ns()


def _settle_unprocessed(self: ProcessJournal) -> None:
    """Process objects although entries of other lanes are left."""
    while self.waiting and self.waiting[0].attempted:
        self._finish(self.waiting.popleft())


@pytest.mark.parametrize(
    "bug",
    [
        *("published before the append", "gap skipped", "position stored before processing"),
        *("dead process without a pass", "entries of a rival dropped"),
    ],
)
def test_planted_bugs_are_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    match bug:
        case "published before the append":
            monkeypatch.setattr(JournalRoute, "_process_objects", _publish_then_process)
        case "gap skipped":
            monkeypatch.setattr(BrokenJournal, "is_healed_by", lambda self, began: True)
        case "position stored before processing":
            monkeypatch.setattr(JournalRoute, "_read_objects", _store_position_first)
        case "dead process without a pass":
            monkeypatch.setattr(JournalRoute, "_pass_began_ns", _count_pass_that_runs)
        case _:
            monkeypatch.setattr(ProcessJournal, "settle", _settle_unprocessed)
    assert any(not simulate(seed).is_right for seed in range(6))
