"""The state of every task as the status page, the JSON document and the command show it."""

from collections.abc import Mapping
from typing import Final

import msgspec

from sluice_maintain.lease_rules import TROUBLES, has_trouble, is_leased, settle
from sluice_maintain.scheduler import ScheduleDecision, Situation, WaitReason
from sluice_maintain.task_store import TaskStore
from sluice_maintain.tasks import TaskName
from sluice_maintain.time_windows import describe_instant
from sluice_protocol.maintenance import TaskRecord, TaskRun
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import NS_PER_S
from sluice_store.authority import read_authority
from sluice_store.port import ObjectStore
from sluice_store.url import StoreMode, open_store

_OVERDUE_MIN_S: Final = 600.0
"""Time after which a task that is due and does not run is a problem, at least."""
_OVERDUE_INTERVALS: Final = 2.0


class TaskStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One task.

    Attributes:
        state: `running`, or why it waits: a `WaitReason`; `idle` if the reader has no policies.
        runs_here: Whether the process that reports this runs it.
        lease_owner: The process with the lease, or empty.
        lease_expires_unix_ns: End of the lease, or None.
        next_run_unix_ns: When it is expected to run next, or None.
        overdue_s: Seconds since it was due, beyond the tolerance of two intervals; else 0.
        last_success_unix_ns: End of the last successful run, or None.
        last_outcome: How the last run ended; empty before the first.
        last_reason: Why it did not succeed.
        halted: Why it waits for `sluice maintain resume`; empty if it does not.
        failing: Why its work did not succeed the last time; empty once it has.
        stuck: Why it does not get on although it runs; empty if it does.
        figures: What the running or the last run of a continuous task has counted.
        runs: The last runs, the newest last.
    """

    task: str
    state: str
    runs_here: bool
    lease_owner: str
    lease_expires_unix_ns: int | None
    next_run_unix_ns: int | None
    overdue_s: float
    last_success_unix_ns: int | None
    last_outcome: str
    last_reason: str
    last_duration_s: float | None
    failures: int
    halted: str
    failing: str
    stuck: str
    figures: dict[str, float]
    runs: tuple[TaskRun, ...]

    @property
    def trouble(self) -> str:
        """The problem that an operator should know; empty without one."""
        if self.halted:
            after = f"remove the cause, then run `sluice maintain resume {self.task}`"
            return f"halted: {self.halted}; {after}"
        if self.state == WaitReason.OFF:
            return ""
        if self.stuck:
            return f"it runs and does not get on: {self.stuck}; it tries again"
        if self.failing:
            return f"{self.failing}; {self._retry()}"
        if self.overdue_s > 0:
            return f"overdue by {self.overdue_s:.0f} s: no process runs it"
        return ""

    def _retry(self) -> str:
        """Say when the task is tried again, and how an operator starts it before."""
        now = f"run `sluice maintain resume {self.task}` to start it now"
        if self.lease_owner:
            return "it runs again since, without a success so far"
        if self.next_run_unix_ns is None:
            return now
        return f"the next run is at {describe_instant(self.next_run_unix_ns)}; {now}"


class MaintenanceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Every task, at a time of the store's clock.

    Attributes:
        checked_at_unix_ns: When the records were read.
        owner: The process that reports this; empty for the command.
    """

    checked_at_unix_ns: int
    owner: str
    tasks: tuple[TaskStatus, ...]

    @property
    def found_wrong(self) -> bool:
        """Return True if a task has a problem."""
        return any(one.trouble for one in self.tasks)


def count_dead_letters(status: MaintenanceStatus | None) -> int | None:
    """Return the number of open dead letters that the ingest task last counted, if it did."""
    for task in status.tasks if status is not None else ():
        if task.task == TaskName.INGEST and "dead_letters_open" in task.figures:
            return int(task.figures["dead_letters_open"])
    return None


