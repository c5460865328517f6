"""Reading of everything that a query needs: spool, queue, tables, blobs of pending batches.

The order of the steps makes sure that a batch that moves during the query is found exactly once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from sluice_lake.data_files import total_bytes
from sluice_lake.delta import find_table
from sluice_lake.table_check import (
    describe_file,
    describe_older,
    find_wrong_files,
    read_positions,
)
from sluice_lake.tables import BATCHES, RECORD_TABLES
from sluice_protocol.clock import Clock
from sluice_protocol.identity import Identity
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.timestamps import format_rfc3339
from sluice_protocol.units import NS_PER_S
from sluice_query.answer.result import QuerySummary
from sluice_query.compute.engine import QueryEngine
from sluice_query.errors import DataFilesUnreadable
from sluice_query.question.request import Query
from sluice_query.settings import QuerySettings
from sluice_query.sources.coverage import Completeness, Coverage, decide_completeness, read_coverage
from sluice_query.sources.dead_letters import DeadLetter, find_dead_letters, report_dead_letters
from sluice_query.sources.pending import (
    FetchedBatches,
    PendingSnapshot,
    WorkListCache,
    choose_newest,
    choose_pending,
    fetch_batches,
    is_of_agents,
    read_pending,
)
from sluice_query.sources.pruning import SelectedFiles, prune_by_index, select_files
from sluice_query.sources.rollups import (
    ChosenRollups,
    SampleFiles,
    choose_rollups,
    needs_rollups,
    open_rollups,
    without_rollups,
)
from sluice_query.sources.spool import SearchedSpool, read_spooled
from sluice_query.sources.unqueued import (
    UnqueuedBatches,
    choose_unqueued,
    confirm_named,
    leave_out_repeated,
    read_ingested,
)
from sluice_store.port import ObjectStore
from sluice_store.stored_deletes import DeletesCache, read_active_deletes

_NS_PER_MS: Final = NS_PER_S // 1000

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedStore:
    """One store to search, and how.

    `store_url` opens the lake's files; `spool` is that of the store's gateway.

    Attributes:
        lists_accepted: Whether a query lists accepted manifests where gateways write no journals. A
            query that is repeated every second does not; a later one returns such a batch.
    """

    store: ObjectStore
    store_url: str
    settings: QuerySettings
    clock: Clock
    spool: SearchedSpool | None = None
    lists_accepted: bool = True
    deletes: DeletesCache = field(default_factory=DeletesCache)
    work_lists: WorkListCache = field(default_factory=WorkListCache)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRead:
    """What was read for a query.

    Attributes:
        query: For a series, extended to what its rollups need.
        waiting: The pending batches that the answer needs, the newest first.
        fetched: Batches of `waiting` that were read.
        known: The batches in the queue, in the ledger, or in a searched spool.
    """

    query: Query
    coverage: Coverage
    files: SelectedFiles
    divided: SampleFiles
    waiting: tuple[AcceptedManifest, ...]
    fetched: FetchedBatches
    deletes: tuple[DeleteRecord, ...]
    rollups: ChosenRollups
    problems: tuple[str, ...]
    known: frozenset[Identity]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReader:
    """The reading of one query in progress."""

    target: SearchedStore
    engine: QueryEngine
    query: Query
    started_ns: int

    async def read(self) -> SearchRead:
        """Read everything but the files of the record table."""
        read = await self.select()
        return replace(read, fetched=await self.fetch(read.waiting))

    async def fetch(self, waiting: Sequence[AcceptedManifest]) -> FetchedBatches:
        """Read some of the pending batches."""
        return await fetch_batches(self._blob_stores(), waiting, self.target.settings)

    async def select(self) -> SearchRead:
        """Read what determines the files and the pending batches that the answer needs."""
        store, settings = self.target.store, self.target.settings
        coverage = await self._read_coverage()
        in_spool = await self._read_spool()
        unqueued = in_spool.with_named(coverage.named)
        pending = await read_pending(store, settings, self.target.work_lists)
        active = await read_active_deletes(store, self.target.deletes)
        rollups = await self._choose_rollups(coverage, active)
        query = rollups.extended(self.query)
        opened = await self.bounded(
            lambda: self._open_tables(query, pending, coverage, every_lane=rollups.plan is not None)
        )
        files, ledger, dead = opened.files, opened.ledger, opened.dead
        rollups, files, divided = rollups.over(files, query)
        query = rollups.extended(self.query)
        files = await prune_by_index(store, files, self.query)
        missing = choose_pending(pending, query, files.lanes, ledger)
        unqueued = await self._not_returned_yet(unqueued, pending, files)
        chosen = choose_newest([*missing, *unqueued.batches], settings)
        problems = (*unqueued.problems, *pending.problems, *chosen.problems, *rollups.problems)
        problems += opened.older
        problems += await report_dead_letters(store, dead, self.query, settings)
        problems += coverage.lost_lanes(pending.lanes)
        known: set[Identity] = set()
        if coverage.new:  # listed batches are looked up in what is shown
            manifests = (*pending.manifests, *in_spool.batches, *unqueued.batches)
            known = {manifest.identity for manifest in manifests}.union(ledger)
        return SearchRead(
            query=query,
            coverage=coverage,
            files=files,
            divided=divided,
            waiting=chosen.manifests,
            fetched=FetchedBatches(),
            deletes=applying_deletes(active, query),
            rollups=rollups,
            problems=problems,
            known=frozenset(known),
        )

    async def without_missing(self, read: SearchRead) -> SearchRead:
        """Return what was read without the files that are missing or have another size.

        In a bucket nothing is compared, because each file would cost a request.
        """
        files = read.files
        if not files.location.is_local:
            return read
        wrong = await self.bounded(lambda: find_wrong_files(files.location, files.read))
        if not wrong:
            return read
        gone = {file.path for file, _ in wrong}
        problems = [describe_file(files.location, file, why) for file, why in wrong]
        kept = tuple(one for one in files.read if one.path not in gone)
        return replace(read, files=replace(files, read=kept), problems=(*read.problems, *problems))

    async def without_unreadable(self, read: SearchRead, error: DataFilesUnreadable) -> SearchRead:
        """Return what was read without the data files that cannot be read, and with the reason.

        Every other file is answered from. Each call leaves out at least one file.

        Raises:
            DataFilesUnreadable: Every file of the records and of the rollups can be read now.
        """
        files, opened = read.files, read.rollups.opened
        wrong = await self.bounded(lambda: self.engine.find_unreadable(files.location, files.read))
        problems = [describe_file(files.location, file, why) for file, why in wrong]
        gone = {file.path for file, _ in wrong}
        rollups = read.rollups
        if opened is not None and not wrong:
            location, rows = opened.location, opened.files
            wrong = await self.bounded(lambda: self.engine.find_unreadable(location, rows))
            problems = [describe_file(location, file, why) for file, why in wrong]
            lost = {file.path for file, _ in wrong}
            kept = tuple(one for one in rows if one.path not in lost)
            rollups = replace(rollups, opened=replace(opened, files=kept))
        if not wrong:
            raise error
        divided = SampleFiles(
            every=tuple(one for one in read.divided.every if one.path not in gone),
            later=tuple(one for one in read.divided.later if one.path not in gone),
        )
        return replace(
            read,
            files=replace(files, read=tuple(one for one in files.read if one.path not in gone)),
            divided=divided,
            rollups=rollups,
            problems=(*read.problems, *problems),
        )

    def summarize(self, summary: QuerySummary, read: SearchRead) -> QuerySummary:
        """Return a summary with what was read, and whether it was everything."""
        files, fetched = read.files, read.fetched
        summary = replace(
            summary,
            segments_read=len(files.read),
            segments_pruned=files.pruned,
            bytes_read=files.size_bytes + fetched.size_bytes,
            waiting_batches=fetched.batches,
            deletes_applied=len(read.deletes),
            reasons=(*fetched.problems, *read.problems),
            elapsed_ms=self.elapsed_ms(),
        )
        summary = _with_rollups(summary, read.rollups)
        complete = decide_completeness(read.coverage, self.query, self.target.settings, read.known)
        return _with_completeness(summary, complete)

    async def _read_coverage(self) -> Coverage:
        target = self.target
        with_spool = target.spool is not None
        return await read_coverage(
            target.store,
            self.query,
            target.settings,
            with_spool=with_spool,
            lists=target.lists_accepted,
        )

    async def _read_spool(self) -> UnqueuedBatches:
        if self.target.spool is None:
            return UnqueuedBatches()
        return await read_spooled(self.target.spool, self.query, self.target.settings)

    async def _not_returned_yet(
        self, unqueued: UnqueuedBatches, pending: PendingSnapshot, files: SelectedFiles
    ) -> UnqueuedBatches:
        if not unqueued.batches:
            return unqueued
        agents = {one.agent_id for one in unqueued.batches}
        queued = {one.identity for one in pending.manifests if one.agent_id in agents}
        if all(one.identity in queued for one in unqueued.batches):
            return UnqueuedBatches(problems=unqueued.problems)
        # The order matters: records, then queue, then ledger (see `unqueued`).
        store, settings = self.target.store, self.target.settings
        later = await read_pending(store, settings, self.target.work_lists)
        url = self.target.store_url
        ledger = await self.bounded(
            lambda: read_ingested(self.engine, url, unqueued.batches, find_table(url, BATCHES))
        )
        queues = (pending, later)
        left = choose_unqueued(unqueued, queues, ledger, files.lanes)
        left = await confirm_named(store, left, self.query, settings)
        return leave_out_repeated(left, queues, files.lanes)

    def _lanes(self, pending: PendingSnapshot, coverage: Coverage) -> range | tuple[int, ...]:
        # For batches outside of the queue every lane is needed: one may get its first entry while
        # the query runs.
        spool = self.target.spool
        if spool is not None:
            return range(spool.lanes)
        return range(coverage.lane_count) if coverage.named else pending.lanes

    def _blob_stores(self) -> tuple[ObjectStore, ...]:
        spool = self.target.spool
        return (self.target.store,) if spool is None else (spool.store, self.target.store)

    def elapsed_ms(self) -> int:
        """Return the time since the start of the query, ms."""
        return self._elapsed_ns() // _NS_PER_MS

    def _elapsed_ns(self) -> int:
        return self.target.clock.monotonic_ns() - self.started_ns

    async def bounded(self, work: Callable[[], _Result]) -> _Result:
        """Run blocking work of the engine within the rest of the query's time, or interrupt it."""
        used_s = self._elapsed_ns() / NS_PER_S
        return await self.engine.bounded(work, self.target.settings.time_s_max - used_s)

    async def _choose_rollups(
        self, coverage: Coverage, deletes: tuple[DeleteRecord, ...]
    ) -> ChosenRollups:
        lanes, query = coverage.lane_count, self.query
        if not lanes or not needs_rollups(query, deletes):
            return ChosenRollups(problems=without_rollups(query, deletes))
        opened = await self.bounded(lambda: open_rollups(self.target.store_url, query))
        store = self.target.store
        return await choose_rollups(store, opened, query, lanes=lanes, deletes=deletes)

    def _open_tables(
        self, query: Query, pending: PendingSnapshot, coverage: Coverage, *, every_lane: bool
    ) -> "_OpenedTables":
        # The ledger is read before the records: the later state of the records contains every
        # batch of the ledger. With the opposite order a batch that is ingested between the two
        # readings would be dropped as ingested and be missing from the records. A batch that is in
        # the records and not in the ledger is recognised by its queue sequence.
        url = self.target.store_url
        wanted = [one for one in pending.manifests if is_of_agents(one, query)]
        wanted += [one.manifest for one in coverage.new or ()]
        opened = find_table(url, BATCHES)
        ledger = [row.identity for row in read_ingested(self.engine, url, wanted, opened)]
        acknowledged = pending.acknowledged
        in_ledger = read_positions(url, BATCHES, opened, sorted(acknowledged))
        lanes = range(coverage.lane_count) if every_lane else self._lanes(pending, coverage)
        table = RECORD_TABLES[query.kind]
        files = select_files(url, table, query, lanes)
        needed = {lane: max(at, in_ledger.get(lane, 0)) for lane, at in acknowledged.items()}
        older = (
            describe_older(BATCHES.name, in_ledger, acknowledged),
            describe_older(table.name, files.lanes, needed),
        )
        return _OpenedTables(
            files=files,
            ledger=ledger,
            dead=find_dead_letters(self.engine, url, self.query),
            older=tuple(one for one in older if one),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenedTables:
    """What one query reads of the lake before the records.

    `older` has the reasons why a table does not contain what the queue has handed over.
    """

    files: SelectedFiles
    ledger: list[Identity]
    dead: tuple[DeadLetter, ...]
    older: tuple[str, ...]


def _with_rollups(summary: QuerySummary, rollups: ChosenRollups) -> QuerySummary:
    opened, plan = rollups.opened, rollups.plan
    if opened is None or plan is None:
        return summary
    return replace(
        summary,
        segments_read=summary.segments_read + len(opened.files),
        segments_pruned=summary.segments_pruned + opened.pruned,
        rollup_segments_read=len(opened.files),
        bytes_read=summary.bytes_read + total_bytes(opened.files),
        rollups_only_before=time_text(plan.rollups_only_before_ns),
    )


def _with_completeness(summary: QuerySummary, found: Completeness) -> QuerySummary:
    reasons = (*summary.reasons, *found.reasons)
    until = time_text(found.accepted_until_ns)
    return replace(
        summary,
        accepted_until=until,
        complete_now=found.is_now and not reasons,
        held_by=found.held_by,
        partial=bool(reasons),
        reasons=reasons,
    )


def time_text(at_ns: int | None) -> str | None:
    """Return an instant as RFC 3339; None for None."""
    return None if at_ns is None else format_rfc3339(at_ns)


def applying_deletes(deletes: Sequence[DeleteRecord], query: Query) -> tuple[DeleteRecord, ...]:
    """Return the deletes that may hide records of a query."""
    return tuple(record for record in deletes if delete_applies(record, query))


def delete_applies(record: DeleteRecord, query: Query) -> bool:
    """Return False if kind, agent and times show that a delete hides no record of the query."""
    if record.kind != query.kind:
        return False
    if query.agents and record.agent_id is not None and record.agent_id not in query.agents:
        return False
    starts_late = record.from_unix_ns is not None and record.from_unix_ns >= query.to_ns
    ends_early = record.to_unix_ns is not None and record.to_unix_ns <= query.from_ns
    return not starts_late and not ends_early
