"""Rewrites data files by Spark, ordered by time, and puts the new ones in the place of the old.

Spark reads, filters, sorts and spills; executors write by the same pyarrow writer as ingestion; the
driver commits by delta-rs. Delta's own OPTIMIZE and DELETE are not used, because its log store for
files renames without holding the name, and the one for S3 allows one driver only: beside an ingest
that commits by another library either could overwrite a commit (ADR 0053).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, Transaction
from deltalake.transaction import RemoveAction

from sluice_protocol.lake import ACCEPTED_DATE, Table
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import NS_PER_S
from sluice_spark.errors import CommitConflict
from sluice_spark.facts import FileFact, decode_fact, encode_fact, stats_of
from sluice_spark.failpoints import reach
from sluice_spark.files import partition_folder, sync_file
from sluice_spark.inventory import DataFile, list_files, total_bytes
from sluice_spark.schemas import arrow_schema, spark_schema
from sluice_spark.session import Session
from sluice_spark.tables import add_action, delta_schema, find_table, translated
from sluice_spark.writing import parquet_options
from sluice_store.lake import lake_location, open_filesystem

MAINTENANCE_APP: Final = "sluice-maintenance"
"""The application whose transactions order the removals of a table: a stale one is refused."""
COMMIT_TRIES_MAX: Final = 50
"""Commits of ingestion that one commit of maintenance lets pass."""
ROW_GROUP_BYTES: Final = 32 * 1024 * 1024
ORDER: Final = (ACCEPTED_DATE, "ts", "agent_id", "boot_id", "seq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """Files to be replaced by what is kept of their rows.

    Attributes:
        files: The files.
        drop: Condition of Spark SQL: such rows are left out. None keeps all.
        unique: Whether of rows with one (agent, boot, seq) only that of the highest queue sequence
            is kept.
    """

    files: tuple[DataFile, ...]
    drop: str | None = None
    unique: bool = False

    @property
    def changes_data(self) -> bool:
        """Whether readers of changes must look at it."""
        return self.drop is not None or self.unique


def read_files(spark: Session, store_url: str, table: Table, files: Sequence[DataFile]) -> Any:  # noqa: ANN401
    """Gives the rows of files as a DataFrame, each with the name of its `file`.

    A directory is read by Spark itself. A bucket is read by the executors' Python, because the
    JVM's own S3 client is 700 MB of jars; it is slower, and needs nothing.
    """
    location = lake_location(store_url, table.name)
    stored = Table(
        name=table.name, columns=table.stored_columns, partition_column=table.partition_column
    )
    if location.is_local:
        reader = spark.read.schema(spark_schema(stored)).option("recursiveFileLookup", "true")
        frame = reader.parquet(*(f"{location.uri}/{file.path}" for file in files))
        return frame.selectExpr("*", "input_file_name() AS file")
    schema = spark_schema(stored).add("file", "string")
    numbers = spark.range(0, len(files), 1, len(files))
    return numbers.mapInArrow(_reader(store_url, table, [file.path for file in files]), schema)


def _reader(store_url: str, table: Table, paths: Sequence[str]) -> Any:  # noqa: ANN401
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        filesystem, root = open_filesystem(lake_location(store_url, table.name))
        schema = arrow_schema(table, partition=False)
        for batch in batches:
            for path in (paths[number] for number in batch.column(0).to_pylist()):
                with filesystem.open_input_file(f"{root}/{path}") as source:
                    for rows in pq.ParquetFile(source).iter_batches():
                        whole = pa.Table.from_batches([rows]).select(schema.names).cast(schema)
                        names = pa.repeat(pa.scalar(path), whole.num_rows)
                        yield from whole.append_column("file", names).to_batches()

    return read


def named_files(files: Sequence[DataFile], holding: Any) -> list[DataFile]:  # noqa: ANN401
    """Gives the files whose names are in a DataFrame's column `file`; at most as many come back."""
    names = {row.file.rpartition("/")[2] for row in holding.collect()}
    return [file for file in files if file.path.rpartition("/")[2] in names]


