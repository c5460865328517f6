"""Run a streaming query until it ends: watch its progress and restart it after transient errors.

An error is transient if the same query may succeed a moment later without a change: a Python
worker that started too slowly, a lost process, a broken connection, an unreachable store. Every
other error ends the job, because a restart would meet it again; a continuous job tries it once.
"""

import random  # noqa: TID251 - the type of the source of jitter, which the caller passes
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NoReturn

import structlog

from sluice_lake.errors import CommitConflict
from sluice_protocol.clock import Clock
from sluice_protocol.errors import (
    ChecksumRefused,
    Fenced,
    OutcomeUnknown,
    SluiceError,
    StoreUnavailable,
)
from sluice_protocol.units import NS_PER_S
from sluice_spark.errors import CheckpointAhead, JobFailed, JvmEnded, describe_failure, read_stack
from sluice_spark.jvm import check_jvm, jvm_process
from sluice_spark.session import Session

_DOUBLINGS_MAX: Final = 30


class TransientFailure(StrEnum):
    """Why a query ended, if a restart may repair it."""

    WORKER_NOT_STARTED = "worker_not_started"
    """Spark waits 10 s for a new Python worker; on a busy machine that can be too short."""
    WORKER_LOST = "worker_lost"
    EXECUTOR_LOST = "executor_lost"
    CONNECTION_LOST = "connection_lost"
    STORE_UNAVAILABLE = "store_unavailable"
    COMMIT_CONFLICT = "commit_conflict"
    QUEUE_REPLACED = "queue_replaced"
    """The queue was rebuilt, or its number of lanes was changed."""
    STALLED = "stalled"
    """The query made no progress for `stall_timeout_s`."""


class QueryStalled(Exception):
    """The query made no progress for too long, and was stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartSettings:
    """Bounds of the restarts of a query.

    Attributes:
        restarts_max: Restarts without a committed micro-batch in between, after which the job
            fails.
        continuous: Whether the job runs until it is stopped. Such a job waits for the store however
            long it is unreachable, and repeats an error of an unknown kind once.
        backoff_s: Upper limit of the first pause, in seconds; it doubles with each restart.
        backoff_max_s: Upper limit of every pause, in seconds.
    """

    restarts_max: int = 8
    continuous: bool = False
    backoff_s: float = 2.0
    backoff_max_s: float = 60.0


UNREACHABLE_PAUSE_S: Final = 4.0
"""Upper limit of the pauses while the store is unreachable: the job continues soon after."""

_SLUICE_ERROR: Final = re.compile(r"^\s*sluice_[\w.]+\.(\w+): ", re.MULTILINE)
"""An error of sluice in the traceback of a Python worker, which Spark's error contains."""
_BY_CLASS: Final = {
    StoreUnavailable: TransientFailure.STORE_UNAVAILABLE,
    OutcomeUnknown: TransientFailure.STORE_UNAVAILABLE,
    ChecksumRefused: TransientFailure.STORE_UNAVAILABLE,
    CommitConflict: TransientFailure.COMMIT_CONFLICT,
    CheckpointAhead: TransientFailure.QUEUE_REPLACED,
}
_BY_NAME: Final = {kind.__name__: failure for kind, failure in _BY_CLASS.items()}
_TEXTS: Final[dict[TransientFailure, tuple[str, ...]]] = {
    TransientFailure.WORKER_NOT_STARTED: (
        "Python worker failed to connect back",
        "waiting for the Python worker to connect",
        "Python daemon failed to launch worker",
        "unable to create native thread",
        "error=11, Resource temporarily unavailable",
    ),
    TransientFailure.WORKER_LOST: (
        "Python worker exited unexpectedly",
        "java.io.IOException: Stream closed",  # the pipe to the process that starts workers
    ),
    TransientFailure.EXECUTOR_LOST: (
        "ExecutorLostFailure",
        "Executor heartbeat timed out",
        "MetadataFetchFailed",
        "FetchFailed",
        "ExecutorDeadException",
        "worker lost",
    ),
    TransientFailure.CONNECTION_LOST: (
        "RpcTimeoutException",
        "SocketTimeoutException",
        "java.net.SocketException",
        "Connection reset",
        "Connection refused",
        "Broken pipe",
        "java.io.EOFException",
        "ClosedChannelException",
        "java.util.concurrent.TimeoutException",
    ),
}
"""Parts of Spark's errors; the first that occurs decides."""


