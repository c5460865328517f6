"""The comparison of batches with the tables: what was lost, changed or deleted on purpose."""

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.spark_lake import Deployment, Sent, make_batch
from support.spark_local import ingest_locally

from sluice_cli.main import run
from sluice_protocol.fields import Kind
from sluice_protocol.keys import blob_key
from sluice_spark.compaction.job import run_compact
from sluice_spark.read_back import ComparedBatch, compare_batches, read_queues
from sluice_spark.settings import CompactSettings
from sluice_store import open_store

pytestmark = pytest.mark.spark


def compare(spark: Any, place: Deployment, batches: list[Sent]) -> list[ComparedBatch]:
    found = compare_batches(spark, place.url, [one.manifest for one in batches])
    return [found.batches[one.manifest.identity] for one in batches]


def is_equal(one: ComparedBatch) -> bool:
    return one.blob_rows is not None and one.blob_rows == one.table_rows


def edit(place: Deployment, table: str, change: Any) -> None:
    """Change the rows of the data files of a table, without its log."""
    for path in (place.root / "lake" / "v1" / table).glob("accepted_date=*/*.parquet"):
        pq.write_table(change(pq.read_table(path, partitioning=None)), path)


@pytest.mark.parametrize(
    "kinds",
    [
        ("logs", "spans"),
        pytest.param(("logs", "metrics", "entries", "spans"), marks=pytest.mark.long),
    ],
    ids=len,
)
def test_every_kind_is_compared_with_its_blobs(
    spark: Any, tmp_path: Path, kinds: tuple[Kind, ...]
) -> None:
    """Compaction, deletes that hide and deletes that removed rows change no result."""
    place = Deployment(tmp_path, lanes=2).init()
    batches = [
        make_batch(start * 100 + n * 10, agent=f"host-{n}", kind=kind)
        for start, kind in enumerate(kinds)
        for n in range(3)
    ]
    place.deliver(batches)
    ingest_locally(place.url)
    first = compare(spark, place, batches)
    assert [one.blob_rows.rows for one in first if one.blob_rows] == [10] * len(batches)
    assert all(map(is_equal, first))
    assert [one.blob for one in first] == [one.manifest.digest for one in batches]
    assert [one.ledger for one in first] == [one.manifest.digest for one in batches]
    assert len({one.table_rows for one in first}) == len(batches)
    deleted = ["delete", "--where", "agent = 'host-1'", "--store", place.url]
    assert run(deleted) == 0
    hidden = compare(spark, place, batches)
    assert all(map(is_equal, hidden))
    assert [one.blob_rows.rows for one in hidden[:3] if one.blob_rows] == [10, 0, 10]
    assert run_compact(spark, place.url, CompactSettings(open_partitions=True)).dropped_rows == 10
    assert compare(spark, place, batches) == hidden


def test_rows_that_are_missing_changed_or_twice_are_found(spark: Any, tmp_path: Path) -> None:
    place = Deployment(tmp_path, lanes=1).init()
    batches = [make_batch(n * 10) for n in range(4)]
    place.deliver(batches[:3])
    ingest_locally(place.url)

    def change(rows: pa.Table) -> pa.Table:
        bodies = rows["body"].to_pylist()
        bodies[15] = "another"
        rows = rows.set_column(rows.column_names.index("body"), "body", pa.array(bodies))
        return pa.concat_tables([rows.slice(0, 5), rows.slice(6), rows.slice(25, 1)])

    edit(place, "logs", change)
    found = compare(spark, place, batches)
    assert [is_equal(one) for one in found] == [False] * 4
    assert [one.table_rows.rows for one in found if one.table_rows] == [9, 10, 11, 0]
    assert found[3].ledger is None


def test_a_blob_that_is_missing_or_damaged_is_not_compared(spark: Any, tmp_path: Path) -> None:
    place = Deployment(tmp_path, lanes=1).init()
    batches = [make_batch(n * 10) for n in range(3)]
    place.deliver(batches)
    ingest_locally(place.url)
    (tmp_path / blob_key(batches[0].manifest.digest)).unlink()
    place.put_blob(batches[1], b"damaged")
    found = compare(spark, place, batches)
    assert [one.blob for one in found] == [None, None, batches[2].manifest.digest]
    assert [one.blob_rows is None for one in found] == [True, True, False]


def test_without_tables_nothing_is_known(spark: Any, tmp_path: Path) -> None:
    place = Deployment(tmp_path, lanes=1).init()
    batches = [make_batch(0)]
    place.accept(batches)
    assert compare(spark, place, batches) == [ComparedBatch()]


def test_unacknowledged_batches_of_every_queue_are_pending(tmp_path: Path) -> None:
    place = Deployment(tmp_path, lanes=2).init()
    batches = [make_batch(n * 10, agent=f"host-{n}") for n in range(3)]
    place.deliver(batches)

    async def pending() -> set[str]:
        async with open_store(place.url) as store:
            facts = await read_queues(store)
        assert facts.pending is not None
        return {one.agent_id for one in facts.pending}

    assert asyncio.run(pending()) == {"host-0", "host-1", "host-2"}
    ingest_locally(place.url)
    assert asyncio.run(pending()) == set()
