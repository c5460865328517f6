"""Reconcilers share lanes: the decision, members of one store, and processes of one machine."""

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from support.queue_store import SimClock, SimIds, SimStore

from sluice_protocol.authority import Authority
from sluice_protocol.units import NS_PER_S
from sluice_queue.register_client import Runtime
from sluice_reconciler.lanes.membership import (
    FORGET_S,
    HANDOVER_MAX_S,
    HEARTBEAT_S,
    MEMBER_DEAD_AFTER_S,
    WORK_S,
    HostProcess,
    HostProcesses,
    MemberRecord,
    assign_lanes,
    decide_shares,
    member_key,
    read_live_members,
)
from sluice_reconciler.lanes.share import LaneShare
from sluice_reconciler.lanes.worker import LaneWorkers
from sluice_reconciler.metrics import ReconcilerMetrics
from sluice_store.local import open_local_store

LANES = 4
_IDS = SimIds(7)
NAMES = tuple(_IDS.ulid() for _ in range(6))


@pytest.mark.parametrize("lanes", [1, 4, 7, 64])
@pytest.mark.parametrize("count", range(1, 7))
def test_every_lane_is_assigned_and_the_shares_are_equal(lanes: int, count: int) -> None:
    members = NAMES[:count]
    assigned = assign_lanes(members, lanes)
    assert sorted(assigned) == list(range(lanes))
    shares = Counter(assigned.values())
    sizes = [shares[member] for member in members]
    assert max(sizes) - min(sizes) <= 1
    assert assign_lanes(tuple(reversed(members)), lanes) == assigned


def test_few_lanes_move_when_a_member_joins() -> None:
    lanes = 64
    for count in range(1, 6):
        before = assign_lanes(NAMES[:count], lanes)
        after = assign_lanes(NAMES[: count + 1], lanes)
        moved = sum(before[lane] != after[lane] for lane in range(lanes))
        assert moved <= 2 * lanes // (count + 1)


def settle(working: dict[str, frozenset[int]], rng: random.Random, beats: int) -> None:
    """Let members beat in any order, each with the view that the others' records show."""
    for _ in range(beats):
        me = rng.choice(sorted(working))
        live = {one: lanes for one, lanes in working.items() if one != me}
        working[me] = decide_shares(me, live, working[me], 7).working


@pytest.mark.parametrize("seed", range(50))
def test_members_converge_and_two_never_work_on_one_lane(seed: int) -> None:
    """Members join and leave at any time; only one that left without notice is awaited."""
    rng = random.Random(seed)
    working: dict[str, frozenset[int]] = {}
    for _ in range(12):
        if len(working) < 2 or rng.random() < 0.6:
            working[rng.choice(NAMES)] = frozenset()
        else:
            del working[rng.choice(sorted(working))]
        settle(working, rng, rng.randrange(6))
        named = [lane for lanes in working.values() for lane in lanes]
        assert len(named) == len(set(named))
    settle(working, rng, 60)
    assigned = assign_lanes(working.keys(), 7)
    assert {lane: one for one, lanes in working.items() for lane in lanes} == assigned
    stable = dict(working)
    settle(working, rng, 20)
    assert working == stable


def test_member_that_does_not_release_is_overruled_when_it_is_overdue() -> None:
    me, other = NAMES[:2]
    live = {other: range(LANES)}
    first = decide_shares(me, live, frozenset(), LANES)
    assert first.working == frozenset()
    assert len(first.awaited) == LANES // 2
    later = decide_shares(me, live, frozenset(), LANES, overdue=first.awaited)
    assert later.working == first.awaited


