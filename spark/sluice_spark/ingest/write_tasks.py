"""Write tasks: split a micro-batch into tasks, and write Parquet files on the executors.

Records never enter the JVM. A task reads blobs, builds Arrow tables over the decoded columns and
writes them with pyarrow. Only results (file statistics, unreadable batches) return to the driver
(ADR 31).
"""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from sluice_lake.blobs import RejectedBlob, decode_blob, states_times_of
from sluice_lake.durable_files import make_folder, sync_file
from sluice_lake.locations import (
    TableLocation,
    lake_location,
    open_filesystem,
)
from sluice_lake.promoted import with_promoted_values
from sluice_lake.records import DecodedBatch, kept_batches, records_table
from sluice_lake.tables import ACCEPTED_DATE, RECORD_TABLES, Table, accepted_date
from sluice_protocol.clock import Clock, IdSource
from sluice_protocol.fields import Kind
from sluice_protocol.keys import accepted_key
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import NS_PER_S
from sluice_queue.worklists import PendingBatch
from sluice_spark.failpoints import read_failpoint
from sluice_spark.ingest.blob_reader import BlobReader
from sluice_spark.session import Session
from sluice_spark.written_files import (
    ROW_GROUP_ROWS,
    MisstatedTimes,
    TaskResult,
    UnreadableBatch,
    WrittenFile,
    decode_result,
    encode_result,
    file_statistics,
    parquet_options,
    partition_folder,
)

