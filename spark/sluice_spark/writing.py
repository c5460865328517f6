"""What one executor task does: fetch, verify, decode, and write Parquet files of the lake.

Records never enter the JVM: the task reads blobs, makes Arrow tables over the decoded columns and
writes them with pyarrow. Only facts of the files return to the driver (ADR 0052).
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from sluice_protocol.clock import Clock, IdSource
from sluice_protocol.errors import InvalidFrame, TooLarge, UnsupportedVersion
from sluice_protocol.frame import Frame, decode_frame
from sluice_protocol.lake import ACCEPTED_DATE, RECORD_TABLES, accepted_date
from sluice_protocol.manifests import Kind
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import NS_PER_S
from sluice_spark.descriptors import Waiting
from sluice_spark.facts import DeadFact, DeadReason, Fact, FileFact, stats_of
from sluice_spark.fetching import Fetched, ReadAhead
from sluice_spark.files import partition_folder, sync_file
from sluice_spark.records import Decoded, records_table
from sluice_store.lake import TableLocation, lake_location, open_filesystem

ROW_GROUP_BYTES: Final = 32 * 1024 * 1024
"""A row group is written when so many bytes of columns wait for it."""
FILE_BYTES_MAX: Final = 256 * 1024 * 1024
"""A file this large is closed and the next one begun."""
PLAIN_COLUMNS: Final = frozenset(
    {"seq", "ts_ns", "ts", "body", "value", "key", "attributes.key_value.value"}
)
"""Columns that hardly repeat: a dictionary of them is work thrown away."""
DELTA_ENCODED: Final = frozenset({"seq", "ts_ns", "ts"})
_NS_PER_MS: Final = NS_PER_S // 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTask:
    """The rows that one executor task writes.

    Attributes:
        store_url: The store.
        part: Number of the task within its micro-batch.
        rows: The rows, ordered by lane, sequence, position.
    """

    store_url: str
    part: int
    rows: tuple[Waiting, ...]


def parquet_options(schema: pa.Schema) -> dict[str, Any]:
    """Gives the writer's options for a table's schema: zstd, and encodings by column."""
    leaves = [name for column in schema for name in _leaves(column)]
    return {
        "compression": "zstd",
        "compression_level": 1,
        "store_schema": False,
        "use_dictionary": [leaf for leaf in leaves if leaf not in PLAIN_COLUMNS],
        "column_encoding": {
            leaf: "DELTA_BINARY_PACKED" for leaf in leaves if leaf in DELTA_ENCODED
        },
        "write_statistics": [leaf for leaf in leaves if "." not in leaf and leaf != "body"],
    }


def _leaves(column: pa.Field) -> list[str]:
    if pa.types.is_map(column.type):
        return [f"{column.name}.key_value.key", f"{column.name}.key_value.value"]
    return [column.name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """Where a record goes: its kind, its lane, its partition."""

    kind: Kind
    lane: int
    date: str


@dataclass(slots=True)
class ShelfWriter:
    """Writes the records of one shelf into one file after another."""

    shelf: Shelf
    task: WriteTask
    clock: Clock
    ids: IdSource
    _waiting: list[Decoded] = field(default_factory=list)
    _waiting_bytes: int = 0
    _path: str = ""
    _sink: Any = None
    _writer: Any = None

    def add(self, batch: Decoded, size_bytes: int) -> Iterator[FileFact]:
        """Takes one batch; gives the file that it filled, if it did."""
        self._waiting.append(batch)
        self._waiting_bytes += size_bytes
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self._flush()
            if self._sink.tell() >= FILE_BYTES_MAX:
                yield self._close()

    def finish(self) -> Iterator[FileFact]:
        """Writes what waits and closes the file, if there is one."""
        self._flush()
        if self._writer is not None:
            yield self._close()

    @property
    def _location(self) -> TableLocation:
        return lake_location(self.task.store_url, RECORD_TABLES[self.shelf.kind].name)

    def _flush(self) -> None:
        if not self._waiting:
            return
        table = records_table(self.shelf.kind, self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        if self._writer is None:
            self._open(table.schema)
        self._writer.write_table(table, row_group_size=table.num_rows)

    def _open(self, schema: pa.Schema) -> None:
        sequences = [row.sequence for row in self.task.rows if row.lane == self.shelf.lane]
        name = (
            f"{self.shelf.lane:03d}-{sequences[0]:020d}-{sequences[-1]:020d}"
            f"-{self.task.part:05d}-{self.ids.ulid().lower()}.parquet"
        )
        self._path = f"{partition_folder(ACCEPTED_DATE, self.shelf.date)}/{name}"
        filesystem, root = open_filesystem(self._location)
        if self._location.is_local:
            Path(root, self._path).parent.mkdir(parents=True, exist_ok=True)
        self._sink = filesystem.open_output_stream(f"{root}/{self._path}")
        self._writer = pq.ParquetWriter(self._sink, schema, **parquet_options(schema))

    def _close(self) -> FileFact:
        self._writer.close()
        size_bytes = self._sink.tell()
        self._sink.close()
        metadata = self._writer.writer.metadata
        self._writer = None
        table = RECORD_TABLES[self.shelf.kind]
        if self._location.is_local:
            sync_file(f"{self._location.uri}/{self._path}")
        return FileFact(
            table=table.name,
            path=self._path,
            partition=self.shelf.date,
            size_bytes=size_bytes,
            written_at_ms=self.clock.now_ns() // _NS_PER_MS,
            stats=stats_of(table, metadata),
        )


def check_frame(fetched: Fetched) -> Frame | DeadFact:
    """Verifies and decodes one blob; gives the frame, or why it is none."""
    manifest = fetched.row.manifest
    if fetched.body is None:
        return _dead(fetched.row, DeadReason.MISSING, "the store has no such blob")
    found = hashlib.sha256(fetched.body).hexdigest()
    if found != manifest.frame_sha256:
        return _dead(fetched.row, DeadReason.CORRUPT, f"its bytes have sha256 {found}")
    try:
        frame = decode_frame(fetched.body)
    except (InvalidFrame, UnsupportedVersion, TooLarge) as error:
        return _dead(fetched.row, DeadReason.INVALID_FRAME, str(error))
    envelope = frame.envelope
    if (envelope.identity, envelope.kind) != (manifest.identity, manifest.kind):
        return _dead(fetched.row, DeadReason.DISAGREES, "envelope and manifest name two batches")
    return frame


def _dead(row: Waiting, reason: DeadReason, detail: str) -> DeadFact:
    return DeadFact(
        lane=row.lane,
        sequence=row.sequence,
        position=row.position,
        reason=reason,
        detail=f"{detail}, key=`{row.manifest.raw_blob_key}`",
    )


def _shelf(row: Waiting) -> Shelf:
    manifest = row.manifest
    date = accepted_date(manifest.accepted_at_unix_ns)
    return Shelf(kind=manifest.kind, lane=row.lane, date=date)


def write_rows(
    task: WriteTask, *, clock: Clock | None = None, ids: IdSource | None = None
) -> Iterator[Fact]:
    """Fetches, verifies, decodes and writes the rows of a task.

    Returns:
        The facts of the files and of the batches that could not be read. Files that no commit
        names are waste; they go by a full VACUUM.

    Raises:
        StoreError: The store did not answer.
    """
    clock, ids = clock or SystemClock(), ids or SystemIds()
    writers: dict[Shelf, ShelfWriter] = {}
    for fetched in ReadAhead(task.store_url, task.rows):
        frame = check_frame(fetched)
        if isinstance(frame, DeadFact):
            yield frame
            continue
        shelf = _shelf(fetched.row)
        yield from _finish(writers, lane=shelf.lane)
        writer = writers.setdefault(shelf, ShelfWriter(shelf, task, clock, ids))
        batch = Decoded(
            frame=frame,
            accepted_at_ns=fetched.row.manifest.accepted_at_unix_ns,
            sequence=fetched.row.sequence,
        )
        yield from writer.add(batch, frame.payload_raw_bytes)
    yield from _finish(writers, lane=None)


def _finish(writers: dict[Shelf, ShelfWriter], *, lane: int | None) -> Iterator[FileFact]:
    """Closes the files of every lane but this one: rows come lane by lane."""
    for shelf in [shelf for shelf in writers if shelf.lane != lane]:
        yield from writers.pop(shelf).finish()
