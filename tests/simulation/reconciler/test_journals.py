"""Whole reconcilers under every fault: the published time, exactly once, liveness, and removal.

Each planted bug must be found by one of a few seeds. `SLUICE_SIM_SEEDS=7,8` replays seeds 7 and 8.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from support.reconciler_chaos import FAULTS, Outcome, Plan, plan_of, run_chaos
from support.reconciler_chaos_store import Rules
from support.repetitions import times
from support.simloop import daily_seeds

from sluice_protocol.journals import HoldReason, HoldRecord, Journal, JournalHeader, decode_journal
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_reconciler import discovery as discovery_module
from sluice_reconciler import pipeline as pipeline_module
from sluice_reconciler.journals import reader as reader_module
from sluice_reconciler.journals import route
from sluice_reconciler.journals.progress import BrokenJournal, ProcessJournal, UnprocessedObject
from sluice_reconciler.journals.route import JournalRoute
from sluice_reconciler.lanes.owner import LaneOwner
from sluice_reconciler.passes import progress as pass_progress
from sluice_reconciler.passes.full_pass import FullPass, HandOver, PassRun
from sluice_reconciler.pipeline import PipelineResult
from sluice_reconciler.verify import CheckedBatch, HoldRecords, verify_batches

DAILY = (7,)
"""They differ in every mode of `plan_of`."""
FINDING = (7, 5, 9)
"""Each planted bug is found by one of these seeds."""


@pytest.mark.parametrize("seed", daily_seeds(8, DAILY))
def test_no_time_is_ahead_nothing_is_lost_or_doubled_and_it_catches_up(seed: int) -> None:
    found = run_chaos(seed)
    assert found.is_right, (seed, found)
    assert found.batches > 20
    assert found.published > 20


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 20 * times(1), 20))
def test_many_seeds(first: int) -> None:
    seen: dict[str, int] = {}
    for seed in range(first, first + 20):
        found = run_chaos(seed)
        assert found.is_right, (seed, found)
        for fault, count in found.faults.items():
            seen[fault] = seen.get(fault, 0) + count
    assert seen.keys() == FAULTS.keys()


@pytest.mark.long
def test_an_hour_without_the_store() -> None:
    """Every gateway lapses and every member is dead; all of it comes back."""
    plan = Plan(faults=("long outage",), fault_s=10.0, removal=False)
    found = run_chaos(1, plan)
    assert found.is_right, found
    assert found.seconds > 3600


@pytest.mark.long
def test_the_same_seed_gives_the_same_run() -> None:
    plan = Plan(fault_s=20.0, removal=False)
    assert run_chaos(3, plan) == run_chaos(3, plan)


# --- planted bugs --------------------------------------------------------------------------------

QUIET = Plan(removal=False, fault_s=150.0, unknown=0.0)
GATEWAY_BUGS: dict[str, Plan] = {
    "journal before the manifest": replace(
        QUIET, rules=Rules(manifest_first=False), faults=("jump clock",)
    ),
    "heartbeat without flush": replace(
        QUIET, rules=Rules(heartbeat_flushes=False), faults=("suspend reconciler",)
    ),
    "times of the local clock": replace(
        QUIET, rules=Rules(store_clock=False), faults=("jump clock",)
    ),
    "no fence": replace(
        QUIET, rules=Rules(fenced=False), faults=("suspend gateway",), fault_s=240.0
    ),
    "duplicates are not named": replace(
        QUIET, rules=Rules(duplicates=False), unknown=0.08, faults=("jump clock",)
    ),
    "the time is read after the entries": replace(
        QUIET, rules=Rules(time_before_entries=False), faults=("suspend reconciler",)
    ),
    "registered after the first response": replace(
        QUIET, rules=Rules(registers_first=False), faults=("stop gateway",)
    ),
    "closed before the last response": replace(
        QUIET, rules=Rules(closes_last=False), faults=("stop gateway",)
    ),
    "a lapsed process continues its journal": replace(
        QUIET, rules=Rules(new_name=False), faults=("suspend gateway",), fault_s=240.0
    ),
}


@pytest.fixture
def rare_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pass as in a store of 10^7 manifests, without a scan of the boots after a late gateway.

    Otherwise both soon repair what a bug omits.
    """
    monkeypatch.setattr(JournalRoute, "late_processes", frozenset())
    monkeypatch.setattr(route, "LOOK_BACK_MAX", -1)
    monkeypatch.setattr(pass_progress, "PASS_INTERVAL_S_MIN", 86_400.0)


