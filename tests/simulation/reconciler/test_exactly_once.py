"""Exactly once despite crashes, rivals and lost writes; the same simulation finds planted bugs.

The lane state is simulated with bounds of a few lives, so that parts are written, merged and
deleted in every run.

`SLUICE_SIM_SEEDS=7,8` replays seeds 7 and 8.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import pytest
from support.reconciler_world import Crash, make_parts_small, simulate
from support.simloop import daily_seeds

from sluice_queue import takeover
from sluice_queue.appender import Appender
from sluice_queue.inspection import read_lane
from sluice_queue.lane import Lane
from sluice_queue.register_client import Runtime
from sluice_reconciler import pipeline
from sluice_reconciler.indexes import put_all_derived
from sluice_reconciler.lanes import owner as lane_owner
from sluice_reconciler.lanes import part_log
from sluice_reconciler.lanes.enqueued import EnqueuedBatches, EnqueuedDelta
from sluice_reconciler.lanes.owner import LaneOwner
from sluice_reconciler.lanes.part_log import LaneLog, WrittenRuns, nameable
from sluice_reconciler.lanes.parts import Boot, LanePart, merge_parts
from sluice_reconciler.lanes.state import Run
from sluice_store.port import ObjectStore

SEEDS = 20
DAILY = (0, 7)
"""Each planted bug is found by one of these seeds."""
BOOTS = 4
"""Lives of each agent in the simulation; a part contains at most two lives."""


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    make_parts_small(monkeypatch)


@pytest.mark.parametrize("seed", daily_seeds(SEEDS, DAILY))
def test_every_batch_is_enqueued_once_despite_crashes_and_rivals(seed: int) -> None:
    """No accepted batch is lost, enqueued twice, or left without index entries."""
    accepted, table, missing, lived = simulate(seed)
    doubled = [who for who, count in Counter(table).items() if count > 1]
    assert doubled == [], seed
    assert sorted(table) == sorted(accepted), seed
    assert missing == [], seed
    assert lived > 2


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("seed", daily_seeds(SEEDS, DAILY))
def test_every_batch_is_enqueued_once_while_parts_are_written_and_merged(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, with crashes before and after each write and deletion of a part."""
    merges: list[int] = []
    real = merge_parts

    def counted(parts: Sequence[LanePart], lives_max: int, **when: int) -> Iterator[LanePart]:
        merges.append(len(parts))
        return real(parts, lives_max, **when)

    monkeypatch.setattr(part_log, "merge_parts", counted)
    accepted, table, missing, lived = simulate(seed, boots=BOOTS)
    assert sorted(table) == sorted(accepted), seed
    assert missing == [], seed
    assert lived > 2
    assert len(merges) > 2


@pytest.mark.long
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

    async def write(self: LaneOwner, *, writes: int, pending: Any, released: bool = False) -> None:
        del pending
        await real(self, writes=writes, pending=(), released=released)

    return write


def _finds(boots: int = 1) -> bool:
    """Return True if a seed finds the bug; the daily seeds run first."""
    for seed in dict.fromkeys((*DAILY, *range(SEEDS))):
        try:
            accepted, table, missing, _ = simulate(seed, boots=boots)
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
    assert _finds()


async def _unknown_is_written(store: Any, objects: Any) -> list[bool | None]:
    """Count an entry as written although the outcome of its write is unknown."""
    return [bool(one) for one in await put_all_derived(store, objects)]


async def _last_of_a_span_is_skipped(store: Any, objects: Any) -> list[bool | None]:
    return [*await put_all_derived(store, objects[:-1]), False]


@pytest.mark.parametrize("bug", [_unknown_is_written, _last_of_a_span_is_skipped])
def test_planted_bugs_in_writes_of_many_objects_are_found(
    bug: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "put_all_derived", bug)
    assert _finds()


def _part_after_state() -> Any:
    """The lane state names a part before the part exists."""
    real_create, real_write = part_log.create_known, LaneOwner._write
    delayed: list[Any] = []

    async def create(*args: Any, **kwargs: Any) -> None:
        delayed.append((args, kwargs))

    async def write(self: LaneOwner, **kwargs: Any) -> None:
        delayed.clear()
        await real_write(self, **kwargs)
        for args, named in delayed:
            await real_create(*args, **named)

    return create, write


