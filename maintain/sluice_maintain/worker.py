"""A worker process: it reads jobs from standard input and writes results to standard output.

Spark jobs run in threads and share one session. Jobs that need only the store run on one event
loop, which keeps the store open. Ingestion runs in the main thread, where it handles SIGTERM. If
standard input ends, the scheduling process has died, and the worker ends immediately: every job may
be killed at any step.
"""

import asyncio
import dataclasses
import hashlib
import os
import queue
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO, Final

import msgspec
import structlog
from ulid import ULID

from sluice_gc.auditor import audit_store
from sluice_gc.certificate import prepare_key_file
from sluice_gc.cycle import CycleReport, CycleRunner, GcMetrics, execute_due_plan, plan_if_covered
from sluice_gc.errors import CertificateInvalid, GcRefused, RefusalRule
from sluice_gc.evidence_retention import prune_evidence
from sluice_gc.expiry_run import Compare, ExpiryRun
from sluice_gc.planner import Planner
from sluice_gc.settings import ExpireSettings, ExpirySettings, RunSettings
from sluice_gc.signing_keys import TrustedKeys, load_keys, load_trusted
from sluice_gc.task_engine import LocalTaskEngine
from sluice_gc.version_expiry import expire_versions
from sluice_maintain.lease_rules import JobState, RunResult
from sluice_maintain.messages import (
    JobEnd,
    JobProgress,
    JobRequest,
    StopRequest,
    decode_request,
    encode_line,
)
from sluice_maintain.settings import GcOptions, MaintainSettings
from sluice_maintain.tasks import TRAITS, TaskName, WorkerKind
from sluice_protocol.clock import Clock, IdSource
from sluice_protocol.errors import Fenced, OutcomeUnknown, SluiceError, StoreDenied, StoreError
from sluice_protocol.expiry import Holds
from sluice_protocol.fields import KINDS, Kind
from sluice_protocol.maintenance import RunOutcome
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.record_deletes import DeleteRecord, delete_key
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import NS_PER_S
from sluice_queue.collector import GRACE_S_DEFAULT, Collector
from sluice_spark.compaction.job import run_compact
from sluice_spark.errors import JobFailed, JobStopped
from sluice_spark.index import run_index
from sluice_spark.ingest.job import run_ingest
from sluice_spark.ingest.microbatch import IngestTotals
from sluice_spark.ingest.supervision import QueryState
from sluice_spark.jvm import check_jvm, jvm_process
from sluice_spark.read_back import BatchComparison, compare_batches
from sluice_spark.rollups.job import run_rollup
from sluice_spark.session import Session, SessionSettings, open_session
from sluice_store.authority import read_authority
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff
from sluice_store.stored_deletes import write_delete
from sluice_store.stored_erasures import EndedErasures, count_late_erasures
from sluice_store.stored_expiry import read_holds, read_retention
from sluice_store.url import open_store

_DENIED: Final = re.compile(r"\b(AccessDenied|Access Denied|PermissionDenied|403 Forbidden)\b")
"""Part of an error of delta-rs or the JVM if the store denied a request."""
RETENTION_PRINCIPAL: Final = "maintain:retention"
_DAY_NS: Final = 86_400 * NS_PER_S

log = structlog.get_logger()


def classify_error(error: BaseException) -> RunOutcome:
    """Return the outcome of a run that ended with an error."""
    match error:
        case JobStopped():
            return RunOutcome.STOPPED
        case StoreDenied():
            return RunOutcome.NOT_PERMITTED
        case StoreError() | OutcomeUnknown():
            return RunOutcome.UNREACHABLE
        case GcRefused() | CertificateInvalid():
            return RunOutcome.REFUSED
        case Fenced():
            return RunOutcome.FENCED
        case _:
            denied = _DENIED.search(str(error))
            return RunOutcome.NOT_PERMITTED if denied else RunOutcome.FAILED


def result_of_error(error: BaseException) -> RunResult:
    """Return the result of a run that ended with an error; a defect is logged with its traceback.

    Errors of sluice state the reason and the next step; all others are defects.
    """
    if isinstance(error, SluiceError):
        reason = str(error)
    else:
        log.error("maintenance_job_failed", error=repr(error), exc_info=error)
        reason = f"{type(error).__name__}: {error}"
    return RunResult(outcome=classify_error(error), reason=reason, figures={})


