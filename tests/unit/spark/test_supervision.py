"""The supervisor with a scripted query in the place of Spark's: what it stops and restarts."""

import random
import signal
import threading
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from sluice_lake.errors import CommitConflict, TableRefused
from sluice_protocol.errors import (
    ChecksumRefused,
    Fenced,
    OutcomeUnknown,
    SluiceError,
    StoreDenied,
    StoreUnavailable,
)
from sluice_protocol.system_clock import SystemClock
from sluice_spark.errors import JobFailed, JvmEnded, LakeInconsistent
from sluice_spark.ingest import supervision
from sluice_spark.ingest.job import MicroBatchSink
from sluice_spark.ingest.supervision import (
    ProgressWatch,
    QueryStalled,
    QuerySupervisor,
    RestartSettings,
    TransientFailure,
    classify_failure,
    decide_restart,
)

WORKER = RuntimeError("[STREAM_FAILED] Query terminated: Python worker failed to connect back.")
CORRUPT = RuntimeError("[STREAM_FAILED] Query terminated with exception: bad log file")


@dataclass
class Script:
    """The outcome of each start: an error, or None if the query ends; and its committed rounds."""

    outcomes: list[BaseException | None]
    commits: list[int] = field(default_factory=list)
    stops: bool = True
    starts: int = 0
    rounds: int = 0
    failure: BaseException | None = None
    answers: list[bool] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)

    def start(self) -> "Script":
        self.starts += 1
        return self

    def awaitTermination(self, _: float) -> bool:  # noqa: N802 - Spark's name
        self.rounds += self.commits.pop(0) if self.commits else 0
        outcome = self.outcomes.pop(0)
        if outcome is None:
            return True
        if not isinstance(outcome, SluiceError):
            raise outcome
        self.failure = outcome
        raise RuntimeError("[STREAM_FAILED] Query terminated: py4j.Py4JException: callback")

    def stop(self) -> None:
        """Do nothing."""

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        return not self.stops

    def take_failure(self) -> BaseException | None:
        failure, self.failure = self.failure, None
        return failure


def run(script: Script, restarts_max: int = 3, *, continuous: bool = False) -> list[Any]:
    supervisor = QuerySupervisor(
        session=SimpleNamespace(sparkContext=SimpleNamespace(_gateway=None)),
        start=script.start,
        take_failure=script.take_failure,
        rounds=lambda: script.rounds,
        store_answers=lambda: script.answers.pop(0) if script.answers else True,
        report=lambda state: script.reports.append(state.trouble),
        settings=RestartSettings(restarts_max=restarts_max, backoff_s=0.001, continuous=continuous),
        stall_timeout_s=60.0,
        clock=SystemClock(),
        rng=random.Random(1),
    )
    with capture_logs() as logs:
        supervisor.run()
    return [(log["event"], log["reason"], log["restart"]) for log in logs]


def test_query_is_restarted_after_a_worker_that_did_not_start() -> None:
    script = Script([WORKER, WORKER, None])
    assert run(script) == [
        ("query_restarted", "worker_not_started", 1),
        ("query_restarted", "worker_not_started", 2),
    ]
    assert script.starts == 3


def test_restarts_without_progress_are_bounded() -> None:
    script = Script([WORKER] * 5)
    with pytest.raises(JobFailed, match=r"connect back; it was restarted 3 times without progress"):
        run(script)
    assert script.starts == 4


def test_a_committed_round_resets_the_count() -> None:
    script = Script([WORKER] * 6 + [None], commits=[0, 0, 1, 0, 0, 1])
    assert [restart for _, _, restart in run(script)] == [1, 2, 1, 2, 3, 1]


def test_final_errors_end_the_job_with_their_cause() -> None:
    with pytest.raises(JobFailed, match=r"^ingest stopped: bad log file$"):
        run(Script([CORRUPT]))
    script = Script([Fenced("register", 1, 2), None])
    with pytest.raises(Fenced):
        run(script)
    assert script.starts == 1


