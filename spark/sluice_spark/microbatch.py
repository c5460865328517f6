"""One micro-batch: read how far everything is, judge, write, commit, acknowledge.

Every round starts from fresh snapshots and commits from those same snapshots: a commit that lost a
race is refused by Delta and the round starts again. What an attempt wrote and nobody committed is
waste for VACUUM, never a duplicate.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog
from deltalake import DeltaTable

from sluice_protocol.clock import Clock, IdSource
from sluice_protocol.lake import BATCHES, DEAD_LETTERS, RECORD_TABLES
from sluice_protocol.manifests import Kind
from sluice_protocol.units import NS_PER_S
from sluice_spark.descriptors import Waiting
from sluice_spark.errors import CommitConflict
from sluice_spark.facts import DeadFact, Fact, FileFact
from sluice_spark.failpoints import reach
from sluice_spark.guard import QueueGuard
from sluice_spark.judging import Place, Positions, Round, judge_rows, plan_boundary
from sluice_spark.ledger import SmallFiles, read_identities
from sluice_spark.notes import encode_notes, read_dead
from sluice_spark.tables import commit_files, open_table, read_versions

ATTEMPTS_MAX: Final = 8
"""Races lost in a row before the job gives up."""

_log = structlog.get_logger("sluice.ingest")

Writer = Callable[[Sequence[Waiting]], list[Fact]]
"""Writes fresh rows on the executors."""


@dataclass(slots=True, kw_only=True)
class Totals:
    """What a run of ingestion did.

    Attributes:
        batches: Accepted batches that entered the ledger.
        records: Records written.
        files: Data files committed.
        dead_letters: Batches that could not be read.
        rounds: Rounds committed.
    """

    batches: int = 0
    records: int = 0
    files: int = 0
    dead_letters: int = 0
    rounds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Every table at one moment; commits are made from these objects."""

    records: dict[Kind, DeltaTable]
    ledger: DeltaTable

    def positions(self, lanes: Sequence[int]) -> Positions:
        """Gives how far the tables are in some lanes."""
        records = {kind: read_versions(table, lanes) for kind, table in self.records.items()}
        return Positions(records=records, ledger=read_versions(self.ledger, lanes))


