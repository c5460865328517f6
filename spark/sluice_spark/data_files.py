"""The data files of a table, and which of them maintenance rewrites.

A partition is closed when its date ended more than the grace period ago. Compaction rewrites closed
partitions only, so that it rarely conflicts with ingestion. A conflict is safe: the later commit is
refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable

from sluice_protocol.lake import Table, accepted_date
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.units import NS_PER_S
from sluice_spark.delete_conditions import is_retention, sql_literal

_DAY_S: Final = 24 * 3600
SMALL_FILES_MIN: Final = 2
"""Rewriting a single small file has no benefit."""


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)
_NS_PER_US: Final = 1000
STATS_SLACK_NS: Final = 1_000_000
"""Tolerance for writers that truncate the times in their statistics to milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One data file of a table, as Delta's log describes it.

    Attributes:
        path: Path within the table.
        partition: Value of the partition column.
        size_bytes: Size of the file.
        records: Number of rows; 0 if the log has no statistics.
        agents: First and last agent in byte order; None if the log has no statistics.
        times_ns: Earliest and latest time, Unix ns; None if unknown or if a row has no time.
    """

    path: str
    partition: str
    size_bytes: int
    records: int
    agents: tuple[str, str] | None
    times_ns: tuple[int, int] | None


def list_files(opened: DeltaTable, table: Table) -> list[DataFile]:
    """Return the data files of an opened table, ordered by partition and path."""
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
    """Return the total size of files."""
    return sum(file.size_bytes for file in files)


def is_closed(partition: str, now_ns: int, grace_s: int) -> bool:
    """Return True if a date ended more than the grace period ago."""
    begins = datetime.combine(date.fromisoformat(partition), datetime.min.time(), UTC)
    return int(begins.timestamp()) + _DAY_S + grace_s <= now_ns // NS_PER_S


def small_files(files: Sequence[DataFile], target_bytes: int) -> list[DataFile]:
    """Return the files of one partition to merge; empty if fewer than two are small."""
    small = [file for file in files if file.size_bytes < target_bytes // 2]
    return small if len(small) >= SMALL_FILES_MIN else []


def may_contain_agent(file: DataFile, agent_id: str) -> bool:
    """Return True if a file may contain rows of an agent.

    Other writers may truncate the upper bound of their statistics.
    """
    if file.agents is None:
        return True
    first, last = file.agents
    return first <= agent_id and (agent_id <= last or agent_id.startswith(last))


def may_contain_deleted(file: DataFile, record: DeleteRecord) -> bool:
    """Return True if, by its statistics, a file may contain rows that a delete removes."""
    if file.partition > accepted_date(record.accepted_until_unix_ns):
        return False
    if record.agent_id is not None and not may_contain_agent(file, record.agent_id):
        return False
    if file.times_ns is None:
        return True
    earliest, latest = file.times_ns
    starts_late = record.from_unix_ns is not None and record.from_unix_ns > latest
    ends_early = record.to_unix_ns is not None and record.to_unix_ns <= earliest
    return not starts_late and not ends_early


def removes_whole_file(file: DataFile, record: DeleteRecord) -> bool:
    """Return True if a retention delete removes every row of a file.

    Such a file is removed without being read; this is how retention drops whole partitions.
    """
    if not is_retention(record) or record.to_unix_ns is None:
        return False
    day_after = date.fromisoformat(file.partition) + timedelta(days=1)
    ends_ns = int(datetime.combine(day_after, datetime.min.time(), UTC).timestamp()) * NS_PER_S
    accepted_before = ends_ns <= record.accepted_until_unix_ns
    return accepted_before and file.times_ns is not None and file.times_ns[1] < record.to_unix_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceOverlap:
    """Sequence numbers of one boot of an agent that more than one accepted batch contains."""

    agent_id: str
    boot_id: str
    seq_start: int
    seq_end: int

    @property
    def condition(self) -> str:
        """The Spark SQL condition that selects its rows."""
        return (
            f"(agent_id = {sql_literal(self.agent_id)} AND boot_id = {sql_literal(self.boot_id)}"
            f" AND seq BETWEEN {self.seq_start} AND {self.seq_end})"
        )

    def may_touch(self, file: DataFile) -> bool:
        """Return True if a file may contain rows of it."""
        return may_contain_agent(file, self.agent_id)
