"""What runs now: intervals, pauses, windows, leases, conflicts, slots."""

from dataclasses import replace

import pytest
from support.maintain_processes import NOW_NS, at, leased, policy_of, ran, situation

from sluice_maintain.scheduler import WaitReason, decide, due_at, pause_s
from sluice_maintain.settings import MaintainSettings
from sluice_maintain.tasks import TaskName, WorkerKind
from sluice_maintain.time_windows import describe_instant, next_open_ns, parse_windows
from sluice_protocol.errors import BadUsage
from sluice_protocol.maintenance import RunOutcome
from sluice_protocol.units import NS_PER_S

DAY_S = 86_400.0


def test_everything_that_is_on_is_due_at_first_within_slots_and_conflicts() -> None:
    found = decide(situation())
    assert found.start == (
        TaskName.INGEST,
        TaskName.ROLLUP,
        TaskName.COMPACT,
        TaskName.RETENTION,
        TaskName.QUEUE,
    )
    assert found.waiting[TaskName.INDEX].reason is WaitReason.CONFLICT
    assert found.waiting[TaskName.AUDIT].reason is WaitReason.OFF
    assert found.waiting[TaskName.GC].reason is WaitReason.NO_SLOT


def test_a_task_is_due_one_interval_after_its_start_and_jitter_at_most() -> None:
    policy = policy_of(TaskName.ROLLUP, every_s=100, jitter=0.1)
    due = due_at(policy, ran(TaskName.ROLLUP, started_s=0, ended_s=30), "a")
    assert at(100) <= due < at(110)


def test_the_jitter_differs_between_two_processes() -> None:
    record = ran(TaskName.ROLLUP, started_s=0, ended_s=30)
    policy = policy_of(TaskName.ROLLUP)
    assert due_at(policy, record, "a") != due_at(policy, record, "b")


@pytest.mark.parametrize("missed_days", [1, 10, 1000])
def test_missed_runs_are_not_made_up(missed_days: int) -> None:
    """After a long pause there is one run; the next is due an interval after it."""
    now_s = missed_days * DAY_S
    old = ran(TaskName.GC, started_s=0, ended_s=60)
    slots = dict.fromkeys(WorkerKind, 9)
    assert TaskName.GC in decide(situation(old, now_s=now_s + DAY_S, slots=slots)).start
    fresh = ran(TaskName.GC, started_s=now_s, ended_s=now_s + 60)
    wait = decide(situation(fresh, now_s=now_s + 61)).waiting[TaskName.GC]
    assert wait.reason is WaitReason.NOT_DUE
    assert wait.until_ns is not None
    assert wait.until_ns >= at(now_s + DAY_S)


def test_a_failed_task_pauses_twice_as_long_each_time_and_blocks_no_other() -> None:
    policy = policy_of(TaskName.ROLLUP, backoff_s=10, backoff_max_s=35)
    pauses = [pause_s(policy, failures, 1.0) for failures in (1, 2, 3, 4, 99)]
    assert pauses == [5, 10, 20, 35, 35]
    assert pause_s(policy, 1, 0.0) == 2.5
    failed = ran(TaskName.ROLLUP, RunOutcome.FAILED, started_s=0, ended_s=1, failures=3)
    found = decide(situation(failed, now_s=2))
    assert found.waiting[TaskName.ROLLUP].reason is WaitReason.BACKING_OFF
    assert TaskName.COMPACT in found.start


@pytest.mark.parametrize("task", list(TaskName))
@pytest.mark.parametrize("outcome", [RunOutcome.UNREACHABLE, RunOutcome.FAILED])
def test_a_task_continues_within_seconds_of_a_short_outage(
    task: TaskName, outcome: RunOutcome
) -> None:
    """A store that was unreachable is no failure, however often; others wait longer in time."""
    failures = 0 if outcome is RunOutcome.UNREACHABLE else 1
    failed = ran(task, outcome, started_s=0, ended_s=100, failures=failures)
    alone = situation(failed, now_s=105)
    policies = {one: replace(alone.policies[one], enabled=one is task) for one in TaskName}
    assert decide(replace(alone, policies=policies)).start == (task,)


def test_a_killed_process_delays_its_task_only_by_its_lease_the_first_time() -> None:
    killed = leased(TaskName.ROLLUP, expires_s=60)
    assert TaskName.ROLLUP not in decide(situation(killed, now_s=59)).start
    assert TaskName.ROLLUP in decide(situation(killed, now_s=60)).start
    lost = ran(TaskName.ROLLUP, RunOutcome.LOST, started_s=0, ended_s=60, failures=2)
    waiting = decide(situation(lost, now_s=61)).waiting
    assert waiting[TaskName.ROLLUP].reason is WaitReason.BACKING_OFF


@pytest.mark.parametrize("failures", [1, 2, 9, 99])
def test_ingestion_continues_within_seconds_after_requests_were_denied(failures: int) -> None:
    """Keys that expire are renewed, and policies are changed, without a restart of the process."""
    denied = ran(
        TaskName.INGEST, RunOutcome.NOT_PERMITTED, started_s=0, ended_s=100, failures=failures
    )
    assert at(100) < due_at(policy_of(TaskName.INGEST), denied, "a") <= at(120)


