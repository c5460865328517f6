"""What comes back from an executor: facts of written files, and batches that could not be read."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pyarrow.parquet as pq

from sluice_lake.blobs import BlobFault
from sluice_lake.tables import Table

Scalar = int | float | str


class FileFact(msgspec.Struct, frozen=True, kw_only=True, tag="file"):
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


class DeadFact(msgspec.Struct, frozen=True, kw_only=True, tag="dead"):
    """One batch that was not written, by its place in the queue."""

    lane: int
    sequence: int
    position: int
    reason: BlobFault
    detail: str

    @property
    def place(self) -> tuple[int, int, int]:
        """The row's place in the queue: lane, sequence, position."""
        return (self.lane, self.sequence, self.position)


Fact = FileFact | DeadFact

_DECODER: msgspec.json.Decoder[Fact] = msgspec.json.Decoder(Fact)


def encode_fact(fact: Fact) -> bytes:
    """Gives a fact as the bytes that an executor returns."""
    return msgspec.json.encode(fact)


def decode_fact(body: bytes) -> Fact:
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


def stats_of(table: Table, metadata: pq.FileMetaData) -> dict[str, Any]:
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
