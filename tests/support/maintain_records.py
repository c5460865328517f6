"""Records of maintenance tasks for tests."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sluice_maintain.scheduler import Situation
from sluice_maintain.settings import MaintainSettings, TaskPolicy
from sluice_maintain.tasks import TaskName, WorkerKind
from sluice_protocol.maintenance import RunOutcome, TaskLease, TaskRecord, TaskRun
from sluice_protocol.units import NS_PER_S

NOW_NS = 1_767_225_600 * NS_PER_S
"""2026-01-01T00:00:00Z, a Thursday."""
SLOTS = {WorkerKind.INGEST: 1, WorkerKind.SPARK: 2, WorkerKind.PLAIN: 2}


def at(seconds: float) -> int:
    """Return an instant, seconds after `NOW_NS`."""
    return NOW_NS + round(seconds * NS_PER_S)


def ran(
    task: TaskName,
    outcome: RunOutcome = RunOutcome.DONE,
    *,
    started_s: float,
    ended_s: float,
    failures: int = 0,
) -> TaskRecord:
    """Return the record of a task with one run."""
    run = TaskRun(
        started_at_unix_ns=at(started_s),
        ended_at_unix_ns=at(ended_s),
        outcome=outcome.value,
        owner="a",
    )
    return TaskRecord(task=task.value, revision=1, nonce="n", runs=(run,), failures=failures)


def policy_of(task: TaskName, **values: Any) -> TaskPolicy:
    """Return the policy of a task that is on, with other values than the default ones."""
    return replace(MaintainSettings(tasks=tuple(TaskName)).policies()[task], **values)


def leased(
    task: TaskName, *, owner: str = "b", started_s: float = 0.0, expires_s: float = 60.0
) -> TaskRecord:
    """Return the record of a task that a process runs."""
    lease = TaskLease(
        owner=owner,
        nonce="lease",
        started_at_unix_ns=at(started_s),
        expires_at_unix_ns=at(expires_s),
    )
    return TaskRecord(task=task.value, revision=1, nonce="n", lease=lease)


def situation(
    *records: TaskRecord,
    now_s: float = 0.0,
    settings: MaintainSettings | None = None,
    policies: Mapping[TaskName, TaskPolicy] | None = None,
    running: frozenset[TaskName] = frozenset(),
    slots: dict[WorkerKind, int] | None = None,
    owner: str = "a",
) -> Situation:
    """Return a situation; tasks without a record never ran."""
    known: dict[TaskName, TaskRecord | None] = dict.fromkeys(TaskName)
    known |= {TaskName(record.task): record for record in records}
    return Situation(
        now_ns=at(now_s),
        owner=owner,
        policies=policies or (settings or MaintainSettings()).policies(),
        records=known,
        running=running,
        slots=slots or SLOTS,
    )
