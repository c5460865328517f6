"""One query from start to result: what is read, what the engine computes, what the answer states.

The order of the reads makes sure that a batch that moves during the query is found exactly once.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa
from deltalake import DeltaTable
from msgspec.structs import replace as copy_with

from sluice_lake.data_files import DataFile, total_bytes
from sluice_lake.delta import (
    describe_file,
    describe_older,
    find_table,
    find_wrong_files,
    read_positions,
    refresh_table,
)
from sluice_lake.locations import lake_location
from sluice_lake.tables import BATCHES, DEAD_LETTERS, RECORD_TABLES
from sluice_protocol.clock import Clock
from sluice_protocol.fields import KINDS
from sluice_protocol.identity import Identity
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.timestamps import format_rfc3339
from sluice_protocol.units import NS_PER_S
from sluice_query.coverage import Completeness, Coverage, decide_completeness, read_coverage
from sluice_query.dead_letters import DeadLetter, find_dead_letters, report_dead_letters
from sluice_query.engine import (
    LAKE,
    PENDING,
    DataFilesUnreadable,
    IdleEngines,
    QueryEngine,
    open_engine,
)
from sluice_query.pending import (
    FetchedBatches,
    PendingSnapshot,
    SearchedSpool,
    UnqueuedBatches,
    WorkListCache,
    choose_newest,
    choose_pending,
    choose_unqueued,
    confirm_named,
    fetch_batches,
    is_of_agents,
    leave_out_repeated,
    read_ingested,
    read_pending,
    read_spooled,
)
from sluice_query.pruning import (
    EarlyTables,
    SelectedFiles,
    prune_by_index,
    select_files,
    select_opened,
)
from sluice_query.request import Histogram, Query, check_query
from sluice_query.result import (
    HIGHLIGHTS,
    MatchCount,
    QueryResult,
    QuerySummary,
    Row,
)
from sluice_query.settings import QuerySettings
from sluice_query.statements import (
    Promoted,
    RecordSources,
    SqlStatement,
    counts_sql,
    matches_sql,
    result_columns,
)
from sluice_store.port import ObjectStore, run_together
from sluice_store.stored_deletes import DeletesCache, read_active_deletes

if TYPE_CHECKING:
    from sluice_query.rollups import ChosenRollups

_NS_PER_MS: Final = NS_PER_S // 1000

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Searcher:
    """Runs queries over one store.

    `store_url` opens the lake's files; `spool` is that of the store's gateway.

    Attributes:
        engines: Where engines are kept for later queries; None closes each after its query.
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
    engines: IdleEngines | None = None

    async def search(self, query: Query) -> QueryResult:
        """Run one query.

        Raises:
            TableRefused: A table cannot be used safely.
            InvalidRecord: A delete cannot be decoded.
            QueryTimedOut: The time limit is exceeded.
            QueryTooLarge: The memory limit is exceeded.
        """
        if query.is_for_records:
            from sluice_query.streaming import collect_stream  # noqa: PLC0415 - it imports this file

            return await collect_stream(self, query)
        async with self.reading(query) as reader:
            read = await reader.read()
            while True:
                try:
                    result = await reader.bounded(self.evaluator(reader, read).result)
                    break
                except DataFilesUnreadable as error:
                    read = await reader.without_unreadable(read, error)
            summary = reader.summarize(result.summary, read)
        if query.names_labels and (query.view is None or isinstance(query.view, Histogram)):
            from sluice_query.logql.unknown_labels import UnknownLabels  # noqa: PLC0415 - only for labels

            unknown = UnknownLabels(query)
            unknown.see((), result.series)
            summary = await unknown.with_hints(summary, self)
        view = None if result.view is None else copy_with(result.view, summary=summary)
        return replace(result, summary=summary, view=view)

    @asynccontextmanager
    async def reading(self, query: Query) -> AsyncIterator["SourceReader"]:
        """Open an engine for one query, and check the query."""
        check_query(query)
        started_ns = self.clock.monotonic_ns()
        with open_engine(self.settings, self.engines) as engine:
            if query.pipeline is not None or query.metric is not None:
                from sluice_query.logql.planning import check_pipelines  # noqa: PLC0415 - only for LogQL

                check_pipelines(engine, query)
            yield SourceReader(searcher=self, engine=engine, query=query, started_ns=started_ns)

    def evaluator(self, reader: "SourceReader", read: "SearchRead") -> "Evaluator":
        """Return the evaluator for what was read for a query."""
        most = self.settings.sample_records_max
        return Evaluator(engine=reader.engine, query=reader.query, read=read, records_max=most)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRead:
    """What was read for a query.

    Attributes:
        query: For a series, extended to what its rollups need.
        waiting: The pending batches that the answer needs, the newest first.
        fetched: Batches of `waiting` that were read.
        rollups: Those of a series; None for records.
        known: The batches in the queue, in the ledger, or in a searched spool.
    """

    query: Query
    coverage: Coverage
    files: SelectedFiles
    waiting: tuple[AcceptedManifest, ...]
    fetched: FetchedBatches
    deletes: tuple[DeleteRecord, ...]
    rollups: "ChosenRollups | None"
    problems: tuple[str, ...]
    known: frozenset[Identity]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReader:
    """The reading of one query in progress."""

    searcher: Searcher
    engine: QueryEngine
    query: Query
    started_ns: int

    async def read(self) -> SearchRead:
        """Read everything but the files of the record table."""
        read = await self.select()
        return replace(read, fetched=await self.fetch(read.waiting))

    async def fetch(self, waiting: Sequence[AcceptedManifest]) -> FetchedBatches:
        """Read some of the pending batches."""
        store, spool = self.searcher.store, self.searcher.spool
        stores = (store,) if spool is None else (spool.store, store)
        return await fetch_batches(stores, waiting, self.searcher.settings)

    async def select(self) -> SearchRead:
        """Read what determines the files and the pending batches that the answer needs."""
        store, settings = self.searcher.store, self.searcher.settings
        early, active, (coverage, in_spool, pending) = await run_together(
            self._open_early(),
            read_active_deletes(store, self.searcher.deletes),
            self._read_queue(),
        )
        unqueued = in_spool.with_named(coverage.named)
        rollups = None
        if self.query.series is not None:
            rollups = await self._choose_rollups(coverage, active)
        query = self.query if rollups is None else rollups.extended(self.query)
        every_lane = rollups is not None and rollups.plan is not None
        opened = await self.bounded(
            lambda: self._open_tables(query, pending, coverage, early, every_lane=every_lane)
        )
        files, ledger, dead = opened.files, opened.ledger, opened.dead
        if rollups is not None:
            rollups, files = rollups.over(files, query)
            query = rollups.extended(self.query)
        files = await prune_by_index(store, files, self.query)
        missing = choose_pending(pending, query, files.lanes, ledger)
        unqueued = await self._not_returned_yet(unqueued, pending, files)
        chosen = choose_newest([*missing, *unqueued.batches], settings)
        problems = (*unqueued.problems, *pending.problems, *chosen.problems)
        problems += opened.older if rollups is None else (*rollups.problems, *opened.older)
        if dead:
            problems += await report_dead_letters(store, dead, self.query, settings)
        problems += coverage.incomplete_lanes(pending)
        known: set[Identity] = set()
        if coverage.new:  # listed batches are looked up in what is shown
            manifests = (*pending.manifests, *in_spool.batches, *unqueued.batches)
            known = {manifest.identity for manifest in manifests}.union(ledger)
        return SearchRead(
            query=query,
            coverage=coverage,
            files=files,
            waiting=chosen.manifests,
            fetched=FetchedBatches(),
            deletes=applying_deletes(active, query),
            rollups=rollups,
            problems=problems,
            known=frozenset(known),
        )

    async def _read_queue(self) -> tuple[Coverage, UnqueuedBatches, PendingSnapshot]:
        """Read what is known about accepted batches, then the spool, then the queue."""
        store, settings, spool = self.searcher.store, self.searcher.settings, self.searcher.spool
        coverage = await read_coverage(
            store,
            self.query,
            settings,
            with_spool=spool is not None,
            lists=self.searcher.lists_accepted,
        )
        in_spool = UnqueuedBatches()
        if spool is not None:
            in_spool = await read_spooled(spool, self.query, settings)
        lists = self.searcher.work_lists
        pending = await read_pending(store, settings, lists, coverage.authority)
        return coverage, in_spool, pending

    async def _open_early(self) -> EarlyTables:
        """Open the tables, and select files, while the queue is read.

        Opening takes several requests one after another, and so does a look-up in index chunks.
        After the queue was read, only what was committed since is read. If that is anything, files
        are selected again.
        """
        url, table = self.searcher.store_url, RECORD_TABLES[self.query.kind]

        def select() -> tuple[DeltaTable | None, int, SelectedFiles | None]:
            opened = find_table(url, table)
            if opened is None or self.query.series is not None:
                return opened, -1, None
            location = lake_location(url, table.name)
            return opened, opened.version(), select_opened(location, table, self.query, opened)

        ledger, (records, version, files) = await run_together(
            self.bounded(lambda: find_table(url, BATCHES)), self.bounded(select)
        )
        if files is not None:
            files = await prune_by_index(self.searcher.store, files, self.query)
        return EarlyTables(ledger=ledger, records=records, files=files, version=version)

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
        files, location = read.files, read.files.location
        wrong = await self.bounded(lambda: self.engine.find_unreadable(location, files.read))
        if not wrong and read.rollups is not None and read.rollups.opened is not None:
            opened = read.rollups.opened
            location = opened.location
            wrong = await self.bounded(lambda: self.engine.find_unreadable(location, opened.files))
        if not wrong:
            raise error
        gone = {file.path for file, _ in wrong}
        problems = [describe_file(location, file, why) for file, why in wrong]
        return replace(
            read,
            files=replace(files, read=tuple(one for one in files.read if one.path not in gone)),
            rollups=None if read.rollups is None else read.rollups.without(gone),
            problems=(*read.problems, *problems),
        )

    def summarize(self, summary: QuerySummary, read: SearchRead) -> QuerySummary:
        """Return a summary with what was read, and whether it was everything."""
        files, fetched = read.files, read.fetched
        summary = replace(
            summary,
            segments_read=files.count,
            segments_pruned=files.pruned,
            bytes_read=files.size_bytes + fetched.size_bytes,
            waiting_batches=fetched.batches,
            deletes_applied=len(read.deletes),
            reasons=(*fetched.problems, *read.problems),
            elapsed_ms=self.elapsed_ms(),
        )
        if read.rollups is not None:
            summary = _with_rollups(summary, read.rollups)
        complete = decide_completeness(
            read.coverage, self.query, self.searcher.settings, read.known
        )
        return with_completeness(summary, complete)

    async def _not_returned_yet(
        self, unqueued: UnqueuedBatches, pending: PendingSnapshot, files: SelectedFiles
    ) -> UnqueuedBatches:
        if not unqueued.batches:
            return unqueued
        agents = {one.agent_id for one in unqueued.batches}
        queued = {one.identity for one in pending.manifests if one.agent_id in agents}
        if all(one.identity in queued for one in unqueued.batches):
            return UnqueuedBatches(problems=unqueued.problems)
        # The order matters: records, then queue, then ledger (see `pending`).
        store, settings = self.searcher.store, self.searcher.settings
        later = await read_pending(store, settings, self.searcher.work_lists)
        url = self.searcher.store_url
        ledger = await self.bounded(
            lambda: read_ingested(self.engine, url, unqueued.batches, find_table(url, BATCHES))
        )
        queues = (pending, later)
        left = choose_unqueued(unqueued, queues, ledger, files.lanes)
        left = await confirm_named(store, left, self.query, settings)
        return leave_out_repeated(left, queues, files.lanes)

    def elapsed_ms(self) -> int:
        """Return the time since the start of the query, ms."""
        return (self.searcher.clock.monotonic_ns() - self.started_ns) // _NS_PER_MS

    async def bounded(self, work: Callable[[], _Result]) -> _Result:
        """Run blocking work of the engine within the rest of the query's time, or interrupt it."""
        used_s = self.elapsed_ms() / 1000
        return await self.engine.bounded(work, self.searcher.settings.time_s_max - used_s)

    async def _choose_rollups(
        self, coverage: Coverage, deletes: tuple[DeleteRecord, ...]
    ) -> "ChosenRollups":
        """Return the rollups of a series."""
        from sluice_query.rollups import (  # noqa: PLC0415 - only for a series
            ChosenRollups,
            choose_rollups,
            needs_rollups,
            open_rollups,
            without_rollups,
        )

        authority, query = coverage.authority, self.query
        if authority is None or not needs_rollups(query, deletes):
            return ChosenRollups(problems=without_rollups(query, deletes))
        opened = await self.bounded(lambda: open_rollups(self.searcher.store_url, query))
        store = self.searcher.store
        lanes = authority.lane_counts
        return await choose_rollups(store, opened, query, lanes=lanes, deletes=deletes)

    def _open_tables(
        self,
        query: Query,
        pending: PendingSnapshot,
        coverage: Coverage,
        early: EarlyTables,
        *,
        every_lane: bool,
    ) -> "_OpenedTables":
        # The ledger is read before the records: the later state of the records contains every
        # batch of the ledger. With the opposite order a batch that is ingested between the two
        # readings would be dropped as ingested and be missing from the records. A batch that is in
        # the records and not in the ledger is recognised by its queue sequence.
        url = self.searcher.store_url
        wanted = [one for one in pending.manifests if is_of_agents(one, query)]
        wanted += [one.manifest for one in coverage.new or ()]
        acknowledged = pending.acknowledged
        # For batches outside of the queue every lane is needed: one may get its first entry while
        # the query runs.
        lanes: range | tuple[int, ...] = pending.lanes
        spool = self.searcher.spool
        if every_lane or coverage.named or spool is not None:
            authority = coverage.authority
            known = authority.lanes_ever if authority is not None else 0
            lanes = range(max(known, spool.lanes if spool is not None else 0))
        table = RECORD_TABLES[query.kind]
        with ThreadPoolExecutor(2, "sluice-tables") as pool:
            letters = pool.submit(find_table, url, DEAD_LETTERS)
            opened = refresh_table(url, BATCHES, early.ledger)
            positions = pool.submit(read_positions, url, BATCHES, opened, sorted(acknowledged))
            ledger = [row.identity for row in read_ingested(self.engine, url, wanted, opened)]
            files = select_files(url, table, query, lanes, early)
            in_ledger = positions.result()
            dead = find_dead_letters(self.engine, url, self.query, letters.result())
        needed = {lane: max(at, in_ledger.get(lane, 0)) for lane, at in acknowledged.items()}
        older = (
            describe_older(BATCHES.name, in_ledger, acknowledged),
            describe_older(table.name, files.lanes, needed),
        )
        return _OpenedTables(
            files=files,
            ledger=ledger,
            dead=dead,
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


def _with_rollups(summary: QuerySummary, rollups: "ChosenRollups") -> QuerySummary:
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


def with_completeness(summary: QuerySummary, found: Completeness) -> QuerySummary:
    """Return a summary with how complete the answer is."""
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


RANGES_MAX: Final = 100
_START: Final = "\ue0f5"
_END: Final = "\ue0f6"
"""Characters for private use; a text that contains one is not highlighted."""
_ABOVE_BMP: Final = 0xFFFF


def add_highlights(engine: QueryEngine, query: Query, records: Sequence[Row]) -> None:
    """Add the matching ranges to records, under the name `highlights`."""
    column = KINDS[query.kind].searched
    if query.pipeline is None or column is None or not records:
        return
    from sluice_query.logql.stages import matched_pattern  # noqa: PLC0415 - only for LogQL

    pattern = matched_pattern(query.pipeline)
    if pattern is None:
        return
    texts = [str(row[column]) for row in records]
    marking = SqlStatement(
        f"SELECT regexp_replace(found, ?, '{_START}\\0{_END}', 'g')"  # noqa: S608 - constants
        " FROM (SELECT unnest(?) AS found)",
        (pattern, texts),
    )
    marked = [str(found) for (found,) in engine.rows(marking)]
    for row, text, with_marks in zip(records, texts, marked, strict=True):
        hidden = _START in text or _END in text
        row[HIGHLIGHTS] = [] if hidden else marked_ranges(with_marks)


def marked_ranges(marked: str) -> list[tuple[int, int]]:
    """Return the ranges between marks, in UTF-16 code units of the text without the marks.

    Empty ranges are left out. At most `RANGES_MAX` are returned.
    """
    ranges: list[tuple[int, int]] = []
    place = start = 0
    for letter in marked:
        if letter == _START:
            start = place
        elif letter == _END:
            if place > start:
                ranges.append((start, place))
            if len(ranges) == RANGES_MAX:
                break
        else:
            place += 2 if ord(letter) > _ABOVE_BMP else 1
    return ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluator:
    """Computes the result of one query from what was read for it.

    Fields and values are counted in at most `records_max` records.
    """

    engine: QueryEngine
    query: Query
    read: SearchRead
    records_max: int

    def result(self) -> QueryResult:
        """Return the result, with a summary of the records only."""
        query, read = self.query, self.read
        if query.series is not None and read.rollups is not None:
            from sluice_query.series import compute_series  # noqa: PLC0415 - for a series

            points = compute_series(self.engine, query, query.series, read, read.rollups)
            summary = QuerySummary(results=len(points))
            return QueryResult(kind=query.kind, points=points, summary=summary)
        if query.metric is not None and query.evaluation is not None:
            from sluice_query.logql.vectors import compute_metric  # noqa: PLC0415 - for a metric

            series, more = compute_metric(self, query.metric, query.evaluation)
            summary = QuerySummary(results=len(series), more=more)
            return QueryResult(kind=query.kind, series=series, summary=summary)
        if query.view is not None:
            from sluice_query.views import compute_view  # noqa: PLC0415 - for views

            view, results = compute_view(self, query.view)
            return QueryResult(kind=query.kind, view=view, summary=QuerySummary(results=results))
        sources = self.sources(read.files.read)
        if not sources.names:
            return QueryResult(kind=query.kind, summary=QuerySummary())
        return self._counts(sources)

    def sources(self, files: tuple[DataFile, ...], *, pending_first: bool = False) -> RecordSources:
        """Register files, and the pending batches, as the sources of a statement.

        The files follow the pending batches for a bounded sample of the newest.
        """
        names: list[str] = []
        promoted: dict[str, Promoted] = {}
        if files:
            found = self.read.files
            if found.promoted:
                from sluice_query.promoted import register_runs  # noqa: PLC0415 - only with columns

                promoted = register_runs(self.engine, self.query, found, files)
                names += promoted
            else:
                self.engine.register_files(LAKE, files, found.location, found.extended)
                names.append(LAKE)
        if self.read.fetched.tables:
            self.engine.register_table(PENDING, pa.concat_tables(self.read.fetched.tables))
            names.insert(0 if pending_first else len(names), PENDING)
        return RecordSources(names=tuple(names), deletes=self.read.deletes, promoted=promoted)

    def rows(self, found: list[tuple[object, ...]]) -> list[Row]:
        """Return rows of the returned columns as records, highlighted if the query wants that."""
        columns = result_columns(self.query)
        records: list[Row] = [dict(zip(columns, row, strict=True)) for row in found]
        if self.query.highlight:
            add_highlights(self.engine, self.query, records)
        return records

    def _counts(self, sources: RecordSources) -> QueryResult:
        query, kind = self.query, self.query.kind
        if query.deleting is not None:
            found_in = _count_matches(self.engine, query, query.deleting, sources)
            total = sum(one.records for one in found_in)
            return QueryResult(kind=kind, matches=found_in, summary=QuerySummary(results=total))
        count, first, last = self.engine.rows(counts_sql(query, sources))[0]
        summary = QuerySummary(results=count, first_ts=time_text(first), last_ts=time_text(last))
        return QueryResult(kind=kind, summary=summary)


def _count_matches(
    engine: QueryEngine, query: Query, record: DeleteRecord, sources: RecordSources
) -> tuple[MatchCount, ...]:
    """Count the records of each registered source that a delete would hide in addition."""
    names = {LAKE: RECORD_TABLES[record.kind].name, PENDING: PENDING}
    others = [one for one in sources.deletes if one.delete_id != record.delete_id]
    found = []
    for source in sources.names:
        records, batches = engine.rows(matches_sql(source, record, query, others))[0]
        found.append(MatchCount(source=names[source], records=records, batches=batches))
    return tuple(found)
