"""The record of a maintenance task: who runs it now, how its last runs ended, and its rights.

There is one object per task, `maintain/v1/tasks/<task>.json`, replaced by compare-and-swap. It
contains the lease and the history together. The swap that records a run therefore also ends its
lease. The number of tasks is fixed and the history is bounded, so nothing here grows.

Policies are rendered from the table of what each task reads, writes and deletes, and
`sluice maintain` tries it at its start. No task both certifies what the store contains and deletes
blobs by such a certificate: `audit` and `expire` do the one and `gc` the other (ADR 39, 48).
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final, Literal

import msgspec

from sluice_protocol import keys
from sluice_protocol.blob_deletion import SWEPT
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import MAINTAIN_TASKS
from sluice_protocol.manifests import decode_record
from sluice_protocol.units import ObjectKey

RUNS_MAX: Final = 20
"""Number of runs that a record keeps."""
REASON_CHARS_MAX: Final = 600


class RunOutcome(StrEnum):
    """How a run ended."""

    DONE = "done"
    FOUND_WRONG = "found_wrong"
    """The run succeeded and found a problem that an operator must act on."""
    REFUSED = "refused"
    """A safety rule refused; the task is halted until an operator resumes it."""
    NOT_PERMITTED = "not_permitted"
    """The store denied a request: the role of the process has not the rights of the task."""
    FENCED = "fenced"
    """Another ingest job has acquired the queue."""
    FAILED = "failed"
    UNREACHABLE = "unreachable"
    """The store was unreachable, or could not be written; no fault of the task."""
    STOPPED = "stopped"
    """The process stopped the run because it ends."""
    LOST = "lost"
    """The lease expired without a result: the process was killed or suspended."""


class TaskLease(msgspec.Struct, frozen=True, kw_only=True):
    """The right to run a task.

    `owner` is host name, process id and a random part. `nonce` is the ULID of this acquisition.
    Another process may acquire it from `expires_at_unix_ns` on. Times are those of the store's
    clock.
    """

    owner: str
    nonce: str
    started_at_unix_ns: int
    expires_at_unix_ns: int


class TaskRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run that has ended.

    `ended_at_unix_ns` of a lost run is the end of its lease. `outcome` is a `RunOutcome` as text,
    because a later version may know others. Times are those of the store's clock.
    """

    started_at_unix_ns: int
    ended_at_unix_ns: int
    outcome: str
    owner: str
    reason: str = ""
    figures: dict[str, float] = {}


class TaskProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What a running task last reported.

    `trouble` is why it makes no progress, although it runs; empty if it does. `at_unix_ns` is when
    that was recorded, by the store's clock.
    """

    at_unix_ns: int
    trouble: str = ""
    figures: dict[str, float] = {}


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one task, replaced by compare-and-swap.

    A lease saves work and proves nothing (ADR 42).

    Attributes:
        nonce: ULID of this write, so that bytes never repeat.
        halted: Why the task does not run until an operator resumes it; empty if it runs.
        failures: Failed or lost runs since the last success.
        last_success_unix_ns: End of the last successful run, or the last progress of a continuous
            task; None if there was neither.
        due_at_unix_ns: When the last process expected the next run, or None.
        every_s: The interval of the task in the settings of that process, seconds.
        runs: The last `RUNS_MAX` runs, the newest last.
        resumed: Whether an operator wants the next run now.
    """

    schema: Literal["sluice.maintenance_task.v1"] = "sluice.maintenance_task.v1"
    task: str
    revision: int
    nonce: str
    lease: TaskLease | None = None
    halted: str = ""
    failures: int = 0
    last_success_unix_ns: int | None = None
    due_at_unix_ns: int | None = None
    every_s: float = 0.0
    runs: tuple[TaskRun, ...] = ()
    progress: TaskProgress | None = None
    resumed: bool = False

    @property
    def last_run(self) -> TaskRun | None:
        """The newest run, or None."""
        return self.runs[-1] if self.runs else None


def task_record_key(task: str) -> ObjectKey:
    """Return the key of the record of a task."""
    return ObjectKey(f"{MAINTAIN_TASKS}{task}.json")


