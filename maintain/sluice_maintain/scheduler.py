"""Decide which tasks start now. The decision is a pure function of time, policies and records.

- A task is due one interval after the start of its last run. After a first failure it is due after
  seconds, then after a pause that doubles until the work succeeds; a pause affects only the task
  that failed. A store that was unreachable is no failure, and its pause stays short.
- A missed run is not made up: whatever time has passed, one run is due.
- Of the due tasks, the one that is due longest starts first. A due task that has to wait for
  another one reserves what it changes, so that later tasks cannot keep it waiting.
- Jitter is a hash of the process, the task and its last run. It is equal in each decision, and
  differs between two processes.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sluice_maintain.lease_rules import is_leased, settle
from sluice_maintain.settings import TaskPolicy
from sluice_maintain.tasks import TRAITS, TaskName, WorkerKind
from sluice_maintain.time_windows import next_open_ns, parse_windows
from sluice_protocol.maintenance import RunOutcome, TaskRecord, TaskRun
from sluice_protocol.units import NS_PER_S

_DOUBLINGS_MAX: Final = 30
_RESTART_S: Final = 1.0
"""Pause before a continuous task, or one that was stopped, starts again."""
_FIRST_PAUSE_S: Final = 5.0
"""Longest pause after a first failure, and while the store is unreachable.

A store that is unreachable for a moment delays a task by seconds. While the records of tasks
cannot be read, nothing starts at all.
"""
_DENIED_PAUSE_S: Final = 20.0
"""Longest pause of a continuous task after the store denied a request.

