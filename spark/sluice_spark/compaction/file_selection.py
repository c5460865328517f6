"""What maintenance reads from the store, and the data files that it rewrites or removes.

A partition is closed when its date ended more than the grace period ago. Compaction rewrites closed
partitions only, so that it rarely conflicts with ingestion. A conflict is safe: the later commit is
refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

from sluice_lake.data_files import DataFile
from sluice_lake.tables import accepted_date
from sluice_protocol.keys import ACTIVE_DELETES
from sluice_protocol.promotions import Promotion
from sluice_protocol.record_deletes import DeleteRecord, is_retention
from sluice_protocol.units import NS_PER_S
from sluice_spark.compaction.delete_matches import sql_literal
from sluice_store import read_authority
from sluice_store.port import ObjectStore
from sluice_store.stored_deletes import read_known_deletes
from sluice_store.stored_expiry import read_holds
from sluice_store.stored_promotions import read_promotions


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceInput:
    """The store's time, the retry horizon, every delete and every promotion."""

    now_ns: int
    retry_horizon_s: int
    deletes: tuple[DeleteRecord, ...]
    promotions: tuple[Promotion, ...] = ()


async def read_maintenance_input(store: ObjectStore) -> MaintenanceInput:
    """Read the authority, the deletes, and the promotions that can be decoded.

    A delete that may remove records of a batch that a hold covers is left out, and applied once the
    hold is lifted. Queries apply it anyway.

    Raises:
        InvalidRecord: Skipping a delete that cannot be decoded would keep deleted rows.
    """
    authority = await read_authority(store)
    date_ns = (await store.head(ACTIVE_DELETES)).date_ns
    deletes = await read_known_deletes(store)
    holds = await read_holds(store)
    return MaintenanceInput(
        now_ns=date_ns,
        retry_horizon_s=authority.retry_horizon_s,
        deletes=tuple(record for record in deletes if holds.touching(record) is None),
        promotions=(await read_promotions(store)).records,
    )


_DAY_S: Final = 24 * 3600
_HOUR_S: Final = 3600
SMALL_FILES_MIN: Final = 2
"""Rewriting a single small file has no benefit."""


def is_closed(partition: str, now_ns: int, grace_s: int) -> bool:
    """Return True if a date ended more than the grace period ago."""
    begins = datetime.combine(date.fromisoformat(partition), datetime.min.time(), UTC)
    return int(begins.timestamp()) + _DAY_S + grace_s <= now_ns // NS_PER_S


def first_open_date(now_ns: int, grace_s: int) -> str:
    """Return the first date that is not closed."""
    return accepted_date(now_ns - grace_s * NS_PER_S)


def retention_hours(retry_horizon_s: int, vacuum_hours: int) -> int:
    """Return the age at which replaced and uncommitted files are removed, in hours.

    delta-rs accepts whole hours only; a part of an hour counts as a whole one.
    """
    return -(-retry_horizon_s // _HOUR_S) + vacuum_hours


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