def _drops_a_life(parts: Sequence[LanePart], lives_max: int, **when: int) -> Iterator[LanePart]:
    for one in merge_parts(parts, lives_max, **when):
        ends = one.ends[:-1]
        if len(ends):
            values = one.values[: int(ends[-1])]
            yield LanePart(
                heads=one.heads[:-1],
                mids=one.mids[:-1],
                lows=one.lows[:-1],
                seen=one.seen[:-1],
                ends=ends,
                values=values,
            )
        else:
            yield one


def _keeps_the_oldest(parts: Sequence[LanePart], lives_max: int, **when: int) -> Iterator[LanePart]:
    return merge_parts(list(reversed(parts)), lives_max, **when)


def _forgets_names(listed: Iterable[str], _: Collection[str], owner_term: int) -> set[str]:
    return nameable(listed, (), owner_term)


def _deletes_before_the_swap() -> Any:
    real = LaneLog.spill

    async def spill(
        self: LaneLog, ledger: EnqueuedBatches, runs: tuple[Run, ...], now_s: int
    ) -> WrittenRuns:
        written = await real(self, ledger, runs, now_s)
        old = {part.name for run in runs for part in run}
        await self._objects._delete(old - {part.name for run in written.runs for part in run})
        return written

    return spill


def _settles_before_the_swap() -> Any:
    """The changes leave memory when the part exists, although the state that names it does not."""
    real = LaneLog.spill

    async def spill(
        self: LaneLog, ledger: EnqueuedBatches, runs: tuple[Run, ...], now_s: int
    ) -> WrittenRuns:
        written = await real(self, ledger, runs, now_s)
        return WrittenRuns(runs=runs, delta=written.delta)

    return spill


def _cuts_one_recent_too_many() -> Any:
    real = EnqueuedBatches.delta

    def delta(self: EnqueuedBatches, now_s: int) -> EnqueuedDelta | None:
        part = dict(list(self._changed.items())[:-1])
        if not part:
            return real(self, now_s)
        whole, self._changed = self._changed, part
        made = real(self, now_s)
        self._changed = whole
        return made

    return delta


def _loads_the_oldest(self: EnqueuedBatches, lives: Iterable[Boot]) -> None:
    self._runs.reverse()
    _LOAD(self, lives)
    self._runs.reverse()


_LOAD = EnqueuedBatches.load


@pytest.mark.usefixtures("small_parts")
@pytest.mark.daily(2)
@pytest.mark.parametrize(
    "bug",
    [
        "oldest state looked up",
        "part after state",
        "merge drops a life",
        "merge keeps the oldest state",
        "named part collected",
        "merged part deleted before the swap",
        "run not named",
        "life missing in the delta",
    ],
)
def test_planted_bugs_in_the_parts_of_a_state_are_found(
    bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    match bug:
        case "oldest state looked up":
            monkeypatch.setattr(EnqueuedBatches, "load", _loads_the_oldest)
        case "part after state":
            create, write = _part_after_state()
            monkeypatch.setattr(part_log, "create_known", create)
            monkeypatch.setattr(LaneOwner, "_write", write)
        case "merge drops a life":
            monkeypatch.setattr(part_log, "merge_parts", _drops_a_life)
        case "merge keeps the oldest state":
            monkeypatch.setattr(part_log, "merge_parts", _keeps_the_oldest)
        case "named part collected":
            monkeypatch.setattr(part_log, "nameable", _forgets_names)
        case "merged part deleted before the swap":
            monkeypatch.setattr(LaneLog, "spill", _deletes_before_the_swap())
        case "run not named":
            monkeypatch.setattr(LaneLog, "spill", _settles_before_the_swap())
        case _:
            monkeypatch.setattr(EnqueuedBatches, "delta", _cuts_one_recent_too_many())
    assert _finds(boots=BOOTS)
