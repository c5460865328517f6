"""Dead letters: each fault of a blob, and what brings the batch into the lake."""

from pathlib import Path

import pytest
from support.spark_lake import Deployment, Sent, assert_lake_holds, make_batch
from support.spark_local import ingest_locally

from sluice_lake.open_dead_letters import read_open_dead_letters
from sluice_maintain.lake_state import count_letters
from sluice_protocol.system_clock import SystemClock
from sluice_spark.ingest.fenced_consumers import FencedConsumers
from sluice_spark.ingest.job import PAGE, Redelivery
from sluice_spark.ingest.microbatch import open_snapshot


def redeliver(deployment: Deployment, times: int = 1) -> Redelivery:
    """Check the dead letters as the ingest job does."""
    with FencedConsumers(deployment.url, "spark") as consumers:
        consumers.open(open_snapshot(deployment.url).committed_through)
        letters = Redelivery(store_url=deployment.url, consumers=consumers, clock=SystemClock())
        for _ in range(times):
            letters.check()
    return letters


def lost(
    tmp_path: Path, count: int = 1, fault: bytes | None = None
) -> tuple[Deployment, list[Sent]]:
    """Return a store with batches whose blobs were missing or wrong when they were ingested."""
    deployment = Deployment(tmp_path, lanes=2).init()
    batches = [make_batch(n * 10, agent=f"host-{n % 3}") for n in range(count)]
    deployment.accept(batches, blobs=False)
    for one in batches if fault is not None else ():
        deployment.put_blob(one, fault or b"")
    deployment.deliver([make_batch(0, agent="other")])
    deployment.enqueue(batches)
    assert ingest_locally(deployment.url).dead_letters == count
    return deployment, batches


@pytest.mark.daily(1)
@pytest.mark.parametrize("fault", [None, b"x", b"other bytes"], ids=["missing", "short", "wrong"])
def test_a_restored_blob_is_enough(tmp_path: Path, fault: bytes | None) -> None:
    """Until then nothing is enqueued; afterwards the letter is closed and counted no more."""
    deployment, batches = lost(tmp_path, fault=fault)
    assert count_letters(deployment.url) == 1
    waiting = redeliver(deployment, times=3)
    assert (waiting.open_letters, waiting.redelivered) == (1, 0)
    for one in batches:
        deployment.put_blob(one)
    assert redeliver(deployment, times=3).redelivered == 1
    assert ingest_locally(deployment.url).batches == 1
    assert_lake_holds(deployment, deployment.sent)
    assert count_letters(deployment.url) == 0
    assert redeliver(deployment).redelivered == 0


def test_a_batch_that_is_enqueued_twice_is_ingested_once(tmp_path: Path) -> None:
    """The job may be killed after the append, and another one repeats it."""
    deployment, batches = lost(tmp_path)
    deployment.put_blob(batches[0])
    assert [redeliver(deployment).redelivered for _ in range(2)] == [1, 1]
    assert ingest_locally(deployment.url).batches == 1
    assert_lake_holds(deployment, deployment.sent)


def test_checks_take_turns_and_find_every_restored_batch(tmp_path: Path) -> None:
    """A check reads a page of letters; one behind many others that stay lost is found too."""
    deployment, batches = lost(tmp_path, count=PAGE + 20)
    deployment.put_blob(batches[0])
    deployment.put_blob(batches[-1])
    assert redeliver(deployment, times=3).redelivered == 2
    assert len(read_open_dead_letters(deployment.url)) == PAGE + 20
    assert ingest_locally(deployment.url).batches == 2
    assert count_letters(deployment.url) == PAGE + 18
