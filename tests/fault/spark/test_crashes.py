"""The driver is killed at every step; the next run completes the lake without duplicates."""

import os
from pathlib import Path

import pytest
from support.spark_lake import Deployment, Sent, assert_lake_holds, make_batch
from support.spark_local import die_at, ingest_locally, ingester, pending_rows, stop_at

from sluice_lake.errors import CommitConflict
from sluice_lake.tables import BATCHES
from sluice_protocol.errors import Fenced, NoStore
from sluice_protocol.fields import KINDS
from sluice_queue.errors import ResumeRefused
from sluice_spark.commits import commit_files
from sluice_spark.errors import LakeInconsistent
from sluice_spark.ingest import microbatch
from sluice_spark.ingest.fenced_consumers import FencedConsumers
from sluice_spark.ingest.ledger import LedgerFiles
from sluice_spark.ingest.microbatch import LakeSnapshot, open_snapshot

STEPS = (
    pytest.param("before_write", marks=pytest.mark.long),
    "after_write",
    "after_dead_letters",
    pytest.param("before_records_logs", marks=pytest.mark.long),
    pytest.param("after_records_logs", marks=pytest.mark.long),
    "after_records_metrics",
    pytest.param("after_records_entries", marks=pytest.mark.long),
    "after_records_spans",
    "before_ledger",
    "after_ledger",
    pytest.param("before_ack", marks=pytest.mark.long),
    "after_ack",
)
"""A long one leaves the store in the same state as a daily one next to it, or with other tables."""


def backlog(deployment: Deployment) -> tuple[list[Sent], Sent]:
    """Return three entries per lane of every kind; one has no blob, some are enqueued twice."""
    kinds = list(KINDS)
    good = [make_batch(n * 10, agent=f"host-{n % 3}", kind=kinds[n % 4]) for n in range(8)]
    lost = make_batch(5000, agent="host-0")
    deployment.accept(good)
    deployment.accept([lost], blobs=False)
    deployment.enqueue(good[:3])
    deployment.enqueue([*good[3:], good[0], lost])
    deployment.enqueue([good[1], good[1], lost])
    return good, lost


@pytest.mark.daily(2)
@pytest.mark.parametrize("step", STEPS)
def test_each_record_is_committed_once_after_a_crash_at_any_step(step: str, tmp_path: Path) -> None:
    """After a crash at any step, a run with the same rows or other boundaries completes the lake.

    The missing blob has reappeared. Its batch is in the ledger only if its records are in the lake,
    so enqueueing it again adds it exactly once.
    """
    deployment = Deployment(tmp_path).init()
    good, lost = backlog(deployment)
    die_at(deployment.url, step)
    deployment.put_blob(lost)
    ingest_locally(deployment.url, entries_max=1)
    deployment.enqueue([lost])
    ingest_locally(deployment.url)
    assert_lake_holds(deployment, [*good, lost])


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("after_records_logs:2", marks=pytest.mark.long),
        "before_ledger:2",
        pytest.param("after_ledger:2", marks=pytest.mark.long),
    ],
)
def test_run_over_all_entries_completes_a_crashed_run_over_few(step: str, tmp_path: Path) -> None:
    """A run that committed entry by entry and crashed is completed by a run over all entries."""
    deployment = Deployment(tmp_path).init()
    good, lost = backlog(deployment)
    die_at(deployment.url, step, entries_max=1)
    die_at(deployment.url, "after_write", entries_max=2)
    ingest_locally(deployment.url)
    assert_lake_holds(deployment, good)
    assert {row["seq_start"] for row in deployment.rows("dead_letters")} == {5000}
    assert lost not in good


def test_a_batch_that_several_stopped_runs_could_not_read_is_not_in_the_ledger(
    tmp_path: Path,
) -> None:
    """Its table is two commits ahead of the ledger, and only the first one read it."""
    deployment = Deployment(tmp_path, lanes=1).init()
    good, lost = [make_batch(0), make_batch(10)], make_batch(5000, kind="metrics")
    deployment.accept(good)
    deployment.accept([lost], blobs=False)
    deployment.enqueue([good[0], lost])
    deployment.enqueue([good[1], lost])
    stop_at(deployment.url, "after_records_logs")
    stop_at(deployment.url, "before_ledger", entries_max=1)
    stop_at(deployment.url, "before_ledger")
    deployment.put_blob(lost)
    ingest_locally(deployment.url)
    deployment.enqueue([lost])
    ingest_locally(deployment.url)
    assert_lake_holds(deployment, [*good, lost])