async def _verify_without_hold(*given: Any, **options: Any) -> list[CheckedBatch]:
    return [
        None if isinstance(one, HoldRecord) and one.reason is HoldReason.MANIFEST_MISSING else one
        for one in await verify_batches(*given, **options)
    ]


@pytest.mark.daily(2)
@pytest.mark.parametrize("bug", GATEWAY_BUGS)
def test_a_bug_of_gateways_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch without a manifest is held, which repairs the first bug, so that is turned off."""
    monkeypatch.setattr(pipeline_module, "verify_batches", _verify_without_hold)
    assert _found(GATEWAY_BUGS[bug])


def _found(plan: Plan, tries: int = 8) -> Outcome | None:
    for seed in dict.fromkeys((*FINDING, *range(tries))):
        found = run_chaos(seed, plan)
        if found.violation:
            print(f"found with seed {seed} after {found.seconds} s: {found.violation[:300]}")
            return found
    return None


@dataclass(frozen=True)
class Planted:
    """A bug of the reconciler: what it changes, and the faults that show it."""

    plant: Callable[[pytest.MonkeyPatch], None]
    plan: Plan


def _patch(owner: object, name: str, value: object) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(owner, name, value)


_PROCESS = JournalRoute._process_objects
_READ = JournalRoute._read_objects
_DECODE = decode_journal
_COMPARE = UnprocessedObject.cover_lanes
_RUN = FullPass.run


async def _publish_then_process(self: JournalRoute, due: Any) -> Any:
    left = [(one, dict(one.left), one.attempted) for one in due]
    for one in due:
        one.attempted, one.left = True, {}
    self._published_at_ns = None
    await self._publish()
    for one, keys, attempted in left:
        one.left, one.attempted = keys, attempted
    return await _PROCESS(self, due)


async def _store_position_first(self: JournalRoute) -> None:
    await _READ(self)
    numbers = {process: one.read_through for process, one in self._journals.items()}
    await self._context.discovery.claim(discovery_module.DiscoveryClaim(journals=numbers))


def _settle_unprocessed(self: ProcessJournal) -> None:
    while self.pending and self.pending[0].attempted:
        self._finish(self.pending.popleft())


def _of_writing(self: JournalRoute, lane: int | None = None) -> Any:
    """Return the progress of the processes that write at present."""
    now_ns = self._context.clock.now_ns()
    return [
        one.progress(now_ns, lane)
        for one in self._journals.values()
        if now_ns - one.written_ns < 20 * NS_PER_S
    ]


def _torn_is_empty(key: Any, body: bytes) -> Journal:
    try:
        return _DECODE(key, body)
    except Exception:
        process, number = key.split("/")[-2:]
        header = JournalHeader(
            process=process,
            number=int(number[:12]),
            complete_through_unix_ns=0,
            batches=0,
        )
        return Journal(header=header, manifests=())


def _cover_every_lane(self: UnprocessedObject, through_ns: Any, *times: Any) -> Any:
    latest = max(through_ns.values(), default=0)
    return _COMPARE(self, dict.fromkeys(self.left.values(), latest), *times)


async def _begin_at_the_end(self: FullPass, *args: Any, **named: Any) -> Any:
    report = await _RUN(self, *args, **named)
    if report.complete_through_ns is None:
        return report
    end_ns = UnixNs(await self.context.holds.read())
    return replace(report, began_ns=end_ns, complete_through_ns=end_ns)


def _skip_waiting(self: ProcessJournal, date_ns: Any, lane: int | None = None) -> Any:
    """Return the progress of what was read, processed or not."""
    progress = _PROGRESS(self, date_ns, lane)
    through_ns = max((one.complete_through_ns for one in self.pending), default=0)
    return replace(progress, complete_through_ns=max(progress.complete_through_ns, through_ns))


_PROGRESS = ProcessJournal.progress


async def _forget_intents(self: LaneOwner, *, writes: int, pending: Any, **named: Any) -> None:
    """Store the append intent after the append only."""
    del pending
    await _WRITE(self, writes=writes, pending=(), **named)


_WRITE = LaneOwner._write


async def _hold_nothing(self: HoldRecords, record: Any) -> bool:
    return True


async def _list_first(self: JournalRoute) -> None:
    """Read the store's clock after the registrations."""
    await _LIST(self)
    self._listed_ns = UnixNs(self._context.clock.now_ns() + NS_PER_S)