def show_situation(situation: Situation, decision: ScheduleDecision) -> MaintenanceStatus:
    """Return the status that a process with policies reports."""
    tasks = []
    for task in TaskName:
        wait = decision.waiting.get(task)
        state = "due" if wait is None else wait.reason.value
        if task in situation.running:
            state = "running"
        record = settle(situation.records[task], situation.now_ns)
        next_ns = record.due_at_unix_ns if record is not None else None
        if wait is not None and wait.until_ns is not None and wait.reason is not WaitReason.LEASED:
            next_ns = wait.until_ns
        shown = _show_task(task, record, state, situation.now_ns, next_ns=next_ns)
        tasks.append(msgspec.structs.replace(shown, runs_here=task in situation.running))
    return MaintenanceStatus(
        checked_at_unix_ns=situation.now_ns, owner=situation.owner, tasks=tuple(tasks)
    )


def show_records(records: Mapping[TaskName, TaskRecord | None], now_ns: int) -> MaintenanceStatus:
    """Return the status that a reader without policies reports."""
    tasks = []
    for task, stored in records.items():
        record = settle(stored, now_ns)
        state = "running" if is_leased(record, now_ns) else "idle" if record else "never_ran"
        due_ns = record.due_at_unix_ns if record is not None else None
        tasks.append(_show_task(task, record, state, now_ns, next_ns=due_ns))
    return MaintenanceStatus(checked_at_unix_ns=now_ns, owner="", tasks=tuple(tasks))


async def read_stored_status(store: ObjectStore) -> MaintenanceStatus:
    """Return the state of every task from the records in a store, without a running process."""
    tasks = TaskStore(store, SystemClock(), SystemIds(), "")
    return show_records(*await tasks.read_every())


async def read_status_at(url: str) -> MaintenanceStatus:
    """Return the state of every task from the records in the store at a URL."""
    async with open_store(url, StoreMode.READ) as store:
        await read_authority(store)
        return await read_stored_status(store)


def _show_task(
    task: TaskName, record: TaskRecord | None, state: str, now_ns: int, *, next_ns: int | None
) -> TaskStatus:
    lease = record.lease if record is not None else None
    last = record.last_run if record is not None else None
    progress = record.progress if record is not None else None
    overdue_s = 0.0
    if record is not None and lease is None and not record.halted and state != WaitReason.OFF:
        overdue_s = overdue(record, now_ns)
    return TaskStatus(
        task=task.value,
        state=state,
        runs_here=False,
        lease_owner=lease.owner if lease is not None else "",
        lease_expires_unix_ns=lease.expires_at_unix_ns if lease is not None else None,
        next_run_unix_ns=next_ns,
        overdue_s=overdue_s,
        last_success_unix_ns=record.last_success_unix_ns if record is not None else None,
        last_outcome=last.outcome if last is not None else "",
        last_reason=last.reason if last is not None else "",
        last_duration_s=_duration_s(last) if last is not None else None,
        failures=record.failures if record is not None else 0,
        halted=record.halted if record is not None else "",
        failing=_failing(record),
        stuck=progress.trouble if lease is not None and progress is not None else "",
        figures=progress.figures if progress is not None else last.figures if last else {},
        runs=record.runs if record is not None else (),
    )


def _failing(record: TaskRecord | None) -> str:
    if record is None or record.last_run is None or not has_trouble(record):
        return ""
    failed = record.last_run
    if failed.outcome not in TROUBLES:  # it was stopped or lost before it could succeed
        failed = next((one for one in reversed(record.runs) if one.outcome in TROUBLES), failed)
    return f"{failed.outcome}: {failed.reason}"


def overdue(record: TaskRecord, now_ns: int) -> float:
    """Return the seconds since a task was due, or 0 within two intervals or ten minutes."""
    if record.due_at_unix_ns is None:
        return 0.0
    late_s = (now_ns - record.due_at_unix_ns) / NS_PER_S
    tolerated_s = max(_OVERDUE_MIN_S, _OVERDUE_INTERVALS * record.every_s)
    return late_s if late_s > tolerated_s else 0.0


def _duration_s(run: TaskRun) -> float:
    return (run.ended_at_unix_ns - run.started_at_unix_ns) / NS_PER_S
