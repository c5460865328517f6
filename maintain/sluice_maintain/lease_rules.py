"""How the record of a task changes: acquire, renew, end a run, resume. All functions are pure.

A rule takes the current record, the time and the writer, and returns the new record or None.

Times are of the store's clock. A lease prevents wasted work; it proves nothing. Every task is
correct if two processes run it, because its own commits are conditional.
"""

from dataclasses import dataclass

from msgspec.structs import replace

from sluice_protocol.maintenance import (
    REASON_CHARS_MAX,
    RUNS_MAX,
    RunOutcome,
    TaskLease,
    TaskProgress,
    TaskRecord,
    TaskRun,
)
from sluice_protocol.units import NS_PER_S

SUCCESSES = frozenset({RunOutcome.DONE, RunOutcome.FOUND_WRONG})
TROUBLES = frozenset(
    {
        RunOutcome.FOUND_WRONG,
        RunOutcome.REFUSED,
        RunOutcome.NOT_PERMITTED,
        RunOutcome.FAILED,
        RunOutcome.UNREACHABLE,
    }
)
"""Outcomes that an operator should know about, until the work has succeeded."""
_FAILURES = frozenset({RunOutcome.FAILED, RunOutcome.LOST, RunOutcome.NOT_PERMITTED})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """What a running job reports: why it makes no progress, or nothing, and what it has counted."""

    trouble: str = ""
    figures: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run reports when it ends."""

    outcome: RunOutcome
    reason: str = ""
    figures: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordWriter:
    """The process that writes a record, and the nonce of this write."""

    owner: str
    nonce: str


def is_leased(record: TaskRecord | None, now_ns: int) -> bool:
    """Return True if a lease is valid at a time of the store's clock."""
    lease = record.lease if record is not None else None
    return lease is not None and now_ns < lease.expires_at_unix_ns


def settle(record: TaskRecord | None, now_ns: int) -> TaskRecord | None:
    """Return the record with an expired lease turned into a lost run: its owner was killed."""
    if record is None or record.lease is None or is_leased(record, now_ns):
        return record
    return replace(_with_run(record, _lost_run(record.lease)), lease=None)


def acquire(
    record: TaskRecord | None, now_ns: int, writer: RecordWriter, *, task: str, lease_s: float
) -> TaskRecord | None:
    """Return the record with a new lease, or None if the task is leased or halted.

    An expired lease becomes a lost run.
    """
    before = settle(record, now_ns) or TaskRecord(task=task, revision=0, nonce="")
    if before.halted or before.lease is not None:
        return None
    lease = TaskLease(
        owner=writer.owner,
        nonce=writer.nonce,
        started_at_unix_ns=now_ns,
        expires_at_unix_ns=now_ns + round(lease_s * NS_PER_S),
    )
    return _written(before, writer, lease=lease)


def renew(
    record: TaskRecord | None,
    now_ns: int,
    writer: RecordWriter,
    *,
    lease: str,
    lease_s: float,
    state: JobState | None = None,
) -> TaskRecord | None:
    """Return the record with the lease prolonged, or None if the lease is lost.

    A lease that has expired but that no other process has acquired is prolonged. A continuous task
    never ends with a success, so each report without a trouble counts as one.
    """
    if record is None or record.lease is None or record.lease.nonce != lease:
        return None
    expires_ns = max(now_ns + round(lease_s * NS_PER_S), record.lease.expires_at_unix_ns)
    renewed = _written(record, writer, lease=replace(record.lease, expires_at_unix_ns=expires_ns))
    if state is None:
        return renewed
    trouble = state.trouble[:REASON_CHARS_MAX]
    progress = TaskProgress(at_unix_ns=now_ns, trouble=trouble, figures=state.figures)
    renewed = replace(renewed, progress=progress)
    return renewed if trouble else replace(renewed, failures=0, last_success_unix_ns=now_ns)


def end_run(
    record: TaskRecord | None, now_ns: int, writer: RecordWriter, *, lease: str, result: RunResult
) -> TaskRecord | None:
    """Return the record with the run recorded and without the lease; None if the lease is lost."""
    if record is None or record.lease is None or record.lease.nonce != lease:
        return None
    run = TaskRun(
        started_at_unix_ns=record.lease.started_at_unix_ns,
        ended_at_unix_ns=max(now_ns, record.lease.started_at_unix_ns),
        outcome=result.outcome.value,
        owner=record.lease.owner,
        reason=result.reason[:REASON_CHARS_MAX],
        figures=result.figures,
    )
    ended = _written(_with_run(record, run), writer, lease=None)
    if result.outcome is RunOutcome.REFUSED:
        return replace(ended, halted=run.reason)
    return ended


def give_back(
    record: TaskRecord | None, now_ns: int, writer: RecordWriter, *, lease: str
) -> TaskRecord | None:
    """Return the record without the lease and without a run: nothing was started."""
    del now_ns
    if record is None or record.lease is None or record.lease.nonce != lease:
        return None
    return _written(record, writer, lease=None)


def resume(record: TaskRecord | None, now_ns: int, writer: RecordWriter) -> TaskRecord | None:
    """Return the record of a halted, failing or fenced task that may run now; None for others.

    Its failures are forgotten only by a success; the next run starts without a pause.
    """
    del now_ns
    if record is None:
        return None
    last = record.last_run
    fenced = last is not None and last.outcome == RunOutcome.FENCED
    if not (record.halted or fenced or has_trouble(record)):
        return None
    return replace(_written(record, writer, lease=record.lease), halted="", resumed=True)


def has_trouble(record: TaskRecord) -> bool:
    """Return True if the last run did not succeed and the work has not succeeded since."""
    last = record.last_run
    if last is None or last.outcome not in TROUBLES:
        return bool(record.failures)
    if last.outcome == RunOutcome.FOUND_WRONG:
        return True
    return (record.last_success_unix_ns or 0) <= last.ended_at_unix_ns


def with_plan(record: TaskRecord, due_at_ns: int, every_s: float) -> TaskRecord:
    """Return the record with the expected next run, which other processes display."""
    return replace(record, due_at_unix_ns=due_at_ns, every_s=every_s)


def _lost_run(lease: TaskLease) -> TaskRun:
    return TaskRun(
        started_at_unix_ns=lease.started_at_unix_ns,
        ended_at_unix_ns=lease.expires_at_unix_ns,
        outcome=RunOutcome.LOST.value,
        owner=lease.owner,
        reason="the process ended without a result: it was killed, suspended or cut off",
    )


def _with_run(record: TaskRecord, run: TaskRun) -> TaskRecord:
    succeeded = run.outcome in SUCCESSES
    failed = run.outcome in _FAILURES
    return replace(
        record,
        runs=(*record.runs, run)[-RUNS_MAX:],
        failures=0 if succeeded else record.failures + failed,
        progress=replace(record.progress, trouble="") if record.progress is not None else None,
        resumed=False,
        last_success_unix_ns=run.ended_at_unix_ns if succeeded else record.last_success_unix_ns,
    )


def _written(record: TaskRecord, writer: RecordWriter, *, lease: TaskLease | None) -> TaskRecord:
    return replace(record, revision=record.revision + 1, nonce=writer.nonce, lease=lease)