ROW_GROUP_BYTES: Final = 32 * 1024 * 1024
"""Bytes of columns that are buffered before a row group is written."""
FILE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Size at which a file is closed and the next one is opened."""
_NS_PER_MS: Final = NS_PER_S // 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTask:
    """The rows that one task writes, ordered by lane, sequence, position.

    `tables` are the record tables with their promoted columns.
    """

    store_url: str
    part: int
    rows: tuple[PendingBatch, ...]
    tables: Mapping[Kind, Table]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTarget:
    """The file that a record is written to: by kind, lane and partition."""

    kind: Kind
    lane: int
    date: str


@dataclass(slots=True)
class RecordFileWriter:
    """Writes the records of one target to one file after another."""

    target: FileTarget
    task: WriteTask
    clock: Clock
    ids: IdSource
    _buffered: list[DecodedBatch] = field(default_factory=list)
    _buffered_bytes: int = 0
    _path: str = ""
    _sink: Any = None
    _writer: Any = None

    def add(self, batch: DecodedBatch, size_bytes: int) -> Iterator[WrittenFile]:
        """Buffer a batch; yield the file that it completed, if any."""
        self._buffered.append(batch)
        self._buffered_bytes += size_bytes
        if self._buffered_bytes >= ROW_GROUP_BYTES:
            yield from self._flush()
            if self._sink.tell() >= FILE_BYTES_MAX:
                yield self._close()

    def finish(self) -> Iterator[WrittenFile]:
        """Write the buffered batches and close the file, if one is open."""
        yield from self._flush()
        if self._writer is not None:
            yield self._close()

    @property
    def _table(self) -> Table:
        return self.task.tables[self.target.kind]

    @property
    def _location(self) -> TableLocation:
        return lake_location(self.task.store_url, self._table.name)

    def _flush(self) -> Iterator[WrittenFile]:
        """Write the buffered batches; yield the file before if its columns have other types.

        A column of nulls has no dictionary, and one of a long text must keep its dictionary.
        """
        if not self._buffered:
            return
        table = records_table(self.target.kind, self._buffered)
        table = with_promoted_values(table, self._table.promoted_columns)
        self._buffered.clear()
        self._buffered_bytes = 0
        if self._writer is not None and self._writer.schema != table.schema:
            yield self._close()
        if self._writer is None:
            self._open(table.schema)
        self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)

    def _open(self, schema: pa.Schema) -> None:
        sequences = [row.sequence for row in self.task.rows if row.lane == self.target.lane]
        name = (
            f"{self.target.lane:03d}-{sequences[0]:020d}-{sequences[-1]:020d}"
            f"-{self.task.part:05d}-{self.ids.ulid().lower()}.parquet"
        )
        self._path = f"{partition_folder(ACCEPTED_DATE, self.target.date)}/{name}"
        filesystem, root = open_filesystem(self._location)
        if self._location.is_local:
            make_folder(Path(root), str(Path(self._path).parent))
        self._sink = filesystem.open_output_stream(f"{root}/{self._path}")
        self._writer = pq.ParquetWriter(self._sink, schema, **parquet_options(schema))

    def _close(self) -> WrittenFile:
        self._writer.close()
        size_bytes = self._sink.tell()
        self._sink.close()
        metadata = self._writer.writer.metadata
        self._writer = None
        table = self._table
        if self._location.is_local:
            sync_file(f"{self._location.uri}/{self._path}")
        return WrittenFile(
            table=table.name,
            path=self._path,
            partition=self.target.date,
            size_bytes=size_bytes,
            written_at_ms=self.clock.now_ns() // _NS_PER_MS,
            stats=file_statistics(table, metadata),
        )


def _unreadable(row: PendingBatch, blob: RejectedBlob) -> UnreadableBatch:
    return UnreadableBatch(
        lane=row.lane,
        sequence=row.sequence,
        position=row.position,
        reason=blob.fault,
        detail=blob.detail,
    )


def _file_target(row: PendingBatch) -> FileTarget:
    manifest = row.manifest
    date = accepted_date(manifest.accepted_at_unix_ns)
    return FileTarget(kind=manifest.kind, lane=row.lane, date=date)


def write_rows(task: WriteTask) -> Iterator[TaskResult]:
    """Fetch, verify, decode and write the rows of a task.

    Yield the written files, and the batches that could not be read or have wrong times in their
    manifest. A full VACUUM removes files that no commit names. With `UnsupportedVersion` the batch
    stays in the queue, because the version of this job that reads the frame can ingest it.
    """
    clock, ids = SystemClock(), SystemIds()
    writers: dict[FileTarget, RecordFileWriter] = {}
    for fetched in BlobReader(task.store_url, task.rows):
        frame = decode_blob(fetched.row.manifest, fetched.body)
        if isinstance(frame, RejectedBlob):
            if frame.unsupported is not None:
                raise frame.unsupported
            yield _unreadable(fetched.row, frame)
            continue
        if not states_times_of(fetched.row.manifest, frame.envelope):
            yield MisstatedTimes(key=accepted_key(fetched.row.identity))
        target = _file_target(fetched.row)
        yield from _finish_other_lanes(writers, lane=target.lane)
        writer = writers.setdefault(target, RecordFileWriter(target, task, clock, ids))
        for batch in kept_batches(frame, fetched.row.manifest, fetched.row.sequence):
            yield from writer.add(batch, batch.frame.raw_bytes)
    read_failpoint().reach("in_write")
    yield from _finish_other_lanes(writers, lane=None)


def _finish_other_lanes(
    writers: dict[FileTarget, RecordFileWriter], *, lane: int | None
) -> Iterator[WrittenFile]:
    """Close the files of every other lane: rows are ordered by lane."""
    for target in [target for target in writers if target.lane != lane]:
        yield from writers.pop(target).finish()


TASK_BYTES_MIN: Final = 4 * 1024 * 1024
"""Fewer bytes are not split into two tasks."""
TASK_BYTES_MAX: Final = 256 * 1024 * 1024
"""Approximate maximum of frame bytes of a task, which bounds the cost of losing it."""


def plan_tasks(
    store_url: str,
    rows: Sequence[PendingBatch],
    parallelism: int,
    tables: Mapping[Kind, Table] = RECORD_TABLES,
) -> list[WriteTask]:
    """Split rows, in their order, into tasks of about equal bytes for `parallelism` slots."""
    total = sum(row.manifest.frame_bytes for row in rows)
    wanted = min(parallelism, max(1, total // TASK_BYTES_MIN))
    count = max(wanted, -(-total // TASK_BYTES_MAX))
    if count > parallelism:  # whole rounds, so that no core waits for the last tasks
        count = -(-count // parallelism) * parallelism
    share = total / max(count, 1)
    cut: list[list[PendingBatch]] = []
    taken = 0
    for row in rows:
        if not cut or (taken >= share * len(cut) and len(cut) < count):
            cut.append([])
        cut[-1].append(row)
        taken += row.manifest.frame_bytes
    return [
        WriteTask(store_url=store_url, part=part, rows=tuple(found), tables=tables)
        for part, found in enumerate(cut)
    ]


def run_tasks(spark: Session, tasks: Sequence[WriteTask]) -> list[TaskResult]:
    """Run tasks on the executors and return every result.

    If Spark runs a task twice, it writes its files twice under different names. Only the results of
    the last run are committed.
    """
    if not tasks:
        return []
    bodies = [pickle.dumps(task) for task in tasks]

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                task = pickle.loads(bodies[number])  # noqa: S301 - bytes from the driver
                results = [encode_result(result) for result in write_rows(task)]
                yield pa.RecordBatch.from_arrays([pa.array(results, pa.binary())], names=["result"])

    numbers = spark.range(0, len(tasks), 1, len(tasks))
    found = numbers.mapInArrow(write, "result binary").toArrow()
    return [decode_result(body) for body in found.column("result").to_pylist()]