def figures_of(report: object) -> dict[str, float]:
    """Return at most 30 numbers of a report, including those of inner reports."""
    if dataclasses.is_dataclass(report) and not isinstance(report, type):
        values: Mapping[str, object] = dataclasses.asdict(report)
    elif isinstance(report, msgspec.Struct):
        values = msgspec.structs.asdict(report)
    else:
        return {}
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, int | float):
            found[name] = float(value)
        else:
            found |= figures_of(value)
    return dict(list(found.items())[:30])


def run_spark_job(
    task: TaskName,
    open_session: Callable[[], Session],
    store_url: str,
    settings: MaintainSettings,
    stop: threading.Event,
) -> RunResult:
    """Run one Spark task in the shared session, which is opened when the task needs it."""

    def check_stop() -> None:
        if stop.is_set():
            raise JobStopped("stopped between two steps; the next run continues")

    def compare(manifests: Sequence[AcceptedManifest]) -> BatchComparison:
        check_stop()
        return compare_batches(open_session(), store_url, manifests)

    report: object
    match task:
        case TaskName.COMPACT:
            report = run_compact(open_session(), store_url, settings.compact.job(), stop=check_stop)
        case TaskName.ROLLUP:
            report = run_rollup(open_session(), store_url, stop=check_stop)
        case TaskName.EXPIRE:
            report = asyncio.run(_expire_batches(store_url, settings.gc, compare))
        case _:
            report = run_index(open_session(), store_url, stop=check_stop)
    return RunResult(outcome=RunOutcome.DONE, figures=figures_of(report))


async def _expire_batches(store_url: str, options: GcOptions, compare: Compare) -> object:
    """Record the expiry of the batches that are proved; without a decision, read only that.

    Before the first audit there are no candidates, which is no reason to halt the task.
    """
    async with open_store(store_url) as store:
        rule = await read_retention(store)
        if rule is None or rule.raw_keep_s is None:
            return None
        keys = load_keys(options.key_file, options.trusted_keys)
        run = ExpiryRun(store, compare, keys, SystemClock(), SystemIds())
        try:
            return await run.run(ExpireSettings())
        except GcRefused as refused:
            if refused.rule is not RefusalRule.NO_CERTIFICATE:
                raise
            return None


