"""The process: read the records, decide, start what is due, and again."""

import asyncio
import os
import random  # noqa: TID251 - the type of the source of jitter, which the caller passes
import socket
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from sluice_maintain.lease_rules import SUCCESSES, RunResult
from sluice_maintain.run_one import TaskRunner
from sluice_maintain.scheduler import ScheduleDecision, Situation, WaitReason, decide
from sluice_maintain.settings import MaintainSettings
from sluice_maintain.status import MaintenanceStatus, show_situation
from sluice_maintain.tasks import TaskName, WorkerKind
from sluice_protocol.clock import Clock, IdSource
from sluice_protocol.errors import InvalidRecord, OutcomeUnknown, StoreError
from sluice_protocol.units import NS_PER_S

log = structlog.get_logger()

_UNREACHABLE = (StoreError, OutcomeUnknown, InvalidRecord)
_UNREACHABLE_POLL_S: Final = 2.0
"""Time between two decisions while the store is unreachable, at most."""
_PAUSE_S_MIN: Final = 0.5
_DELAYED = frozenset({WaitReason.CONFLICT, WaitReason.NO_SLOT, WaitReason.RUNNING})


def name_owner(ids: IdSource) -> str:
    """Return the name of this process in leases: host, process id, and a random part."""
    return f"{socket.gethostname()}-{os.getpid()}-{ids.ulid()[-6:].lower()}"


def slots_of(settings: MaintainSettings) -> dict[WorkerKind, int]:
    """Return how many tasks of each kind run concurrently."""
    return {WorkerKind.INGEST: 1, WorkerKind.SPARK: settings.spark_jobs, WorkerKind.PLAIN: 2}


@dataclass(slots=True, kw_only=True)
class MaintenanceService:
    """The loop of one process.

    `status` is None before the first decision; `problem` states why the last decision was not
    possible, and `ticked_ns` is its monotonic time.
    """

    runner: TaskRunner
    settings: MaintainSettings
    clock: Clock
    rng: random.Random
    status: MaintenanceStatus | None = None
    problem: str = "no decision yet"
    ticked_ns: int = 0
    _running: dict[TaskName, asyncio.Task[RunResult | None]] = field(default_factory=dict)
    _all_succeeded: bool = True
    _due_in_s: float = 0.0

    async def run(self) -> None:
        """Start tasks until the stop event is set; then stop what runs and record it."""
        stop = self.runner.stop
        while not stop.is_set():
            await self.tick()
            self.runner.pool.close_idle()
            await self._pause(self._pause_s())
        await self._end()

    def _pause_s(self) -> float:
        """Return the time to the next decision; it is sooner if a task is due."""
        pause_s = self.settings.poll_s * self.rng.uniform(0.7, 1.3)
        if self.problem:
            return min(pause_s, _UNREACHABLE_POLL_S)
        return min(pause_s, max(_PAUSE_S_MIN, self._due_in_s))

    async def run_once(self) -> bool:
        """Run every task that is due now, each once; return True if all of them succeeded."""
        begun: set[TaskName] = set()
        while not self.runner.stop.is_set():
            decision = await self._decide(without=frozenset(begun))
            begun |= {task for task in decision.start if await self._start(task)}
            blocked = [one for one in decision.waiting.values() if one.reason in _DELAYED]
            if not self._running and not blocked:
                break
            await self._pause(1.0)
        await self._end()
        return self._all_succeeded

    async def _end(self) -> None:
        while self._running:
            await asyncio.wait(self._running.values())
            self._take_results()
        await self.runner.pool.close()

    async def tick(self) -> None:
        """Decide once and start what is due; an unreachable store is logged."""
        try:
            await self.runner.record_late()
            decision = await self._decide()
            for task in decision.start:
                await self._start(task)
            self.problem = ""
        except _UNREACHABLE as error:
            if not self.problem:
                log.warning("maintenance_store_unreachable", reason=str(error))
            self.problem = str(error)
        self.ticked_ns = self.clock.monotonic_ns()

    async def read_situation(self) -> Situation:
        """Read every record."""
        records, now_ns = await self.runner.tasks.read_every()
        return Situation(
            now_ns=now_ns,
            owner=self.runner.tasks.owner,
            policies=self.settings.policies(),
            records=records,
            running=frozenset(self._running),
            slots=slots_of(self.settings),
        )

    def is_stuck(self, limit_s: float) -> bool:
        """Return True if no decision ended for that time."""
        return bool(self.ticked_ns) and (
            self.clock.monotonic_ns() - self.ticked_ns > limit_s * NS_PER_S
        )

    async def _decide(self, without: frozenset[TaskName] = frozenset()) -> ScheduleDecision:
        situation = await self.read_situation()
        policies = {
            task: replace(policy, enabled=False) if task in without else policy
            for task, policy in situation.policies.items()
        }
        found = decide(replace(situation, policies=policies))
        due = [one.until_ns for one in found.waiting.values() if one.until_ns is not None]
        self._due_in_s = (min(due) - situation.now_ns) / NS_PER_S if due else self.settings.poll_s
        self.status = show_situation(situation, found)
        self.runner.metrics.show(self.status)
        return found

    async def _start(self, task: TaskName) -> bool:
        change = await self.runner.acquire(task)
        if change is None:
            return False
        self._running[task] = asyncio.create_task(self.runner.run(task, change))
        return True

    async def _pause(self, seconds: float) -> None:
        """Wait for that time, the end of a task, or the stop event."""
        stopping = asyncio.ensure_future(self.runner.stop.wait())
        try:
            await asyncio.wait(
                (stopping, *self._running.values()),
                timeout=seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            stopping.cancel()
        self._take_results()

    def _take_results(self) -> None:
        for task, run in list(self._running.items()):
            if run.done():
                del self._running[task]
                result = run.result()
                self._all_succeeded &= result is not None and result.outcome in SUCCESSES
