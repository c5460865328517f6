from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pytest
from support.builders import later_release
from support.constants import settings_with
from support.spark_lake import T0_NS, Deployment, Sent, assert_lake_holds, lake_rows, make_batch
from support.spark_local import pending_rows

from sluice_cli.rebuild import rebuild
from sluice_protocol.errors import BadUsage, Fenced
from sluice_protocol.fields import KINDS
from sluice_spark.errors import JobFailed
from sluice_spark.ingest.fenced_consumers import FencedConsumers
from sluice_spark.ingest.job import CheckpointFolder, run_ingest
from sluice_spark.ingest.microbatch import IngestTotals
from sluice_spark.settings import IngestSettings

pytestmark = pytest.mark.spark


def ingest(spark: Any, deployment: Deployment, **more: Any) -> IngestTotals:
    return run_ingest(deployment.url, settings_with(IngestSettings, once=True, **more), spark=spark)


def mixed(
    first: int = 0, batches: int = 6, agents: int = 3, boots: tuple[str, ...] = ("b1",)
) -> list[Sent]:
    """Return batches of every kind; each is sent by every one of the boots."""
    kinds = tuple(KINDS)
    return [
        make_batch(
            first + n * 10,
            agent=f"host-{n % agents}",
            boot=boot,
            kind=kinds[(n // agents) % len(kinds)],
        )
        for n in range(batches)
        for boot in boots
    ]


def assert_boots_equal(deployment: Deployment) -> None:
    """Assert that the rows of the second boot are those of the first."""
    for kind in KINDS:
        rows = lake_rows(deployment, kind)
        first, second = (
            [(agent, *row) for agent, boot, *row in rows if boot == name and row[0] < 5000]
            for name in ("b1", "b2")
        )
        assert len(second) == 30
        assert second == first


@dataclass(frozen=True)
class Ingested:
    """A deployment after the first run of the job, with an older job that had its lanes before."""

    deployment: Deployment
    lost: Sent
    totals: IngestTotals
    older: FencedConsumers


@pytest.fixture(scope="module")
def ingested(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ingested]:
    """Ingest twelve batches of two boots each, and one whose blob is missing."""
    deployment = Deployment(tmp_path_factory.mktemp("ingested")).init()
    lost = make_batch(5000)
    deployment.accept([lost], blobs=False)
    deployment.deliver(mixed(batches=12, boots=("b1", "b2")))
    deployment.enqueue([lost])
    with FencedConsumers(deployment.url, "spark") as older:
        older.open(lambda lanes: dict.fromkeys(lanes, 0))
        yield Ingested(deployment, lost, ingest(spark, deployment), older)


def test_ingest_writes_every_record_that_was_sent(spark: Any, ingested: Ingested) -> None:
    """Every record of every kind is in its table once, with equal values, after each run.

    A batch without a blob does not stop the job, and is written when it is enqueued again.
    """
    deployment, lost, totals = ingested.deployment, ingested.lost, ingested.totals
    assert (totals.batches, totals.records, totals.dead_letters) == (24, 240, 1)
    assert_boots_equal(deployment)
    assert_lake_holds(deployment, [one for one in deployment.sent if one is not lost])
    (letter,) = deployment.rows("dead_letters")
    assert (letter["seq_start"], letter["reason"]) == (5000, "missing")
    deployment.put_blob(lost)
    deployment.enqueue([lost])
    deployment.deliver(mixed(first=1000))
    assert ingest(spark, deployment).batches == 7
    assert_lake_holds(deployment, deployment.sent)
    assert ingest(spark, deployment).batches == 0


@pytest.mark.long
def test_a_checkpoint_in_a_directory_is_written_without_searching_for_links(
    spark: Any, ingested: Ingested, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's default manager starts `readlink` eight times for each file of a checkpoint.

    The folder is empty after the job, and nothing is written into a directory store.
    """
    monkeypatch.setattr(CheckpointFolder, "remove", lambda _: None)
    ingest(spark, ingested.deployment, checkpoint=f"file://{tmp_path}")
    manager = spark.conf.get("spark.sql.streaming.checkpointFileManagerClass")
    assert manager.endswith(".FileSystemBasedCheckpointFileManager")
    assert list(tmp_path.glob("ingest-*/*/metadata"))
    monkeypatch.undo()
    ingest(spark, ingested.deployment, checkpoint=f"file://{tmp_path}")
    assert not list(tmp_path.iterdir())
    assert not (ingested.deployment.root / ".sluice" / "spark").exists()


def test_workers_import_pyspark_from_site_packages(spark: Any) -> None:
    """The modules of Spark's archive would be compiled again in each process."""

    def read_place(_: int) -> str:
        import pyspark  # noqa: PLC0415 - in the worker

        return str(pyspark.__file__)

    (place,) = spark.sparkContext.parallelize([0], 1).map(read_place).collect()
    assert place == pyspark.__file__
    assert ".zip" not in place


def test_older_of_two_ingest_jobs_is_fenced(ingested: Ingested) -> None:
    """After a second job opens the queue, the first one cannot change anything."""
    with pytest.raises(Fenced):
        ingested.older.check()
    with pytest.raises(Fenced):
        ingested.older.acknowledge({0: 10, 1: 10})


@pytest.mark.daily(1)
@pytest.mark.parametrize("rebuilt", [False, True], ids=["same queue", "rebuilt queue"])
def test_no_checkpoint_of_a_killed_job_delays_or_duplicates_a_batch(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rebuilt: bool
) -> None:
    """Each query begins where the tables end, whatever an earlier one has left behind.

    The queue that is rebuilt has fewer entries than the checkpoint names. Small micro-batches
    change every boundary.
    """
    deployment = Deployment(tmp_path).init()
    for n in range(3):
        deployment.deliver(mixed(first=n * 1000, batches=2))
    folder = f"file://{tmp_path}/checkpoints"
    with monkeypatch.context() as killed:
        killed.setattr(CheckpointFolder, "remove", lambda _: None)
        assert ingest(spark, deployment, checkpoint=folder).batches == 6
    (left,) = (tmp_path / "checkpoints").glob("ingest-*/*")
    if rebuilt:
        deployment.lose("lake", "queue", "manifests")
        assert rebuild(store=deployment.url) == 0
    else:
        deployment.enqueue(deployment.sent[:3])
    deployment.deliver(mixed(first=9000, batches=3))
    expected = 9 if rebuilt else 3
    totals = ingest(spark, deployment, checkpoint=folder, max_batches_per_trigger=1)
    assert totals.batches == expected
    assert not left.exists()
    assert_lake_holds(deployment, deployment.sent)


@pytest.mark.long
def test_ingest_stops_at_a_frame_of_a_later_release(spark: Any, tmp_path: Path) -> None:
    """The batch is no dead letter: it stays in the queue until the job is upgraded."""
    deployment = Deployment(tmp_path).init()
    frame, manifest = later_release(make_batch(10).frame, at_ns=T0_NS)
    deployment.deliver([make_batch(0), Sent(manifest=manifest, frame=frame, rows=())])
    with pytest.raises(JobFailed, match="update this one") as refused:
        ingest(spark, deployment, restarts_max=0)
    assert f"found=`4`, supported=`3`, location=`{manifest.raw_blob_key}`" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(pending_rows(deployment.url)) == 2
    assert not (tmp_path / "lake" / "v1" / "dead_letters").exists()


def test_source_reads_every_record_with_face_records(spark: Any, tmp_path: Path) -> None:
    """The rows have the declared schema and the chosen columns."""
    deployment = Deployment(tmp_path).init()
    deployment.deliver(mixed(batches=12, boots=("b1", "b2")))
    reader = spark.read.format("sluice").option("store", deployment.url).option("face", "records")
    logs = reader.option("kind", "logs").load()
    found = [tuple(row) for row in logs.select("boot_id", "seq", "body").collect()]
    sent = [row for one in deployment.sent[:6] for row in one.rows]
    assert sorted(found) == sorted((boot, seq, body) for _, boot, seq, _, body, *_ in sent)
    metrics = reader.option("kind", "metrics").option("columns", "name,value").load()
    assert metrics.columns == ["name", "value"]
    assert metrics.count() == 60
    with pytest.raises(Exception, match="names no column of metrics"):
        reader.option("kind", "metrics").option("columns", "nme").load().count()


def test_source_refuses_invalid_options() -> None:
    from pyspark_sluice.source import parse_options  # noqa: PLC0415

    for wrong in (
        {},
        {"store": "file:///x", "face": "x"},
        {"store": "s", "maxBytesPerTrigger": "0"},
    ):
        with pytest.raises(BadUsage):
            parse_options(wrong)