async def read_retention_days(store: ObjectStore, settings: MaintainSettings) -> dict[str, int]:
    """Return the days for which records are kept, by kind: the setting, else the decision."""
    rule = await read_retention(store)
    keep_s = None if rule is None else rule.tables_keep_s
    decided = {} if keep_s is None else dict.fromkeys(KINDS, keep_s * NS_PER_S // _DAY_NS)
    return decided | settings.retention_days


def plan_retention(days_of: Mapping[str, int], now_ns: int, holds: Holds) -> Iterator[DeleteRecord]:
    """Yield the deletes that are due today, by the store's clock: one a kind and day.

    They cover batches that were accepted before the first hold begins.

    Their keys and bytes are functions of kind, day and limit, so every process creates the same
    objects, and a repeated run changes nothing. The deletes of a day cover those of all days
    before. A batch that is accepted today and contains older records is covered tomorrow.
    """
    today_ns = now_ns // _DAY_NS * _DAY_NS
    until_ns = holds.permitted_until_ns(today_ns)
    if until_ns is None:
        return
    for kind in KINDS:
        days = days_of.get(kind)
        if days:
            yield DeleteRecord(
                delete_id=_delete_id(kind, days, today_ns, until_ns),
                kind=kind,
                accepted_until_unix_ns=until_ns,
                to_unix_ns=today_ns - days * _DAY_NS,
                reason=f"retention of {days} days",
                principal=RETENTION_PRINCIPAL,
            )


def _delete_id(kind: Kind, days: int, today_ns: int, until_ns: int) -> str:
    time_ms = (today_ns // 1_000_000).to_bytes(6, "big")
    name = f"{RETENTION_PRINCIPAL} {kind} {days} {today_ns}"
    if until_ns != today_ns:
        name = f"{name} {until_ns}"
    content = hashlib.sha256(name.encode()).digest()
    return str(ULID(time_ms + content[:10]))


class StoreJobs:
    """The tasks that need the store only. The collector remembers what earlier runs observed."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        ids: IdSource,
        *,
        collect_grace_s: float = GRACE_S_DEFAULT,
    ) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._collect_grace_s = collect_grace_s
        self._collector: Collector | None = None
        self._expired_through = ""
        self._ended = EndedErasures()

    async def run(self, task: TaskName, settings: MaintainSettings) -> RunResult:
        """Run one task. It may be cancelled at any request, as if its process were killed."""
        match task:
            case TaskName.RETENTION:
                figures = await self._retain(await read_retention_days(self._store, settings))
            case TaskName.QUEUE:
                figures = await self._collect()
            case TaskName.NONCURRENT:
                return await self._expire(settings.noncurrent.job())
            case TaskName.AUDIT:
                return await self._audit(settings.gc)
            case _:
                return await self._collect_garbage(settings.gc)
        return RunResult(outcome=RunOutcome.DONE, figures=figures)

    async def _retain(self, days_of: Mapping[str, int]) -> dict[str, float]:
        """Create the deletes of today that do not exist; return how many were created."""
        created = 0
        date_ns = (await self._store.head(delete_key("0" * 26))).date_ns
        for record in plan_retention(days_of, date_ns, await read_holds(self._store)):
            backoff = Backoff.seeded_by(self._clock)
            created += (await write_delete(self._store, record, backoff, self._ids)).created
        return {"deletes_created": created}

    async def _collect(self) -> dict[str, float]:
        if self._collector is None:
            horizon_ns = (await read_authority(self._store)).retry_horizon_ns
            self._collector = Collector(
                self._store, retry_horizon_ns=horizon_ns, grace_s=self._collect_grace_s
            )
        return figures_of(await self._collector.run())

    async def _expire(self, job: ExpirySettings) -> RunResult:
        """Expire versions in bounded steps; a run that was stopped continues where it ended."""
        deleted, unknown = 0, 0
        while True:
            report = await expire_versions(self._store, job, start_after=self._expired_through)
            self._expired_through = report.resume_after or ""
            deleted += sum(report.deleted.values())
            unknown += report.unknown
            if report.resume_after is None:
                break
        figures = {"versions_deleted": float(deleted), "unknown": float(unknown)}
        return RunResult(outcome=RunOutcome.DONE, figures=figures)

    async def _audit(self, options: GcOptions) -> RunResult:
        engine = LocalTaskEngine(self._store)
        report = await audit_store(self._store, engine, options.audit(), self._clock, self._ids)
        counts = report.certificate.counts
        figures = figures_of(counts)
        figures["erasures_late"] = float(await count_late_erasures(self._store, self._ended))
        keys = load_keys(options.key_file, options.trusted_keys)
        if options.plan:
            planner = Planner(self._store, engine, keys, self._clock, self._ids)
            made = await plan_if_covered(planner, options.plan_job())
            figures["plans_made"] = float(made is not None)
        pruned = await prune_evidence(self._store, keys.trusted)
        figures["evidence_files_removed"] = float(pruned.files)
        return _checked(figures, "the audit", found_wrong=counts.found_wrong)

    async def _collect_garbage(self, options: GcOptions) -> RunResult:
        job = options.cycle()
        if options.execute_only:
            trusted = load_trusted(job.key_file, job.trusted_keys)
            return await self._execute(job.for_run(), trusted, options.audit_age_s_max)
        await prepare_key_file(self._store, job.key_file)
        keys = load_keys(job.key_file, job.trusted_keys)
        engine = LocalTaskEngine(self._store)
        cycles = CycleRunner(self._store, engine, keys, self._clock, self._ids, metrics=GcMetrics())
        report: CycleReport = await cycles.cycle(job)
        figures = figures_of(report)
        figures["erasures_late"] = float(await count_late_erasures(self._store, self._ended))
        return _checked(figures, "the cycle", found_wrong=report.found_wrong)

    async def _execute(self, job: RunSettings, trusted: TrustedKeys, age_s: float) -> RunResult:
        engine = LocalTaskEngine(self._store)
        report = await execute_due_plan(
            self._store, engine, trusted, self._clock, job, audit_age_s_max=age_s
        )
        return _checked(figures_of(report), "the plan", found_wrong=report.found_wrong)


def _checked(figures: dict[str, float], what: str, *, found_wrong: bool) -> RunResult:
    if not found_wrong:
        return RunResult(outcome=RunOutcome.DONE, figures=figures)
    reason = f"{what} found problems that an operator must act on: run `sluice audit show`"
    return RunResult(outcome=RunOutcome.FOUND_WRONG, reason=reason, figures=figures)


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
