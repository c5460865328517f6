"""Maintenance of the lake: small files together, duplicates and deleted rows out, old files gone.

Rows are ordered by time within the rewritten files; the order in which an agent sent them is not
the order of the file any more, it stands in (agent, boot, seq), which is never changed.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from deltalake import DeltaTable

from sluice_protocol.keys import DELETES
from sluice_protocol.lake import BATCHES, DEAD_LETTERS, RECORD_TABLES, ROLLUPS, Table
from sluice_protocol.manifests import Kind
from sluice_protocol.outcomes import Found
from sluice_protocol.record_deletes import DeleteRecord, decode_delete
from sluice_spark.errors import CommitConflict
from sluice_spark.housekeeping import (
    Overlap,
    any_condition,
    falls_wholly,
    is_closed,
    may_match,
    small_files,
)
from sluice_spark.inventory import DataFile, list_files
from sluice_spark.rewriting import (
    Rewrite,
    named_files,
    read_files,
    replace_files,
    rewrite,
)
from sluice_spark.session import Session
from sluice_spark.settings import CompactSettings
from sluice_spark.tables import find_table
from sluice_store import open_store, read_authority
from sluice_store.port import ObjectStore

_log = structlog.get_logger("sluice.compact")
_HOUR_S = 3600
OVERLAPS_MAX = 10_000
"""Overlapping ranges that one run looks at; the next run takes the rest."""


@dataclass(slots=True, kw_only=True)
class CompactReport:
    """What a run of maintenance did.

    Attributes:
        files_before: Data files of the record tables before.
        files_after: The same afterwards.
        rewritten: Files that were replaced.
        dropped_rows: Rows that deletes and duplicates lost.
        vacuumed: Old files removed from the store.
        conflicts: Rewrites given up because the files were replaced by somebody else.
    """

    files_before: int = 0
    files_after: int = 0
    rewritten: int = 0
    dropped_rows: int = 0
    vacuumed: int = 0
    conflicts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """What the store says that maintenance needs: its time, its horizon, its deletes."""

    now_ns: int
    retry_horizon_s: int
    deletes: tuple[DeleteRecord, ...]


async def read_horizon(store: ObjectStore) -> Horizon:
    """Reads the authority and every delete.

    Raises:
        InvalidRecord: A delete cannot be understood: to pass over it would keep what was deleted.
        StoreError: The store did not answer.
    """
    authority = await read_authority(store)
    found: list[DeleteRecord] = []
    date_ns = 0
    async for page in store.list(DELETES):
        date_ns = page.date_ns
        for listed in page.objects:
            answer = await store.get(listed.key)
            if isinstance(answer, Found):
                found.append(decode_delete(listed.key, answer.body))
    return Horizon(now_ns=date_ns, retry_horizon_s=authority.retry_horizon_s, deletes=tuple(found))


def _horizon(store_url: str) -> Horizon:
    async def read() -> Horizon:
        async with open_store(store_url) as store:
            return await read_horizon(store)

    return asyncio.run(read())


@dataclass(frozen=True, slots=True, kw_only=True)
class Compactor:
    """One run of maintenance.

    Attributes:
        spark: The session.
        store_url: The store.
        settings: How.
        horizon: What the store says.
        report: What was done so far.
    """

    spark: Session
    store_url: str
    settings: CompactSettings
    horizon: Horizon
    report: CompactReport

    def run(self, kind: Kind) -> None:
        """Maintains one record table."""
        table = RECORD_TABLES[kind]
        opened = find_table(self.store_url, table)
        if opened is None:
            return
        before = list_files(opened, table)
        self.report.files_before += len(before)
        self._drop_duplicates(table)
        self._drop_deleted(kind, table)
        self._put_together(table)
        self.report.files_after += len(self._files(table))

    def _files(self, table: Table) -> list[DataFile]:
        opened = find_table(self.store_url, table)
        return list_files(opened, table) if opened is not None else []

    def _eligible(self, files: Sequence[DataFile]) -> list[DataFile]:
        grace_s = self.settings.grace_s
        return [
            file
            for file in files
            if self.settings.open_partitions
            or is_closed(file.partition, self.horizon.now_ns, grace_s)
        ]

    def _rewrite(self, table: Table, plan: Rewrite) -> None:
        if not plan.files or self.settings.dry_run:
            return
        try:
            added = rewrite(
                self.spark,
                self.store_url,
                table,
                plan,
                target_bytes=self.settings.target_bytes,
            )
        except CommitConflict as error:
            self.report.conflicts += 1
            _log.info("rewrite given up", table=table.name, reason=str(error))
            return
        lost = sum(file.records for file in plan.files) - sum(
            fact.stats["numRecords"] for fact in added
        )
        self.report.rewritten += len(plan.files)
        self.report.dropped_rows += lost
        _log.info(
            "files rewritten",
            table=table.name,
            before=len(plan.files),
            after=len(added),
            dropped_rows=lost,
        )

    def _drop_duplicates(self, table: Table) -> None:
        overlaps = find_overlaps(self.spark, self.store_url, table.name)
        files = self._eligible(self._files(table))
        touched = [file for file in files if any(found.may_touch(file) for found in overlaps)]
        if not touched:
            return
        condition = " OR ".join(found.condition for found in overlaps)
        rows = read_files(self.spark, self.store_url, table, touched).where(condition)
        doubled = rows.groupBy("agent_id", "boot_id", "seq").count().where("count > 1")
        holding = (
            rows.join(doubled.select("agent_id", "boot_id", "seq"), ["agent_id", "boot_id", "seq"])
            .select("file")
            .distinct()
        )
        self._rewrite(table, Rewrite(files=tuple(named_files(touched, holding)), unique=True))

    def _drop_deleted(self, kind: Kind, table: Table) -> None:
        deletes = [record for record in self.horizon.deletes if record.kind == kind]
        files = self._eligible(self._files(table))
        gone = [file for file in files if any(falls_wholly(file, record) for record in deletes)]
        self._remove(table, gone)
        rest = [file for file in files if file not in gone]
        touched = [file for file in rest if any(may_match(file, record) for record in deletes)]
        condition = any_condition(deletes)
        if not touched or condition is None:
            return
        rows = read_files(self.spark, self.store_url, table, touched).where(condition)
        holding = rows.select("file").distinct()
        self._rewrite(table, Rewrite(files=tuple(named_files(touched, holding)), drop=condition))

    def _remove(self, table: Table, files: Sequence[DataFile]) -> None:
        if not files or self.settings.dry_run:
            return
        try:
            replace_files(self.store_url, table, files, (), data_change=True)
        except CommitConflict:
            self.report.conflicts += 1
            return
        self.report.rewritten += len(files)
        self.report.dropped_rows += sum(file.records for file in files)

    def _put_together(self, table: Table) -> None:
        by_partition: dict[str, list[DataFile]] = {}
        for file in self._eligible(self._files(table)):
            by_partition.setdefault(file.partition, []).append(file)
        for files in by_partition.values():
            small = small_files(files, self.settings.target_bytes)
            self._rewrite(table, Rewrite(files=tuple(small)))

    def vacuum(self, table: Table) -> None:
        """Removes files that no state of the table within the horizon names, strays included."""
        opened = find_table(self.store_url, table)
        if opened is None or self.settings.vacuum_hours < 0:
            return
        hours = self.horizon.retry_horizon_s // _HOUR_S + self.settings.vacuum_hours
        self.report.vacuumed += len(_vacuum(opened, hours, dry_run=self.settings.dry_run))


def _vacuum(opened: DeltaTable, hours: int, *, dry_run: bool) -> list[str]:
    found: list[str] = opened.vacuum(
        retention_hours=hours, dry_run=dry_run, full=True, enforce_retention_duration=False
    )
    return found


def find_overlaps(spark: Session, store_url: str, kind: str) -> list[Overlap]:
    """Gives sequence ranges that more than one batch of the ledger claims, at most `OVERLAPS_MAX`.

    Two identities differ when their ranges differ, so both are accepted; records that both carry
    are the duplicates that compaction drops.
    """
    ledger = find_table(store_url, BATCHES)
    files = list_files(ledger, BATCHES) if ledger is not None else []
    if not files:
        return []
    rows = read_files(spark, store_url, BATCHES, files).where(f"kind = '{kind}'")
    before = "PARTITION BY agent_id, boot_id ORDER BY seq_start, seq_end DESC"
    seen = f"max(seq_end) OVER ({before} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    found = (
        rows.selectExpr("agent_id", "boot_id", "seq_start", "seq_end", f"{seen} AS reached")
        .where("seq_start <= reached")
        .selectExpr("agent_id", "boot_id", "seq_start", "least(seq_end, reached) AS seq_end")
        .limit(OVERLAPS_MAX)
        .collect()
    )
    return [
        Overlap(
            agent_id=row.agent_id,
            boot_id=row.boot_id,
            seq_start=row.seq_start,
            seq_end=row.seq_end,
        )
        for row in found
    ]


def run_compact(spark: Session, store_url: str, settings: CompactSettings) -> CompactReport:
    """Maintains every table once; it may run beside an ingest job, and be repeated.

    Raises:
        TableRefused: A table is not ours.
        InvalidRecord: A delete cannot be understood.
        StoreError: The store did not answer.
    """
    compactor = Compactor(
        spark=spark,
        store_url=store_url,
        settings=settings,
        horizon=_horizon(store_url),
        report=CompactReport(),
    )
    for kind in RECORD_TABLES:
        compactor.run(kind)
    for table in (*RECORD_TABLES.values(), BATCHES, DEAD_LETTERS, ROLLUPS):
        compactor.vacuum(table)
    return compactor.report
