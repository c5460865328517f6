"""Errors and results of jobs, figures of reports, and the deletes of retention."""

import asyncio
import sys

import pytest
from msgspec.structs import replace
from support.maintain_processes import at

from sluice_gc.errors import CertificateInvalid, GcRefused, RefusalRule
from sluice_lake.errors import TableRefused
from sluice_maintain.messages import LINE_BYTES_MAX, JobRequest, decode_request, encode_line
from sluice_maintain.settings import GcOptions, MaintainSettings
from sluice_maintain.tasks import TaskName
from sluice_maintain.worker import classify_error, figures_of, plan_retention
from sluice_maintain.worker_pool import WorkerPool
from sluice_protocol.errors import (
    Fenced,
    OutcomeUnknown,
    StoreDenied,
    StoreMisconfigured,
    StoreUnavailable,
)
from sluice_protocol.expiry import Holds, LegalHold
from sluice_protocol.maintenance import RunOutcome
from sluice_protocol.manifests import encode_record
from sluice_protocol.record_deletes import decode_delete, delete_key
from sluice_protocol.system_clock import SystemClock
from sluice_queue.collector import Collected
from sluice_spark.errors import JobStopped

DAY_S = 86_400


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (StoreDenied("delete", "raw-blobs/v1/x", "access denied"), RunOutcome.NOT_PERMITTED),
        (TableRefused("t", "the commit was refused: AccessDenied"), RunOutcome.NOT_PERMITTED),
        (GcRefused(RefusalRule.DELETE_RATIO, "too many"), RunOutcome.REFUSED),
        (CertificateInvalid("a", "altered"), RunOutcome.REFUSED),
        (Fenced("queue/v1/spark.000/manifest", 1, 2), RunOutcome.FENCED),
        (JobStopped("stopped"), RunOutcome.STOPPED),
        (StoreUnavailable("list", "x", "timeout"), RunOutcome.UNREACHABLE),
        (StoreMisconfigured("create", "x", "the disk is full"), RunOutcome.UNREACHABLE),
        (OutcomeUnknown("commit", "x", 1), RunOutcome.UNREACHABLE),
        (ValueError("a defect"), RunOutcome.FAILED),
    ],
)
def test_the_outcome_of_an_error(error: Exception, outcome: RunOutcome) -> None:
    assert classify_error(error) is outcome


def test_figures_are_the_numbers_of_a_report() -> None:
    report = Collected(acked_lists=1, unnamed_lists=2, segments=3)
    assert figures_of(report) == {"acked_lists": 1, "unnamed_lists": 2, "segments": 3}
    assert figures_of("text") == {}


def test_a_request_survives_its_encoding() -> None:
    settings = MaintainSettings(
        gc=GcOptions(trusted_keys=("k",)), window={"gc": "01:00-02:00"}, tasks=(TaskName.GC,)
    )
    request = JobRequest(number=1, task=TaskName.GC, store_url="file:///x", settings=settings)
    assert decode_request(encode_line(request)) == request


def test_retention_without_days_deletes_nothing() -> None:
    assert list(plan_retention({}, at(0), Holds())) == []


def test_retention_is_one_delete_per_kind_and_day_with_equal_bytes() -> None:
    policy = {"spans": 7, "metrics": 400, "logs": 30}
    morning = list(plan_retention(policy, at(10), Holds()))
    evening = list(plan_retention(policy, at(DAY_S - 1), Holds()))
    assert morning == evening
    assert [one.kind for one in morning] == ["logs", "metrics", "spans"]
    assert morning[0].to_unix_ns == at(-30 * DAY_S)
    assert morning[0].accepted_until_unix_ns == at(0)
    tomorrow = list(plan_retention(policy, at(DAY_S), Holds()))
    assert {one.delete_id for one in tomorrow}.isdisjoint(one.delete_id for one in morning)
    for record in morning:
        assert decode_delete(delete_key(record.delete_id), encode_record(record)) == record


def test_retention_stops_before_the_first_hold() -> None:
    hold = LegalHold(
        hold_id="01ARZ3NDEKTSV4RRFFQ69G5FAV",
        case="C-1",
        reason="litigation",
        held_by="ann",
        review_at_unix_ns=2,
        held_at_unix_ns=1,
        from_unix_ns=at(-9 * DAY_S),
    )
    later = replace(hold, from_unix_ns=at(-3 * DAY_S))
    (record,) = plan_retention({"logs": 7}, at(10), Holds(active=(later, hold)))
    assert record.accepted_until_unix_ns == at(-9 * DAY_S) - 1
    assert not hold.touches(record)
    (free,) = plan_retention({"logs": 7}, at(10), Holds())
    assert free.delete_id != record.delete_id
    whole = replace(hold, from_unix_ns=None)
    assert list(plan_retention({"logs": 7}, at(10), Holds(active=(later, whole)))) == []


@pytest.mark.parametrize("line", ["'what'", f"'7' * {3 * LINE_BYTES_MAX}"])
async def test_a_worker_that_writes_something_else_is_ended_and_its_job_fails(line: str) -> None:
    """An example is a worker of another version. Its job would never end."""
    script = f"print({line}, flush=True); input(); input()"
    command = [sys.executable, "-c", script]
    pool = WorkerPool(command, "memory:", MaintainSettings(), SystemClock())
    job = await pool.start_job(TaskName.QUEUE, once=True)
    async with asyncio.timeout(20):
        result = await job.result
        await pool.close()
    assert result.outcome is RunOutcome.FAILED
    assert "its result is unreadable" in result.reason
    assert not pool.processes
