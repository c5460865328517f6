"""Repetitions of small requests are left out once and only once, whatever crashes.

Two gateways combine requests. Clients repeat them after lost answers, through either gateway. Two
reconcilers crash before and after each write, batches are found late, and the clocks of the
gateways differ by 20 s. After a rebuild records may be doubled, but none is lost.

`SLUICE_SIM_SEEDS=7,8` replays seeds 7 and 8.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from support.combined_world import WINDOW_S, simulate_combined
from support.reconciler_world import Crash
from support.simloop import daily_seeds

from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.units import NS_PER_S
from sluice_reconciler.lanes import owner as lane_owner
from sluice_reconciler.lanes import part_log, request_window
from sluice_reconciler.lanes import runs as lane_runs
from sluice_reconciler.lanes.enqueued import IntendedBatch
from sluice_reconciler.lanes.request_log import RequestLog, SpilledRequests
from sluice_reconciler.lanes.request_window import JudgedBatches, RequestWindow
from sluice_reconciler.lanes.state import LaneRecord

DAILY = (0, 7)
"""Each planted bug is found by one of these seeds."""


@pytest.fixture(autouse=True)
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make parts and runs small, so that they are written and merged often."""
    monkeypatch.setattr(lane_owner, "RECENT_MAX", 2)
    monkeypatch.setattr(lane_runs, "RECENT_MAX", 2)
    monkeypatch.setattr(lane_runs, "FAN_IN", 3)
    monkeypatch.setattr(part_log, "PART_LIVES_MAX", 2)
    monkeypatch.setattr(request_window, "RUN_REQUESTS_MAX", 12)


@pytest.mark.parametrize("seed", daily_seeds(46, DAILY))
def test_each_request_is_ingested_once(seed: int) -> None:
    world = simulate_combined(seed)
    assert world.lost == [], seed
    assert world.doubled == [], seed


@pytest.mark.parametrize("seed", daily_seeds(46, DAILY))
def test_no_request_is_lost_by_a_rebuild(seed: int) -> None:
    assert simulate_combined(seed, rebuild=True).lost == [], seed


def _finds() -> bool:
    """Return True if a seed finds the bug; the daily seeds run first."""
    for seed in dict.fromkeys((*DAILY, *range(20))):
        try:
            world = simulate_combined(seed)
        except (Exception, Crash):
            return True
        if world.lost or world.doubled:
            return True
    return False


def _judges_nothing(self: RequestWindow, batches: Iterable[AcceptedManifest]) -> JudgedBatches:
    """Repetitions are not left out."""
    return JudgedBatches(batches=tuple(batches), found={}, repeated=0)


async def _loads_nothing(
    self: RequestLog, record: LaneRecord, enqueued: Sequence[IntendedBatch]
) -> None:
    """A new owner knows no request."""
    self.window = RequestWindow()


_load = RequestLog.load


async def _loads_runs_only(
    self: RequestLog, record: LaneRecord, enqueued: Sequence[IntendedBatch]
) -> None:
    """A new owner forgets the recent batches."""
    await _load(self, record, ())


async def _spills_nothing(self: RequestLog) -> SpilledRequests:
    """Recent batches leave the lane state before their requests are stored."""
    return self.unchanged()


_judge = RequestWindow.judge


def _by_acceptance(self: RequestWindow, batches: Iterable[AcceptedManifest]) -> JudgedBatches:
    """The batch that was accepted first keeps a request, even if another is enqueued already."""
    judged = _judge(self, batches)
    kept = []
    for one in judged.batches:
        known = self.find(judged.found)
        later = [k for k in known.values() if k.accepted_s > one.accepted_at_unix_ns // NS_PER_S]
        kept.append(replace(one, repeated=()) if later else one)
    return JudgedBatches(batches=tuple(kept), found=judged.found, repeated=judged.repeated)


async def _forgets_by_clock(
    self: RequestLog, record: LaneRecord, enqueued: Sequence[IntendedBatch]
) -> None:
    """The window ends by the clock, not by what is found."""
    await _load(self, record, enqueued)
    cutoff_s = self._runtime.clock.now_ns() // NS_PER_S - WINDOW_S
    known, window = self.window.unstored, self.window
    self.window = RequestWindow([run.since(cutoff_s) for run in window.runs])
    self.window._unstored = {k: v for k, v in known.items() if v.accepted_s >= cutoff_s}


@pytest.mark.parametrize(
    ("target", "name", "bug"),
    [
        (RequestWindow, "judge", _judges_nothing),
        (RequestWindow, "judge", _by_acceptance),
        (RequestLog, "load", _loads_nothing),
        (RequestLog, "load", _loads_runs_only),
        (RequestLog, "spill", _spills_nothing),
        (RequestLog, "load", _forgets_by_clock),
    ],
    ids=lambda one: one.__name__ if callable(one) else "",
)
def test_planted_bugs_are_found(
    target: Any, name: str, bug: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, name, bug)
    assert _finds()
