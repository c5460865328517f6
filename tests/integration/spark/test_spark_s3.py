"""The Spark jobs on a bucket of a real S3 server, without any jars for S3."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.spark_lake import assert_lake_holds, make_batch
from support.store_buckets import Bucket, versitygw_deployment

from sluice_protocol.fields import KINDS
from sluice_spark.compaction.job import run_compact
from sluice_spark.index import run_index
from sluice_spark.ingest.job import run_ingest
from sluice_spark.rollups.job import run_rollup
from sluice_spark.settings import CompactSettings, IngestSettings

pytestmark = [pytest.mark.s3, pytest.mark.spark]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Bucket]:
    with versitygw_deployment(tmp_path) as made:
        yield made


def test_pipeline_over_a_bucket(spark: Any, place: Bucket, tmp_path: Path) -> None:
    """Ingest, compaction, rollups and index produce the same on a bucket as in a directory."""
    settings = IngestSettings(once=True, checkpoint=f"file://{tmp_path}/checkpoint")
    for n in range(2):
        place.deliver([make_batch(n * 10, agent=f"{kind}-1", kind=kind) for kind in KINDS])
        run_ingest(place.url, settings, spark=spark)
    report = run_compact(spark, place.url, CompactSettings(open_partitions=True))
    assert (report.files_after, report.dropped_rows, report.conflicts) == (4, 0, 0)
    assert_lake_holds(place, place.sent)
    assert run_rollup(spark, place.url).covers == 1
    assert run_index(spark, place.url).chunks == 2