_LIST = JournalRoute._list_processes


def _plant_left_behind(patch: pytest.MonkeyPatch) -> None:
    """The hand-over is lost too; otherwise a pass rarely leaves a batch behind."""
    patch.setattr(PassRun, "has_left", lambda self: False)
    patch.setattr(HandOver, "take", _take_nothing)


async def _take_nothing(self: HandOver) -> PipelineResult:
    return PipelineResult()


JOURNALS = ("drop journal", "tear journal", "delay journal")
DEATHS = ("kill gateway", "suspend gateway")
PLANTED: dict[str, Planted] = {
    "published before the append": Planted(
        _patch(JournalRoute, "_process_objects", _publish_then_process),
        replace(QUIET, faults=("kill reconciler",)),
    ),
    "position stored before processing": Planted(
        _patch(JournalRoute, "_read_objects", _store_position_first),
        replace(QUIET, faults=("kill reconciler",)),
    ),
    "gap skipped": Planted(
        _patch(BrokenJournal, "is_healed_by", lambda self, began: True),
        replace(QUIET, faults=("drop journal",)),
    ),
    "torn object counts as empty": Planted(
        _patch(reader_module, "decode_journal", _torn_is_empty),
        replace(QUIET, faults=("tear journal",)),
    ),
    "dead process without a pass": Planted(
        _patch(JournalRoute, "_pass_began_ns", lambda self: self._context.clock.now_ns()),
        replace(QUIET, faults=DEATHS, fault_s=300.0),
    ),
    "minimum over the processes that write": Planted(
        _patch(JournalRoute, "_progress", _of_writing),
        replace(QUIET, faults=DEATHS, fault_s=240.0),
    ),
    "minimum without what waits": Planted(
        _patch(ProcessJournal, "progress", _skip_waiting),
        replace(QUIET, faults=("kill reconciler",)),
    ),
    "entries of a rival dropped": Planted(
        _patch(ProcessJournal, "settle", _settle_unprocessed),
        replace(QUIET, faults=("kill reconciler",)),
    ),
    "a lane's time covers every lane": Planted(
        _patch(UnprocessedObject, "cover_lanes", _cover_every_lane),
        replace(QUIET, faults=("kill reconciler", "suspend reconciler")),
    ),
    "the time of the listing is read after it": Planted(
        _patch(JournalRoute, "_list_processes", _list_first),
        replace(QUIET, gateways=1, faults=("stop gateway",)),
    ),
    "a pass begins when it ends": Planted(
        _patch(FullPass, "run", _begin_at_the_end),
        replace(QUIET, faults=DEATHS, fault_s=300.0),
    ),
    "a pass that left batches is complete": Planted(
        _plant_left_behind,
        replace(QUIET, faults=DEATHS, fault_s=300.0),
    ),
    "append intent after the append": Planted(
        _patch(LaneOwner, "_write", _forget_intents),
        replace(QUIET, faults=("kill reconciler",), unknown=0.05),
    ),
    "hold records are not stored": Planted(
        _patch(HoldRecords, "hold", _hold_nothing),
        replace(QUIET, faults=("lose blob",)),
    ),
    "objects of ended processes are kept": Planted(
        _patch(JournalRoute, "ended", frozenset()),
        replace(plan_of(7), faults=("suspend gateway", "kill gateway")),
    ),
}


@pytest.mark.usefixtures("rare_passes")
@pytest.mark.daily(2)
@pytest.mark.parametrize("bug", PLANTED)
def test_a_bug_of_the_reconciler_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[bug].plant(monkeypatch)
    assert _found(PLANTED[bug].plan)
