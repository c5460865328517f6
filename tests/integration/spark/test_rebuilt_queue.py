"""Queue and reconciler state are lost and rebuilt; then ingestion continues."""

import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.spark_lake import T0_NS, Deployment, assert_lake_holds, make_batch
from support.spark_local import die_at, ingest_locally, ingester, pending_rows

from sluice_cli.queue import status
from sluice_cli.rebuild import rebuild
from sluice_lake.tables import Table
from sluice_protocol.errors import BadUsage, Fenced
from sluice_protocol.fields import Kind
from sluice_queue.errors import ResumeRefused
from sluice_queue.lane import Lane
from sluice_queue.worklists import PendingBatch
from sluice_reconciler.app import run_once
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_spark.failpoints import FailPoint
from sluice_spark.ingest.committed_positions import fence_ingestion, read_committed_positions
from sluice_spark.ingest.fenced_consumers import FencedConsumers
from sluice_spark.ingest.job import run_ingest
from sluice_spark.ingest.microbatch import IngestTotals, open_snapshot
from sluice_spark.settings import IngestSettings
from sluice_spark.written_files import TaskResult
from sluice_store import open_store


def reconcile(deployment: Deployment) -> int:
    settings = ReconcilerSettings(list_batches_max=4)
    return asyncio.run(run_once(deployment.url, settings)).outcome.enqueued


def check_rebuild(
    deployment: Deployment, ingest: Callable[[Deployment], IngestTotals], *, state_too: bool
) -> None:
    """Check that each ingested, queued and not yet enqueued batch is in the lake exactly once.

    The lanes are at different sequences, so that a single number for all of them would be wrong.
    """
    for n in range(2):
        busy = [make_batch(n * 100 + k * 10) for k in range(6)]
        deployment.accept([*busy, make_batch(n * 10, agent=f"host-{n + 2}", kind="metrics")])
        assert reconcile(deployment) == 7
        assert ingest(deployment).batches == 7
    deployment.accept([make_batch(1000 + k * 10, agent="host-1") for k in range(3)])
    assert reconcile(deployment) == 3
    deployment.accept([make_batch(2000, agent="host-9", kind="entries")])

    deployment.lose("queue", "manifests", *(["reconciler"] if state_too else []))
    with pytest.raises(BadUsage, match="sluice rebuild"):
        reconcile(deployment)
    # Without the lane states, only the lake shows that the lanes existed.
    assert status(store=deployment.url) == 1
    assert rebuild(verify=True, store=deployment.url) == 1
    assert rebuild(store=deployment.url) == 0
    assert rebuild(verify=True, store=deployment.url) == 0
    assert status(store=deployment.url) == 0

    assert ingest(deployment).batches == 4
    assert_lake_holds(deployment, deployment.sent)
    deployment.accept([make_batch(3000, agent="host-1")])
    assert reconcile(deployment) == 1
    assert ingest(deployment).batches == 1
    assert_lake_holds(deployment, deployment.sent)


@pytest.mark.daily(1)
@pytest.mark.parametrize("state_too", [False, True], ids=["queue", "queue and state"])
def test_rebuilt_queue_loses_and_duplicates_no_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], state_too: bool
) -> None:
    """Each micro-batch runs without a JVM."""
    deployment = Deployment(tmp_path, lanes=3).init()
    check_rebuild(deployment, lambda one: ingest_locally(one.url), state_too=state_too)
    assert "replaced; sequences continue at" in capsys.readouterr().out


@pytest.mark.spark
@pytest.mark.long
def test_spark_ingest_continues_after_the_queue_is_rebuilt(spark: Any, tmp_path: Path) -> None:
    """The ingest job runs with its previous checkpoint."""

    def ingest(deployment: Deployment) -> IngestTotals:
        return run_ingest(deployment.url, IngestSettings(once=True), spark=spark)

    check_rebuild(Deployment(tmp_path, lanes=3).init(), ingest, state_too=True)