def rewrite(
    spark: Session, store_url: str, table: Table, plan: Rewrite, *, target_bytes: int
) -> list[FileFact]:
    """Does a rewrite and commits it; gives the new files.

    Raises:
        CommitConflict: The files are no longer those of the table: plan again.
    """
    rows = read_files(spark, store_url, table, plan.files).drop("file")
    frame = _kept(rows, plan).selectExpr("*", f"to_date(accepted_at) AS {ACCEPTED_DATE}")
    count = max(1, -(-total_bytes(plan.files) // target_bytes))
    ordered = frame.repartitionByRange(count, *ORDER).sortWithinPartitions(*ORDER)
    found = ordered.mapInArrow(_writer(store_url, table), "fact binary").toArrow()
    facts = [decode_fact(body) for body in found.column("fact").to_pylist()]
    added = [fact for fact in facts if isinstance(fact, FileFact)]
    reach("compact_after_write")
    replace_files(store_url, table, plan.files, added, data_change=plan.changes_data)
    reach("compact_after_commit")
    return added


def _kept(frame: Any, plan: Rewrite) -> Any:  # noqa: ANN401 - pyspark's DataFrame
    if plan.drop is not None:
        frame = frame.where(f"NOT {plan.drop}")
    if plan.unique:
        newest = (
            "PARTITION BY agent_id, boot_id, seq ORDER BY queue_sequence DESC, accepted_at DESC"
        )
        frame = frame.selectExpr("*", f"row_number() OVER ({newest}) AS place")
        frame = frame.where("place = 1").drop("place")
    return frame


@dataclass(slots=True)
class _OpenFile:
    """The file that a task is writing."""

    day: date
    path: str
    sink: Any
    writer: Any


def _writer(store_url: str, table: Table) -> Any:  # noqa: ANN401 - a function for mapInArrow
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        facts = [encode_fact(fact) for fact in write_ordered(store_url, table, batches)]
        yield pa.RecordBatch.from_arrays([pa.array(facts, pa.binary())], names=["fact"])

    return write


def write_ordered(
    store_url: str, table: Table, batches: Iterable[pa.RecordBatch]
) -> Iterator[FileFact]:
    """Writes rows that come ordered by date into a file per date; gives the files' facts."""
    schema = arrow_schema(table, partition=False)
    name = f"part-{SystemIds().ulid().lower()}.parquet"
    current: _OpenFile | None = None
    for day, rows in _grouped(batches, table.partition_column):
        if current is None or current.day != day:
            if current is not None:
                yield _closed(store_url, table, current)
            current = _opened(store_url, table, day, name)
        current.writer.write_table(rows.cast(schema), row_group_size=rows.num_rows)
    if current is not None:
        yield _closed(store_url, table, current)


def _grouped(batches: Iterable[pa.RecordBatch], column: str) -> Iterator[tuple[date, pa.Table]]:
    """Gathers small batches into row groups, each of one date."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(one.nbytes for one in waiting) >= ROW_GROUP_BYTES:
            yield from _by_day(pa.Table.from_batches(waiting), column)
            waiting = []
    if waiting:
        yield from _by_day(pa.Table.from_batches(waiting), column)


def _by_day(rows: pa.Table, column: str) -> Iterator[tuple[date, pa.Table]]:
    start = 0
    for run in rows.column(column).value_counts().to_pylist() if rows.num_rows else []:
        yield run["values"], rows.slice(start, run["counts"]).drop_columns([column])
        start += run["counts"]


def _opened(store_url: str, table: Table, day: date, name: str) -> _OpenFile:
    location = lake_location(store_url, table.name)
    filesystem, root = open_filesystem(location)
    path = f"{partition_folder(table.partition_column, day.isoformat())}/{name}"
    if location.is_local:
        Path(root, path).parent.mkdir(parents=True, exist_ok=True)
    sink = filesystem.open_output_stream(f"{root}/{path}")
    schema = arrow_schema(table, partition=False)
    writer = pq.ParquetWriter(sink, schema, **parquet_options(schema))
    return _OpenFile(day, path, sink, writer)


def _closed(store_url: str, table: Table, done: _OpenFile) -> FileFact:
    done.writer.close()
    size_bytes = done.sink.tell()
    done.sink.close()
    location = lake_location(store_url, table.name)
    if location.is_local:
        sync_file(f"{location.uri}/{done.path}")
    return FileFact(
        table=table.name,
        path=done.path,
        partition=done.day.isoformat(),
        size_bytes=size_bytes,
        written_at_ms=_now_ms(),
        stats=stats_of(table, done.writer.writer.metadata),
    )


def _now_ms() -> int:
    return SystemClock().now_ns() * 1000 // NS_PER_S


def replace_files(
    store_url: str,
    table: Table,
    removed: Sequence[DataFile],
    added: Sequence[FileFact],
    *,
    data_change: bool,
) -> None:
    """Puts files in the place of others, in one commit.

    delta-rs does not refuse to remove a file that another commit has removed already, which would
    double its rows. So every try looks whether all the files still stand, and commits from that
    very state with no rebase at all: any commit in between makes it look again.

    Raises:
        CommitConflict: A file to be replaced is gone, or commit after commit came in between.
    """
    location = lake_location(store_url, table.name)
    removals = [remove_action(table, file, data_change=data_change) for file in removed]
    additions = [add_action(table, fact, data_change=data_change) for fact in added]
    for _ in range(COMMIT_TRIES_MAX):
        opened = find_table(store_url, table)
        standing = (
            {file.path for file in list_files(opened, table)} if opened is not None else set()
        )
        if opened is None or not standing.issuperset(file.path for file in removed):
            raise CommitConflict(location.uri, "files to be replaced were replaced already")
        turn = (opened.transaction_version(MAINTENANCE_APP) or 0) + 1
        properties = CommitProperties(
            app_transactions=[Transaction(MAINTENANCE_APP, turn)], max_commit_retries=0
        )
        try:
            with translated(location):
                opened.create_write_transaction(
                    [*removals, *additions],
                    "append",
                    delta_schema(table),
                    [table.partition_column],
                    commit_properties=properties,
                )
        except CommitConflict:
            continue
        return
    raise CommitConflict(location.uri, f"{COMMIT_TRIES_MAX} commits came in between")


def remove_action(table: Table, file: DataFile, *, data_change: bool) -> RemoveAction:
    """Gives the action that takes a file out of a table."""
    return RemoveAction(
        path=file.path,
        data_change=data_change,
        deletion_timestamp=_now_ms(),
        size=file.size_bytes,
        partition_values={table.partition_column: file.partition},
    )
