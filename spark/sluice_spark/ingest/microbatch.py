"""One micro-batch: read the positions, plan, write, commit, acknowledge.

Every round opens fresh snapshots and commits from exactly these. If another writer commits first,
Delta refuses the commit and the round is retried. Files of an attempt that was not committed are
never read; VACUUM removes them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog
from deltalake import DeltaTable

from sluice_lake.delta import find_table, open_or_create_table, read_lane_versions
from sluice_lake.durable_files import require_durable
from sluice_lake.errors import CommitConflict, TableRefused
from sluice_lake.locations import lake_location
from sluice_lake.promoted import table_of
from sluice_lake.tables import BATCHES, DEAD_LETTERS, RECORD_TABLES, Table
from sluice_protocol.clock import Clock, IdSource
from sluice_protocol.fields import Kind
from sluice_protocol.units import NS_PER_S
from sluice_queue.worklists import PendingBatch
from sluice_spark.commits import commit_files, encode_commit_metadata, read_unreadable
from sluice_spark.errors import LakeInconsistent
from sluice_spark.failpoints import FailPoint
from sluice_spark.ingest.exactly_once import (
    REBUILD_LAKE,
    IngestRound,
    RowId,
    TablePositions,
    plan_boundary,
    plan_round,
)
from sluice_spark.ingest.fenced_consumers import FencedConsumers
from sluice_spark.ingest.ledger import LedgerFiles, read_identities
from sluice_spark.written_files import (
    MisstatedTimes,
    TaskResult,
    UnreadableBatch,
    WrittenFile,
)

ATTEMPTS_MAX: Final = 8
"""Consecutive commit conflicts after which the job fails."""

_log = structlog.get_logger("sluice.ingest")

Writer = Callable[[Sequence[PendingBatch], Mapping[Kind, Table]], list[TaskResult]]
"""Function that writes fresh rows on the executors, to record tables with promoted columns."""


@dataclass(slots=True, kw_only=True)
class IngestTotals:
    """The totals of an ingest run.

    Attributes:
        batches: Accepted batches entered in the ledger.
        dead_letters: Batches that could not be read.
        dead_letters_open: Dead letters of all runs that are not in the lake, when last counted.
    """

    batches: int = 0
    records: int = 0
    files: int = 0
    dead_letters: int = 0
    rounds: int = 0
    dead_letters_open: int = 0
    redelivered: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeSnapshot:
    """Every table that a round commits to, opened; commits are made from these objects."""

    store_url: str
    records: dict[Kind, DeltaTable]
    ledger: DeltaTable

    @property
    def tables(self) -> dict[Kind, Table]:
        """The record tables with the promoted columns that these states have."""
        return {
            kind: table_of(opened, RECORD_TABLES[kind]) for kind, opened in self.records.items()
        }

    def positions(self, lanes: Sequence[int]) -> TablePositions:
        """Return the positions of the tables in some lanes."""
        return TablePositions(
            records={
                kind: self._versions(RECORD_TABLES[kind], opened, lanes)
                for kind, opened in self.records.items()
            },
            ledger=self._versions(BATCHES, self.ledger, lanes),
        )

    def _versions(self, table: Table, opened: DeltaTable, lanes: Sequence[int]) -> dict[int, int]:
        return read_lane_versions(lake_location(self.store_url, table.name), opened, lanes)

    def committed_through(self, lanes: Sequence[int]) -> dict[int, int]:
        """Return the sequence up to which every table has durably committed each lane."""
        for opened in (*self.records.values(), self.ledger):
            require_durable(opened)
        positions = self.positions(lanes)
        return {lane: positions.committed_through(lane) for lane in lanes}


def open_snapshot(store_url: str, *, create: bool = True) -> LakeSnapshot:
    """Open the newest state of every table.

    A running job creates no table: tables are missing only if the store is moved away or damaged,
    which raises `TableMissing`.
    """
    opening = open_or_create_table if create else _open_table
    records = {kind: opening(store_url, table) for kind, table in RECORD_TABLES.items()}
    ledger = opening(store_url, BATCHES)
    return LakeSnapshot(store_url=store_url, records=records, ledger=ledger)


def _open_table(store_url: str, table: Table) -> DeltaTable:
    found = find_table(store_url, table, for_writing=True, extend=True)
    if found is None:
        raise TableMissing(lake_location(store_url, table.name).uri, "the table is missing")
    return found


class TableMissing(TableRefused):
    """A table that an earlier open found is missing: the store is moved away, or damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingester:
    """Writes queued batches to the tables.

    Attributes:
        clock: For file times and log fields only.
    """

    store_url: str
    consumers: FencedConsumers
    write: Writer
    clock: Clock
    ids: IdSource
    failpoint: FailPoint = field(default_factory=FailPoint)
    totals: IngestTotals = field(default_factory=IngestTotals)

    def ingest(self, rows: Sequence[PendingBatch]) -> None:
        """Write rows, ordered by lane, sequence, position, to the tables; then acknowledge them.

        Repeating it with the same rows, or with other boundaries, changes nothing.
        """
        attempts = 0
        while True:
            try:
                if not self._round(rows):
                    return
            except CommitConflict as error:
                attempts += 1
                _log.info("commit_conflict", attempt=attempts, reason=str(error))
                if attempts >= ATTEMPTS_MAX:
                    raise

    def _round(self, rows: Sequence[PendingBatch]) -> bool:
        """Run one round; return True if another may follow."""
        self.consumers.check()
        lanes = sorted({row.lane for row in rows})
        try:
            snapshot = open_snapshot(self.store_url, create=False)
        except TableMissing as error:
            self.consumers.check()  # it cannot be read if the whole store is moved away
            raise LakeInconsistent(lanes[0], str(error), REBUILD_LAKE) from error
        positions = snapshot.positions(lanes)
        boundary = plan_boundary(rows, positions)
        if boundary:
            plan = plan_round(
                rows,
                boundary,
                positions,
                ledger=read_identities(snapshot.ledger, rows),
                unreadable=_read_unreadable_rows(snapshot, positions, lanes),
            )
            self._commit(snapshot, plan)
            positions = positions.after(plan)
            if plan_boundary(rows, positions):
                return True
        self._acknowledge(positions, lanes)
        return False

    def _acknowledge(self, positions: TablePositions, lanes: Sequence[int]) -> None:
        self.failpoint.reach("before_ack")
        self.consumers.acknowledge({lane: positions.committed_through(lane) for lane in lanes})
        self.failpoint.reach("after_ack")

    def _commit(self, snapshot: LakeSnapshot, plan: IngestRound) -> None:
        self.failpoint.reach("before_write")
        started_ns = self.clock.monotonic_ns()
        tables = snapshot.tables
        results = self.write(plan.fresh, tables)
        self.failpoint.reach("after_write")
        # Writing takes minutes. A register that was replaced meanwhile assigns sequences again.
        self.consumers.check()
        files = [result for result in results if isinstance(result, WrittenFile)]
        unreadable = [result for result in results if isinstance(result, UnreadableBatch)]
        for result in results:
            if isinstance(result, MisstatedTimes):
                _log.warning("manifest_times_wrong", key=result.key)
        self._commit_dead_letters(plan, unreadable)
        unreadable_ids = {result.row_id for result in unreadable}
        for kind, versions in plan.record_versions.items():
            table = tables[kind]
            added = [result for result in files if result.table == table.name]
            self.failpoint.reach(f"before_records_{kind}")
            commit_files(
                snapshot.records[kind],
                table,
                added,
                versions,
                encode_commit_metadata(versions, plan.unreadable_rows(kind, unreadable_ids)),
            )
            self.failpoint.reach(f"after_records_{kind}")
        entered = self._commit_ledger(snapshot, plan, unreadable)
        self._count(entered, files, unreadable, started_ns)

    def _commit_dead_letters(
        self, plan: IngestRound, unreadable: Sequence[UnreadableBatch]
    ) -> None:
        if not unreadable:
            return
        by_row_id = {row.order: row for row in plan.fresh}
        pairs = [(by_row_id[result.row_id], result) for result in unreadable]
        for row, result in pairs:
            _log.warning(
                "dead_letter_written",
                reason=result.reason.value,
                agent_id=row.manifest.agent_id,
                seq_start=row.manifest.seq_start,
                detail=result.detail,
            )
        letters = open_or_create_table(self.store_url, DEAD_LETTERS)
        results = self._ledger_files().write_dead_letters(pairs)
        commit_files(letters, DEAD_LETTERS, results, {}, {})
        self.failpoint.reach("after_dead_letters")

    def _commit_ledger(
        self, snapshot: LakeSnapshot, plan: IngestRound, unreadable: Sequence[UnreadableBatch]
    ) -> list[PendingBatch]:
        unreadable_ids = {result.row_id for result in unreadable}
        read = [row for row in plan.fresh if row.order not in unreadable_ids]
        entered = sorted([*plan.recovered, *read], key=lambda row: row.order)
        results = self._ledger_files().write_ledger(entered)
        self.failpoint.reach("before_ledger")
        metadata = encode_commit_metadata(plan.versions, ())
        commit_files(snapshot.ledger, BATCHES, results, plan.versions, metadata)
        self.failpoint.reach("after_ledger")
        return entered

    def _ledger_files(self) -> LedgerFiles:
        return LedgerFiles(
            store_url=self.store_url, name=self.ids.ulid().lower(), now_ns=self.clock.now_ns()
        )

    def _count(
        self,
        entered: Sequence[PendingBatch],
        files: Sequence[WrittenFile],
        unreadable: Sequence[UnreadableBatch],
        started_ns: int,
    ) -> None:
        self.totals.batches += len(entered)
        self.totals.records += sum(result.stats["numRecords"] for result in files)
        self.totals.files += len(files)
        self.totals.dead_letters += len(unreadable)
        self.totals.rounds += 1
        elapsed_ms = (self.clock.monotonic_ns() - started_ns) * 1000 // NS_PER_S
        _log.info(
            "micro_batch_committed",
            batches=len(entered),
            files=len(files),
            dead_letters=len(unreadable),
            elapsed_ms=elapsed_ms,
        )


def _read_unreadable_rows(
    snapshot: LakeSnapshot, positions: TablePositions, lanes: Sequence[int]
) -> set[RowId]:
    unreadable: set[RowId] = set()
    for kind, table in snapshot.records.items():
        ahead = {
            lane: positions.record_position(kind, lane)
            for lane in lanes
            if positions.record_position(kind, lane) > positions.ledger_position(lane)
        }
        unreadable |= read_unreadable(table, ahead)
    return unreadable
