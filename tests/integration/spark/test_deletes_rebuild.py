"""Deletes still apply after the queue, the tables and the rollups are lost and rebuilt."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.query_rollups import expected, merged
from support.spark_lake import Deployment, lake_rows, make_batch
from support.spark_local import ingest_locally

from sluice_cli.main import run
from sluice_spark.compaction.job import run_compact
from sluice_spark.rollups.job import run_rollup
from sluice_spark.settings import CompactSettings

pytestmark = pytest.mark.spark


@pytest.mark.long
def test_deletes_apply_after_queue_and_tables_are_rebuilt(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Deleted records stay hidden before and after ingestion, and maintenance removes them."""

    def sluice(deployment: Deployment, *arguments: str) -> str:
        capsys.readouterr()
        code = run([*arguments, "--store", deployment.url])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return printed.out

    def found(deployment: Deployment) -> set[int]:
        lines = sluice(deployment, "query", "--from", "2026-09-21T00:00:00Z", "--json").splitlines()
        return {json.loads(line)["seq"] for line in lines[:-1]}

    deployment = Deployment(tmp_path, lanes=1).init()
    logs = [make_batch(0, 10), make_batch(10, 10, agent="host-2")]
    deployment.deliver([*logs, make_batch(0, 40, agent="m-1", kind="metrics")])
    ingest_locally(deployment.url)
    run_rollup(spark, deployment.url)
    sluice(deployment, "delete", "--where", "agent = 'host-1' and body contains 'line 3'")
    sluice(deployment, "delete", "--kind", "metrics", "--where", "name = 'm.2'")
    kept = (set(range(10)) - {3}) | set(range(10, 20))
    assert found(deployment) == kept
    for folder in ("lake", "queue", "manifests", "rollup", "reconciler", ".sluice"):
        shutil.rmtree(tmp_path / folder, ignore_errors=True)
    sluice(deployment, "rebuild")
    assert found(deployment) == kept
    ingest_locally(deployment.url)
    assert len(lake_rows(deployment, "logs")) == 20
    assert found(deployment) == kept
    assert run_rollup(spark, deployment.url).covers == 1
    for window, size_s in (("1m", 60), ("1h", 3600)):
        wanted = expected(deployment, size_s, lambda row: row[4] != "m.2")
        assert merged(deployment.rows("rollups"), window) == wanted
    report = run_compact(spark, deployment.url, CompactSettings(open_partitions=True))
    assert report.dropped_rows == 1 + 8
    assert {row[2] for row in lake_rows(deployment, "logs")} == kept
    assert found(deployment) == kept
