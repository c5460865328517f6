"""The loop of the process, and what starts it: serve, run what is due once, show it, resume.

The loop reads the records, decides, starts what is due, and again. The HTTP interface has the
status page, the same as JSON, metrics and health checks.
"""

import asyncio
import os
import random  # noqa: TID251 - the type of the source of jitter, which the caller passes  # noqa: TID251 - the source of jitter is made here
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final

import structlog
from aiohttp import web

from sluice_maintain.lease_rules import SUCCESSES, RunResult, resume
from sluice_maintain.metrics import MaintenanceMetrics
from sluice_maintain.rights import MissingRights, check_rights
from sluice_maintain.run_one import TaskRunner
from sluice_maintain.scheduler import ScheduleDecision, Situation, WaitReason, decide
from sluice_maintain.settings import MaintainSettings
from sluice_maintain.status import MaintenanceStatus, show_situation
from sluice_maintain.status_page import render_page, render_text
from sluice_maintain.task_store import TaskStore
from sluice_maintain.tasks import TaskName, WorkerKind
from sluice_maintain.worker_pool import WorkerPool
from sluice_protocol.clock import Clock, IdSource
from sluice_protocol.errors import ErrorCode, InvalidRecord, OutcomeUnknown, StoreError
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import NS_PER_S
from sluice_store.authority import read_authority
from sluice_store.url import StoreMode, open_store
from sluice_web.addresses import parse_allowed_hosts, parse_listen
from sluice_web.application import guarded_middlewares, make_application
from sluice_web.connection_guard import listening
from sluice_web.endpoints import Endpoint
from sluice_web.health import live_endpoint, metrics_endpoint, ready_endpoint
from sluice_web.json_bodies import json_response
from sluice_web.listening import stop_event
from sluice_web.problems import HttpRefusal, Problem, problem_of
from sluice_web.tokens import check_token_or_loopback

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


_STUCK_S: Final = 300.0
"""Time without a decision after which the supervisor should restart the process."""

log = structlog.get_logger()


class StatusApi:
    """The HTTP interface of one process."""

    def __init__(self, service: MaintenanceService) -> None:
        self._service = service
        self._settings = service.settings

    def application(self) -> web.Application:
        """Return the application."""
        endpoints = [
            Endpoint(
                method="GET",
                path="/",
                handler=self._send_page,
                summary="Return the state of every task as a page, or as text or JSON on request",
                result_type="text/html",
            ),
            Endpoint(
                method="GET",
                path="/v1/status",
                handler=self._send_status,
                summary="Return the state of every task",
                result=MaintenanceStatus,
            ),
            live_endpoint(self._liveness),
            ready_endpoint(self._readiness),
            metrics_endpoint(self._service.runner.metrics.registry),
        ]
        return make_application(
            endpoints,
            middlewares=guarded_middlewares(self._settings.api_token),
            title="sluice maintain",
            allowed_hosts=parse_allowed_hosts(self._settings.allowed_hosts),
        )

    async def _send_page(self, request: web.Request) -> web.Response:
        if "application/json" in request.headers.get("Accept", ""):
            return json_response(self._status())
        if request.headers.get("Accept", "").startswith("text/plain"):
            return web.Response(text=render_text(self._status(), self._service.problem))
        text = render_page(self._status(), self._service.problem)
        return web.Response(text=text, content_type="text/html")

    async def _send_status(self, request: web.Request) -> web.Response:
        del request
        return json_response(self._status())

    def _status(self) -> MaintenanceStatus:
        if self._service.status is None:
            raise HttpRefusal(ErrorCode.STORE_UNAVAILABLE, self._service.problem)
        return self._service.status

    def _liveness(self) -> Problem | None:
        if self._service.is_stuck(_STUCK_S):
            return problem_of(ErrorCode.INTERNAL, f"no decision for {_STUCK_S:.0f} s")
        return None

    def _readiness(self) -> Problem | None:
        if self._service.problem:
            return problem_of(ErrorCode.STORE_UNAVAILABLE, self._service.problem)
        return None


async def _report_rights(url: str, settings: MaintainSettings) -> None:
    """Log the missing rights of each task; a task without rights fails, and the others run."""
    for task, missing in (await check_rights(url, settings)).items():
        log.warning("maintenance_rights_missing", task=task, missing=list(missing))


@asynccontextmanager
async def _service(
    url: str,
    settings: MaintainSettings,
    command: Sequence[str],
    stop: asyncio.Event,
    *,
    once: bool = False,
    mode: StoreMode = StoreMode.WRITE,
) -> AsyncIterator[MaintenanceService]:
    clock, ids = SystemClock(), SystemIds()
    settings.check_profiles(url)
    async with open_store(url, mode) as store:
        await read_authority(store)  # a store without an authority has nothing to maintain
        runner = TaskRunner(
            tasks=TaskStore(store, clock, ids, name_owner(ids)),
            pool=WorkerPool(command, url, settings, clock),
            settings=settings,
            clock=clock,
            metrics=MaintenanceMetrics(),
            stop=stop,
            once=once,
        )
        rng = random.Random(clock.now_ns())  # noqa: S311 - jitter, not a secret
        yield MaintenanceService(runner=runner, settings=settings, clock=clock, rng=rng)


async def serve_maintenance(url: str, settings: MaintainSettings, command: Sequence[str]) -> None:
    """Run tasks and the status page until SIGTERM or SIGINT.

    `command` is the command line of a worker process.
    """
    host, _ = parse_listen(settings.listen)
    check_token_or_loopback(host, settings.api_token)
    async with (
        _service(url, settings, command, stop_event()) as service,
        listening(StatusApi(service).application(), settings.listen) as urls,
    ):
        log.info("maintenance_listening", urls=urls, owner=service.runner.tasks.owner)
        await _report_rights(url, settings)
        await service.run()


async def run_due(
    url: str, settings: MaintainSettings, command: Sequence[str]
) -> MaintenanceStatus:
    """Run every task that is due, each once; return the state afterwards."""
    async with _service(url, settings, command, stop_event(), once=True) as service:
        await _report_rights(url, settings)
        await service.run_once()
        situation = await service.read_situation()
        return show_situation(situation, decide(situation))


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenancePlan:
    """What a process would do now: the tasks that would start, and why the others wait."""

    decision: ScheduleDecision
    status: MaintenanceStatus
    missing: MissingRights


async def plan_now(url: str, settings: MaintainSettings) -> MaintenancePlan:
    """Return what would start now, and the state of every task; change nothing."""
    async with _service(url, settings, (), asyncio.Event(), mode=StoreMode.READ) as service:
        situation = await service.read_situation()
        decision = decide(situation)
        return MaintenancePlan(
            decision=decision,
            status=show_situation(situation, decision),
            missing=await check_rights(url, settings),
        )


async def resume_task(url: str, task: TaskName) -> bool:
    """Let a halted, failing or fenced task run now; return False for others."""
    async with open_store(url) as store:
        ids = SystemIds()
        tasks = TaskStore(store, SystemClock(), ids, name_owner(ids))
        return await tasks.change(task, resume) is not None
