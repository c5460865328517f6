"""The data files of one state of a table, with the statistics that its log records."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable

from sluice_lake.tables import Table

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)
_NS_PER_US: Final = 1000
STATS_SLACK_NS: Final = 1_000_000
"""Some writers truncate the times in their statistics to milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeStats:
    """What the log records about one time column of a data file; None when it is not recorded.

    `range_ns` is the earliest and the latest value, Unix ns. `nulls` counts the rows without one.
    """

    range_ns: tuple[int, int] | None = None
    nulls: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotedStats:
    """What the log records about a promoted column that a data file has.

    `bounds` are the least and the greatest value, the latter possibly longer than any value with
    the same beginning; None if they are not known. `nulls` counts the rows without a value.
    """

    nulls: int
    bounds: tuple[str, str] | tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """One row group of a data file: its number, and its rows `first` to `end`, without `end`.

    `times_ns` are the earliest and the latest time of its records; None if they are not known.
    """

    number: int
    first: int
    end: int
    times_ns: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One data file of a table; None means that the log does not record the value.

    A pair is the first and the last value. Agents and boots are in byte order, and the last one may
    be truncated. `sequences` are those of the queue. `promoted` has the promoted columns, by name,
    that the file is certain to have. `groups` are the row groups that a query reads, None for
    all.
    """

    path: str
    partition: str
    size_bytes: int
    records: int | None = None
    agents: tuple[str, str] | None = None
    ts: TimeStats = field(default_factory=TimeStats)
    accepted_at: TimeStats = field(default_factory=TimeStats)
    boots: tuple[str, str] | None = None
    record_seqs: tuple[int, int] | None = None
    sequences: tuple[int, int] | None = None
    promoted: Mapping[str, PromotedStats] = field(default_factory=dict)
    groups: tuple[RowGroup, ...] | None = None

    @property
    def read_bytes(self) -> int:
        """Size of what is read of the file, bytes; of row groups it is estimated by their rows."""
        if self.groups is None or not self.records:
            return self.size_bytes
        return self.size_bytes * sum(one.end - one.first for one in self.groups) // self.records

    @property
    def times_ns(self) -> tuple[int, int] | None:
        """Bounds of all records' times, Unix ns; None when unknown or if a record may have no time.

        Another writer may record the range and not how many records have no time.
        """
        if self.ts.range_ns is None or self.ts.nulls != 0:
            return None
        earliest, latest = self.ts.range_ns
        return (earliest - STATS_SLACK_NS, latest + STATS_SLACK_NS)


def list_files(
    opened: DeltaTable,
    table: Table,
    wanted: Callable[[str], bool] | None = None,
    promoted: Sequence[str] = (),
) -> list[DataFile]:
    """Return the data files by partition and path; `wanted` chooses by the partition's value.

    `promoted` names the promoted columns whose statistics are wanted.
    """
    column = f"partition.{table.partition_column}"
    found = pa.table(opened.get_add_actions(flatten=True))
    if wanted is not None:
        import pyarrow.compute as pc  # noqa: PLC0415 - takes 0.05 s to import; rarely needed

        values = found[column]
        kept = [one for one in values.unique().to_pylist() if wanted(_partition(one))]
        # Selected before rows become Python objects: a table has files of many partitions.
        found = found.filter(pc.is_in(values, value_set=pa.array(kept, values.type)))
    files = [_file(row, _partition(row[column]), promoted) for row in found.to_pylist()]
    return sorted(files, key=lambda file: (file.partition, file.path))


def list_partitions(opened: DeltaTable, table: Table) -> set[str]:
    """Return the partition values that have data files in this state of a table."""
    found = pa.table(opened.get_add_actions(flatten=True))
    values = found[f"partition.{table.partition_column}"].unique()
    return {_partition(one) for one in values.to_pylist()}


def partitions_of(paths: Iterable[str]) -> list[str]:
    """Return the partition values in paths of data files, in order; each table has one column."""
    found = (path.partition("/")[0].partition("=")[2] for path in paths)
    return sorted({value for value in found if value})


def total_bytes(files: Sequence[DataFile]) -> int:
    """Return the total size of what is read of files."""
    return sum(file.read_bytes for file in files)


def _partition(value: object) -> str:
    return value.isoformat() if isinstance(value, date) else str(value)


def _file(row: dict[str, Any], partition: str, promoted: Sequence[str]) -> DataFile:
    return DataFile(
        path=row["path"],
        partition=partition,
        size_bytes=int(row["size_bytes"]),
        records=row.get("num_records"),
        agents=_texts(row, "agent_id"),
        ts=_time_stats(row, "ts"),
        accepted_at=_time_stats(row, "accepted_at"),
        boots=_texts(row, "boot_id"),
        record_seqs=_numbers(row, "seq"),
        sequences=_numbers(row, "queue_sequence"),
        promoted=_promoted(row, promoted) if promoted else {},
    )


_OWN_FILE: Final = re.compile(
    r"[^/]+/(?:part|[0-9]{3}-[0-9]{20}-[0-9]{20}-[0-9]{5})-[0-9a-hjkmnp-tv-z]{26}\.parquet"
)
"""The files that sluice writes. Another program that merges files adds empty promoted columns."""


def _promoted(row: dict[str, Any], names: Sequence[str]) -> dict[str, PromotedStats]:
    """Return the promoted columns of a file that sluice wrote: those whose nulls are counted."""
    if _OWN_FILE.fullmatch(row["path"]) is None:
        return {}
    found = {}
    for name in names:
        nulls = row.get(f"null_count.{name}")
        first, last = row.get(f"min.{name}"), row.get(f"max.{name}")
        if nulls is not None:
            bounds = None if first is None or last is None else (first, last)
            found[name] = PromotedStats(nulls=int(nulls), bounds=bounds)
    return found


def _texts(row: dict[str, Any], column: str) -> tuple[str, str] | None:
    first, last = row.get(f"min.{column}"), row.get(f"max.{column}")
    return None if first is None or last is None else (str(first), str(last))


def _numbers(row: dict[str, Any], column: str) -> tuple[int, int] | None:
    first, last = row.get(f"min.{column}"), row.get(f"max.{column}")
    return None if first is None or last is None else (int(first), int(last))


def _time_stats(row: dict[str, Any], column: str) -> TimeStats:
    earliest, latest = row.get(f"min.{column}"), row.get(f"max.{column}")
    range_ns = None
    if earliest is not None and latest is not None:
        range_ns = (_ns(earliest), _ns(latest))
    return TimeStats(range_ns=range_ns, nulls=row.get(f"null_count.{column}"))


def _ns(moment: datetime | str) -> int:
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment)
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // _US * _NS_PER_US
