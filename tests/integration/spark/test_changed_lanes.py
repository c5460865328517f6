"""The number of lanes changes between and while batches are ingested."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from support.spark_lake import Deployment, assert_lake_holds, make_batch
from support.spark_local import ingest_locally, ingester, pending_rows

from sluice_cli.queue import lanes, status
from sluice_cli.rebuild import rebuild
from sluice_protocol.errors import BadUsage, Fenced
from sluice_queue.errors import ResumeRefused
from sluice_queue.inspection import read_lane
from sluice_queue.lane import list_lanes
from sluice_reconciler.app import run_once
from sluice_reconciler.settings import ReconcilerSettings
from sluice_spark.ingest.fenced_consumers import FencedConsumers
from sluice_spark.ingest.microbatch import open_snapshot
from sluice_store import open_store


def reconcile(deployment: Deployment) -> int:
    settings = ReconcilerSettings(list_batches_max=4)
    return asyncio.run(run_once(deployment.url, settings)).outcome.enqueued


def fill(deployment: Deployment, first: int) -> int:
    """Accept batches of six agents, each the next of its boot; return their number."""
    batches = [make_batch(first + 10 * n, agent=f"host-{a}") for a in range(6) for n in range(3)]
    batches.append(make_batch(first, agent="host-9", kind="metrics"))
    deployment.accept(batches)
    return len(batches)


def step(deployment: Deployment, first: int) -> None:
    """Accept, enqueue and ingest batches; each is new exactly once."""
    count = fill(deployment, first)
    assert reconcile(deployment) == count
    assert reconcile(deployment) == 0
    assert ingest_locally(deployment.url).batches == count
    assert_lake_holds(deployment, deployment.sent)


def used(deployment: Deployment) -> Counter[int]:
    """Return how many entries of each lane are pending."""

    async def read() -> Counter[int]:
        async with open_store(deployment.url) as store:
            found = await list_lanes(store, "spark")
            views = [await read_lane(store, "spark", one.lane) for one in found]
            return Counter({view.lane.lane: view.state.waiting for view in views})

    return asyncio.run(read())


def test_batches_are_ingested_once_before_and_after_each_change(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, lanes=3).init()
    step(deployment, 0)
    for round_, number in enumerate((5, 2, 2 + 6, 1), start=1):
        lanes(number, store=deployment.url)
        assert reconcile(deployment) == 0, "every batch is known in its new lane"
        step(deployment, round_ * 1000)
        assert status(store=deployment.url) == 0


def test_a_job_that_knows_the_earlier_number_is_fenced(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, lanes=2).init()
    step(deployment, 0)
    with FencedConsumers(deployment.url, "spark") as stale:
        stale.open(open_snapshot(deployment.url).committed_through)
        lanes(5, store=deployment.url)
        count = fill(deployment, 1000)
        assert reconcile(deployment) == count
        assert sum(lane >= 2 for lane, pending in used(deployment).items() if pending)
        with pytest.raises(Fenced) as fenced:
            ingester(deployment.url, stale).ingest(pending_rows(deployment.url))
        assert not fenced.value.by_newer, "a job opens the lanes again and continues"
        assert_lake_holds(deployment, deployment.sent[: -count or None])
        opened = stale.open(open_snapshot(deployment.url).committed_through)
        assert opened == (0, 1, 2, 3, 4)
        ingester(deployment.url, stale).ingest(pending_rows(deployment.url))
    assert_lake_holds(deployment, deployment.sent)


@pytest.mark.parametrize("number", [0, 1001])
def test_bad_numbers_are_refused(tmp_path: Path, number: int) -> None:
    deployment = Deployment(tmp_path, lanes=3).init()
    with pytest.raises(BadUsage):
        lanes(number, store=deployment.url)


def test_pending_entries_without_a_consumer_are_refused(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, lanes=2).init()
    fill(deployment, 0)
    reconcile(deployment)
    with pytest.raises(BadUsage, match="start its consumer first"):
        lanes(4, store=deployment.url)
    assert ingest_locally(deployment.url).batches == 19


def test_a_lost_queue_is_rebuilt_in_the_present_layout(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, lanes=3).init()
    step(deployment, 0)
    lanes(5, store=deployment.url)
    deployment.lose("queue", "manifests", "reconciler")
    assert rebuild(store=deployment.url) == 0
    ingest_locally(deployment.url)
    assert_lake_holds(deployment, deployment.sent)
    step(deployment, 1000)


def test_a_lost_lake_is_refused_after_a_change(tmp_path: Path) -> None:
    """Its entries were acknowledged before the change, so nothing would enqueue them again."""
    deployment = Deployment(tmp_path, lanes=3).init()
    step(deployment, 0)
    lanes(5, store=deployment.url)
    deployment.lose("lake")
    with pytest.raises(ResumeRefused, match="rebuild it"):
        ingest_locally(deployment.url)


def test_a_lake_is_rebuilt_after_a_change(tmp_path: Path) -> None:
    """As `docs/spark.md` describes it."""
    deployment = Deployment(tmp_path, lanes=3).init()
    step(deployment, 0)
    lanes(5, store=deployment.url)
    step(deployment, 1000)
    deployment.lose("lake", "queue", "manifests", "reconciler")
    assert rebuild(store=deployment.url) == 0
    ingest_locally(deployment.url)
    assert_lake_holds(deployment, deployment.sent)
    step(deployment, 2000)
