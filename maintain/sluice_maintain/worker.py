"""A worker process: it reads jobs from standard input and writes results to standard output.

Spark jobs run in threads and share one session. Jobs that need only the store run on one event
loop, which keeps the store open. Ingestion runs in the main thread, where it handles SIGTERM. If
standard input ends, the scheduling process has died, and the worker ends immediately: every job may
be killed at any step.
"""

import asyncio
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO, Final

from sluice_maintain.jobs import StoreJobs, figures_of, result_of_error, run_spark_job
from sluice_maintain.lease_rules import JobState, RunResult
from sluice_maintain.messages import (
    JobEnd,
    JobProgress,
    JobRequest,
    StopRequest,
    decode_request,
    encode_line,
)
from sluice_maintain.tasks import TRAITS, TaskName, WorkerKind
from sluice_protocol.maintenance import RunOutcome
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_spark.errors import JobFailed
from sluice_spark.ingest.job import run_ingest
from sluice_spark.ingest.microbatch import IngestTotals
from sluice_spark.ingest.supervision import QueryState
from sluice_spark.jvm import check_jvm, jvm_process
from sluice_spark.session import Session, SessionSettings, open_session
from sluice_store.url import open_store

_ORPHANED: Final = 75
"""Exit code of a worker whose scheduling process died."""


@dataclass(slots=True)
class RunningJob:
    """A job of this worker: how to stop it."""

    is_ingest: bool = False
    stop: threading.Event = field(default_factory=threading.Event)
    future: "Future[RunResult] | None" = None


class Worker:
    """Runs the jobs of one worker process."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._writing = threading.Lock()
        self._jobs: dict[int, RunningJob] = {}
        self._main: queue.Queue[JobRequest | None] = queue.Queue()
        self._opening = threading.Lock()
        self._session: Session | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._store_jobs: asyncio.Task[StoreJobs] | None = None
        self._stack = AsyncExitStack()

    def read_requests(self, lines: BinaryIO) -> None:
        """Start and stop jobs as requested; end the process when the input ends."""
        for line in lines:
            request = decode_request(line)
            if isinstance(request, StopRequest):
                self._stop(request.number)
            else:
                self._start(request)
        # Not an orderly end of the interpreter: a job may be inside a call that never returns.
        os._exit(_ORPHANED)

    def run_main(self) -> None:
        """Run the jobs that need the main thread."""
        while (request := self._main.get()) is not None:
            self._end(request, lambda: self._ingest(request))

    def _start(self, request: JobRequest) -> None:
        kind = TRAITS[request.task].worker
        job = self._jobs[request.number] = RunningJob(is_ingest=kind is WorkerKind.INGEST)
        match kind:
            case WorkerKind.INGEST:
                self._main.put(request)
            case WorkerKind.SPARK:
                work = lambda: self._spark(request, job.stop)  # noqa: E731 - one expression
                threading.Thread(target=self._end, args=(request, work), daemon=True).start()
            case WorkerKind.PLAIN:
                job.future = asyncio.run_coroutine_threadsafe(
                    self._run_on_store(request), self._running_loop()
                )
                work = job.future.result
                threading.Thread(target=self._end, args=(request, work), daemon=True).start()

    def _stop(self, number: int) -> None:
        job = self._jobs.get(number)
        if job is None:
            return
        job.stop.set()
        if job.future is not None:
            job.future.cancel()
        elif job.is_ingest:
            os.kill(os.getpid(), signal.SIGTERM)  # the main thread handles it

    def _end(self, request: JobRequest, work: Callable[[], RunResult]) -> None:
        """Run a job and report how it ended."""
        # The ingest job stops its session, and a process can start one JVM only.
        worker_ends = TRAITS[request.task].worker is WorkerKind.INGEST
        try:
            result = work()
        except CancelledError:
            reason = "stopped at a request to the store; the next run continues"
            result = RunResult(outcome=RunOutcome.STOPPED, reason=reason, figures={})
        except Exception as error:  # noqa: BLE001 - reported with its reason
            cause, jvm_ended = self._cause(error)
            worker_ends = worker_ends or jvm_ended
            result = result_of_error(cause)
        self._jobs.pop(request.number, None)
        self._send(JobEnd(number=request.number, result=result, worker_ends=worker_ends))

    def _send(self, message: JobEnd | JobProgress) -> None:
        with self._writing:
            self._out.write(encode_line(message))
            self._out.flush()

    def _cause(self, error: Exception) -> tuple[Exception, bool]:
        """Return the error to report, and whether the JVM has ended."""
        try:
            if self._session is not None:
                check_jvm(jvm_process(self._session), error)
        except JobFailed as ended:
            return ended, True
        return error, False

    def _ingest(self, request: JobRequest) -> RunResult:
        def report(state: QueryState, totals: IngestTotals) -> None:
            reached = JobState(trouble=state.trouble, figures=figures_of(totals))
            self._send(JobProgress(number=request.number, state=reached))

        job = request.settings.ingest_job(once=request.once)
        totals = run_ingest(request.store_url, job, report=report)
        return RunResult(outcome=RunOutcome.DONE, figures=figures_of(totals))

    def _spark(self, request: JobRequest, stop: threading.Event) -> RunResult:
        open_session = partial(self._open_session, request.task)
        return run_spark_job(request.task, open_session, request.store_url, request.settings, stop)

    def _open_session(self, task: TaskName) -> Session:
        """Return the shared session, with the pool of a task for the jobs of this thread."""
        with self._opening:
            if self._session is None:
                wanted = SessionSettings(conf={"spark.scheduler.mode": "FAIR"})
                self._session = open_session(wanted, delta=False)
        self._session.sparkContext.setLocalProperty("spark.scheduler.pool", task.value)
        return self._session

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, daemon=True).start()
        return self._loop

    async def _run_on_store(self, request: JobRequest) -> RunResult:
        if self._store_jobs is None or (self._store_jobs.done() and self._store_jobs.exception()):
            self._store_jobs = asyncio.create_task(self._open_store(request.store_url))
        jobs = await asyncio.shield(self._store_jobs)
        return await jobs.run(TaskName(request.task), request.settings)

    async def _open_store(self, store_url: str) -> StoreJobs:
        store = await self._stack.enter_async_context(open_store(store_url))
        return StoreJobs(store, SystemClock(), SystemIds())


def run_job_worker() -> None:
    """Run a worker process until its input ends.

    Libraries and the JVM may print to standard output, which is redirected to standard error.
    """
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    worker = Worker(out)
    threading.Thread(target=worker.read_requests, args=(sys.stdin.buffer,), daemon=True).start()
    worker.run_main()
