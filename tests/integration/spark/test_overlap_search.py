"""What a search for overlaps reads of the ledger; no test needs a JVM."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.spark_lake import T0_NS, Deployment, make_batch
from support.spark_local import ingest_locally

from sluice_lake.data_files import list_files, list_partitions
from sluice_lake.delta import open_or_create_table
from sluice_lake.tables import BATCHES, LOGS
from sluice_spark.compaction import rewrite
from sluice_spark.compaction.repetitions import _IDENTITIES, _record_dates

DAY_NS = 86_400 * 10**9


def test_a_date_counts_if_a_table_of_any_kind_has_files_of_it(tmp_path: Path) -> None:
    place = Deployment(tmp_path / "store", lanes=1).init()
    assert _record_dates(place.url) == set()
    assert list_partitions(open_or_create_table(place.url, LOGS), LOGS) == set()
    place.deliver([make_batch(0), make_batch(10, kind="metrics", at_ns=T0_NS + 2 * DAY_NS)])
    ingest_locally(place.url)
    dates = _record_dates(place.url)
    assert len(dates) == 2
    ledger = list_files(place.table("batches"), BATCHES)
    assert {one.partition.partition("T")[0] for one in ledger} == dates


def test_only_the_columns_of_an_identity_are_read_from_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Deployment(tmp_path / "store", lanes=1).init()
    place.deliver([make_batch(0), make_batch(10)])
    ingest_locally(place.url)
    paths = [one.path for one in list_files(place.table("batches"), BATCHES)]
    asked: list[list[str]] = []

    class Reader(pq.ParquetFile):  # type: ignore[misc]
        def iter_batches(self, *, columns: list[str]) -> object:
            asked.append(columns)
            return super().iter_batches(columns=columns)

    monkeypatch.setattr(rewrite.pq, "ParquetFile", Reader)
    read = rewrite._file_reader(place.url, _IDENTITIES, paths)
    numbers = pa.RecordBatch.from_arrays([pa.array(range(len(paths)))], names=["id"])
    rows = pa.Table.from_batches(list(read(iter([numbers]))))
    columns = ["agent_id", "boot_id", "seq_start", "seq_end", "kind"]
    assert asked == [columns] * len(paths)
    assert rows.column_names == [*columns, "data_file"]
    assert sorted(rows.column("seq_start").to_pylist()) == [0, 10]


def test_whole_rows_with_attributes_are_read_from_a_bucket(tmp_path: Path) -> None:
    place = Deployment(tmp_path / "store", lanes=1).init()
    place.deliver([make_batch(0)])
    ingest_locally(place.url)
    paths = [one.path for one in list_files(place.table("logs"), LOGS)]
    read = rewrite._file_reader(place.url, LOGS, paths)
    numbers = pa.RecordBatch.from_arrays([pa.array([0])], names=["id"])
    rows = pa.Table.from_batches(list(read(iter([numbers])))).drop_columns("data_file")
    assert rows.equals(
        pq.ParquetFile(place.root / "lake/v1/logs" / paths[0]).read().cast(rows.schema)
    )
