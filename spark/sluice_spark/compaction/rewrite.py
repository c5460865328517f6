"""Rewriting of data files by Spark: the rows that are kept, ordered by time, in new files.

Spark reads, filters, sorts and spills. Executors write with the same pyarrow writer as ingestion.
The driver commits with delta-rs.

Delta's own OPTIMIZE and DELETE are not used. Delta's log store for local files does not create a
commit file exclusively, and the one for S3 supports a single driver. Next to an ingest job that
commits with another library, either could overwrite a commit (ADR 32).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from sluice_lake.data_files import DataFile, total_bytes
from sluice_lake.durable_files import make_folder, sync_file
from sluice_lake.errors import TableRefused
from sluice_lake.locations import lake_location, open_filesystem
from sluice_lake.promoted import with_promoted_values
from sluice_lake.schemas import arrow_schema, conform
from sluice_lake.tables import ACCEPTED_DATE, Column, ColumnType, Table
from sluice_protocol.fields import KINDS
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import NS_PER_S
from sluice_spark.commits import replace_files
from sluice_spark.failpoints import FailPoint
from sluice_spark.session import Session, spark_schema
from sluice_spark.written_files import (
    ROW_GROUP_ROWS,
    WrittenFile,
    decode_result,
    encode_result,
    file_statistics,
    parquet_options,
    partition_folder,
)

ROW_GROUP_BYTES: Final = 32 * 1024 * 1024
_OF_BATCH: Final = frozenset(("agent_id", "boot_id", "seq", "ts", "accepted_at", "queue_sequence"))
"""Columns that are compared separately, follow from others, or differ between batches."""
_RAW_BITS: Final = "java_method('java.lang.Double', 'doubleToRawLongBits', {0})"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRewrite:
    """Files to replace, and which of their rows to keep.

    Attributes:
        unique: Of the rows with the same (agent, boot, seq) and the same content, keep only the row
            with the highest queue sequence.
        keep: None keeps all rows.
        check: Raises an error if the new files must not be committed.
        needed: Other files that must still be in the table at the commit.
    """

    files: tuple[DataFile, ...]
    unique: bool = False
    keep: Callable[[Any], Any] | None = None
    check: Callable[[Sequence[WrittenFile]], None] | None = None
    needed: tuple[DataFile, ...] = ()

    @property
    def changes_data(self) -> bool:
        """Whether the set of rows changes, which readers of a change feed must see."""
        return self.unique or self.keep is not None


def read_files(spark: Session, store_url: str, table: Table, files: Sequence[DataFile]) -> Any:  # noqa: ANN401
    """Return the rows of files as a DataFrame, with the name of its file as `data_file`.

    Only the columns of `table` are read, which may be fewer than the files have.

    Spark itself reads a directory. A bucket is read by the executors' Python, which is slower but
    does not need the 700 MB of jars of the JVM's S3 client.
    """
    location = lake_location(store_url, table.name)
    stored = Table(
        name=table.name, columns=table.stored_columns, partition_column=table.partition_column
    )
    if location.is_local:
        reader = spark.read.schema(spark_schema(stored)).option("recursiveFileLookup", "true")
        frame = reader.parquet(*(f"{location.uri}/{file.path}" for file in files))
        return frame.selectExpr("*", "input_file_name() AS data_file")
    schema = spark_schema(stored).add("data_file", "string")
    numbers = spark.range(0, len(files), 1, len(files))
    return numbers.mapInArrow(_file_reader(store_url, table, [file.path for file in files]), schema)


def _file_reader(store_url: str, table: Table, paths: Sequence[str]) -> Any:  # noqa: ANN401
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        filesystem, root = open_filesystem(lake_location(store_url, table.name))
        schema = arrow_schema(table, partition=False)
        for batch in batches:
            for path in (paths[number] for number in batch.column(0).to_pylist()):
                with filesystem.open_input_file(f"{root}/{path}") as source:
                    for rows in pq.ParquetFile(source).iter_batches(columns=schema.names):
                        whole = conform(pa.Table.from_batches([rows]), schema)
                        names = pa.repeat(pa.scalar(path), whole.num_rows)
                        yield from whole.append_column("data_file", names).to_batches()

    return read


def files_with_rows(files: Sequence[DataFile], rows: Any) -> list[DataFile]:  # noqa: ANN401
    """Return the files whose names are in the column `data_file` of a DataFrame."""
    names = {row.data_file.rpartition("/")[2] for row in rows.collect()}
    return [file for file in files if file.path.rpartition("/")[2] in names]


def rewrite(
    spark: Session,
    store_url: str,
    table: Table,
    plan: FileRewrite,
    *,
    target_bytes: int,
    failpoint: FailPoint,
) -> list[WrittenFile]:
    """Rewrite files, commit the new files in their place, and return these.

    Raise `CommitConflict` if the files are no longer in the table: plan again. Raise `TableRefused`
    if fewer rows were read than the files contain.
    """
    rows = read_files(spark, store_url, table.without_promoted, plan.files).drop("data_file")
    frame = _kept_rows(rows, table, plan).selectExpr(
        "*", f"to_date(accepted_at) AS {ACCEPTED_DATE}"
    )
    count = max(1, -(-total_bytes(plan.files) // target_bytes))
    order = (ACCEPTED_DATE, *table.order)
    ordered = frame.repartitionByRange(count, *order).sortWithinPartitions(*order)
    found = ordered.mapInArrow(_file_writer(store_url, table), "result binary").toArrow()
    results = [decode_result(body) for body in found.column("result").to_pylist()]
    added = [result for result in results if isinstance(result, WrittenFile)]
    failpoint.reach("compact_after_write")
    check_row_count(lake_location(store_url, table.name).uri, plan, added)
    if plan.check is not None:
        plan.check(added)
    replace_files(
        store_url,
        table,
        plan.files,
        added,
        data_change=plan.changes_data,
        needed=plan.needed,
    )
    failpoint.reach("compact_after_commit")
    return added


def check_row_count(uri: str, plan: FileRewrite, added: Sequence[WrittenFile]) -> None:
    """Check that merged files have as many rows as before, or raise `TableRefused`.

    A rewrite that drops rows may not add any.
    """
    known = [file.records for file in plan.files if file.records is not None]
    if len(known) < len(plan.files):
        return
    before, after = sum(known), sum(file.stats["numRecords"] for file in added)
    if after > before or (after < before and not plan.changes_data):
        raise TableRefused(
            uri,
            f"a rewrite of {len(known)} files would change {before} rows to {after}; nothing was "
            f"changed: check the disk and the first file, file=`{plan.files[0].path}`",
        )


def content_of(table: Table) -> str:
    """Return the SQL expression of a digest of what a record contains.

    A record without attributes has null or none, which depends on the others of its batch. Batches
    with other ranges may contain other records under one number: an agent that was restored from a
    snapshot sends such batches. They were accepted too, so compaction keeps their records.
    """
    derived = {field.name for kind in KINDS.values() for field in kind.derived}
    own = (  # derived columns follow from the others, and older rows have null in them
        column
        for column in table.without_promoted.stored_columns
        if column.name not in _OF_BATCH and column.name not in derived
    )
    parts = [f"'{column.name}', {_compared(column)}" for column in own]
    return f"sha2(to_json(named_struct({', '.join(parts)})), 256)"


def _compared(column: Column) -> str:
    """Return the SQL expression of the value of a column whose text decides about equality."""
    name = column.name
    if column.type is ColumnType.TEXT_MAP:
        return f"array_sort(coalesce(map_entries({name}), array()))"
    if column.type is ColumnType.DOUBLE:
        # The text of a NaN does not show its bits: one of them is a stale marker, another is not.
        bits = _RAW_BITS.format(name)
        return f"CASE WHEN isnan({name}) THEN {bits} ELSE cast({name} AS string) END"
    return name


def _kept_rows(frame: Any, table: Table, plan: FileRewrite) -> Any:  # noqa: ANN401 - a DataFrame
    if plan.unique:
        newest = (
            "PARTITION BY agent_id, boot_id, seq, content"
            " ORDER BY queue_sequence DESC, accepted_at DESC"
        )
        frame = frame.selectExpr("*", f"{content_of(table)} AS content")
        frame = frame.selectExpr("*", f"row_number() OVER ({newest}) AS place")
        frame = frame.where("place = 1").drop("place", "content")
    return frame if plan.keep is None else plan.keep(frame)


@dataclass(slots=True)
class _OpenFile:
    day: date
    path: str
    sink: Any
    writer: Any


def _file_writer(store_url: str, table: Table) -> Any:  # noqa: ANN401 - the function for `mapInArrow`
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        results = [encode_result(file) for file in write_ordered(store_url, table, batches)]
        yield pa.RecordBatch.from_arrays([pa.array(results, pa.binary())], names=["result"])

    return write


def write_ordered(
    store_url: str, table: Table, batches: Iterable[pa.RecordBatch]
) -> Iterator[WrittenFile]:
    """Write rows that are ordered by date to one file per date, and yield the files.

    Promoted columns are filled from the maps of the rows, also those of older files.
    """
    schema = arrow_schema(table, partition=False)
    name = f"part-{SystemIds().ulid().lower()}.parquet"
    current: _OpenFile | None = None
    for day, rows in _row_groups(batches, table.partition_column):
        if current is None or current.day != day:
            if current is not None:
                yield _close_file(store_url, table, current)
            current = _open_file(store_url, table, day, name)
        whole = with_promoted_values(rows, table.promoted_columns)
        current.writer.write_table(whole.cast(schema), row_group_size=ROW_GROUP_ROWS)
    if current is not None:
        yield _close_file(store_url, table, current)


def _row_groups(batches: Iterable[pa.RecordBatch], column: str) -> Iterator[tuple[date, pa.Table]]:
    """Combine small batches into row groups of one date each."""
    gathered: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        gathered.append(batch)
        size_bytes += batch.nbytes
        if size_bytes >= ROW_GROUP_BYTES:
            yield from _by_day(pa.Table.from_batches(gathered), column)
            gathered, size_bytes = [], 0
    if gathered:
        yield from _by_day(pa.Table.from_batches(gathered), column)


def _by_day(rows: pa.Table, column: str) -> Iterator[tuple[date, pa.Table]]:
    start = 0
    for span in rows.column(column).value_counts().to_pylist() if rows.num_rows else []:
        yield span["values"], rows.slice(start, span["counts"]).drop_columns([column])
        start += span["counts"]


def _open_file(store_url: str, table: Table, day: date, name: str) -> _OpenFile:
    location = lake_location(store_url, table.name)
    filesystem, root = open_filesystem(location)
    path = f"{partition_folder(table.partition_column, day.isoformat())}/{name}"
    if location.is_local:
        make_folder(Path(root), str(Path(path).parent))
    sink = filesystem.open_output_stream(f"{root}/{path}")
    schema = arrow_schema(table, partition=False)
    writer = pq.ParquetWriter(sink, schema, **parquet_options(schema))
    return _OpenFile(day, path, sink, writer)


def _close_file(store_url: str, table: Table, done: _OpenFile) -> WrittenFile:
    done.writer.close()
    size_bytes = done.sink.tell()
    done.sink.close()
    location = lake_location(store_url, table.name)
    if location.is_local:
        sync_file(f"{location.uri}/{done.path}")
    return WrittenFile(
        table=table.name,
        path=done.path,
        partition=done.day.isoformat(),
        size_bytes=size_bytes,
        written_at_ms=_now_ms(),
        stats=file_statistics(table, done.writer.writer.metadata),
    )


def _now_ms() -> int:
    return SystemClock().now_ns() * 1000 // NS_PER_S