class World:
    """Members of one store, with a clock for all of them."""

    def __init__(self) -> None:
        self.clock = SimClock()
        self.store = SimStore(clock=self.clock)
        self.shares: list[LaneShare] = []
        self.workers: list[LaneWorkers] = []

    def join(self, processes: HostProcesses | None = None) -> LaneShare:
        runtime = Runtime(clock=self.clock, ids=SimIds(len(self.shares)), rng=random.Random(1))
        metrics = ReconcilerMetrics()
        workers = LaneWorkers(
            self.store, Authority(authority_id="A", lanes=LANES), ["spark"], runtime, metrics
        )
        workers.share(frozenset())
        share = LaneShare(self.store, LANES, workers, runtime, metrics, processes)
        self.shares.append(share)
        self.workers.append(workers)
        return share

    def wait(self, seconds: float) -> None:
        self.clock.at_ns += int(seconds * NS_PER_S)

    async def beats(self, *members: int, rounds: int = 1) -> None:
        for _ in range(rounds):
            for member in members:
                await self.shares[member].beat()
                working = [one.shared or frozenset() for one in self.workers]
                for left, right in itertools.combinations(working, 2):
                    assert not left & right
            self.wait(HEARTBEAT_S)

    def counts(self) -> list[int]:
        return [len(one.shared or ()) for one in self.workers]


async def test_a_single_member_works_on_every_lane_immediately() -> None:
    world = World()
    share = world.join()
    await world.beats(0)
    assert world.counts() == [LANES]
    assert share.owner_of(3) == share.members[0]


async def test_two_share_a_third_joins_and_one_dies() -> None:
    world = World()
    world.join()
    await world.beats(0)
    world.join().url = "http://two:8081"
    await world.beats(1, 0, rounds=2)
    assert world.counts() == [2, 2]
    lane = min(world.workers[1].shared or ())
    owner = world.shares[0].owner_of(lane)
    assert owner.url == "http://two:8081"
    world.join()
    await world.beats(2, 0, 1, rounds=3)
    assert sorted(world.counts()) == [1, 1, 2]
    # The second one dies: its lanes are taken when its record lapses.
    world.workers[1].share(frozenset())
    await world.beats(0, 2, rounds=3)
    assert sorted(world.counts()) != [0, 2, 2]
    await world.beats(0, 2, rounds=4)
    assert world.counts() == [2, 0, 2]
    assert world.shares[0].owner_of(lane) is not None


async def test_a_member_that_leaves_hands_its_lanes_over_without_a_wait() -> None:
    world = World()
    for _ in range(2):
        world.join()
    await world.beats(0, 1, rounds=3)
    world.workers[1].share(frozenset())
    await world.shares[1].leave()
    await world.beats(0)
    assert world.counts() == [LANES, 0]


class Machine:
    """The processes of a simulated machine, as one of them sees them."""

    def __init__(self, pid: int, ended: set[int]) -> None:
        self.pid = pid
        self.ended = ended

    def current(self) -> HostProcess | None:
        return HostProcess(boot="boot", namespace=1, pid=self.pid, started=self.pid)

    def has_ended(self, process: HostProcess) -> bool:
        return process.pid in self.ended

    def host_name(self) -> str:
        return f"machine-{self.pid}"


async def test_lanes_of_a_killed_process_of_the_same_machine_are_taken_without_a_wait() -> None:
    world, ended = World(), set[int]()
    world.join(Machine(1, ended))
    await world.beats(0)
    killed = world.shares[0].member
    world.workers[0].share(frozenset())
    world.join(Machine(2, ended))
    await world.beats(1)
    assert world.counts() == [0, 0]
    ended.add(1)
    await world.beats(1)
    assert world.counts() == [0, LANES]
    left = msgspec.json.decode(world.store.held[member_key(killed)].body, type=MemberRecord)
    assert (left.leaving, left.lanes) == (True, ())
    # A third process sees the same from the records alone.
    world.join(Machine(3, set()))
    await world.beats(2, 1, rounds=2)
    assert world.counts() == [0, 2, 2]


@pytest.mark.parametrize("killed", [False, True])
async def test_no_earlier_record_of_an_ended_process_becomes_current_again(
    tmp_path: Path, *, killed: bool
) -> None:
    """A store with versions would restore it, if the record that names the end was deleted."""
    async with open_local_store(tmp_path) as store:
        ended = set[int]()
        shares = []
        for pid in (1, 2):
            runtime = Runtime(ids=SimIds(pid))
            metrics = ReconcilerMetrics()
            workers = LaneWorkers(
                store, Authority(authority_id="A", lanes=LANES), ["spark"], runtime, metrics
            )
            machine = Machine(pid, ended)
            shares.append(LaneShare(store, LANES, workers, runtime, metrics, machine))
        for share in (shares[0], shares[1], shares[0], shares[1]):
            await share.beat()
        if not killed:
            await shares[0].leave()
        ended.add(1)
        for _ in range(3):
            await shares[1].beat()
            live = await read_live_members(store)
            assert [one.member for one in live.records] == [shares[1].member]
        assert live.records[0].lanes == tuple(range(LANES))