def test_a_query_that_does_not_stop_is_not_started_again() -> None:
    """Two queries of one checkpoint would write concurrently."""
    script = Script([WORKER, None], stops=False)
    with pytest.raises(JobFailed, match="could not be stopped"):
        run(script)
    assert script.starts == 1


@pytest.mark.parametrize("stops", [True, False])
def test_the_end_of_the_jvm_is_no_failure_of_a_job_that_was_told_to_stop(
    monkeypatch: pytest.MonkeyPatch, *, stops: bool
) -> None:
    """A service manager signals every process of a service, and the JVM ends first."""

    def end(*_: object) -> None:
        if stops:
            signal.raise_signal(signal.SIGTERM)
        raise JvmEnded("the JVM of Spark has ended")

    monkeypatch.setattr(supervision, "check_jvm", end)
    script = Script([WORKER, None])
    with nullcontext() if stops else pytest.raises(JvmEnded):
        run(script)
    assert script.starts == 1


def test_a_query_is_stalled_if_a_busy_one_shows_no_sign_of_progress() -> None:
    now = SimpleNamespace(ns=1)
    watch = ProgressWatch(SimpleNamespace(monotonic_ns=lambda: now.ns), 10.0)
    seen = []
    for at_s, signs, idle in [
        (0, "a", False),
        (9, "a", False),
        (11, "b", False),
        (20, "b", False),
        (22, "b", False),
        (40, "b", True),
        (49, "b", False),
        (51, "b", False),
    ]:
        now.ns = 1 + at_s * 10**9
        seen.append(watch.stalled(signs, idle=idle))
    assert seen == [False, False, False, False, True, False, False, True]