def test_another_task_without_rights_pauses_as_after_a_failure() -> None:
    for failures in (1, 2, 9):
        denied, failed = (
            ran(TaskName.ROLLUP, outcome, started_s=0, ended_s=1, failures=failures)
            for outcome in (RunOutcome.NOT_PERMITTED, RunOutcome.FAILED)
        )
        policy = policy_of(TaskName.ROLLUP, every_s=60, backoff_max_s=600)
        assert due_at(policy, denied, "a") == due_at(policy, failed, "a")


def test_a_fenced_ingest_waits_long_before_it_fences_the_other() -> None:
    fenced = ran(TaskName.INGEST, RunOutcome.FENCED, started_s=0, ended_s=10)
    due = due_at(policy_of(TaskName.INGEST), fenced, "a")
    assert at(610) <= due <= at(910)


def test_a_stopped_run_is_repeated() -> None:
    stopped = ran(TaskName.COMPACT, RunOutcome.STOPPED, started_s=0, ended_s=10)
    assert due_at(policy_of(TaskName.COMPACT), stopped, "a") == at(11)


def test_a_halted_task_waits_until_it_is_resumed() -> None:
    record = ran(TaskName.GC, RunOutcome.REFUSED, started_s=0, ended_s=1)
    halted = type(record)(task="gc", revision=2, nonce="n", runs=record.runs, halted="ratio")
    found = decide(situation(halted, now_s=1000 * DAY_S))
    assert found.waiting[TaskName.GC].reason is WaitReason.HALTED


def test_a_window_delays_a_start() -> None:
    settings = MaintainSettings(window={"compact": "22:00-04:00"})
    assert TaskName.COMPACT in decide(situation(settings=settings)).start
    wait = decide(situation(settings=settings, now_s=5 * 3600)).waiting[TaskName.COMPACT]
    assert wait.reason is WaitReason.WINDOW
    assert wait.until_ns == at(22 * 3600)


def test_tasks_that_change_the_same_thing_exclude_each_other() -> None:
    here = decide(situation(running=frozenset({TaskName.COMPACT})))
    assert here.waiting[TaskName.INDEX].reason is WaitReason.CONFLICT
    elsewhere = decide(situation(leased(TaskName.COMPACT)))
    assert elsewhere.waiting[TaskName.INDEX].reason is WaitReason.CONFLICT
    settings = MaintainSettings(tasks=tuple(TaskName))
    both = decide(situation(settings=settings, slots=dict.fromkeys(WorkerKind, 9)))
    assert (TaskName.AUDIT in both.start) != (TaskName.GC in both.start)


def test_the_longest_due_task_starts_first_and_reserves_what_it_changes() -> None:
    """Index waits for compaction here; a later compaction elsewhere must not overtake it."""
    index = ran(TaskName.INDEX, started_s=-9 * 3600, ended_s=-9 * 3600)
    compact = ran(TaskName.COMPACT, started_s=-DAY_S - 7200, ended_s=-DAY_S)
    expire = ran(TaskName.EXPIRE, started_s=-60, ended_s=-30)
    found = decide(situation(index, compact, expire))
    assert TaskName.INDEX in found.start
    assert found.waiting[TaskName.COMPACT].reason is WaitReason.CONFLICT


def test_a_run_in_the_future_of_the_clock_delays_by_one_interval_at_most() -> None:
    future = ran(TaskName.COMPACT, started_s=900 * DAY_S, ended_s=900 * DAY_S)
    wait = decide(situation(future)).waiting[TaskName.COMPACT]
    assert wait.until_ns is not None
    assert wait.until_ns - NOW_NS <= 1.05 * DAY_S * NS_PER_S


HOUR_S = 3600


@pytest.mark.parametrize(
    ("text", "at_s", "opens_s"),
    [
        ("", 5, 5),
        ("01:00-02:00", 0, HOUR_S),
        ("01:00-02:00", HOUR_S, HOUR_S),
        ("01:00-02:00", 2 * HOUR_S, DAY_S + HOUR_S),
        ("22:00-04:00", 3 * HOUR_S, 3 * HOUR_S),
        ("22:00-04:00", 4 * HOUR_S, 22 * HOUR_S),
        ("sat 00:00-24:00", 0, 2 * DAY_S),
        ("sat 00:00-24:00, sun 00:00-06:00", 3 * DAY_S + 5 * HOUR_S, 3 * DAY_S + 5 * HOUR_S),
        ("sun 23:00-02:00", 4 * DAY_S + HOUR_S, 4 * DAY_S + HOUR_S),
        ("00:00-24:00", 7, 7),
    ],
)
def test_the_next_instant_at_which_a_window_is_open(text: str, at_s: int, opens_s: int) -> None:
    """The tests begin on a Thursday."""
    assert next_open_ns(parse_windows(text), at(at_s)) == at(opens_s)


@pytest.mark.parametrize("text", ["1-2", "25:00-26:00", "22:00", "so 22:00-23:00", "24:00-24:00"])
def test_another_form_is_refused_and_named(text: str) -> None:
    with pytest.raises(BadUsage, match=text):
        parse_windows(text)


def test_an_instant_is_shown_in_utc() -> None:
    assert describe_instant(at(1)) == "2026-01-01T00:00:01Z"
