"""Removal of what no reader and no job needs any more: old files, source ranges and chunks.

A file is removed if no state of the table of the last hours contains it. That covers files that a
commit replaced, and files of a job that stopped before its commit. The hours are the retry horizon
plus `vacuum_hours`: a query or a job that began before has ended.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from sluice_lake.delta import find_table
from sluice_lake.log_errors import read_transaction
from sluice_lake.source_ranges import ROLLUP_APP
from sluice_lake.tables import RECORD_TABLES, ROLLUPS, TABLES, Table
from sluice_protocol.batch_in_lake import ROLLUP_WINDOWS
from sluice_protocol.units import NS_PER_S
from sluice_spark.compaction.deleted_rows import remove_old_applied
from sluice_spark.compaction.file_merges import HOUR_S
from sluice_spark.compaction.file_selection import retention_hours
from sluice_spark.compaction.maintenance_input import MaintenanceInput
from sluice_spark.errors import StopCheck
from sluice_spark.rollups.objects import (
    remove_old_chunks,
    remove_old_honoured,
    remove_old_source_ranges,
)
from sluice_spark.settings import CompactSettings
from sluice_store import open_store

DAY_S: Final = 24 * HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuum:
    """Removes old files of one store."""

    store_url: str
    settings: CompactSettings
    input: MaintenanceInput
    stop: StopCheck

    @property
    def kept_hours(self) -> int:
        """The age up to which nothing is removed."""
        return retention_hours(self.input.retry_horizon_s, self.settings.vacuum_hours)

    @property
    def _before_ns(self) -> int:
        """What was written before this time is as old as the files that vacuum removes."""
        return self.input.now_ns - self.kept_hours * HOUR_S * NS_PER_S

    def remove_files(self) -> int:
        """Remove uncommitted files of every table, and files that were replaced long ago.

        Return their number, also with `dry_run`.
        """
        return sum(self._remove_files_of(table) for table in TABLES)

    def _remove_files_of(self, table: Table) -> int:
        self.stop()
        opened = find_table(self.store_url, table, for_writing=True)
        if opened is None or self.settings.vacuum_hours < 0:
            return 0
        found: list[str] = opened.vacuum(
            retention_hours=self.kept_hours,
            dry_run=self.settings.dry_run,
            full=True,
            enforce_retention_duration=False,
        )
        return len(found)

    def remove_source_ranges(self) -> int:
        """Remove the source ranges of rollups that are as old; return their number."""
        done = self._last_source_range()
        if done is None or self.settings.vacuum_hours < 0:
            return 0
        before_ns = self._before_ns

        async def remove() -> int:
            async with open_store(self.store_url) as store:
                removed = await remove_old_source_ranges(store, done, before_ns)
                await remove_old_honoured(store, done, before_ns)
                return removed

        return asyncio.run(remove())

    def remove_applied_parts(self) -> int:
        """Remove ids of applied deletes that are as old and that no record names."""
        if self.settings.dry_run or self.settings.vacuum_hours < 0:
            return 0
        before_ns = self._before_ns

        async def remove() -> int:
            async with open_store(self.store_url) as store:
                tables = RECORD_TABLES.values()
                return sum(
                    [await remove_old_applied(store, table.name, before_ns) for table in tables]
                )

        return asyncio.run(remove())

    def remove_chunks(self) -> int:
        """Remove rollup chunks that are older than `chunk_days`; return their number."""
        done, days = self._last_source_range(), self.settings.chunk_days
        if done is None or days <= 0:
            return 0
        before_ns = self.input.now_ns - days * DAY_S * NS_PER_S

        async def remove() -> int:
            removed = 0
            async with open_store(self.store_url) as store:
                for window, _ in ROLLUP_WINDOWS:
                    removed += await remove_old_chunks(store, window, done, before_ns, self.stop)
            return removed

        return asyncio.run(remove())

    def _last_source_range(self) -> int | None:
        """Return the last source range in `rollups`; None without the table or in a dry run."""
        self.stop()
        rollups = find_table(self.store_url, ROLLUPS, for_writing=True)
        if rollups is None or self.settings.dry_run:
            return None
        return read_transaction(rollups, ROLLUP_APP) or 0
