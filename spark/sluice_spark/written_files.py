"""What comes back from an executor: facts of written files, and batches that could not be read."""

import os
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from sluice_protocol.lake import Table

PLAIN_COLUMNS: Final = frozenset(
    {"seq", "ts_ns", "ts", "body", "value", "key", "attributes.key_value.value"}
)
"""Columns that hardly repeat: a dictionary of them is work thrown away."""
DELTA_ENCODED: Final = frozenset({"seq", "ts_ns", "ts"})


Scalar = int | float | str


class WrittenFile(msgspec.Struct, frozen=True, kw_only=True, tag="file"):
    """One data file that is written and not yet committed.

    Attributes:
        table: Name of the table.
        path: Path of the file within the table.
        partition: Value of the partition column.
        size_bytes: Size of the file.
        written_at_ms: When it was finished, Unix ms by the executor's clock.
        stats: Its statistics, ready for Delta's log.
    """

    table: str
    path: str
    partition: str
    size_bytes: int
    written_at_ms: int
    stats: dict[str, Any]


class UnreadableReason(StrEnum):
    """Why a batch could not be read."""

    MISSING = "missing"
    CORRUPT = "corrupt"
    INVALID_FRAME = "invalid_frame"
    DISAGREES = "disagrees"


class UnreadableBatch(msgspec.Struct, frozen=True, kw_only=True, tag="dead"):
    """One batch that was not written, by its place in the queue."""

    lane: int
    sequence: int
    position: int
    reason: UnreadableReason
    detail: str

    @property
    def place(self) -> tuple[int, int, int]:
        """The row's place in the queue: lane, sequence, position."""
        return (self.lane, self.sequence, self.position)


TaskResult = WrittenFile | UnreadableBatch

_DECODER: msgspec.json.Decoder[TaskResult] = msgspec.json.Decoder(TaskResult)


def encode_result(fact: TaskResult) -> bytes:
    """Gives a fact as the bytes that an executor returns."""
    return msgspec.json.encode(fact)


def decode_result(body: bytes) -> TaskResult:
    """Reads a fact that an executor returned."""
    return _DECODER.decode(body)


def _scalar(value: object) -> Scalar:
    """Gives a Parquet statistic as Delta writes it; a timestamp as text with six digits and Z.

    An integer in a timestamp's place makes readers skip files that hold matching rows.
    """
    if isinstance(value, int | float | str):
        return value
    stamp = value.strftime("%Y-%m-%dT%H:%M:%S.%f")  # type: ignore[attr-defined]
    return f"{stamp}Z"


def file_statistics(table: Table, metadata: pq.FileMetaData) -> dict[str, Any]:
    """Gives the statistics of a Parquet file from its own footer.

    A column whose footer lacks a statistic in any row group gets none here: readers then keep the
    file, which is always right.
    """
    least: dict[str, Scalar] = {}
    most: dict[str, Scalar] = {}
    nulls: dict[str, int] = {}
    wanted = {column.name for column in table.skipping_columns}
    for index in range(metadata.num_columns):
        name = metadata.schema.column(index).path
        if name not in wanted:
            continue
        found = [metadata.row_group(g).column(index).statistics for g in _groups(metadata)]
        if any(statistics is None for statistics in found):
            continue
        nulls[name] = sum(statistics.null_count for statistics in found)
        bounded = [statistics for statistics in found if statistics.has_min_max]
        full = [statistics for statistics in found if statistics.num_values > 0]
        if bounded and len(bounded) == len(full):
            least[name] = _scalar(min(statistics.min for statistics in bounded))
            most[name] = _scalar(max(statistics.max for statistics in bounded))
    return {
        "numRecords": metadata.num_rows,
        "minValues": least,
        "maxValues": most,
        "nullCount": nulls,
    }


def _groups(metadata: pq.FileMetaData) -> Iterable[int]:
    return range(metadata.num_row_groups)


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


def partition_folder(column: str, value: str) -> str:
    """Gives the folder of a partition, `column=value`, as Delta and Hive write it."""
    return f"{column}={quote(value, safe='-_.')}"


def sync_file(path: str) -> None:
    """Makes a local file and its folder durable, so that a committed file survives a crash."""
    for place in (path, str(Path(path).parent)):
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
