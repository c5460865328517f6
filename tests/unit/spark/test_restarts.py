import random

import pytest

from sluice_lake.errors import CommitConflict, TableRefused
from sluice_protocol.errors import (
    ChecksumRefused,
    Fenced,
    OutcomeUnknown,
    SluiceError,
    StoreDenied,
    StoreUnavailable,
)
from sluice_spark.errors import JobFailed, LakeInconsistent
from sluice_spark.ingest.supervision import (
    QueryStalled,
    RestartSettings,
    TransientFailure,
    classify_failure,
    decide_restart,
)

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