def decode_task_record(key: str, body: bytes) -> TaskRecord:
    """Decode the record of a task."""
    found = decode_record(key, body, TaskRecord)
    if task_record_key(found.task) != key:
        raise InvalidRecord(key, "maintenance record belongs under another key")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRights:
    """The rights of one task, as prefixes relative to the deployment.

    `uploads` is where it writes large files in parts, and `expires` where it deletes exact versions
    only.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...] = ()
    uploads: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()
    expires: tuple[str, ...] = ()


LEASES: Final = TaskRights(reads=(keys.AUTHORITY, keys.MAINTAIN), writes=(keys.MAINTAIN,))
"""The rights of the process that schedules, for any task."""

_EVIDENCE: Final = (
    *(keys.AUTHORITY, keys.ACCEPTED, keys.QUARANTINE, keys.RAW_BLOBS),
    *(keys.ACCEPTED_BY_BLOB, keys.QUARANTINE_BY_BLOB, keys.RAW_BLOBS_BY_TIME),
    *(keys.AUDIT, keys.GC_EVIDENCE, keys.GC_PLANS, keys.RETENTION, keys.EXPIRED),
)

TASK_RIGHTS: Final = {
    "ingest": TaskRights(
        reads=(
            *(keys.AUTHORITY, keys.QUEUE, keys.WORK_LISTS, keys.RAW_BLOBS, keys.ACCEPTED),
            *(keys.LAKE, keys.PROMOTIONS),
        ),
        # It enqueues restored dead letters again.
        writes=(keys.QUEUE, keys.WORK_LISTS, keys.LAKE),
        uploads=(keys.LAKE,),
        deletes=(keys.LAKE,),
    ),
    "rollup": TaskRights(
        # It leaves out deletes that a hold stops.
        reads=(
            *(keys.AUTHORITY, keys.LAKE, keys.ROLLUP, keys.DELETES, keys.ACTIVE_DELETES),
            keys.RETENTION,
        ),
        writes=(keys.LAKE, keys.ROLLUP),
        uploads=(keys.LAKE,),
        deletes=(keys.LAKE, keys.ROLLUP),
    ),
    "compact": TaskRights(
        reads=(
            *(keys.AUTHORITY, keys.LAKE, keys.ROLLUP, keys.DELETES, keys.ACTIVE_DELETES),
            *(keys.PROMOTIONS, keys.RETENTION),
        ),
        writes=(keys.LAKE, keys.ACTIVE_DELETES, keys.ROLLUP),
        uploads=(keys.LAKE,),
        deletes=(keys.LAKE, keys.ROLLUP),
    ),
    "index": TaskRights(
        reads=(keys.AUTHORITY, keys.LAKE, keys.INDEX), writes=(keys.INDEX,), expires=(keys.INDEX,)
    ),
    "retention": TaskRights(
        reads=(keys.DELETES, keys.ACTIVE_DELETES, keys.RETENTION),
        writes=(keys.DELETES, keys.ACTIVE_DELETES),
    ),
    "queue": TaskRights(
        reads=(keys.AUTHORITY, keys.QUEUE, keys.WORK_LISTS), deletes=(keys.QUEUE, keys.WORK_LISTS)
    ),
    "noncurrent": TaskRights(reads=SWEPT, expires=SWEPT),
    "audit": TaskRights(
        reads=_EVIDENCE,
        writes=(
            *(keys.ACCEPTED_BY_BLOB, keys.QUARANTINE_BY_BLOB),
            *(keys.AUDIT, keys.GC_EVIDENCE, keys.GC_PLANS),
        ),
        deletes=(keys.GC_EVIDENCE,),
    ),
    "gc": TaskRights(
        # Of the lake it reads the log entries that tombstones name.
        reads=(*_EVIDENCE, keys.GC_APPROVALS, keys.GC_PROOFS, keys.GC_TRASH, keys.LAKE),
        writes=(keys.GC_PLANS, keys.GC_PROOFS, keys.GC_TRASH),
        expires=(keys.RAW_BLOBS,),
    ),
    "expire": TaskRights(
        reads=(
            *(*_EVIDENCE, keys.QUEUE, keys.WORK_LISTS, keys.RECONCILER, keys.LAKE, keys.DELETES),
        ),
        writes=(keys.EXPIRED,),
    ),
}
"""By the name of the task. `gc` is the execution of plans; a whole cycle needs `audit` too."""

CERTIFYING: Final = frozenset({"audit", "gc", "expire"})
"""The tasks that the maintainer role does not run: each has a separate role."""


def union_of(parts: Iterable[TaskRights]) -> TaskRights:
    """Return the rights of several tasks together, without any that another one contains."""
    found = list(parts)
    both = {
        one.name: _widest([prefix for part in found for prefix in getattr(part, one.name)])
        for one in fields(TaskRights)
    }
    # A right to delete objects is a right to delete their versions.
    both["expires"] = tuple(one for one in both["expires"] if one not in both["deletes"])
    return TaskRights(**both)


def _widest(prefixes: list[str]) -> tuple[str, ...]:
    unique = list(dict.fromkeys(prefixes))
    return tuple(
        one for one in unique if not any(one != other and one.startswith(other) for other in unique)
    )
