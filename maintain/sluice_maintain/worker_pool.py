"""The worker processes of this process: start one per kind, send jobs, replace and kill them."""

import asyncio
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import structlog

from sluice_maintain.lease_rules import JobState, RunResult
from sluice_maintain.messages import (
    LINE_BYTES_MAX,
    JobEnd,
    JobProgress,
    JobRequest,
    StopRequest,
    decode_report,
    encode_line,
)
from sluice_maintain.settings import MaintainSettings
from sluice_maintain.tasks import TRAITS, TaskName, WorkerKind
from sluice_protocol.clock import Clock
from sluice_protocol.errors import UNREADABLE_JSON
from sluice_protocol.maintenance import RunOutcome
from sluice_protocol.units import NS_PER_S
from sluice_store.url import with_profile

log = structlog.get_logger()

_CREDENTIALS: Final = frozenset(
    {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_DEFAULT_PROFILE"}
)


def environment_of(profile: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a worker with the credentials of a profile.

    delta-rs, Arrow and the JVM read it, and keys in the environment would take precedence.
    """
    if not profile:
        return dict(environment)
    kept = {name: text for name, text in environment.items() if name not in _CREDENTIALS}
    return kept | {"AWS_PROFILE": profile}


@dataclass(slots=True, kw_only=True)
class WorkerProcess:
    """One worker process and the jobs that it runs, by number."""

    kind: WorkerKind
    process: Process
    jobs: dict[int, "PendingJob"] = field(default_factory=dict)
    numbers: int = 0
    idle_since_ns: int = 0
    ending: bool = False

    async def read_results(self, clock: Clock) -> None:
        """Deliver results until the process ends; then fail the jobs that have none."""
        assert self.process.stdout is not None  # noqa: S101 - it was started with a pipe
        cause = "it was killed or crashed"
        try:
            await self._read_lines(self.process.stdout, clock)
        except (*UNREADABLE_JSON, ValueError) as error:
            # ValueError: the line is too long.
            cause = f"its result is unreadable: {error}"
            self.kill()
            await self.process.stdout.read()  # else the end of the process is not noticed
        code = await self.process.wait()
        self.ending = True
        reason = f"the worker process ended without a result: {cause}, exit_code=`{code}`"
        for number in list(self.jobs):
            lost = RunResult(outcome=RunOutcome.FAILED, reason=reason, figures={})
            self._deliver(JobEnd(number=number, result=lost))

    async def _read_lines(self, lines: asyncio.StreamReader, clock: Clock) -> None:
        async for line in lines:
            end = decode_report(line)
            if isinstance(end, JobProgress):
                if (job := self.jobs.get(end.number)) is not None:
                    job.take(end.state)
                continue
            self.ending = self.ending or end.worker_ends
            self.idle_since_ns = clock.monotonic_ns()
            self._deliver(end)
            if self.ending and not self.jobs:
                self.close()

    def _deliver(self, end: JobEnd) -> None:
        job = self.jobs.pop(end.number, None)
        if job is not None and not job.result.done():
            job.result.set_result(end.result)

    def send(self, request: JobRequest | StopRequest) -> None:
        """Send a request; a process that has ended reports by the end of its output."""
        assert self.process.stdin is not None  # noqa: S101 - it was started with a pipe
        with suppress(ConnectionError, RuntimeError):
            self.process.stdin.write(encode_line(request))

    def close(self) -> None:
        """End the process: its input ends."""
        self.ending = True
        assert self.process.stdin is not None  # noqa: S101 - it was started with a pipe
        self.process.stdin.close()

    def kill(self) -> None:
        """Kill the process; its JVM ends within seconds."""
        self.ending = True
        with suppress(ProcessLookupError):
            self.process.kill()


@dataclass(slots=True, kw_only=True)
class PendingJob:
    """A job that runs in a worker process.

    Attributes:
        state: None before the first report.
        changed: Set by a report that is the opposite of the one before: the work has succeeded, or
            does so no longer.
    """

    worker: WorkerProcess
    number: int
    result: asyncio.Future[RunResult]
    state: JobState | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, state: JobState) -> None:
        """Remember a report."""
        if self.state is None or bool(self.state.trouble) != bool(state.trouble):
            self.changed.set()
        self.state = state

    def stop(self) -> None:
        """Request the job to stop at its next safe point."""
        self.worker.send(StopRequest(number=self.number))


class WorkerPool:
    """One worker process per kind and profile; replaced when it is idle, worn out or has ended."""

    def __init__(
        self, command: Sequence[str], store_url: str, settings: MaintainSettings, clock: Clock
    ) -> None:
        """Prepare the pool; a process is started with its first job.

        `command` is the command line of a worker process.
        """
        self._command = command
        self._store_url = store_url
        self._settings = settings
        self._clock = clock
        self._workers: dict[tuple[WorkerKind, str], WorkerProcess] = {}
        self._readers: set[asyncio.Task[None]] = set()
        self.starts: dict[WorkerKind, int] = dict.fromkeys(WorkerKind, 0)

    @property
    def processes(self) -> Mapping[WorkerKind, int]:
        """The process ids of the workers that accept jobs."""
        return {one.kind: one.process.pid for one in self._workers.values() if not one.ending}

    async def start_job(self, task: TaskName, *, once: bool) -> PendingJob:
        """Start a job in the process of its kind."""
        profile = self._settings.policies()[task].profile
        worker = await self._worker(TRAITS[task].worker, profile)
        worker.numbers += 1
        number = worker.numbers
        result: asyncio.Future[RunResult] = asyncio.get_running_loop().create_future()
        job = worker.jobs[number] = PendingJob(worker=worker, number=number, result=result)
        worker.send(
            JobRequest(
                number=number,
                task=task,
                store_url=with_profile(self._store_url, profile),
                settings=self._settings,
                once=once,
            )
        )
        return job

    def close_idle(self) -> None:
        """End processes without a job that were idle for long or ran many jobs."""
        for worker in self._workers.values():
            if worker.jobs or worker.ending:
                continue
            idle_s = (self._clock.monotonic_ns() - worker.idle_since_ns) / NS_PER_S
            worn = worker.numbers >= self._settings.session_jobs_max
            if worn or idle_s > self._settings.session_idle_s:
                log.info("maintenance_worker_closed", worker=worker.kind.value, jobs=worker.numbers)
                worker.close()

    async def close(self) -> None:
        """End every process and wait for its end."""
        for worker in self._workers.values():
            if worker.jobs:
                worker.kill()
            elif not worker.ending:
                worker.close()
        await asyncio.gather(*self._readers, return_exceptions=True)

    async def _worker(self, kind: WorkerKind, profile: str) -> WorkerProcess:
        current = self._workers.get((kind, profile))
        if current is not None and not current.ending:
            return current
        # A separate session: a signal to this process's group must not end a job unrecorded.
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=PIPE,
            stdout=PIPE,
            limit=LINE_BYTES_MAX,
            start_new_session=True,
            env=environment_of(profile, os.environ),
        )
        worker = WorkerProcess(kind=kind, process=process)
        worker.idle_since_ns = self._clock.monotonic_ns()
        self._workers[kind, profile] = worker
        self.starts[kind] += 1
        reader = asyncio.create_task(worker.read_results(self._clock))
        self._readers.add(reader)
        reader.add_done_callback(self._readers.discard)
        log.info("maintenance_worker_started", worker=kind.value, pid=process.pid)
        return worker
