"""Composition root: serve, run what is due once, show what would run, resume a task."""

import asyncio
import random  # noqa: TID251 - the source of jitter is made here
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog

from sluice_maintain.api import StatusApi
from sluice_maintain.lease_rules import resume
from sluice_maintain.metrics import MaintenanceMetrics
from sluice_maintain.rights import MissingRights, check_rights
from sluice_maintain.run_one import TaskRunner
from sluice_maintain.scheduler import ScheduleDecision, decide
from sluice_maintain.service import MaintenanceService, name_owner
from sluice_maintain.settings import MaintainSettings
from sluice_maintain.status import MaintenanceStatus, show_situation
from sluice_maintain.task_store import TaskStore
from sluice_maintain.tasks import TaskName
from sluice_maintain.worker_pool import WorkerPool
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_store.authority import read_authority
from sluice_store.mode import StoreMode
from sluice_store.url import open_store
from sluice_web.addresses import parse_listen
from sluice_web.bounded_listening import listening
from sluice_web.listening import stop_event
from sluice_web.tokens import check_token_or_loopback

log = structlog.get_logger()


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


async def serve(url: str, settings: MaintainSettings, command: Sequence[str]) -> None:
    """Run tasks and the status page until SIGTERM or SIGINT.

    `command` is the command line of a worker process.
    """
    host, _ = parse_listen(settings.listen)
    check_token_or_loopback(host, settings.api_token)
    async with _service(url, settings, command, stop_event()) as service:
        api = StatusApi(service, settings, service.runner.metrics)
        async with listening(api.application(), settings.listen) as urls:
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
        return await tasks.change(task, lambda *seen: resume(seen[0], seen[2])) is not None
