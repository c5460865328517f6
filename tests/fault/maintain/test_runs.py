"""One run under its lease: the store disappears, the lease is lost, the job does not stop."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import cast

import pytest
from support.constants import with_constants
from support.memory_bucket import Fault, MemoryBucket, open_memory_store
from support.memory_bucket.faults import Call
from support.queue_store import SimIds
from support.simloop import SimClock, SimLoop, simulate

from sluice_maintain.lease_rules import RunResult, acquire
from sluice_maintain.metrics import MaintenanceMetrics
from sluice_maintain.run_one import TaskRunner
from sluice_maintain.settings import MaintainSettings
from sluice_maintain.task_store import ChangedTask, TaskStore
from sluice_maintain.tasks import TaskName, WorkerKind
from sluice_maintain.worker_pool import PendingJob, WorkerPool
from sluice_protocol.errors import StoreError
from sluice_protocol.maintenance import RunOutcome, TaskRecord

LEASE_S = 10.0
SETTINGS = with_constants(MaintainSettings, lease_s=LEASE_S)(stop_grace_s=0.1, timeout_s=0.0)
DONE = RunResult(outcome=RunOutcome.DONE, figures={"deleted": 3})


@dataclass
class Switch:
    """Faults of every call while it is on."""

    fault: Fault | None = None

    def fault_of(self, call: Call) -> Fault | None:
        del call
        return self.fault


@dataclass
class HeldWorker:
    """A worker whose job ends only when it is killed."""

    kind: WorkerKind = WorkerKind.PLAIN
    result: "asyncio.Future[RunResult]" = field(default_factory=asyncio.Future)
    stops: bool = True
    requests: list[object] = field(default_factory=list)
    killed: bool = False

    def send(self, request: object) -> None:
        self.requests.append(request)
        if self.stops:
            self._end(RunOutcome.STOPPED)

    def kill(self) -> None:
        self.killed = True
        self._end(RunOutcome.FAILED)

    def _end(self, outcome: RunOutcome) -> None:
        if not self.result.done():
            self.result.set_result(RunResult(outcome=outcome, figures={}))


class OneJobPool:
    """A pool with one job."""

    def __init__(self, worker: HeldWorker) -> None:
        self.worker = worker

    async def start_job(self, task: TaskName, *, once: bool) -> PendingJob:
        del task, once
        worker = self.worker
        return PendingJob(worker=worker, number=1, result=worker.result)  # type: ignore[arg-type]


@dataclass
class World:
    """One process with one job, and the bucket that it shares."""

    bucket: MemoryBucket
    switch: Switch
    worker: HeldWorker
    runner: TaskRunner

    async def acquired(self, task: TaskName = TaskName.GC) -> ChangedTask:
        change = await self.runner.acquire(task)
        assert change is not None
        return change

    def other(self) -> TaskStore:
        return a_store(self.bucket, Switch(), "other")

    async def record(self, task: str = "gc") -> TaskRecord:
        found = (await self.other().read(task)).record
        assert found is not None
        return found


def a_store(bucket: MemoryBucket, switch: Switch, owner: str) -> TaskStore:
    store, _ = open_memory_store(bucket, plan=switch)
    clock = SimClock(asyncio.get_running_loop())
    return TaskStore(store, clock, SimIds(len(owner)), owner)


def in_world(test: Callable[[World], Awaitable[None]]) -> None:
    """Run a test in virtual time."""

    async def main(loop: SimLoop, rng: Random) -> None:
        clock = SimClock(loop)
        bucket = MemoryBucket(clock=clock, rng=rng)
        switch, worker = Switch(), HeldWorker()
        runner = TaskRunner(
            tasks=a_store(bucket, switch, "me"),
            pool=cast(WorkerPool, OneJobPool(worker)),
            settings=SETTINGS,
            clock=clock,
            metrics=MaintenanceMetrics(),
            stop=asyncio.Event(),
        )
        await test(World(bucket=bucket, switch=switch, worker=worker, runner=runner))

    simulate(0, main)


def test_a_result_is_recorded_and_the_lease_ends() -> None:
    async def test(world: World) -> None:
        change = await world.acquired()
        world.worker.result.set_result(DONE)
        assert await world.runner.run(TaskName.GC, change) == DONE
        record = await world.record()
        assert record.lease is None
        assert [run.figures for run in record.runs] == [{"deleted": 3.0}]
        assert record.due_at_unix_ns is not None

    in_world(test)


def test_a_conflicting_lease_elsewhere_is_respected_and_no_run_is_recorded() -> None:
    """Both records are written before either is read, so two processes cannot miss each other."""

    async def test(world: World) -> None:
        other = world.other()
        await other.change("audit", partial(acquire, task="audit", lease_s=60))
        assert await world.runner.acquire(TaskName.GC) is None
        record = await world.record()
        assert (record.lease, record.runs) == (None, ())

    in_world(test)


def test_the_end_of_the_process_stops_the_job_and_records_it() -> None:
    async def test(world: World) -> None:
        change = await world.acquired()
        run = asyncio.create_task(world.runner.run(TaskName.GC, change))
        await asyncio.sleep(0)
        world.runner.stop.set()
        result = await run
        assert result is not None
        assert result.outcome is RunOutcome.STOPPED
        assert (await world.record()).failures == 0
        assert not world.worker.killed

    in_world(test)


def test_a_job_that_does_not_stop_is_killed() -> None:
    async def test(world: World) -> None:
        change = await world.acquired()
        world.worker.stops = False
        world.runner.stop.set()
        result = await world.runner.run(TaskName.GC, change)
        assert world.worker.killed
        assert result is not None
        assert result.outcome is RunOutcome.STOPPED

    in_world(test)


def test_a_run_above_its_limit_fails() -> None:
    async def test(world: World) -> None:
        world.runner.settings = replace(SETTINGS, timeout_s=0.01)
        change = await world.acquired()
        result = await world.runner.run(TaskName.GC, change)
        assert result is not None
        assert result.outcome is RunOutcome.FAILED
        assert "timeout_s" in (await world.record()).runs[-1].reason

    in_world(test)


@pytest.mark.parametrize("fault", [Fault.NOT_SENT, Fault.DENIED])
def test_a_job_stops_when_its_lease_cannot_be_renewed_in_time(fault: Fault) -> None:
    async def test(world: World) -> None:
        change = await world.acquired()
        world.switch.fault = fault
        result = await world.runner.run(TaskName.GC, change)
        assert result is not None
        assert result.outcome is RunOutcome.UNREACHABLE
        assert len(world.worker.requests) == 1
        with pytest.raises(StoreError):
            await world.runner.record_late()
        world.switch.fault = None
        await world.runner.record_late()
        record = await world.record()
        assert (record.lease, [one.outcome for one in record.runs]) == (None, ["unreachable"])

    in_world(test)


def test_a_lost_lease_stops_the_job_and_records_nothing() -> None:
    async def test(world: World) -> None:
        change = await world.acquired()
        run = asyncio.create_task(world.runner.run(TaskName.GC, change))
        await asyncio.sleep(0)

        def steal(record: TaskRecord | None, now_ns: int, writer: object) -> TaskRecord | None:
            return acquire(record, now_ns + 10**12, writer, task="gc", lease_s=60)  # type: ignore[arg-type]

        await world.other().change("gc", steal)
        assert await run is None
        record = await world.record()
        assert record.lease is not None
        assert record.lease.owner == "other"
        assert [one.outcome for one in record.runs] == ["lost"]

    in_world(test)