def test_a_dead_letter_is_ingested_after_the_lane_state_is_rebuilt(tmp_path: Path) -> None:
    """As after a blob was unreadable for a while."""
    deployment = Deployment(tmp_path, lanes=1).init()
    unread = make_batch(0)
    deployment.accept([unread, make_batch(10)])
    assert reconcile(deployment) == 2
    deployment.put_blob(unread, b"unreadable")
    totals = ingest_locally(deployment.url)
    assert (totals.batches, totals.dead_letters) == (1, 1)
    deployment.put_blob(unread)
    assert reconcile(deployment) == 0
    deployment.lose("reconciler/v1/lanes")
    assert reconcile(deployment) == 2
    assert ingest_locally(deployment.url).batches == 1
    assert_lake_holds(deployment, deployment.sent)


def test_new_queue_behind_the_lake_is_refused_and_can_be_rebuilt(tmp_path: Path) -> None:
    """A register that is behind the lake is refused, and rebuilding it succeeds."""
    deployment = Deployment(tmp_path, lanes=1).init()
    for n in range(3):
        deployment.deliver([make_batch(n * 10)])
    assert ingest_locally(deployment.url).batches == 3
    deployment.lose("queue", "manifests")
    late = make_batch(100)
    deployment.deliver([late])
    assert rebuild(verify=True, store=deployment.url) == 1
    assert rebuild(store=deployment.url) == 0
    assert ingest_locally(deployment.url).batches == 1
    assert_lake_holds(deployment, deployment.sent)


@pytest.mark.daily(1)
@pytest.mark.parametrize("first_sequence", [None, 2])
def test_lists_of_an_unfinished_run_are_not_written_again(
    tmp_path: Path, first_sequence: int | None
) -> None:
    """The records of a rebuilt list may be more than those that the run has committed.

    A batch that is in it by its time only would be entered in the ledger without its records.
    """
    deployment = Deployment(tmp_path, lanes=1).init()
    first, between, last = (make_batch(n * 10, at_ns=T0_NS + n) for n in range(3))
    deployment.accept([first, between, last])
    deployment.enqueue([first, last])
    deployment.enqueue([between])
    die_at(deployment.url, "before_ledger", entries_max=1)
    kept = shutil.copytree(tmp_path / "manifests", tmp_path.with_name(f"{tmp_path.name}-kept"))
    deployment.lose("manifests")
    with pytest.raises(BadUsage, match="rebuild the lake"):
        rebuild(store=deployment.url, first_sequence=first_sequence)
    shutil.copytree(kept, tmp_path / "manifests")
    ingest_locally(deployment.url)
    assert_lake_holds(deployment, deployment.sent)


def test_the_lake_is_rebuilt_after_an_unfinished_run_lost_its_lists(tmp_path: Path) -> None:
    """The remedy that the refusal names."""
    deployment = Deployment(tmp_path, lanes=1).init()
    deployment.accept([make_batch(n * 10, at_ns=T0_NS + n) for n in range(3)])
    assert reconcile(deployment) == 3
    die_at(deployment.url, "before_ledger")
    deployment.lose("manifests", "lake", "queue", "reconciler")
    assert rebuild(store=deployment.url) == 0
    ingest_locally(deployment.url)
    assert_lake_holds(deployment, deployment.sent)