async def test_a_live_member_that_was_taken_for_ended_writes_its_record_again() -> None:
    world = World()
    world.join(Machine(1, set()))
    await world.beats(0)
    wrong = Machine(2, {1})
    world.join(wrong)
    # Both work on every lane for a moment; the owner term decides, as after any takeover.
    await world.shares[1].beat()
    assert world.counts() == [LANES, LANES]
    wrong.ended.clear()
    for _ in range(3):
        await world.shares[0].beat()
        await world.shares[1].beat()
    assert world.counts() == [2, 2]


async def test_a_member_that_was_suspended_works_on_nothing_until_it_has_beaten() -> None:
    """The other one has taken its lanes; it gets its share back by a release."""
    world = World()
    for _ in range(2):
        world.join()
    await world.beats(0, 1, rounds=3)
    world.wait(MEMBER_DEAD_AFTER_S)
    assert world.shares[1]._is_late()
    world.workers[1].share(frozenset())  # as `run` does
    await world.beats(0)
    assert world.counts() == [LANES, 0]
    await world.shares[1].beat()
    assert world.counts() == [LANES, 0]
    await world.beats(0, 1)
    assert world.counts() == [2, 2]


async def test_records_of_dead_members_are_deleted() -> None:
    world = World()
    dead = world.join().member
    await world.beats(0)
    world.workers[0].share(frozenset())
    world.join()
    world.wait(MEMBER_DEAD_AFTER_S)
    await world.beats(1)
    assert member_key(dead) in world.store.held
    world.wait(FORGET_S)
    await world.beats(1)
    assert member_key(dead) not in world.store.held


async def test_a_damaged_record_stops_no_member() -> None:
    world = World()
    world.join()
    world.store._put(member_key(NAMES[0]), b"{")
    await world.beats(0)
    assert world.counts() == [LANES]


def test_times_leave_room_for_two_missed_heartbeats() -> None:
    assert 2 * HEARTBEAT_S < WORK_S < MEMBER_DEAD_AFTER_S < HANDOVER_MAX_S


PROCESSES = HostProcesses()

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")


def running_child() -> tuple[subprocess.Popen[bytes], HostProcess]:
    """Start a process; return it with its identity."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    mine = PROCESSES.current()
    assert mine is not None
    fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    return child, replace(mine, pid=child.pid, started=int(fields[19]))


@needs_proc
def test_a_process_has_ended_when_it_is_killed_and_not_before() -> None:
    child, process = running_child()
    try:
        assert not PROCESSES.has_ended(process)
        os.kill(child.pid, signal.SIGSTOP)
        assert not PROCESSES.has_ended(process)
        child.kill()
        until_s = time.monotonic() + 20
        while not PROCESSES.has_ended(process):  # a zombie, until it is waited for
            assert time.monotonic() < until_s
            time.sleep(0.01)
    finally:
        child.kill()
        child.wait()
    assert PROCESSES.has_ended(process)


@needs_proc
def test_a_pid_that_another_process_has_now_shows_that_the_process_has_ended() -> None:
    mine = PROCESSES.current()
    assert not PROCESSES.has_ended(mine)
    assert PROCESSES.has_ended(replace(mine, started=mine.started - 1))


@needs_proc
def test_nothing_is_known_of_processes_of_another_boot_or_namespace() -> None:
    child, process = running_child()
    child.kill()
    child.wait()
    assert PROCESSES.has_ended(process)
    for other in (replace(process, boot="another"), replace(process, namespace=1)):
        assert not PROCESSES.has_ended(other)


@needs_proc
def test_a_process_of_another_user_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    mine = PROCESSES.current()
    assert mine is not None
    monkeypatch.setattr(os, "kill", refuse)
    assert not PROCESSES.has_ended(mine)
    assert not PROCESSES.has_ended(replace(mine, pid=2**31 - 1))
