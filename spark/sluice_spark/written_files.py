"""Data files that tasks write, and the results that tasks return to the driver.

A result is a written file with its statistics, a batch that could not be read, or a batch whose
manifest states wrong times.
"""

from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from sluice_lake.blobs import BlobFault
from sluice_lake.tables import Table
from sluice_protocol.fields import KINDS, FieldType

_PLAIN_TYPES: Final = frozenset({FieldType.FLOAT, FieldType.TEXT, FieldType.OPAQUE})
PLAIN_COLUMNS: Final = frozenset(
    {"seq", "ts_ns", "ts"}
    | {one.name for kind in KINDS.values() for one in kind.read_fields if one.type in _PLAIN_TYPES}
)
"""Columns with few repeated values, for which building a dictionary is wasted work."""
_DICTIONARY_BYTES_MAX: Final = 256 * 1024
"""Maximum size of the dictionary of a column in a row group; further values are written plainly.

Attributes with few different values are read in two thirds of the time and take a tenth less space.
Ids soon reach this limit, so they are written and read as fast as without a dictionary.
"""
ROW_GROUP_ROWS: Final = 65_536
"""Records of a row group, which is the smallest part of a file that the index selects.

With 131,072 the filters of texts are a tenth smaller and three times as many row groups pass a
search for an unknown number of 9 digits; with 32,768 they are a tenth larger. A scan of the whole
file takes the same time with each.
"""
_ENCODINGS: Final = dict.fromkeys(("seq", "ts_ns", "ts"), "DELTA_BINARY_PACKED") | dict.fromkeys(
    ("trace_id", "span_id"), "DELTA_LENGTH_BYTE_ARRAY"
)
"""Encodings of times, numbers and ids: texts of one length compress without their lengths."""

Scalar = int | float | str
_BOUND_CHARS: Final = 32
_GREATEST: Final = "\U0010ffff"


class WrittenFile(msgspec.Struct, frozen=True, kw_only=True, tag="file"):
    """One data file that is written and not yet committed.

    Attributes:
        written_at_ms: By the writer's clock.
        stats: In the form of Delta's log.
    """

    table: str
    path: str
    partition: str
    size_bytes: int
    written_at_ms: int
    stats: dict[str, Any]


class UnreadableBatch(msgspec.Struct, frozen=True, kw_only=True, tag="dead"):
    """One batch that was not written, named by its position in the queue."""

    lane: int
    sequence: int
    position: int
    reason: BlobFault
    detail: str

    @property
    def row_id(self) -> tuple[int, int, int]:
        """The row of the queue: lane, sequence, position."""
        return (self.lane, self.sequence, self.position)


class MisstatedTimes(msgspec.Struct, frozen=True, kw_only=True, tag="times"):
    """A batch that was written, and whose manifest states other times than its records have."""

    key: str


TaskResult = WrittenFile | UnreadableBatch | MisstatedTimes

_DECODER: msgspec.json.Decoder[TaskResult] = msgspec.json.Decoder(TaskResult)


def encode_result(result: TaskResult) -> bytes:
    """Encode a result as the bytes that a task returns."""
    return msgspec.json.encode(result)


def decode_result(body: bytes) -> TaskResult:
    """Decode a result that a task returned."""
    return _DECODER.decode(body)


def _scalar(value: object) -> Scalar:
    """Return a Parquet statistic in Delta's form; a timestamp is text with six digits and `Z`.

    If a timestamp were an integer, readers would skip files that contain matching rows.
    """
    if isinstance(value, int | float | str):
        return value
    stamp = value.strftime("%Y-%m-%dT%H:%M:%S.%f")  # type: ignore[attr-defined]
    return f"{stamp}Z"


def file_statistics(table: Table, metadata: pq.FileMetaData) -> dict[str, Any]:
    """Return Delta's statistics of a Parquet file from the file's footer.

    A column without a statistic in some row group is omitted. Readers then never skip the file by
    that column, which is always correct.
    """
    minimums: dict[str, Scalar] = {}
    maximums: dict[str, Scalar] = {}
    nulls: dict[str, int] = {}
    wanted = {column.name for column in table.skipping_columns}
    promoted = {column.name for column in table.promoted_columns}
    for index in range(metadata.num_columns):
        name = metadata.schema.column(index).path
        if name not in wanted:
            continue
        statistics_list = [
            metadata.row_group(g).column(index).statistics for g in _groups(metadata)
        ]
        if any(statistics is None for statistics in statistics_list):
            continue
        nulls[name] = sum(statistics.null_count for statistics in statistics_list)
        bounded = [statistics for statistics in statistics_list if statistics.has_min_max]
        full = [statistics for statistics in statistics_list if statistics.num_values > 0]
        if bounded and len(bounded) == len(full):
            minimums[name] = _scalar(min(statistics.min for statistics in bounded))
            maximums[name] = _scalar(max(statistics.max for statistics in bounded))
            if name in promoted:
                _bound(name, minimums, maximums)
    return {
        "numRecords": metadata.num_rows,
        "minValues": minimums,
        "maxValues": maximums,
        "nullCount": nulls,
    }


def _bound(name: str, minimums: dict[str, Scalar], maximums: dict[str, Scalar]) -> None:
    """Cut long bounds of a text, which the log of the table repeats for each file.

    The upper bound then ends in the greatest character, as Delta's own writers do it. Delta has no
    bounds of booleans.
    """
    first, last = minimums[name], maximums[name]
    if isinstance(first, bool):
        del minimums[name], maximums[name]
    if isinstance(first, str) and len(first) > _BOUND_CHARS:
        minimums[name] = first[:_BOUND_CHARS]
    if isinstance(last, str) and len(last) > _BOUND_CHARS:
        maximums[name] = f"{last[:_BOUND_CHARS]}{_GREATEST}"


def _groups(metadata: pq.FileMetaData) -> Iterable[int]:
    return range(metadata.num_row_groups)


def parquet_options(schema: pa.Schema) -> dict[str, Any]:
    """Return the options of `ParquetWriter` for a schema: zstd, and an encoding for each column."""
    leaves = [name for column in schema for name in _leaves(column)]
    return {
        "compression": "zstd",
        "compression_level": 1,
        "store_schema": False,
        "write_page_index": True,
        "dictionary_pagesize_limit": _DICTIONARY_BYTES_MAX,
        "use_dictionary": [leaf for leaf in leaves if leaf not in PLAIN_COLUMNS],
        "column_encoding": {leaf: _ENCODINGS[leaf] for leaf in leaves if leaf in _ENCODINGS},
        "write_statistics": [leaf for leaf in leaves if "." not in leaf and leaf != "body"],
    }


def _leaves(column: pa.Field) -> list[str]:
    if pa.types.is_map(column.type):
        return [f"{column.name}.key_value.key", f"{column.name}.key_value.value"]
    return [column.name]


def partition_folder(column: str, value: str) -> str:
    """Return the folder of a partition, `column=value`, as Delta and Hive name it."""
    return f"{column}={quote(value, safe='-_.')}"