@pytest.mark.long
def test_a_lake_that_was_restored_from_a_copy_is_rebuilt(tmp_path: Path) -> None:
    """The queue has acknowledged entries that the copy does not contain."""
    deployment = Deployment(tmp_path, lanes=1).init()
    copy = tmp_path.with_name(f"{tmp_path.name}-copy")
    for n in range(2):
        deployment.accept([make_batch(n * 10)])
        assert reconcile(deployment) == 1
        ingest_locally(deployment.url)
        if n == 0:
            shutil.copytree(tmp_path / "lake", copy)
    shutil.rmtree(tmp_path / "lake")
    shutil.copytree(copy, tmp_path / "lake")
    with pytest.raises(ResumeRefused, match=r"the lake: docs/spark\.md"):
        ingest_locally(deployment.url)
    with pytest.raises(BadUsage, match="rebuild the lake"):
        rebuild(store=deployment.url)
    deployment.lose("manifests", "lake", "queue", "reconciler")
    assert rebuild(store=deployment.url) == 0
    ingest_locally(deployment.url)
    assert_lake_holds(deployment, deployment.sent)


@pytest.mark.daily(2)
@pytest.mark.parametrize("ingested", [0, 2])
@pytest.mark.parametrize("state_too", [False, True], ids=["queue", "queue and state"])
def test_a_job_commits_nothing_if_the_queue_is_rebuilt_after_its_last_check(
    tmp_path: Path, ingested: int, state_too: bool
) -> None:
    """Its position would count entries of the new register as committed."""
    deployment = Deployment(tmp_path, lanes=1).init()
    for n in range(ingested):
        deployment.accept([make_batch(n * 10)])
        assert reconcile(deployment) == 1
        assert ingest_locally(deployment.url).batches == 1
    for n in (5, 6):
        deployment.accept([make_batch(n * 10)])
        assert reconcile(deployment) == 1

    def rebuild_now() -> None:
        deployment.lose("queue", "manifests", *(["reconciler"] if state_too else []))
        deployment.accept([make_batch(1000)])
        assert rebuild(store=deployment.url) == 0

    with FencedConsumers(deployment.url, "spark") as consumers:
        consumers.open(open_snapshot(deployment.url).committed_through)
        paused = FailPoint(step="before_records_logs", action=rebuild_now)
        with pytest.raises(Fenced):
            ingester(deployment.url, consumers, failpoint=paused).ingest(
                pending_rows(deployment.url)
            )
    deployment.accept([make_batch(2000)])
    assert reconcile(deployment) == 1
    ingest_locally(deployment.url)
    assert_lake_holds(deployment, deployment.sent)


def test_a_rebuild_waits_for_a_job_that_has_begun_to_commit(tmp_path: Path) -> None:
    """Between the commits of two tables only the old work lists name the batches in between."""
    deployment = Deployment(tmp_path, lanes=1).init()
    deployment.accept([make_batch(0), make_batch(10, kind="metrics")])
    assert reconcile(deployment) == 2

    def try_to_rebuild() -> None:
        deployment.lose("queue")
        with pytest.raises(BadUsage, match="run the ingest"):
            rebuild(store=deployment.url)

    with FencedConsumers(deployment.url, "spark") as consumers:
        consumers.open(open_snapshot(deployment.url).committed_through)
        paused = FailPoint(step="after_records_logs", action=try_to_rebuild)
        with pytest.raises(Fenced):
            ingester(deployment.url, consumers, failpoint=paused).ingest(
                pending_rows(deployment.url)
            )
    assert rebuild(store=deployment.url) == 0
    deployment.accept([make_batch(2000)])
    assert reconcile(deployment) == 1
    assert ingest_locally(deployment.url).batches == 1
    assert_lake_holds(deployment, deployment.sent)


class Killed(Exception):
    """The command was killed at this step."""