def open_snapshot(store_url: str) -> Snapshot:
    """Opens every table fresh; creates what is not there.

    Raises:
        TableRefused: A table is not ours, or cannot be written safely.
    """
    records = {kind: open_table(store_url, table) for kind, table in RECORD_TABLES.items()}
    return Snapshot(records=records, ledger=open_table(store_url, BATCHES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingester:
    """Carries waiting rows into the tables.

    Attributes:
        store_url: The store.
        guard: The hold on the queue.
        write: Writes rows on the executors.
        clock: Time, for names and notes only.
        ids: Ids for files of the driver's own.
        totals: What was done so far.
    """

    store_url: str
    guard: QueueGuard
    write: Writer
    clock: Clock
    ids: IdSource
    totals: Totals = field(default_factory=Totals)

    def ingest(self, rows: Sequence[Waiting]) -> None:
        """Carries rows, ordered by lane, sequence, position, into the tables; then acknowledges.

        Repeating it with the same rows, or with other boundaries, changes nothing more.

        Raises:
            Fenced: A newer job has taken a lane.
            LakeInconsistent: Tables, queue and checkpoint do not belong together.
            CommitConflict: Race after race was lost.
            StoreError: The store did not answer.
        """
        attempts = 0
        while True:
            try:
                if not self._round(rows):
                    return
            except CommitConflict as error:
                attempts += 1
                _log.info("commit lost a race", attempt=attempts, reason=str(error))
                if attempts >= ATTEMPTS_MAX:
                    raise

    def _round(self, rows: Sequence[Waiting]) -> bool:
        """Does one round; tells whether there may be another."""
        self.guard.check()
        lanes = sorted({row.lane for row in rows})
        snapshot = open_snapshot(self.store_url)
        positions = snapshot.positions(lanes)
        boundary = plan_boundary(rows, positions)
        if not boundary:
            self._acknowledge(positions, lanes)
            return False
        plan = judge_rows(
            rows,
            boundary,
            positions,
            ledger=read_identities(snapshot.ledger, rows),
            dead=_dead_of(snapshot, positions, lanes),
        )
        self._commit(snapshot, plan)
        return True

    def _acknowledge(self, positions: Positions, lanes: Sequence[int]) -> None:
        reach("before_ack")
        self.guard.acknowledge({lane: positions.acknowledgeable(lane) for lane in lanes})
        reach("after_ack")

    def _commit(self, snapshot: Snapshot, plan: Round) -> None:
        reach("before_write")
        started_ns = self.clock.monotonic_ns()
        facts = self.write(plan.fresh)
        reach("after_write")
        files = [fact for fact in facts if isinstance(fact, FileFact)]
        dead = [fact for fact in facts if isinstance(fact, DeadFact)]
        self._commit_dead_letters(plan, dead)
        lost = {fact.place for fact in dead}
        for kind, versions in plan.record_versions.items():
            table = RECORD_TABLES[kind]
            mine = [fact for fact in files if fact.table == table.name]
            reach(f"before_records_{kind}")
            commit_files(
                snapshot.records[kind],
                table,
                mine,
                versions,
                encode_notes(versions, plan.dead_places(kind, lost)),
            )
            reach(f"after_records_{kind}")
        entered = self._commit_ledger(snapshot, plan, dead)
        self._count(entered, files, dead, started_ns)

    def _commit_dead_letters(self, plan: Round, dead: Sequence[DeadFact]) -> None:
        if not dead:
            return
        by_place = {row.order: row for row in plan.fresh}
        pairs = [(by_place[fact.place], fact) for fact in dead]
        for row, fact in pairs:
            _log.warning(
                "dead letter",
                reason=fact.reason.value,
                agent_id=row.manifest.agent_id,
                seq_start=row.manifest.seq_start,
                detail=fact.detail,
            )
        letters = open_table(self.store_url, DEAD_LETTERS)
        facts = self._small_files().write_dead_letters(pairs)
        commit_files(letters, DEAD_LETTERS, facts, {}, {})
        reach("after_dead_letters")

    def _commit_ledger(
        self, snapshot: Snapshot, plan: Round, dead: Sequence[DeadFact]
    ) -> list[Waiting]:
        lost = {fact.place for fact in dead}
        read = [row for row in plan.fresh if row.order not in lost]
        entered = sorted([*plan.recovered, *read], key=lambda row: row.order)
        facts = self._small_files().write_ledger(entered)
        reach("before_ledger")
        notes = encode_notes(plan.versions, ())
        commit_files(snapshot.ledger, BATCHES, facts, plan.versions, notes)
        reach("after_ledger")
        return entered

    def _small_files(self) -> SmallFiles:
        return SmallFiles(
            store_url=self.store_url, name=self.ids.ulid().lower(), now_ns=self.clock.now_ns()
        )

    def _count(
        self,
        entered: Sequence[Waiting],
        files: Sequence[FileFact],
        dead: Sequence[DeadFact],
        started_ns: int,
    ) -> None:
        self.totals.batches += len(entered)
        self.totals.records += sum(fact.stats["numRecords"] for fact in files)
        self.totals.files += len(files)
        self.totals.dead_letters += len(dead)
        self.totals.rounds += 1
        elapsed_ms = (self.clock.monotonic_ns() - started_ns) * 1000 // NS_PER_S
        _log.info(
            "micro-batch committed",
            batches=len(entered),
            files=len(files),
            dead_letters=len(dead),
            elapsed_ms=elapsed_ms,
        )


def _dead_of(snapshot: Snapshot, positions: Positions, lanes: Sequence[int]) -> set[Place]:
    dead: set[Place] = set()
    for kind, table in snapshot.records.items():
        ahead = {
            lane: positions.recorded(kind, lane)
            for lane in lanes
            if positions.recorded(kind, lane) > positions.entered(lane)
        }
        dead |= read_dead(table, ahead)
    return dead
