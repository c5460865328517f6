"""What status, page and exit code report."""

from msgspec.structs import replace
from support.maintain_processes import at, leased, ran, situation

from sluice_maintain.metrics import MaintenanceMetrics
from sluice_maintain.scheduler import decide
from sluice_maintain.status import MaintenanceStatus, overdue, show_records, show_situation
from sluice_maintain.status_page import describe_duration, render_page, render_text
from sluice_maintain.tasks import TaskName
from sluice_protocol.maintenance import RunOutcome, TaskProgress, TaskRecord, TaskRun


def shown(*records: TaskRecord, now_s: float = 0) -> MaintenanceStatus:
    found = situation(*records, now_s=now_s)
    return show_situation(found, decide(found))


def record_of(outcome: RunOutcome, reason: str = "", **more: object) -> TaskRecord:
    run = TaskRun(
        started_at_unix_ns=at(0),
        ended_at_unix_ns=at(5),
        outcome=outcome.value,
        owner="a",
        reason=reason,
    )
    return TaskRecord(task="gc", revision=1, nonce="n", runs=(run,), **more)


def test_a_store_without_a_run_has_no_problem() -> None:
    found = show_records(dict.fromkeys(TaskName), at(0))
    assert {one.state for one in found.tasks} == {"never_ran"}
    assert not found.found_wrong


def test_a_failed_task_shows_its_reason_and_pause() -> None:
    found = shown(record_of(RunOutcome.FAILED, "no route to host", failures=1), now_s=6)
    (gc,) = [one for one in found.tasks if one.task == "gc"]
    assert gc.trouble == (
        "failed: no route to host; the next run is at 2026-01-01T00:00:09Z;"
        " run `sluice maintain resume gc` to start it now"
    )
    assert gc.state == "backing_off"
    assert gc.last_duration_s == 5
    assert gc.next_run_unix_ns is not None
    assert found.found_wrong


def test_a_task_that_runs_and_does_not_get_on_is_shown() -> None:
    """The record of a running task names its trouble, until the work succeeds."""
    record = leased(TaskName.INGEST)
    for trouble, shown_as in (
        ("store_unavailable: away", "it runs and does not get on: store_unavailable: away"),
        ("", ""),
    ):
        told = replace(record, progress=TaskProgress(at_unix_ns=at(0), trouble=trouble))
        (ingest,) = show_records({TaskName.INGEST: told}, at(1)).tasks
        assert ingest.trouble.partition("; ")[0] == shown_as


def test_a_halted_task_names_the_command() -> None:
    found = shown(record_of(RunOutcome.REFUSED, "too many", halted="too many"))
    (gc,) = [one for one in found.tasks if one.task == "gc"]
    assert gc.trouble == (
        "halted: too many; remove the cause, then run `sluice maintain resume gc`"
    )


def test_a_task_that_no_process_runs_is_overdue_after_two_intervals() -> None:
    record = record_of(RunOutcome.DONE, due_at_unix_ns=at(0), every_s=1000.0)
    assert overdue(record, at(2000)) == 0
    assert overdue(record, at(2001)) == 2001
    (gc,) = show_records({TaskName.GC: record}, at(2001)).tasks
    assert gc.trouble == "overdue by 2001 s: no process runs it"


def test_a_lease_elsewhere_is_shown_with_its_owner() -> None:
    found = shown(leased(TaskName.COMPACT, owner="other-1-ab"))
    (compact,) = [one for one in found.tasks if one.task == "compact"]
    assert (compact.state, compact.lease_owner) == ("leased", "other-1-ab")


def test_the_page_escapes_reasons() -> None:
    found = shown(record_of(RunOutcome.FAILED, "<script>", failures=1))
    page = render_page(found, "store <away>")
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "store &lt;away&gt;" in page


def test_durations_are_short() -> None:
    assert [describe_duration(one) for one in (None, 1.26, 150, 9000)] == [
        *("", "1.3 s", "2 min", "2.5 h")
    ]


def test_gauges_follow_the_status() -> None:
    metrics = MaintenanceMetrics()
    metrics.show(shown(ran(TaskName.GC, RunOutcome.FAILED, started_s=0, ended_s=1, failures=4)))
    value = metrics.registry.get_sample_value("sluice_maintain_failures", {"task": "gc"})
    assert value == 4


def test_the_text_has_a_line_for_each_task_and_its_problem() -> None:
    record = ran(TaskName.GC, RunOutcome.FAILED, started_s=-10, ended_s=-5, failures=1)
    now = situation(record, now_s=-4)
    lines = render_text(show_situation(now, decide(now)), "store away").splitlines()
    assert lines[0] == "not current: store away"
    (gc,) = [at for at, line in enumerate(lines) if line.startswith("gc ")]
    assert lines[gc].startswith("gc         waiting after a failure, last run failed in 5.0 s")
    assert lines[gc + 1].strip().startswith("failed")
    assert "index      waiting for a task that changes the same data" in lines