def classify_failure(error: BaseException) -> TransientFailure | None:
    """Return why a query ended, or None if a restart would meet the same error again."""
    if isinstance(error, QueryStalled):
        return TransientFailure.STALLED
    if isinstance(error, Fenced) and not error.by_newer:
        return TransientFailure.QUEUE_REPLACED
    if isinstance(error, SluiceError):
        return _BY_CLASS.get(type(error))
    return classify_text(f"{error}\n{read_stack(error)}")


def classify_text(text: str) -> TransientFailure | None:
    """Return the same for the text of a Spark exception.

    An error that sluice raised in a worker decides, whatever Spark reports around it.
    """
    raised = _SLUICE_ERROR.findall(text)
    if raised:
        return _BY_NAME.get(raised[-1])
    found = (failure for failure, parts in _TEXTS.items() if any(part in text for part in parts))
    return next(found, None)


def decide_restart(
    failure: TransientFailure | None, failures: int, settings: RestartSettings, rng: random.Random
) -> float | None:
    """Return the pause before the next start in seconds, or None if the job must stop.

    `failures` counts consecutive failures, with this one, without a committed micro-batch in
    between.
    """
    if settings.continuous and failure is TransientFailure.STORE_UNAVAILABLE:
        return rng.uniform(UNREACHABLE_PAUSE_S / 2, UNREACHABLE_PAUSE_S)
    # A store that was unreachable for a moment causes errors of every kind.
    restarts_max = settings.restarts_max if failure is not None else int(settings.continuous)
    if failures > restarts_max:
        return None
    doublings = min(failures - 1, _DOUBLINGS_MAX)
    limit_s = min(settings.backoff_max_s, settings.backoff_s * 2.0**doublings)
    return rng.uniform(limit_s / 2, limit_s)


_STOP_POLL_S: Final = 0.5
"""Interval at which the job checks for a stop signal."""
_PROGRESS_POLL_S: Final = 5.0
"""Interval at which the job checks for progress."""
_IDLE: Final = "Waiting for next trigger"
"""Spark's status of a query that has nothing to do."""

_log = structlog.get_logger("sluice.ingest")


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGINT and SIGTERM set, instead of interrupting a call into Spark.

    Only the main thread can handle signals; in other threads the event is never set.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.signal(number, lambda *_: stop.set()) for number in numbers]
    try:
        yield stop
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryState:
    """Whether the query works.

    Attributes:
        trouble: Why it is restarted; empty after a micro-batch or a check that found none to do.
    """

    trouble: str


@dataclass(slots=True)
class ProgressWatch:
    """Reports a stall: signs of progress that have not changed for `timeout_s`."""

    clock: Clock
    timeout_s: float
    _signs: object = None
    _changed_ns: int = 0

    def stalled(self, signs: object, *, idle: bool) -> bool:
        """Return True if the signs have not changed for the timeout and the query is not idle."""
        now_ns = self.clock.monotonic_ns()
        if idle or signs != self._signs or not self._changed_ns:
            self._signs, self._changed_ns = signs, now_ns
        return now_ns - self._changed_ns > self.timeout_s * NS_PER_S