def test_a_continuous_job_outlasts_the_store_whatever_error_it_meets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No number of restarts ends it while the store is unreachable; a pause is a few seconds."""
    monkeypatch.setattr(supervision, "UNREACHABLE_PAUSE_S", 0.001)
    lost = Fenced("register", 3, 0)
    errors: list[BaseException | None] = [CORRUPT, WORKER, lost] * 7
    script = Script([*errors, None], answers=[False] * 21)
    found = run(script, continuous=True)
    assert {reason for _, reason, _ in found} == {"store_unavailable"}
    assert (len(found), script.starts) == (21, 22)
    assert script.reports[0] == "store_unavailable: bad log file"


def test_an_unknown_error_is_tried_once_by_a_continuous_job_only() -> None:
    """A store that was unreachable for a moment may cause it."""
    assert run(Script([CORRUPT, None]), continuous=True) == [("query_restarted", "unknown", 1)]
    script = Script([CORRUPT, CORRUPT])
    with pytest.raises(JobFailed, match="bad log file"):
        run(script, continuous=True)
    assert script.starts == 2


def test_a_newer_job_ends_the_older_one_also_while_the_store_is_away() -> None:
    script = Script([Fenced("register", 1, 2)], answers=[False])
    with pytest.raises(Fenced):
        run(script, continuous=True)
    assert script.starts == 1


def test_the_job_waits_for_its_running_micro_batch() -> None:
    """The process would crash if it ended while a thread of pyspark commits."""
    begun, go_on, order = threading.Event(), threading.Event(), []

    def ingest(_: object) -> None:
        begun.set()
        go_on.wait(10)
        order.append("committed")

    sink = MicroBatchSink(SimpleNamespace(ingest=ingest))
    frame = SimpleNamespace(toArrow=lambda: pa.table({}))
    running = threading.Thread(target=sink, args=(frame, 0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sluice_spark.ingest.job.decode_descriptors", lambda table: table)
        running.start()
        assert begun.wait(10)
        threading.Timer(0.1, go_on.set).start()
        sink.wait()
        order.append("ended")
        running.join()
    assert order == ["committed", "ended"]


STREAM_FAILED = "[STREAM_FAILED] Query [id = 17e4, runId = 93bc] terminated with exception: "
SETTINGS = RestartSettings(restarts_max=5, backoff_s=2.0, backoff_max_s=10.0)


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("Python worker failed to connect back.", TransientFailure.WORKER_NOT_STARTED),
        (
            "Timed out while waiting for the Python worker to connect back",
            TransientFailure.WORKER_NOT_STARTED,
        ),
        (
            'Cannot run program "python": error=11, Resource temporarily unavailable',
            TransientFailure.WORKER_NOT_STARTED,
        ),
        ("Python worker exited unexpectedly (crashed).", TransientFailure.WORKER_LOST),
        ("Caused by: java.io.IOException: Stream closed", TransientFailure.WORKER_LOST),
        ("Lost task 0.3: ExecutorLostFailure (executor 1 exited)", TransientFailure.EXECUTOR_LOST),
        ("Caused by: java.net.SocketException: Broken pipe", TransientFailure.CONNECTION_LOST),
        (
            "Traceback:\n  sluice_protocol.errors.StoreUnavailable: object store: timeout\n",
            TransientFailure.STORE_UNAVAILABLE,
        ),
        (
            "Traceback:\nsluice_lake.errors.CommitConflict: another writer committed first\n",
            TransientFailure.COMMIT_CONFLICT,
        ),
    ],
)
def test_errors_that_a_restart_may_repair_are_transient(
    text: str, failure: TransientFailure
) -> None:
    assert classify_failure(RuntimeError(f"{STREAM_FAILED}{text}")) is failure


@pytest.mark.parametrize(
    "text",
    [
        "Cannot run program python3.99: error=2, No such file or directory",
        "Failed to read log file file:/x/offsets/0.",
        "java.lang.OutOfMemoryError: Java heap space",
        "Traceback:\n  sluice_protocol.errors.BadUsage: the checkpoint belongs to another queue\n",
        # The error of the worker decides, not the connection that broke with it.
        "Traceback:\n  sluice_lake.errors.TableRefused: x\nCaused by: java.io.EOFException\n",
        "Traceback:\n  sluice_protocol.errors.Fenced: fenced\nPython worker exited unexpectedly\n",
    ],
)
def test_errors_that_a_restart_cannot_repair_are_final(text: str) -> None:
    assert classify_failure(RuntimeError(f"{STREAM_FAILED}{text}")) is None


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (StoreUnavailable("get", "k", "timeout"), TransientFailure.STORE_UNAVAILABLE),
        (OutcomeUnknown("create", "k", 3), TransientFailure.STORE_UNAVAILABLE),
        (ChecksumRefused("create", "k", "damaged"), TransientFailure.STORE_UNAVAILABLE),
        (CommitConflict("logs", "version 3"), TransientFailure.COMMIT_CONFLICT),
        (StoreDenied("get", "k", "403"), None),
        (Fenced("r", 1, 2), None),
        (LakeInconsistent(0, "gap", "rebuild"), None),
        (TableRefused("logs", "feature"), None),
        (JobFailed("ingest stopped"), None),
    ],
)
def test_errors_of_sluice_are_classified_by_their_class(
    error: SluiceError, failure: TransientFailure | None
) -> None:
    assert classify_failure(error) is failure


def test_a_stalled_query_is_restarted() -> None:
    assert classify_failure(QueryStalled("no progress")) is TransientFailure.STALLED


def test_pauses_double_up_to_a_limit_with_jitter_and_end() -> None:
    rng = random.Random(1)
    failure = TransientFailure.WORKER_LOST
    pauses = [decide_restart(failure, n, SETTINGS, rng) for n in range(1, 7)]
    limits = [2.0, 4.0, 8.0, 10.0, 10.0]
    for pause, limit in zip(pauses, limits, strict=False):
        assert pause is not None
        assert limit / 2 <= pause <= limit
    assert pauses[5] is None
    again = [decide_restart(failure, n, SETTINGS, random.Random(2)) for n in (1, 1)]
    assert again[0] != pauses[0]


def test_a_final_error_is_never_restarted() -> None:
    assert decide_restart(None, 1, SETTINGS, random.Random(1)) is None
