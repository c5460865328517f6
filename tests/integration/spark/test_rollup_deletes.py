import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from support.query_lake import make_query, run_query
from support.query_rollups import expected, merged
from support.spark_lake import T0_NS, Deployment, make_batch
from support.spark_local import ingest_locally

from sluice_protocol.batch_in_lake import ROLLUP_WINDOWS
from sluice_protocol.manifests import encode_record
from sluice_protocol.record_deletes import DeleteRecord, delete_key
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_query.request import Aggregate, Series
from sluice_query.result import QueryResult
from sluice_spark.compaction.job import run_compact
from sluice_spark.rollups import job as rollup
from sluice_spark.rollups.job import run_rollup
from sluice_spark.settings import CompactSettings
from sluice_store import open_store

pytestmark = pytest.mark.spark

DAY_NS = 86_400 * 10**9


def put_delete(deployment: Deployment, letter: str, **conditions: Any) -> None:
    async def put() -> None:
        async with open_store(deployment.url) as store:
            found = {"accepted_until_unix_ns": T0_NS + DAY_NS, **conditions}
            record = DeleteRecord(delete_id="01" + letter * 24, kind="metrics", **found)
            await store.create(delete_key(record.delete_id), encode_record(record))

    asyncio.run(put())


def chunk_rows(root: Path) -> list[dict[str, Any]]:
    """Return the rows that a reader of the chunks uses, by the rule of `rollup_objects`."""
    rows: list[dict[str, Any]] = []
    for folder in {path.parent for path in (root / "rollup").rglob("*.lmrollup.zst")}:
        names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
        wholes = [name for name in names if "-all" in name]
        start = wholes[-1] if wholes else names[0]
        for name in names[names.index(start) :]:
            body = zstandard.ZstdDecompressor().decompress((folder / name).read_bytes())
            rows += pa.ipc.open_stream(body).read_all().to_pylist()
    return rows


def assert_rolled(deployment: Deployment, keep: Callable[[tuple[Any, ...]], bool]) -> None:
    for window, size_s in ROLLUP_WINDOWS:
        wanted = expected(deployment, size_s, keep)
        assert merged(deployment.rows("rollups"), window) == wanted
        assert merged(chunk_rows(deployment.root), window) == wanted


@pytest.mark.long
def test_deleted_points_are_removed_from_rollups_and_chunks(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delete of points that were rolled up is applied by the next range, also to its chunks.

    After an owner crashed before its commit, the next one writes the same. Points that were
    accepted after the cut-off remain, even if they arrive later.
    """
    deployment = Deployment(tmp_path, lanes=1).init()
    deployment.deliver([make_batch(n * 40, 40, agent=f"h-{n}", kind="metrics") for n in range(3)])
    ingest_locally(deployment.url)
    run_rollup(spark, deployment.url)
    assert_rolled(deployment, lambda row: True)
    put_delete(deployment, "A", agent_id="h-1", contains="m.2")
    put_delete(deployment, "B", attributes={"agent": "h-2"}, to_unix_ns=T0_NS + 100 * 1_000_003)

    def kept(row: tuple[Any, ...]) -> bool:
        agent, _, _, ts_ns, name, _, _, attributes = row
        first = agent == "h-1" and name == "m.2"
        second = attributes.get("agent") == "h-2" and ts_ns < T0_NS + 100 * 1_000_003
        return not first and not second

    commit = rollup._commit
    monkeypatch.setattr(rollup, "_commit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run_rollup(spark, deployment.url)
    monkeypatch.setattr(rollup, "_commit", commit)
    report = run_rollup(spark, deployment.url)
    assert (report.covers, report.revised) == (1, 1)
    assert_rolled(deployment, kept)
    assert run_rollup(spark, deployment.url).covers == 0
    late = make_batch(500, 40, agent="h-1", kind="metrics", at_ns=T0_NS + 2 * DAY_NS)
    deployment.deliver([late])
    ingest_locally(deployment.url)
    assert run_rollup(spark, deployment.url).revised == 0
    assert_rolled(deployment, lambda row: kept(row) or row[2] >= 500)


def counted(deployment: Deployment) -> QueryResult:
    """Return the numbers of the samples of one metric."""
    series = Series(metric="m.2", step_ns=60 * NS_PER_S, aggregate=Aggregate.COUNT)
    query = make_query(
        kind="metrics",
        from_ns=UnixNs(T0_NS - 60 * NS_PER_S),
        to_ns=UnixNs(T0_NS + 7_200 * NS_PER_S),
        series=series,
    )
    return run_query(deployment, query)


def test_rollups_survive_retention_and_apply_deletes(spark: Any, tmp_path: Path) -> None:
    """Retention removes points and keeps rollups, from which a series is then computed.

    Deletes still remove whole series from those hours.
    """
    deployment = Deployment(tmp_path, lanes=1).init()
    deployment.deliver([make_batch(n * 40, 40, agent=f"h-{n}", kind="metrics") for n in range(2)])
    ingest_locally(deployment.url)
    run_rollup(spark, deployment.url)
    everything = counted(deployment)
    put_delete(deployment, "A", to_unix_ns=T0_NS + DAY_NS)
    run_compact(spark, deployment.url, CompactSettings(open_partitions=True))
    assert deployment.rows("metrics") == []
    kept = counted(deployment)
    assert sum(one.value for one in kept.points) > 0
    assert kept.points == everything.points
    assert kept.summary.rollups_only_before is not None
    assert not kept.summary.partial
    assert run_rollup(spark, deployment.url).covers == 0
    assert_rolled(deployment, lambda row: True)
    put_delete(deployment, "B", agent_id="h-0")
    assert run_rollup(spark, deployment.url).revised == 1
    assert_rolled(deployment, lambda row: row[0] != "h-0")
