"""Merging small files of a table whose ended partitions get no rows, one commit a group of files.

A commit replaces the files only if all of them are still in the table (ADR 0053), so a concurrent
revision by deletes (ADR 0057) loses nothing and doubles nothing. Replaced files, and those of an
interrupted merge, are removed by the vacuum of the table.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import structlog

from sluice_lake.data_files import DataFile, list_files
from sluice_lake.delta import find_table
from sluice_lake.errors import CommitConflict
from sluice_lake.tables import Table
from sluice_spark.commits import replace_files
from sluice_spark.failpoints import FailPoint
from sluice_spark.settings import CompactSettings
from sluice_spark.stopping import StopCheck
from sluice_spark.written_files import WrittenFile

_log = structlog.get_logger("sluice.compact")


@dataclass(slots=True, kw_only=True)
class MergeResult:
    """The result of one run.

    Attributes:
        files: Files that were replaced.
        conflicts: Merges that were abandoned because another writer had replaced the files.
    """

    files: int = 0
    conflicts: int = 0


def by_partition(files: Iterable[DataFile]) -> Iterator[list[DataFile]]:
    """Yield the files of each partition, in the order of the partitions."""
    found: dict[str, list[DataFile]] = {}
    for file in files:
        found.setdefault(file.partition, []).append(file)
    for _, some in sorted(found.items()):
        yield some


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMerger:
    """Merges the files of one table.

    Attributes:
        store_url: The store.
        table: The table.
        data_change: Whether the merged rows differ from the rows of the files.
        failpoint: Where a test interrupts the run.
        stop: Raises an error between two merges if the run must stop.
    """

    store_url: str
    table: Table
    data_change: bool
    failpoint: FailPoint
    stop: StopCheck

    def run(
        self,
        settings: CompactSettings,
        plan: Callable[[Sequence[DataFile]], Iterable[Sequence[DataFile]]],
        merge: Callable[[Sequence[DataFile]], Sequence[WrittenFile]],
    ) -> MergeResult:
        """Merge every group of files that `plan` yields, one commit a group.

        Args:
            settings: The settings of the run; a dry run merges nothing.
            plan: Chooses the groups among the files of the table.
            merge: Writes the rows of a group into new files.

        Raises:
            JobStopped: `stop` raised it.
            TableRefused: The table has another schema or a refused feature.
        """
        done = MergeResult()
        opened = find_table(self.store_url, self.table, for_writing=True)
        if opened is None or settings.dry_run:
            return done
        for files in plan(list_files(opened, self.table)):
            self.stop()
            added = merge(files)
            self.failpoint.reach("compact_after_write")
            try:
                replace_files(
                    self.store_url, self.table, files, added, data_change=self.data_change
                )
            except CommitConflict as error:
                done.conflicts += 1
                _log.info("merge_abandoned", table=self.table.name, reason=str(error))
                continue
            done.files += len(files)
            self.failpoint.reach("compact_after_commit")
        return done
