"""The tasks of maintenance: where each runs, and what each changes."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class TaskName(StrEnum):
    """A task; its value names its policy in the settings, its record and its metrics."""

    INGEST = "ingest"
    ROLLUP = "rollup"
    COMPACT = "compact"
    INDEX = "index"
    RETENTION = "retention"
    QUEUE = "queue"
    NONCURRENT = "noncurrent"
    AUDIT = "audit"
    GC = "gc"
    EXPIRE = "expire"


class WorkerKind(StrEnum):
    """A kind of worker process. All jobs of one kind share a process."""

    INGEST = "ingest"
    SPARK = "spark"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTraits:
    """What the scheduler must know about a task.

    Attributes:
        touches: Tasks that change the same thing never run concurrently.
    """

    worker: WorkerKind
    touches: frozenset[str]
    continuous: bool = False


TRAITS: Final = {
    TaskName.INGEST: TaskTraits(
        worker=WorkerKind.INGEST, touches=frozenset({"ingest"}), continuous=True
    ),
    TaskName.ROLLUP: TaskTraits(worker=WorkerKind.SPARK, touches=frozenset({"rollups"})),
    # An index of files that compaction replaces a moment later would be wasted.
    TaskName.COMPACT: TaskTraits(worker=WorkerKind.SPARK, touches=frozenset({"data files"})),
    TaskName.INDEX: TaskTraits(worker=WorkerKind.SPARK, touches=frozenset({"data files"})),
    TaskName.RETENTION: TaskTraits(worker=WorkerKind.PLAIN, touches=frozenset({"deletes"})),
    TaskName.QUEUE: TaskTraits(worker=WorkerKind.PLAIN, touches=frozenset({"queue"})),
    # It deletes under no prefix under which garbage collection deletes.
    TaskName.NONCURRENT: TaskTraits(worker=WorkerKind.PLAIN, touches=frozenset({"versions"})),
    # A cycle of garbage collection contains an audit.
    TaskName.AUDIT: TaskTraits(worker=WorkerKind.PLAIN, touches=frozenset({"audits"})),
    TaskName.GC: TaskTraits(worker=WorkerKind.PLAIN, touches=frozenset({"audits"})),
    # It reads the data files that compaction replaces, and leaves a slot to rollups. It may run
    # next to an audit, because the evidence of the newest two is kept.
    TaskName.EXPIRE: TaskTraits(worker=WorkerKind.SPARK, touches=frozenset({"data files"})),
}
"""The traits of every task, in the order in which tasks that never ran are started."""


def conflicting(task: TaskName) -> tuple[TaskName, ...]:
    """Return the other tasks that change something that this task changes."""
    touched = TRAITS[task].touches
    return tuple(one for one in TaskName if one is not task and TRAITS[one].touches & touched)
