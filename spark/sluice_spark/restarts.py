"""Decide whether an ingest query that ended with an error is started again, and after which pause.

An error is transient if the same query may succeed a moment later without a change: a Python
worker that started too slowly, a lost process, a broken connection, an unreachable store. Every
other error ends the job, because a restart would meet it again; a continuous job tries it once.
"""

import random  # noqa: TID251 - the type of the source of jitter, which the caller passes
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sluice_lake.errors import CommitConflict
from sluice_protocol.errors import (
    ChecksumRefused,
    Fenced,
    OutcomeUnknown,
    SluiceError,
    StoreUnavailable,
)
from sluice_spark.errors import CheckpointAhead, read_stack

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
    QUEUE_REBUILT = "queue_rebuilt"
    """The query continues after entries that the rebuilt queue has not assigned yet."""
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
    CheckpointAhead: TransientFailure.QUEUE_REBUILT,
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
        return TransientFailure.QUEUE_REBUILT
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

    Args:
        failure: The result of `classify_failure`.
        failures: Consecutive failures without a committed micro-batch in between, with this one.
        settings: The bounds.
        rng: The source of jitter.
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
