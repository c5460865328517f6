"""The data files that a table has now, as delta-rs's log names them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable

from sluice_protocol.lake import Table

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)
_NS_PER_US: Final = 1000
STATS_SLACK_NS: Final = 1_000_000
"""Some writers cut the times in their statistics to milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One data file of a table.

    Attributes:
        path: Its path within the table.
        partition: Value of the partition column.
        size_bytes: Its size.
        records: Its number of rows; 0 when the log does not say.
        agents: First and last agent in byte order, or None when the log does not say.
        times_ns: Earliest and latest time, Unix ns, or None when unknown or when a row has none.
    """

    path: str
    partition: str
    size_bytes: int
    records: int
    agents: tuple[str, str] | None
    times_ns: tuple[int, int] | None


def list_files(opened: DeltaTable, table: Table) -> list[DataFile]:
    """Gives every data file of this state of a table, by partition and path."""
    rows = pa.table(opened.get_add_actions(flatten=True)).to_pylist()
    files = [_file(row, table) for row in rows]
    return sorted(files, key=lambda file: (file.partition, file.path))


def _file(row: dict[str, Any], table: Table) -> DataFile:
    partition = row[f"partition.{table.partition_column}"]
    agents = (row.get("min.agent_id"), row.get("max.agent_id"))
    return DataFile(
        path=row["path"],
        partition=partition.isoformat() if isinstance(partition, date) else str(partition),
        size_bytes=row["size_bytes"],
        records=row.get("num_records") or 0,
        agents=None if None in agents else (str(agents[0]), str(agents[1])),
        times_ns=_times(row),
    )


def _times(row: dict[str, Any]) -> tuple[int, int] | None:
    least, most = row.get("min.ts"), row.get("max.ts")
    if least is None or most is None or row.get("null_count.ts"):
        return None
    return (_ns(least) - STATS_SLACK_NS, _ns(most) + STATS_SLACK_NS)


def _ns(moment: datetime) -> int:
    return ((moment - _EPOCH) // _US) * _NS_PER_US


def total_bytes(files: Sequence[DataFile]) -> int:
    """Gives the size of files together."""
    return sum(file.size_bytes for file in files)
