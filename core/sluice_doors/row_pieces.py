"""Columns of many records, made piece by piece: a record takes ten times the memory of its columns.

The pieces are joined at the end. Names may have another order than in columns of all records
together; the canonical form sorts them.
"""

from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar, cast

from sluice_doors.repair import built_or_repaired, repaired_log, repaired_point
from sluice_doors.tally import Tally
from sluice_protocol.column_joins import join_columns
from sluice_protocol.columns import LogColumns, MetricColumns
from sluice_protocol.records import (
    LogRecord,
    MetricPoint,
    logs_from_records,
    metrics_from_records,
)

PIECE_ROWS: Final = 8_192
"""Records that exist as objects at the same time."""

_Record = TypeVar("_Record", LogRecord, MetricPoint)
_Columns = TypeVar("_Columns", LogColumns, MetricColumns)


class RowPieces(Generic[_Record, _Columns]):
    """Collects the records of one kind of a request."""

    def __init__(self, build: Callable[[list[_Record]], _Columns]) -> None:
        """Begin without a record.

        Args:
            build: Returns columns of records, and repairs those with text that is not UTF-8.
        """
        self._build: Callable[[list[_Record]], _Columns] = build
        self._rows: list[_Record] = []
        self._parts: list[_Columns] = []
        self._built = 0

    def __len__(self) -> int:
        """Return the number of records so far."""
        return self._built + len(self._rows)

    def append(self, row: _Record) -> None:
        """Add a record."""
        self._rows.append(row)
        if len(self._rows) >= PIECE_ROWS:
            self._finish_piece()

    def extend(self, rows: Iterable[_Record]) -> None:
        """Add records; a generator makes them one by one."""
        for row in rows:
            self.append(row)

    def add(self, columns: _Columns) -> None:
        """Add records that are columns already."""
        if self._rows:
            self._finish_piece()
        self._parts.append(columns)
        self._built += len(columns)

    def columns(self) -> _Columns:
        """Return the columns of all records, of which there is at least one."""
        if self._rows:
            self._finish_piece()
        return cast("_Columns", join_columns(self._parts))

    def _finish_piece(self) -> None:
        self._parts.append(self._build(self._rows))
        self._built += len(self._rows)
        self._rows = []


def log_pieces(tally: Tally) -> RowPieces[LogRecord, LogColumns]:
    """Return an empty collection of log records.

    Args:
        tally: Counts the records that had to be repaired.
    """
    return RowPieces(lambda rows: built_or_repaired(rows, logs_from_records, repaired_log, tally))


def metric_pieces(tally: Tally) -> RowPieces[MetricPoint, MetricColumns]:
    """Return an empty collection of points.

    Args:
        tally: Counts the points that had to be repaired.
    """
    return RowPieces(
        lambda points: built_or_repaired(points, metrics_from_records, repaired_point, tally)
    )
