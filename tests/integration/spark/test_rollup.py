import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from support.query_rollups import expected, merged
from support.spark_lake import Deployment, make_batch
from support.spark_local import ingest_locally

from sluice_cli.queue import lanes
from sluice_lake.source_ranges import SourceRange
from sluice_protocol.batch_in_lake import ROLLUP_WINDOWS
from sluice_reconciler.app import run_once
from sluice_reconciler.settings import ReconcilerSettings
from sluice_spark.rollups import job as rollup
from sluice_spark.rollups.job import run_rollup

pytestmark = pytest.mark.spark
AGENTS = range(8)


def test_rollup_counts_every_point_once_in_both_windows(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The values equal those computed in Python, with late data and after a crash.

    The batches are in frames of both versions.

    The chunks contain the rows of the table, and a second owner changes none of them.
    """
    deployment = Deployment(tmp_path).init()
    kinds = ("metrics", "logs")
    deployment.deliver(
        [make_batch(n * 40, 40, agent=f"host-{n}", kind=kinds[n % 2]) for n in range(4)]
    )
    ingest_locally(deployment.url)
    commit = rollup._commit
    monkeypatch.setattr(rollup, "_commit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run_rollup(spark, deployment.url)
    monkeypatch.setattr(rollup, "_commit", commit)
    chunks = {path: path.read_bytes() for path in (tmp_path / "rollup").rglob("*.zst")}
    deployment.deliver([make_batch(40, 40, agent="host-0", kind="metrics")])
    ingest_locally(deployment.url)
    assert run_rollup(spark, deployment.url).covers == 2
    assert run_rollup(spark, deployment.url).covers == 0
    for window, size_s in ROLLUP_WINDOWS:
        assert merged(deployment.rows("rollups"), window) == expected(deployment, size_s)
    assert all(path.read_bytes() == body for path, body in chunks.items())
    files = list((tmp_path / "rollup").rglob("*.lmrollup.zst"))
    held = sum(
        pa.ipc.open_stream(zstandard.ZstdDecompressor().decompress(path.read_bytes()))
        .read_all()
        .num_rows
        for path in files
    )
    assert held == len(deployment.rows("rollups"))
    sketches = spark.createDataFrame(deployment.table("rollups").to_pyarrow_table()).selectExpr(
        "kll_sketch_get_n_double(kll_merge_agg_double(sketch)) AS n"
    )
    assert sketches.first().n == 2 * sum(count for count, _ in expected(deployment, 60).values())


def test_lanes_condition_selects_the_lanes_of_the_source_range() -> None:
    cover = SourceRange(number=2, after={"0": 3, "1": 5}, through={"0": 7, "1": 5})
    assert rollup.lanes_condition(cover, 3) == (
        "((lane = 0 AND queue_sequence > 3 AND queue_sequence <= 7))"
    )


def test_every_point_is_counted_once_while_the_number_of_lanes_changes(
    spark: Any, tmp_path: Path
) -> None:
    """Source ranges end before, behind and in the middle of a change."""
    deployment = Deployment(tmp_path, lanes=3).init()

    def ingest(first: int) -> None:
        batches = [
            make_batch(first + 40 * n, 40, agent=f"host-{n}", kind="metrics") for n in AGENTS
        ]
        deployment.accept(batches)
        report = asyncio.run(run_once(deployment.url, ReconcilerSettings(list_batches_max=2)))
        assert report.outcome.enqueued == len(batches)
        assert ingest_locally(deployment.url).batches == len(batches)

    ingest(0)
    assert run_rollup(spark, deployment.url).covers == 1
    for first, number in ((1000, 5), (3000, 2)):
        ingest(first)  # this is in no source range when the number changes
        lanes(number, store=deployment.url)
        ingest(first + 1000)
        assert run_rollup(spark, deployment.url).covers == 1
        for window, size_s in ROLLUP_WINDOWS:
            assert merged(deployment.rows("rollups"), window) == expected(deployment, size_s)
    lanes(4, store=deployment.url)
    ingest(6000)
    assert run_rollup(spark, deployment.url).covers == 1
    assert merged(deployment.rows("rollups"), "1m") == expected(deployment, 60)
