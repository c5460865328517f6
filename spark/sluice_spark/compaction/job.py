"""Compaction: merge small files, drop duplicates and deleted rows, and remove old files.

Rewritten files are ordered by time. The order in which an agent sent its records is still given by
(agent, boot, seq), which never changes.

Old files, source ranges and chunks are removed. A file is removed if no state of the table of the
last hours contains it. That covers files that a commit replaced, and files of a job that stopped
before its commit. The hours are the retry horizon plus `vacuum_hours`: a query or a job that began
before has ended.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import structlog
from deltalake import DeltaTable

from sluice_lake.data_files import DataFile, list_files
from sluice_lake.delta import find_table, vacuum_table
from sluice_lake.errors import CommitConflict, TableRefused, read_transaction
from sluice_lake.promoted import add_promoted, table_of
from sluice_lake.source_ranges import ROLLUP_APP, DeleteIdsReader, read_source_range
from sluice_lake.tables import BATCHES, DEAD_LETTERS, RECORD_TABLES, ROLLUPS, TABLES, Table
from sluice_protocol.batch_in_lake import ROLLUP_WINDOWS
from sluice_protocol.fields import Kind
from sluice_protocol.record_deletes import (
    DeleteRecord,
    is_retention,
    needed_deletes,
    rollup_deletes,
)
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import NS_PER_S
from sluice_spark.commits import replace_files
from sluice_spark.compaction.delete_matches import only_deleted, without_deleted
from sluice_spark.compaction.deleted_rows import (
    DeletedRowsRemover,
    FileDeletes,
    plan_deletes,
    record_applied,
    remove_old_applied,
)
from sluice_spark.compaction.file_merges import HOUR_S, RollupMerger, by_partition, merge_hours
from sluice_spark.compaction.file_selection import (
    MaintenanceInput,
    SequenceOverlap,
    first_open_date,
    is_closed,
    may_contain_deleted,
    read_maintenance_input,
    retention_hours,
    small_files,
)
from sluice_spark.compaction.repetitions import RepetitionRemover, RepetitionRules, find_overlaps
from sluice_spark.compaction.rewrite import (
    FileRewrite,
    content_of,
    files_with_rows,
    read_files,
    rewrite,
)
from sluice_spark.errors import StopCheck, never_stop
from sluice_spark.failpoints import FailPoint, read_failpoint
from sluice_spark.rollups.inputs import find_unrolled_files
from sluice_spark.rollups.objects import (
    remove_old_chunks,
    remove_old_honoured,
    remove_old_source_ranges,
)
from sluice_spark.session import Session
from sluice_spark.settings import CompactSettings
from sluice_spark.written_files import WrittenFile
from sluice_store import open_store
from sluice_store.retry import Backoff
from sluice_store.stored_deletes import compact_deletes

DAY_S: Final = 24 * HOUR_S
_REMOVALS_MAX: Final = 5
"""Attempts to remove deleted rows while other writers replace the same files."""


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
        dry_run = self.settings.dry_run
        return len(vacuum_table(opened, self.kept_hours, full=True, dry_run=dry_run))

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


_log = structlog.get_logger("sluice.compact")


@dataclass(slots=True, kw_only=True)
class CompactReport:
    """The result of a compaction run.

    Attributes:
        waiting_for_rollups: Files of metrics from which retention removed nothing, because rollups
            do not contain their samples yet.
        source_ranges_removed: Source ranges of rollups that no reader needs any more.
        repetitions: Rows that were removed because their sender sent them twice in other batches;
            `dropped_rows` counts them too. In a dry run: rows that would be removed.
        chunks_removed: Rollup chunks that were older than `chunk_days`.
    """

    files_before: int = 0
    files_after: int = 0
    rewritten: int = 0
    dropped_rows: int = 0
    vacuumed: int = 0
    conflicts: int = 0
    merged: int = 0
    waiting_for_rollups: int = 0
    source_ranges_removed: int = 0
    repetitions: int = 0
    chunks_removed: int = 0


def _read_input(store_url: str) -> MaintenanceInput:
    async def read() -> MaintenanceInput:
        async with open_store(store_url) as store:
            return await read_maintenance_input(store)

    return asyncio.run(read())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compactor:
    """One compaction run.

    Attributes:
        treated: Paths of the files of which this run has removed every deleted row.
    """

    spark: Session
    store_url: str
    settings: CompactSettings
    input: MaintenanceInput
    overlaps: Mapping[str, Sequence[SequenceOverlap]]
    report: CompactReport
    failpoint: FailPoint
    stop: StopCheck
    treated: set[str] = field(default_factory=set)

    def run(self, kind: Kind) -> None:
        """Compact one record table."""
        self.stop()
        opened = self._open(kind)
        if opened is None:
            return
        table = table_of(opened, RECORD_TABLES[kind])
        before = list_files(opened, table)
        self.report.files_before += len(before)
        self._drop_duplicates(table)
        deletes = self._drop_deleted(kind, table)
        self._merge_small_files(table)
        self._remove_repetitions(kind, table, deletes)
        self._record_applied(kind, deletes)
        self.report.files_after += len(self._files(table))

    def remove_deleted(self, kind: Kind) -> None:
        """Remove the deleted rows of one record table, and nothing else."""
        self.stop()
        opened = find_table(self.store_url, RECORD_TABLES[kind], for_writing=True)
        if opened is not None:
            self._drop_deleted(kind, table_of(opened, RECORD_TABLES[kind]))

    def _open(self, kind: Kind) -> DeltaTable | None:
        """Open a record table, with the columns of all promotions unless nothing is written."""
        if not self.settings.dry_run:
            try:
                add_promoted(self.store_url, kind, self.input.promotions)
            except (CommitConflict, TableRefused) as error:
                _log.warning("column_not_added", reason=str(error))
        return find_table(self.store_url, RECORD_TABLES[kind], for_writing=True)

    def _files(self, table: Table) -> list[DataFile]:
        opened = find_table(self.store_url, table, for_writing=True)
        return list_files(opened, table) if opened is not None else []

    def _selectable(self, files: Sequence[DataFile]) -> list[DataFile]:
        grace_s = self.settings.grace_s
        return [
            file
            for file in files
            if self.settings.open_partitions
            or is_closed(file.partition, self.input.now_ns, grace_s)
        ]

    def _rewrite(self, table: Table, plan: FileRewrite) -> Sequence[WrittenFile] | None:
        """Rewrite files; return the new files, or None if they are not committed."""
        if not plan.files or self.settings.dry_run:
            return None
        self.stop()
        try:
            added = rewrite(
                self.spark,
                self.store_url,
                table,
                plan,
                target_bytes=self.settings.target_bytes,
                failpoint=self.failpoint,
            )
        except CommitConflict as error:
            self.report.conflicts += 1
            _log.info("rewrite_abandoned", table=table.name, reason=str(error))
            return None
        lost = sum(file.records or 0 for file in plan.files) - sum(
            fact.stats["numRecords"] for fact in added
        )
        self.report.rewritten += len(plan.files)
        self.report.dropped_rows += lost
        _log.info(
            "files_rewritten",
            table=table.name,
            before=len(plan.files),
            after=len(added),
            dropped_rows=lost,
        )
        if self.treated.issuperset(file.path for file in plan.files):
            self.treated.update(file.path for file in added)
        return added

    def _remove_repetitions(self, kind: Kind, table: Table, deletes: FileDeletes) -> None:
        settings = self.settings
        if not (
            (kind == "logs" and settings.dedupe) or (kind == "metrics" and settings.dedupe_metrics)
        ):
            return
        remover = RepetitionRemover(
            spark=self.spark,
            store_url=self.store_url,
            rules=RepetitionRules(
                kind=kind,
                attributes=settings.dedupe if kind == "logs" else (),
                window_s=settings.dedupe_window_s,
            ),
            deletes=deletes,
            treated=self.treated,
            dry_run=settings.dry_run,
            failpoint=self.failpoint,
            replace=lambda _, plan: self._rewrite(table, plan) is not None,
        )
        self.report.repetitions += remover.run(lambda: self._selectable(self._files(table)))

    def _drop_duplicates(self, table: Table) -> None:
        overlaps = self.overlaps.get(table.name, [])
        files = self._selectable(self._files(table))
        touched = [file for file in files if any(overlap.may_touch(file) for overlap in overlaps)]
        if not touched:
            return
        condition = " OR ".join(overlap.condition for overlap in overlaps)
        rows = read_files(self.spark, self.store_url, table, touched).where(condition)
        same = ["agent_id", "boot_id", "seq", "content"]
        rows = rows.selectExpr(*same[:3], f"{content_of(table)} AS content", "data_file")
        doubled = rows.groupBy(*same).count().where("count > 1")
        holding = rows.join(doubled.select(*same), same).select("data_file").distinct()
        self._rewrite(
            table, FileRewrite(files=tuple(files_with_rows(touched, holding)), unique=True)
        )

    def _drop_deleted(self, kind: Kind, table: Table) -> FileDeletes:
        deletes = needed_deletes([record for record in self.input.deletes if record.kind == kind])
        found = plan_deletes(self.store_url, table, deletes)
        files = self._selectable(self._files(table))
        remover = DeletedRowsRemover(
            deletes=found,
            waiting=self._waiting_for_rollups(kind, files, deletes),
            find=partial(self._find_deleted, table),
            rewrite=partial(self._rewrite_without, table),
            remove=partial(self._remove, table),
            treated=self.treated,
        )
        remover.run(files)
        return found

    def _find_deleted(
        self, table: Table, files: Sequence[DataFile], deletes: Sequence[DeleteRecord]
    ) -> list[DataFile]:
        rows = read_files(self.spark, self.store_url, table, files)
        deleted = only_deleted(rows, deletes)
        return files_with_rows(files, deleted.select("data_file").distinct())

    def _rewrite_without(
        self, table: Table, files: Sequence[DataFile], deletes: Sequence[DeleteRecord]
    ) -> Sequence[WrittenFile] | None:
        keep = partial(without_deleted, records=deletes)
        return self._rewrite(table, FileRewrite(files=tuple(files), keep=keep))

    def _record_applied(self, kind: Kind, deletes: FileDeletes) -> None:
        """Record which files need no delete of this run again."""
        if self.settings.dry_run:
            return
        open_from = None
        if not self.settings.open_partitions:
            open_from = first_open_date(self.input.now_ns, self.settings.grace_s)
        record_applied(
            self.store_url, RECORD_TABLES[kind], deletes, self.treated, before=open_from or ""
        )

    def _waiting_for_rollups(
        self, kind: Kind, files: Sequence[DataFile], deletes: Sequence[DeleteRecord]
    ) -> list[DataFile]:
        """Return the files from which retention may not remove anything yet."""
        retention = [record for record in deletes if is_retention(record)]
        if kind != "metrics" or not retention or not self.settings.await_rollups:
            return []
        found = [
            file
            for file in find_unrolled_files(self.store_url, files)
            if any(may_contain_deleted(file, record) for record in retention)
        ]
        if found:
            self.report.waiting_for_rollups += len(found)
            _log.warning(
                "retention_waits_for_rollups",
                files=len(found),
                samples=sum(file.records or 0 for file in found),
                oldest_date=min(file.partition for file in found),
            )
        return found

    def _remove(self, table: Table, files: Sequence[DataFile]) -> bool:
        if self.settings.dry_run:
            return False
        try:
            replace_files(self.store_url, table, files, (), data_change=True)
        except CommitConflict:
            self.report.conflicts += 1
            return False
        self.report.rewritten += len(files)
        self.report.dropped_rows += sum(file.records or 0 for file in files)
        return True

    def _merge_small_files(self, table: Table) -> None:
        for files in by_partition(self._selectable(self._files(table))):
            small = small_files(files, self.settings.target_bytes)
            self._rewrite(table, FileRewrite(files=tuple(small)))

    def merge_rollups(self) -> None:
        """Merge the files of the table `rollups`."""
        merger = RollupMerger(
            spark=self.spark,
            store_url=self.store_url,
            settings=self.settings,
            failpoint=self.failpoint,
            stop=self.stop,
        )
        merged = merger.run(self.input.now_ns)
        self.report.merged += merged.files
        self.report.conflicts += merged.conflicts


def _compact_deletes(store_url: str, known: Sequence[DeleteRecord]) -> None:
    """Write the register of deletes again, with what every committed rollup honours."""
    rollups = find_table(store_url, ROLLUPS, for_writing=True)
    done = (read_transaction(rollups, ROLLUP_APP) or 0) if rollups is not None else 0

    async def compact() -> None:
        clock = SystemClock()
        async with open_store(store_url) as store:
            source = await read_source_range(store, done) if done else None
            honoured = frozenset[str]()
            if source is not None:
                wanted = {one.delete_id for one in rollup_deletes(known)}
                honoured = await DeleteIdsReader(store=store).read(source.deletes, wanted)
            backoff = Backoff.seeded_by(clock)
            found = await compact_deletes(store, known, backoff, SystemIds(), honoured=honoured)
        _log.info("deletes_compacted", known=found.known, active=found.active)

    asyncio.run(compact())


def run_compact(
    spark: Session, store_url: str, settings: CompactSettings, *, stop: StopCheck = never_stop
) -> CompactReport:
    """Compact every table once; may run concurrently with ingestion, and be repeated.

    Raise `InvalidRecord` if a delete cannot be decoded.
    """
    compactor = _Compactor(
        spark=spark,
        store_url=store_url,
        settings=settings,
        input=_read_input(store_url),
        overlaps=find_overlaps(spark, store_url),
        report=CompactReport(),
        failpoint=read_failpoint(),
        stop=stop,
    )
    for kind in RECORD_TABLES:
        compactor.run(kind)
    for table in (BATCHES, DEAD_LETTERS):
        merged = merge_hours(
            store_url,
            table,
            settings,
            compactor.input.now_ns,
            failpoint=compactor.failpoint,
            stop=stop,
        )
        compactor.report.merged += merged.files
        compactor.report.conflicts += merged.conflicts
    compactor.merge_rollups()
    vacuum = Vacuum(store_url=store_url, settings=settings, input=compactor.input, stop=stop)
    compactor.report.vacuumed = vacuum.remove_files()
    compactor.report.source_ranges_removed = vacuum.remove_source_ranges()
    compactor.report.chunks_removed = vacuum.remove_chunks()
    vacuum.remove_applied_parts()
    if not settings.dry_run:
        _compact_deletes(store_url, compactor.input.deletes)
    return compactor.report


def remove_deleted_rows(spark: Session, store_url: str, deletes: Sequence[DeleteRecord]) -> None:
    """Remove the rows of some deletes from every file, also of dates that receive batches.

    Other writers may replace the same files, so it tries again; a caller searches for what is left.
    """
    for _ in range(_REMOVALS_MAX):
        compactor = _Compactor(
            spark=spark,
            store_url=store_url,
            settings=CompactSettings(open_partitions=True),
            input=replace(_read_input(store_url), deletes=tuple(deletes)),
            overlaps={},
            report=CompactReport(),
            failpoint=read_failpoint(),
            stop=never_stop,
        )
        for kind in dict.fromkeys(one.kind for one in deletes):
            compactor.remove_deleted(kind)
        if not compactor.report.conflicts:
            return
