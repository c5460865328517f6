"""Promoted columns on real Spark: compaction fills them, and the data source has them."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from support.commands import sluice
from support.spark_lake import Deployment, assert_lake_holds, make_batch
from support.spark_local import ingest_locally

from sluice_spark.compaction.job import run_compact
from sluice_spark.settings import CompactSettings

pytestmark = pytest.mark.spark


def promote(deployment: Deployment, *words: str) -> None:
    done = sluice("columns", "add", "logs", *words, "--store", deployment.url)
    assert done.returncode == 0, done.stderr


def path_of(number: int) -> str | None:
    return f"/p/{number % 3}" if number % 2 else None


def test_compaction_fills_the_column_in_rows_of_older_files(spark: Any, tmp_path: Path) -> None:
    """Also if it is the first job that reads the decision, and a second run changes nothing."""
    deployment = Deployment(tmp_path, lanes=1).init()
    for start in (0, 10):
        deployment.deliver([make_batch(start)])
        ingest_locally(deployment.url)
    promote(deployment, "attributes.path", "text")
    promote(deployment, "attributes.grade", "integer")
    settings = CompactSettings(open_partitions=True)
    assert run_compact(spark, deployment.url, settings).rewritten == 2
    rows = deployment.rows("logs")
    assert {row["seq"]: row["attr_path"] for row in rows} == {n: path_of(n) for n in range(20)}
    assert {row["attr_grade"] for row in rows} == {None}
    assert_lake_holds(deployment, deployment.sent)
    assert run_compact(spark, deployment.url, settings).rewritten == 0


def test_the_data_source_has_the_column_of_each_pending_record(spark: Any, tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, lanes=1).init()
    promote(deployment, "attributes.path", "text")
    deployment.deliver([make_batch(0)])
    reader = spark.read.format("sluice").options(
        store=deployment.url, face="records", kind="logs", columns="seq,attr_path"
    )
    found = {row.seq: row.attr_path for row in reader.load().collect()}
    assert found == {n: path_of(n) for n in range(10)}
    other = reader.option("columns", "seq,attr_other")
    with pytest.raises(PySparkException, match="names no column of logs, column=`attr_other`"):
        other.load()