def test_a_micro_batch_opens_each_table_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The positions after the commits are known, so the tables are not read again to acknowledge.

    Only what a crashed run left behind takes a second round.
    """
    opened: list[str] = []

    def count(url: str, *, create: bool = True) -> LakeSnapshot:
        opened.append(url)
        return open_snapshot(url, create=create)

    monkeypatch.setattr(microbatch, "open_snapshot", count)
    deployment = Deployment(tmp_path).init()
    for number in range(2):
        deployment.deliver([make_batch(number * 10)])
        ingest_locally(deployment.url)
    assert len(opened) == 2
    deployment.deliver([make_batch(20)])
    deployment.deliver([make_batch(30)])
    die_at(deployment.url, "after_records_logs", entries_max=1)
    ingest_locally(deployment.url)
    assert len(opened) == 4
    assert pending_rows(deployment.url) == []


def test_fenced_job_with_a_stale_snapshot_cannot_commit(tmp_path: Path) -> None:
    """A job that was fenced while it wrote cannot commit what it wrote."""
    deployment = Deployment(tmp_path).init()
    deployment.deliver([make_batch(n * 10, agent=f"host-{n}") for n in range(4)])
    with FencedConsumers(deployment.url, "spark") as consumers:
        consumers.open(lambda lanes: dict.fromkeys(lanes, 0))
        job = ingester(deployment.url, consumers)
        stale, rows = open_snapshot(deployment.url), pending_rows(deployment.url)
        ingest_locally(deployment.url)
        with pytest.raises(Fenced):
            job.ingest(rows)
    files = LedgerFiles(store_url=deployment.url, name="late", now_ns=1).write_ledger(rows)
    with pytest.raises(CommitConflict):
        commit_files(stale.ledger, BATCHES, files, {0: 1}, {})
    assert_lake_holds(deployment, deployment.sent)


def test_missing_record_table_stops_the_job(tmp_path: Path) -> None:
    """The job stops with an error that names the command to run."""
    deployment = Deployment(tmp_path).init()
    deployment.deliver([make_batch(0)])
    ingest_locally(deployment.url)
    deployment.deliver([make_batch(10)])
    with FencedConsumers(deployment.url, "spark") as consumers:
        snapshot = open_snapshot(deployment.url)
        consumers.open(snapshot.committed_through)
        job, rows = ingester(deployment.url, consumers), pending_rows(deployment.url)
        (tmp_path / "lake" / "v1" / "logs").rename(tmp_path / "moved")
        with pytest.raises(LakeInconsistent, match=r"the table is missing.*rebuild the lake"):
            job.ingest(rows)


def test_a_store_that_is_moved_away_is_no_missing_table(tmp_path: Path) -> None:
    """A running job waits for the store, and continues when it is back."""
    deployment = Deployment(tmp_path / "store").init()
    deployment.deliver([make_batch(0)])
    with FencedConsumers(deployment.url, "spark") as consumers:
        consumers.open(open_snapshot(deployment.url).committed_through)
        job, rows = ingester(deployment.url, consumers), pending_rows(deployment.url)
        (tmp_path / "store").rename(tmp_path / "moved")
        with pytest.raises(NoStore):
            job.ingest(rows)
        (tmp_path / "moved").rename(tmp_path / "store")
        job.ingest(rows)
    assert_lake_holds(deployment, deployment.sent)


@pytest.mark.daily(1)
@pytest.mark.parametrize("step", ["before_ledger", "before_ack", "after_ack"])
def test_a_power_failure_loses_no_commit_that_a_later_step_relies_on(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log entries that were not synced are empty afterward, as on ext4."""
    synced: set[int] = set()
    fsync = os.fsync

    def record(fd: int) -> None:
        synced.add(os.fstat(fd).st_ino)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", record)
    deployment = Deployment(tmp_path).init()
    for start in (0, 10):
        deployment.deliver([make_batch(start)])
        stop_at(deployment.url, step)
    for entry in (tmp_path / "lake").glob("v1/*/_delta_log/*.json"):
        if entry.stat().st_ino not in synced:
            entry.write_bytes(b"")
    deployment.deliver([make_batch(20)])
    ingest_locally(deployment.url)
    assert_lake_holds(deployment, deployment.sent)


def test_commit_that_another_tool_overwrote_stops_the_job(tmp_path: Path) -> None:
    """Delta's log store for local files can overwrite a commit; the loss is reported, not hidden.

    The record table is then behind the acknowledged sequence of the queue.
    """
    deployment = Deployment(tmp_path).init()
    for start in (0, 10):
        deployment.deliver([make_batch(start)])
        ingest_locally(deployment.url)
    newest = max((tmp_path / "lake/v1/logs/_delta_log").glob("*.json"))
    newest.write_text('{"commitInfo":{"operation":"OPTIMIZE"}}\n')
    deployment.deliver([make_batch(20)])
    with pytest.raises(ResumeRefused, match=r"the lake: docs/spark\.md"):
        ingest_locally(deployment.url)
    assert len(deployment.rows("batches")) == 2
