"""One run of one task: acquire its lease, run its job, renew, stop, record."""

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import structlog

from sluice_maintain.lease_rules import (
    RecordWriter,
    RunResult,
    acquire,
    end_run,
    give_back,
    is_leased,
    renew,
    with_plan,
)
from sluice_maintain.metrics import MaintenanceMetrics
from sluice_maintain.scheduler import next_start_at
from sluice_maintain.settings import MaintainSettings
from sluice_maintain.task_store import ChangedTask, TaskStore
from sluice_maintain.tasks import TRAITS, TaskName, conflicting
from sluice_maintain.worker_pool import PendingJob, WorkerPool
from sluice_protocol.clock import Clock
from sluice_protocol.errors import InvalidRecord, OutcomeUnknown, StoreError
from sluice_protocol.maintenance import RunOutcome, TaskRecord
from sluice_protocol.units import NS_PER_S

_RENEWALS: Final = 3
"""Renewals in the duration of a lease."""
_MARGIN: Final = 0.1
"""Share of a lease that is not used: S3's clock has whole seconds, and clocks drift."""
_UNREACHABLE = (StoreError, OutcomeUnknown, InvalidRecord)

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class TaskRunner:
    """Runs tasks, each under its lease.

    With `once`, ingestion ends when the backlog is in the lake. `clock` is for the time left of a
    lease, and pauses.
    """

    tasks: TaskStore
    pool: WorkerPool
    settings: MaintainSettings
    clock: Clock
    metrics: MaintenanceMetrics
    stop: asyncio.Event
    once: bool = False
    _unrecorded: dict[TaskName, tuple[ChangedTask, RunResult]] = field(default_factory=dict)

    async def acquire(self, task: TaskName) -> ChangedTask | None:
        """Acquire the lease of a task; None if it or a conflicting task is leased elsewhere.

        The other records are read after the lease was written. Of two processes that acquire
        conflicting tasks concurrently, at least one therefore sees the other and gives way.
        """
        rule = partial(acquire, task=task, lease_s=self.settings.lease_s)
        change = await self.tasks.change(task, rule)
        if change is None:
            return None
        for other in conflicting(task):
            stored = await self.tasks.read(other)
            if is_leased(stored.record, stored.date_ns):
                await self.tasks.change(task, partial(give_back, lease=_lease_of(change)))
                return None
        return change

    async def run(self, task: TaskName, change: ChangedTask) -> RunResult | None:
        """Run a task whose lease was acquired; None if the lease was lost before the end."""
        log.info("maintenance_task_started", task=task.value)
        started_ns = self.clock.monotonic_ns()
        try:
            job = await self.pool.start_job(task, once=self.once)
        except OSError as error:
            reason = f"cannot start a worker process: {error}"
            result: RunResult | None = RunResult(
                outcome=RunOutcome.FAILED, reason=reason, figures={}
            )
        else:
            result = await self._wait(task, change, job)
        elapsed_s = (self.clock.monotonic_ns() - started_ns) / NS_PER_S
        if result is not None and not await self._record(task, change, result):
            result = None
        self._report(task, result, elapsed_s)
        return result

    async def _wait(self, task: TaskName, change: ChangedTask, job: PendingJob) -> RunResult | None:
        """Wait for the result; renew the lease, and stop the job if it must end."""
        timeout_s = self.settings.policies()[task].timeout_s
        started_ns = self.clock.monotonic_ns()
        while True:
            ended = await self._pause(job)
            if ended:
                return job.result.result()
            if self.stop.is_set():
                return await self._stop_job(task, job, RunOutcome.STOPPED, "the process ends")
            run_s = (self.clock.monotonic_ns() - started_ns) / NS_PER_S
            if 0 < timeout_s < run_s:
                reason = f"the run was longer than timeout_s, timeout_s=`{timeout_s:g}`"
                return await self._stop_job(task, job, RunOutcome.FAILED, reason)
            try:
                renewed = await self._renew(task, change, job)
            except _UNREACHABLE as error:
                if self._may_continue(task, change):
                    log.info("maintenance_lease_not_renewed", task=task.value, reason=str(error))
                    continue
                reason = f"the lease could not be renewed: {error}"
                return await self._stop_job(task, job, RunOutcome.UNREACHABLE, reason)
            if renewed is None:
                await self._stop_job(task, job, RunOutcome.STOPPED, "the lease is lost")
                return None
            change = renewed

    def _may_continue(self, task: TaskName, change: ChangedTask) -> bool:
        """Return True if a job whose lease was not renewed needs no stop.

        The queue fences an ingest job, so it waits for the store itself and continues with it.
        """
        ends_ns = change.asked_ns + int(self.settings.lease_s * (1 - _MARGIN) * NS_PER_S)
        return TRAITS[task].continuous or self.clock.monotonic_ns() < ends_ns

    async def _pause(self, job: PendingJob) -> bool:
        """Wait for the end of the job, of the process, or for the next renewal.

        When a job starts or stops making progress, it renews immediately, so that the record shows
        it.
        """
        stopping = asyncio.ensure_future(self.stop.wait())
        changed = asyncio.ensure_future(job.changed.wait())
        try:
            await asyncio.wait(
                (job.result, stopping, changed),
                timeout=self.settings.lease_s / _RENEWALS,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            stopping.cancel()
            changed.cancel()
        job.changed.clear()
        return job.result.done()

    async def _renew(
        self, task: TaskName, change: ChangedTask, job: PendingJob
    ) -> ChangedTask | None:
        """Renew the lease and record what the job reports; None if the lease is lost."""
        lease, lease_s = _lease_of(change), self.settings.lease_s
        rule = partial(renew, lease=lease, lease_s=lease_s, state=job.state)
        return await self.tasks.change(task, rule)

    async def _stop_job(
        self, task: TaskName, job: PendingJob, outcome: RunOutcome, reason: str
    ) -> RunResult:
        """Stop a job at a safe point, or kill its worker after the grace period."""
        job.stop()
        await asyncio.wait((job.result,), timeout=self.settings.stop_grace_s)
        if not job.result.done():
            log.warning("maintenance_worker_killed", task=task.value, worker=job.worker.kind.value)
            job.worker.kill()
        result = await job.result
        if result.outcome in (RunOutcome.DONE, RunOutcome.FOUND_WRONG):
            return result
        return RunResult(outcome=outcome, reason=reason, figures=result.figures)

    async def _record(self, task: TaskName, change: ChangedTask, result: RunResult) -> bool:
        """Write the result and end the lease; return False if the lease was lost.

        A result that cannot be written now is kept for `record_late`.
        """
        try:
            return await self._write_end(task, change, result)
        except _UNREACHABLE as error:
            log.warning("maintenance_result_not_recorded", task=task.value, reason=str(error))
            self._unrecorded[task] = (change, result)
            return True

    async def record_late(self) -> None:
        """Write the results that could not be written: else their leases would have to expire."""
        for task, (change, result) in list(self._unrecorded.items()):
            await self._write_end(task, change, result)
            del self._unrecorded[task]

    async def _write_end(self, task: TaskName, change: ChangedTask, result: RunResult) -> bool:
        lease, owner = _lease_of(change), self.tasks.owner
        policy = self.settings.policies()[task]

        def rule(record: TaskRecord | None, now_ns: int, writer: RecordWriter) -> TaskRecord | None:
            ended = end_run(record, now_ns, writer, lease=lease, result=result)
            if ended is None:
                return None
            next_ns, _ = next_start_at(policy, ended, owner, now_ns)
            every_s = 0.0 if TRAITS[task].continuous else policy.every_s
            return with_plan(ended, next_ns, every_s)

        return await self.tasks.change(task, rule) is not None

    def _report(self, task: TaskName, result: RunResult | None, elapsed_s: float) -> None:
        if result is None:
            self.metrics.leases_lost.labels(task.value).inc()
            log.warning("maintenance_lease_lost", task=task.value)
            return
        self.metrics.count_run(task, result, elapsed_s)
        fields = {"task": task.value, "reason": result.reason}
        match result.outcome:
            case RunOutcome.FAILED | RunOutcome.UNREACHABLE | RunOutcome.FENCED | RunOutcome.LOST:
                log.warning("maintenance_task_failed", **fields)
            case RunOutcome.REFUSED:
                log.error("maintenance_task_halted", **fields)
            case RunOutcome.NOT_PERMITTED:
                log.error("maintenance_task_not_permitted", **fields)
            case RunOutcome.FOUND_WRONG:
                log.error("maintenance_problem_found", **fields)
            case RunOutcome.DONE | RunOutcome.STOPPED:
                log.info(
                    "maintenance_task_ended",
                    task=task.value,
                    outcome=result.outcome.value,
                    elapsed_s=round(elapsed_s, 3),
                    **result.figures,
                )


def _lease_of(change: ChangedTask) -> str:
    lease = change.record.lease
    assert lease is not None  # noqa: S101 - only acquired and renewed records are passed here
    return lease.nonce
