"""The transitions of a task's record."""

import pytest
from msgspec.structs import replace
from support.maintain_processes import at, leased, policy_of, ran

from sluice_maintain.lease_rules import (
    TROUBLES,
    JobState,
    RecordWriter,
    RunResult,
    acquire,
    end_run,
    give_back,
    has_trouble,
    is_leased,
    renew,
    resume,
)
from sluice_maintain.scheduler import due_at
from sluice_maintain.tasks import TaskName
from sluice_protocol.maintenance import RUNS_MAX, RunOutcome, TaskRecord

A = RecordWriter(owner="a", nonce="a1")
B = RecordWriter(owner="b", nonce="b1")


def acquired() -> TaskRecord:
    found = acquire(None, at(0), A, task="gc", lease_s=60)
    assert found is not None
    return found


def ended(outcome: RunOutcome, reason: str = "") -> TaskRecord:
    result = RunResult(outcome=outcome, reason=reason, figures={"orphans": 2})
    found = end_run(acquired(), at(10), A, lease="a1", result=result)
    assert found is not None
    return found


def test_one_process_acquires_a_free_task() -> None:
    record = acquired()
    assert record.lease is not None
    assert (record.lease.owner, record.lease.expires_at_unix_ns) == ("a", at(60))
    assert acquire(record, at(59), B, task="gc", lease_s=60) is None


def test_an_expired_lease_becomes_a_lost_run_and_counts_as_a_failure() -> None:
    taken = acquire(acquired(), at(60), B, task="gc", lease_s=60)
    assert taken.lease is not None
    assert taken.lease.owner == "b"
    assert [(run.outcome, run.owner) for run in taken.runs] == [("lost", "a")]
    assert taken.failures == 1


def test_a_renewed_lease_ends_later_and_never_earlier() -> None:
    later = renew(acquired(), at(20), RecordWriter(owner="a", nonce="a2"), lease="a1", lease_s=60)
    assert later.lease is not None
    assert later.lease.expires_at_unix_ns == at(80)
    assert later.nonce == "a2"
    back = renew(later, at(-500), RecordWriter(owner="a", nonce="a3"), lease="a1", lease_s=60)
    assert back.lease is not None
    assert back.lease.expires_at_unix_ns == at(80)


def test_the_progress_of_a_running_task_counts_as_success() -> None:
    """A continuous task never ends with one; a trouble that it reports clears nothing."""
    record = acquire(leased(TaskName.INGEST, expires_s=-1), at(0), A, task="ingest", lease_s=60)
    assert record.failures == 1
    for state in (None, JobState(trouble="store away", figures={})):
        later = renew(record, at(9999), B, lease="a1", lease_s=60, state=state)
        assert (later.failures, later.last_success_unix_ns) == (1, None)
        assert has_trouble(later)
    works = renew(
        record, at(5), B, lease="a1", lease_s=60, state=JobState(figures={"batches": 3.0})
    )
    assert works.progress is not None
    assert works.progress.figures == {"batches": 3.0}
    assert (works.failures, works.last_success_unix_ns) == (0, at(5))
    assert not has_trouble(works)


@pytest.mark.parametrize("outcome", sorted(TROUBLES - {RunOutcome.FOUND_WRONG}))
def test_every_failure_is_forgotten_by_the_next_progress(outcome: RunOutcome) -> None:
    """Whatever ended the last run, what counts is that the work succeeds now."""
    failed = ran(TaskName.INGEST, outcome, started_s=-10, ended_s=-5, failures=7)
    assert has_trouble(failed)
    again = acquire(replace(failed, halted=""), at(0), A, task="ingest", lease_s=60)
    assert again is not None
    works = renew(again, at(5), B, lease="a1", lease_s=60, state=JobState(figures={}))
    assert (has_trouble(works), works.failures) == (False, 0)


@pytest.mark.parametrize("outcome", sorted(TROUBLES))
def test_an_operator_starts_a_task_with_any_trouble_at_once(outcome: RunOutcome) -> None:
    """Not after the pause, nor after the interval of the task."""
    failed = ran(TaskName.GC, outcome, started_s=-10, ended_s=-5, failures=7)
    if outcome is RunOutcome.REFUSED:
        failed = replace(failed, halted="too many")
    resumed = resume(failed, at(0), A)
    assert resumed is not None
    assert due_at(policy_of(TaskName.GC), resumed, "a") <= at(0)


def test_a_lost_lease_can_neither_be_renewed_nor_record_a_run() -> None:
    taken = acquire(acquired(), at(61), B, task="gc", lease_s=60)
    result = RunResult(outcome=RunOutcome.DONE, figures={})
    assert renew(taken, at(62), A, lease="a1", lease_s=60) is None
    assert end_run(taken, at(62), A, lease="a1", result=result) is None
    assert give_back(taken, at(0), A, lease="a1") is None


def test_the_end_of_a_run_frees_the_task_and_is_recorded() -> None:
    record = ended(RunOutcome.DONE)
    assert not is_leased(record, at(11))
    assert record.last_success_unix_ns == at(10)
    assert record.last_run is not None
    assert record.last_run.figures == {"orphans": 2}
    assert record.failures == 0


def test_a_failure_keeps_the_last_success() -> None:
    again = acquire(ended(RunOutcome.DONE), at(70), B, task="gc", lease_s=60)
    failed = end_run(
        again, at(80), B, lease="b1", result=RunResult(outcome=RunOutcome.FAILED, figures={})
    )
    assert (failed.last_success_unix_ns, failed.failures) == (at(10), 1)


def test_a_stopped_run_is_no_failure() -> None:
    assert ended(RunOutcome.STOPPED).failures == 0


def test_a_refusal_halts_the_task_until_it_is_resumed() -> None:
    """Garbage collection fails closed (ADR 37)."""
    halted = ended(RunOutcome.REFUSED, "too many blobs")
    assert halted.halted == "too many blobs"
    assert acquire(halted, at(900_000), B, task="gc", lease_s=60) is None
    again = resume(halted, at(0), B)
    assert again is not None
    assert acquire(again, at(900_000), B, task="gc", lease_s=60) is not None


def test_only_a_halted_failing_or_fenced_task_can_be_resumed() -> None:
    assert resume(None, at(0), B) is None
    assert resume(ended(RunOutcome.DONE), at(0), B) is None
    assert resume(ended(RunOutcome.FAILED), at(0), B) is not None
    assert resume(ended(RunOutcome.FENCED), at(0), B) is not None


def test_a_task_that_was_not_started_leaves_no_run() -> None:
    freed = give_back(acquired(), at(0), A, lease="a1")
    assert (freed.lease, freed.runs) == (None, ())


def test_the_history_and_the_reasons_are_bounded() -> None:
    record: TaskRecord | None = leased(TaskName.GC, expires_s=-1)
    for number in range(RUNS_MAX * 3):
        writer = RecordWriter(owner="a", nonce=f"n{number}")
        record = acquire(record, at(number), writer, task="gc", lease_s=60)
        result = RunResult(outcome=RunOutcome.FAILED, reason="x" * 10_000, figures={})
        record = end_run(record, at(number), writer, lease=writer.nonce, result=result)
    assert len(record.runs) == RUNS_MAX
    assert all(len(run.reason) < 1000 for run in record.runs)