Keys that expired, a policy that is being changed and a wrong clock deny requests for a minute, and
then ingestion must continue within seconds. A denied start costs a few requests and no JVM. Other
tasks pause as after a failure.
"""
FENCED_WAIT_S: Final = 600.0
"""Pause after another ingest job acquired the queue: two must not fence each other all day."""


class WaitReason(StrEnum):
    """Why a task does not start now."""

    OFF = "off"
    RUNNING = "running"
    HALTED = "halted"
    LEASED = "leased"
    NOT_DUE = "not_due"
    BACKING_OFF = "backing_off"
    WINDOW = "window"
    CONFLICT = "conflict"
    NO_SLOT = "no_slot"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWait:
    """Why a task waits, and until when if that is known."""

    reason: WaitReason
    until_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What the decision depends on.

    Attributes:
        records: None before its first run.
        slots: How many tasks of each kind of worker may run concurrently in this process.
    """

    now_ns: int
    owner: str
    policies: Mapping[TaskName, TaskPolicy]
    records: Mapping[TaskName, TaskRecord | None]
    running: frozenset[TaskName]
    slots: Mapping[WorkerKind, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDecision:
    """The tasks to start now, in order, and why each other task waits."""

    start: tuple[TaskName, ...]
    waiting: Mapping[TaskName, TaskWait]


def jitter_of(*parts: object) -> float:
    """Return a number from 0 to below 1 that depends on the parts only."""
    text = "\0".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48


def pause_s(policy: TaskPolicy, failures: int, jitter: float) -> float:
    """Return the pause after a number of consecutive failures: half of it is jitter."""
    doublings = min(max(failures - 2, 0), _DOUBLINGS_MAX)
    limit_s = min(policy.backoff_max_s, policy.backoff_s * 2.0**doublings)
    if failures <= 1:
        limit_s = min(_FIRST_PAUSE_S, limit_s)
    return limit_s * (0.5 + jitter / 2)


def due_at(policy: TaskPolicy, record: TaskRecord | None, owner: str) -> int:
    """Return when a task is due by its interval or its pause, without its window; 0 at first."""
    last = record.last_run if record is not None else None
    if record is None or last is None:
        return 0
    delay = jitter_of(owner, policy.task, last.started_at_unix_ns)
    after_s = _pause_after(policy, record, last, delay)
    if after_s is None:
        return last.started_at_unix_ns + _ns(policy.every_s * (1 + policy.jitter * delay))
    return last.ended_at_unix_ns + _ns(after_s)


def _pause_after(
    policy: TaskPolicy, record: TaskRecord, last: TaskRun, delay: float
) -> float | None:
    """Return the pause after the last run, seconds; None if the interval of the task counts."""
    failures = record.failures
    after_s: float | None = None
    if record.resumed:
        after_s = 0.0
    elif last.outcome == RunOutcome.UNREACHABLE:
        after_s = pause_s(policy, 1, delay)
    elif last.outcome == RunOutcome.NOT_PERMITTED and TRAITS[policy.task].continuous:
        after_s = min(_DENIED_PAUSE_S * (0.5 + delay / 2), pause_s(policy, failures, delay))
    elif failures:
        # The lease of a lost run was a pause already.
        lost = last.outcome == RunOutcome.LOST
        after_s = 0.0 if lost and failures == 1 else pause_s(policy, failures - lost, delay)
    elif last.outcome == RunOutcome.FENCED and TRAITS[policy.task].continuous:
        after_s = FENCED_WAIT_S * (1 + delay / 2)
    elif TRAITS[policy.task].continuous or last.outcome == RunOutcome.STOPPED:
        after_s = _RESTART_S
    return after_s


def next_start_at(
    policy: TaskPolicy, record: TaskRecord | None, owner: str, now_ns: int
) -> tuple[int, bool]:
    """Return when a task may start next, and whether only its window delays it.

    If the store's clock was set back and the last run is in its future, the next run is delayed by
    at most one interval.
    """
    longest_ns = now_ns + _ns(max(policy.every_s * (1 + policy.jitter), policy.backoff_max_s))
    due_ns = min(due_at(policy, record, owner), longest_ns)
    opens_ns = next_open_ns(parse_windows(policy.window), max(due_ns, now_ns))
    return (opens_ns, True) if opens_ns > max(due_ns, now_ns) else (due_ns, False)


def decide(situation: Situation) -> ScheduleDecision:
    """Decide which tasks start now and why the others wait."""
    waiting: dict[TaskName, TaskWait] = {}
    due: list[tuple[int, TaskName]] = []
    for task in TaskName:
        at_ns, wait = _wait_of(task, situation)
        if wait is None:
            due.append((at_ns, task))
        else:
            waiting[task] = wait
    free = _free_slots(situation)
    reserved = _touched_now(situation)
    start: list[TaskName] = []
    order = list(TRAITS)
    for _, task in sorted(due, key=lambda one: (one[0], order.index(one[1]))):
        traits = TRAITS[task]
        if traits.touches & reserved:
            waiting[task] = TaskWait(reason=WaitReason.CONFLICT)
        elif free[traits.worker] < 1:
            waiting[task] = TaskWait(reason=WaitReason.NO_SLOT)
        else:
            start.append(task)
            free[traits.worker] -= 1
        reserved |= traits.touches
    return ScheduleDecision(start=tuple(start), waiting=waiting)


def _wait_of(task: TaskName, situation: Situation) -> tuple[int, TaskWait | None]:
    """Return when a task became due and, if it cannot be considered now, why not."""
    policy = situation.policies[task]
    record = settle(situation.records[task], situation.now_ns)
    if task in situation.running:
        return 0, TaskWait(reason=WaitReason.RUNNING)
    if not policy.enabled:
        return 0, TaskWait(reason=WaitReason.OFF)
    if record is not None and record.halted:
        return 0, TaskWait(reason=WaitReason.HALTED)
    if record is not None and record.lease is not None:
        until_ns = record.lease.expires_at_unix_ns
        return 0, TaskWait(reason=WaitReason.LEASED, until_ns=until_ns)
    at_ns, by_window = next_start_at(policy, record, situation.owner, situation.now_ns)
    if at_ns <= situation.now_ns:
        return at_ns, None
    reason = WaitReason.NOT_DUE
    if by_window:
        reason = WaitReason.WINDOW
    elif record is not None and record.failures:
        reason = WaitReason.BACKING_OFF
    return at_ns, TaskWait(reason=reason, until_ns=at_ns)


def _touched_now(situation: Situation) -> frozenset[str]:
    """Return what the tasks change that run here or have a lease elsewhere."""
    busy = {
        task
        for task, record in situation.records.items()
        if task in situation.running or is_leased(record, situation.now_ns)
    }
    return frozenset().union(*(TRAITS[task].touches for task in busy | situation.running))


def _free_slots(situation: Situation) -> dict[WorkerKind, int]:
    free = dict(situation.slots)
    for task in situation.running:
        free[TRAITS[task].worker] -= 1
    return free


def _ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)
