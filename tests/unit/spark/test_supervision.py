"""The supervisor with a scripted query in the place of Spark's."""

import random
import signal
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from sluice_protocol.errors import Fenced, SluiceError
from sluice_protocol.system_clock import SystemClock
from sluice_spark.errors import JobFailed, JvmEnded
from sluice_spark.ingest import supervision
from sluice_spark.ingest.supervision import ProgressWatch, QuerySupervisor, RestartSettings

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