@dataclass(slots=True, kw_only=True)
class QuerySupervisor:
    """Runs one query, and starts it again after transient errors.

    Attributes:
        take_failure: Returns and forgets the error that the callback of a micro-batch raised.
        rounds: Returns how many rounds the job has committed.
        store_answers: Returns False if the store cannot be read.
    """

    session: Session
    start: Callable[[], Any]
    take_failure: Callable[[], BaseException | None]
    rounds: Callable[[], int]
    store_answers: Callable[[], bool]
    report: Callable[[QueryState], None]
    settings: RestartSettings
    stall_timeout_s: float
    clock: Clock
    rng: random.Random
    _failures: int = field(default=0)
    _was_idle: bool = field(default=False)

    def run(self) -> None:
        """Run the query until it ends or a stop signal arrives.

        A service manager signals the JVM too, which may then end first: its end is no failure.
        """
        with stop_signals() as stop:
            while not stop.is_set():
                rounds = self.rounds()
                try:
                    error = self._run_once(stop)
                except JvmEnded:
                    if stop.is_set():
                        return
                    raise
                if error is None or stop.is_set():
                    return
                if self.rounds() > rounds or self._was_idle:
                    self._failures = 0
                stop.wait(self._pause_s(error))

    def _run_once(self, stop: threading.Event) -> BaseException | None:
        """Run the query once and return the error that ended it."""
        query = None
        self._was_idle = False
        try:
            query = self.start()
            self._wait(query, stop)
        except Exception as error:  # noqa: BLE001 - Spark raises any exception
            failure = self.take_failure()
            check_jvm(jvm_process(self.session), error)
            self._stop(query)
            return failure or error
        self._stop(query)
        return None

    def _wait(self, query: Any, stop: threading.Event) -> None:  # noqa: ANN401 - pyspark's query
        watch = ProgressWatch(self.clock, self.stall_timeout_s)
        polls, rounds = 0, self.rounds()
        while not stop.is_set() and not query.awaitTermination(_STOP_POLL_S):
            polls += 1
            if polls % int(_PROGRESS_POLL_S / _STOP_POLL_S):
                continue
            status = query.status
            idle = status.get("message") == _IDLE
            self._was_idle |= idle
            signs = (str(status), self.rounds(), self._finished_tasks())
            if idle or self.rounds() > rounds:
                self.report(QueryState(trouble=""))
            if watch.stalled(signs, idle=idle):
                raise QueryStalled(f"no progress for {self.stall_timeout_s:g} s: {status}")

    def _finished_tasks(self) -> tuple[tuple[int, int], ...]:
        tracker = self.session.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
        return tuple((stage.stageId, stage.numCompletedTasks) for stage in stages if stage)

    def _stop(self, query: Any) -> None:  # noqa: ANN401 - pyspark's query
        """Stop the query; two queries of one checkpoint must never run concurrently."""
        if query is None:
            return
        with suppress(Exception):
            query.stop()
        check_jvm(jvm_process(self.session))
        if query.isActive:
            if (process := jvm_process(self.session)) is not None:
                process.kill()
            raise JobFailed(
                "ingest stopped: the query could not be stopped in time; start the job again"
            )

    def _pause_s(self, error: BaseException) -> float:
        """Return the pause before the next start, or raise the error if there is none."""
        self._failures += 1
        failure = classify_failure(error)
        if isinstance(error, Fenced) and error.by_newer:
            raise error
        if not self.store_answers():
            # Whatever the query met, it met it because of that.
            failure = TransientFailure.STORE_UNAVAILABLE
        pause_s = decide_restart(failure, self._failures, self.settings, self.rng)
        if pause_s is None:
            raise_cause(error, failure, self._failures - 1)
        reason = failure.value if failure is not None else "unknown"
        self.report(QueryState(trouble=f"{reason}: {describe_failure(error)}"))
        _log.warning(
            "query_restarted",
            reason=reason,
            cause=describe_failure(error),
            restart=self._failures,
            restarts_max=self.settings.restarts_max,
            pause_s=round(pause_s, 3),
        )
        return pause_s


def raise_cause(
    error: BaseException, failure: TransientFailure | None = None, restarts: int = 0
) -> NoReturn:
    """Raise the original error rather than Spark's wrapper of it."""
    if isinstance(error, SluiceError):
        raise error
    tried = (
        f"; it was restarted {restarts} times without progress, reason=`{failure.value}`"
        if failure is not None
        else ""
    )
    raise JobFailed(f"ingest stopped: {describe_failure(error).rstrip('.')}{tried}") from error