def test_a_rebuild_that_was_killed_after_its_fence_is_repeated(tmp_path: Path) -> None:
    """The lane stays halted, and the job that it has fenced commits nothing."""
    deployment = Deployment(tmp_path, lanes=1).init()
    for n in range(2):
        deployment.accept([make_batch(n * 10)])
        assert reconcile(deployment) == 1

    async def killed_rebuild() -> None:
        async with open_store(deployment.url) as store:

            async def fence(lane: Lane) -> int:
                await fence_ingestion(store, deployment.url, lane)
                raise Killed

            reconciler = await Reconciler.of(store)
            persisted = await read_committed_positions(store, deployment.url, 1)
            with pytest.raises(Killed):
                _ = [one async for one in reconciler.rebuild(persisted, fence).repair()]

    def kill_rebuild() -> None:
        deployment.lose("queue", "manifests")
        asyncio.run(killed_rebuild())

    with FencedConsumers(deployment.url, "spark") as consumers:
        consumers.open(open_snapshot(deployment.url).committed_through)
        paused = FailPoint(step="before_records_logs", action=kill_rebuild)
        with pytest.raises(Fenced):
            ingester(deployment.url, consumers, failpoint=paused).ingest(
                pending_rows(deployment.url)
            )
    with pytest.raises(BadUsage, match="sluice rebuild"):
        reconcile(deployment)
    assert rebuild(store=deployment.url) == 0
    ingest_locally(deployment.url)
    assert_lake_holds(deployment, deployment.sent)


def test_a_job_loses_an_old_copy_of_its_register_before_the_position_is_read(
    tmp_path: Path,
) -> None:
    """The copy names the running job, so its check alone would not stop it."""
    deployment = Deployment(tmp_path, lanes=1).init()
    copy = tmp_path.with_name(f"{tmp_path.name}-copy")
    deployment.accept([make_batch(0)])
    assert reconcile(deployment) == 1
    fenced: list[Lane] = []

    async def repair(consumers: FencedConsumers) -> None:
        async with open_store(deployment.url) as store:

            async def fence(lane: Lane) -> int:
                with pytest.raises(Fenced):
                    await asyncio.to_thread(consumers.check)
                fenced.append(lane)
                return await fence_ingestion(store, deployment.url, lane)

            reconciler = await Reconciler.of(store)
            persisted = await read_committed_positions(store, deployment.url, 1)
            _ = [one async for one in reconciler.rebuild(persisted, fence).repair()]
            await reconciler.once()

    with FencedConsumers(deployment.url, "spark") as consumers:
        consumers.open(open_snapshot(deployment.url).committed_through)
        shutil.copytree(tmp_path / "queue", copy)
        deployment.accept([make_batch(10)])
        assert reconcile(deployment) == 1
        ingester(deployment.url, consumers).ingest(pending_rows(deployment.url))
        deployment.lose("queue")
        shutil.copytree(copy, tmp_path / "queue")
        consumers.check()
        asyncio.run(repair(consumers))
    assert [lane.lane for lane in fenced] == [0]
    deployment.accept([make_batch(20)])
    assert reconcile(deployment) == 1
    assert ingest_locally(deployment.url).batches == 1
    assert_lake_holds(deployment, deployment.sent)


def test_a_job_that_writes_during_a_rebuild_commits_nothing(tmp_path: Path) -> None:
    """Its position would count entries of the new register as committed."""
    deployment = Deployment(tmp_path, lanes=1).init()
    deployment.accept([make_batch(0)])
    assert reconcile(deployment) == 1
    assert ingest_locally(deployment.url).batches == 1
    for n in (1, 2):
        deployment.accept([make_batch(n * 10)])
        assert reconcile(deployment) == 1

    with FencedConsumers(deployment.url, "spark") as consumers:
        consumers.open(open_snapshot(deployment.url).committed_through)
        job = ingester(deployment.url, consumers)

        def write(rows: Sequence[PendingBatch], tables: Mapping[Kind, Table]) -> list[TaskResult]:
            deployment.lose("queue", "manifests")
            deployment.accept([make_batch(1000)])
            assert rebuild(store=deployment.url) == 0
            return job.write(rows, tables)

        with pytest.raises(Fenced):
            replace(job, write=write).ingest(pending_rows(deployment.url))
    deployment.accept([make_batch(2000)])
    assert reconcile(deployment) == 1
    ingest_locally(deployment.url)
    assert_lake_holds(deployment, deployment.sent)
