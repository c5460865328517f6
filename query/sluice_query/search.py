"""One query from start to result: spool and queue, then tables, then the engine over all."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

import pyarrow as pa

from sluice_lake.data_files import total_bytes
from sluice_lake.tables import RECORD_TABLES
from sluice_protocol.clock import Clock
from sluice_protocol.identity import Identity
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.timestamps import format_rfc3339
from sluice_protocol.units import NS_PER_S
from sluice_query.coverage import Completeness, Coverage, decide_completeness, read_coverage
from sluice_query.dead_letters import DeadLetter, find_dead_letters, report_dead_letters
from sluice_query.delete_counts import count_matches
from sluice_query.engine import LAKE, PENDING, QueryEngine, open_engine
from sluice_query.ledger import read_ledger
from sluice_query.pending import (
    FetchedBatches,
    PendingSnapshot,
    choose_pending,
    fetch_batches,
    is_of_agents,
    read_pending,
)
from sluice_query.pruning import SelectedFiles, prune_by_index, select_files
from sluice_query.request import Query, Series, check_query
from sluice_query.result import QueryResult, QuerySummary, Row
from sluice_query.rollups import ChosenRollups, choose_rollups, needs_rollups, open_rollups
from sluice_query.series import SeriesInput, compute_series
from sluice_query.settings import QuerySettings
from sluice_query.spool import SearchedSpool, read_spooled
from sluice_query.sql import (
    RecordSources,
    counts_sql,
    records_sql,
    returned_columns,
)
from sluice_query.unqueued import (
    UnqueuedBatches,
    choose_unqueued,
    confirm_named,
    leave_out_repeated,
)
from sluice_query.work_lists import WorkListCache
from sluice_store.port import ObjectStore
from sluice_store.stored_deletes import DeletesCache, read_active_deletes

_NS_PER_MS: Final = NS_PER_S // 1000

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Searcher:
    """Runs queries over one store.

    Attributes:
        store: The store, open.
        store_url: Its URL, by which the lake's files are opened.
        settings: Bounds of each query.
        clock: Time.
        spool: The spool of the store's gateway, or None.
        deletes: The register of deletes as last read.
        work_lists: Work lists that were read before.
    """

    store: ObjectStore
    store_url: str
    settings: QuerySettings
    clock: Clock
    spool: SearchedSpool | None = None
    deletes: DeletesCache = field(default_factory=DeletesCache)
    work_lists: WorkListCache = field(default_factory=WorkListCache)

    async def search(self, query: Query) -> QueryResult:
        """Run one query.

        Raises:
            BadUsage: The query cannot be answered.
            TableRefused: A table cannot be used safely.
            InvalidRecord: A delete cannot be decoded.
            QueryTimedOut: The time limit is exceeded.
            QueryTooLarge: The memory limit is exceeded.
            StoreError: The store is unreachable.
        """
        check_query(query)
        started_ns = self.clock.monotonic_ns()
        with open_engine(self.settings) as engine:
            if query.regex and query.text is not None:
                engine.check_pattern(query.text)
            search = _Search(searcher=self, engine=engine, query=query, started_ns=started_ns)
            return await search.run()


async def read_deletes(
    store: ObjectStore, cache: DeletesCache | None = None
) -> tuple[DeleteRecord, ...]:
    """Return the deletes that readers apply.

    Raises:
        InvalidRecord: A delete cannot be decoded. Continuing would return deleted records.
        StoreError: The store is unreachable.
    """
    return await read_active_deletes(store, cache)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """One query in progress."""

    searcher: Searcher
    engine: QueryEngine
    query: Query
    started_ns: int

    async def run(self) -> QueryResult:
        store, settings = self.searcher.store, self.searcher.settings
        coverage = await self._read_coverage()
        in_spool = await self._read_spool()
        unqueued = in_spool.with_named(coverage.named)
        pending = await read_pending(store, settings, self.searcher.work_lists)
        active = await read_deletes(store, self.searcher.deletes)
        rollups = await self._choose_rollups(coverage, active)
        query = rollups.extended(self.query)
        files, ledger, dead = await self._bounded(
            lambda: self._open_tables(query, pending, coverage, every_lane=rollups.plan is not None)
        )
        rollups, files, divided = rollups.over(files, query)
        query = rollups.extended(self.query)
        files = await prune_by_index(store, files, self.query)
        missing = choose_pending(pending, query, files.lanes, ledger)
        unqueued = await self._not_returned_yet(unqueued, pending, files)
        fetched = await fetch_batches(self._blob_stores(), [*missing, *unqueued.batches], settings)
        deletes = applying_deletes(active, query)
        series = query.series
        if series is None:
            result = await self._bounded(lambda: self._evaluate(files, fetched, deletes))
        else:
            given = SeriesInput(
                query=query,
                location=files.location,
                samples=divided,
                pending=fetched.tables,
                deletes=deletes,
                rollups=rollups,
            )
            result = await self._bounded(lambda: self._evaluate_series(series, given))
        problems = (*unqueued.problems, *pending.problems, *fetched.problems, *rollups.problems)
        problems += await report_dead_letters(store, dead, self.query, settings)
        problems += coverage.lost_lanes(pending.lanes)
        summary = self._complete(result.summary, files, fetched, problems, len(deletes))
        summary = _with_rollups(summary, rollups)
        shown: set[Identity] = set()
        if coverage.new:  # listed batches are looked up in what is shown
            known = (*pending.manifests, *in_spool.batches, *unqueued.batches)
            shown = {manifest.identity for manifest in known}.union(ledger)
        complete = decide_completeness(coverage, self.query, settings, shown)
        return replace(result, summary=_with_completeness(summary, complete))

    async def _read_coverage(self) -> Coverage:
        searcher = self.searcher
        with_spool = searcher.spool is not None
        return await read_coverage(
            searcher.store, self.query, searcher.settings, with_spool=with_spool
        )

    async def _read_spool(self) -> UnqueuedBatches:
        if self.searcher.spool is None:
            return UnqueuedBatches()
        return await read_spooled(self.searcher.spool, self.query, self.searcher.settings)

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
        store, settings = self.searcher.store, self.searcher.settings
        later = await read_pending(store, settings, self.searcher.work_lists)
        url = self.searcher.store_url
        ledger = await self._bounded(lambda: read_ledger(self.engine, url, unqueued.batches))
        left = choose_unqueued(unqueued, (pending, later), ledger, files.lanes)
        left = await confirm_named(store, left, self.query, settings)
        return leave_out_repeated(left, [*pending.manifests, *later.manifests])

    def _lanes(self, pending: PendingSnapshot, coverage: Coverage) -> range | tuple[int, ...]:
        # For batches outside of the queue every lane is needed: one may get its first entry while
        # the query runs.
        spool = self.searcher.spool
        if spool is not None:
            return range(spool.lanes)
        return range(coverage.lane_count) if coverage.named else pending.lanes

    def _blob_stores(self) -> tuple[ObjectStore, ...]:
        spool = self.searcher.spool
        return (self.searcher.store,) if spool is None else (spool.store, self.searcher.store)

    async def _bounded(self, work: Callable[[], _Result]) -> _Result:
        used_s = (self.searcher.clock.monotonic_ns() - self.started_ns) / NS_PER_S
        return await self.engine.bounded(work, self.searcher.settings.time_s_max - used_s)

    async def _choose_rollups(
        self, coverage: Coverage, deletes: tuple[DeleteRecord, ...]
    ) -> ChosenRollups:
        lanes, query = coverage.lane_count, self.query
        if not lanes or not needs_rollups(query, deletes):
            return ChosenRollups()
        opened = await self._bounded(lambda: open_rollups(self.searcher.store_url, query))
        store = self.searcher.store
        return await choose_rollups(store, opened, query, lanes=lanes, deletes=deletes)

    def _open_tables(
        self, query: Query, pending: PendingSnapshot, coverage: Coverage, *, every_lane: bool
    ) -> tuple[SelectedFiles, list[Identity], tuple[DeadLetter, ...]]:
        # The ledger is read before the records: the later state of the records contains every
        # batch of the ledger. With the opposite order a batch that is ingested between the two
        # readings would be dropped as ingested and be missing from the records. A batch that is in
        # the records and not in the ledger is recognised by its queue sequence.
        url = self.searcher.store_url
        wanted = [one for one in pending.manifests if is_of_agents(one, query)]
        wanted += [one.manifest for one in coverage.new or ()]
        ledger = [row.identity for row in read_ledger(self.engine, url, wanted)]
        lanes = range(coverage.lane_count) if every_lane else self._lanes(pending, coverage)
        files = select_files(url, RECORD_TABLES[query.kind], query, lanes)
        return files, ledger, find_dead_letters(self.engine, url, self.query)

    def _evaluate(
        self, files: SelectedFiles, fetched: FetchedBatches, deletes: tuple[DeleteRecord, ...]
    ) -> QueryResult:
        names = []
        if files.read:
            self.engine.register_files(LAKE, files.read, files.location)
            names.append(LAKE)
        if fetched.tables:
            self.engine.register_table(PENDING, pa.concat_tables(fetched.tables))
            names.append(PENDING)
        if not names:
            return QueryResult(kind=self.query.kind, summary=QuerySummary())
        return self._select(RecordSources(names=tuple(names), deletes=deletes))

    def _evaluate_series(self, series: Series, given: SeriesInput) -> QueryResult:
        points = compute_series(self.engine, series, given)
        summary = QuerySummary(results=len(points))
        return QueryResult(kind=self.query.kind, points=points, summary=summary)

    def _select(self, sources: RecordSources) -> QueryResult:
        query, kind = self.query, self.query.kind
        if query.deleting is not None:
            found_in = count_matches(self.engine, query, query.deleting, sources)
            total = sum(one.records for one in found_in)
            return QueryResult(kind=kind, matches=found_in, summary=QuerySummary(results=total))
        if query.stats_only:
            count, first, last = self.engine.rows(counts_sql(query, sources))[0]
            summary = QuerySummary(results=count, first_ts=_time(first), last_ts=_time(last))
            return QueryResult(kind=kind, summary=summary)
        columns = returned_columns(kind)
        found = self.engine.rows(records_sql(query, sources))
        records: list[Row] = [dict(zip(columns, row, strict=True)) for row in found[: query.limit]]
        summary = QuerySummary(results=len(records), more=len(found) > query.limit)
        return QueryResult(kind=kind, records=records, summary=summary)

    def _complete(
        self,
        summary: QuerySummary,
        files: SelectedFiles,
        fetched: FetchedBatches,
        problems: tuple[str, ...],
        deletes: int,
    ) -> QuerySummary:
        elapsed_ns = self.searcher.clock.monotonic_ns() - self.started_ns
        return replace(
            summary,
            segments_read=len(files.read),
            segments_pruned=files.pruned,
            bytes_read=files.size_bytes + fetched.size_bytes,
            waiting_batches=fetched.batches,
            deletes_applied=deletes,
            partial=bool(problems),
            reasons=problems,
            elapsed_ms=elapsed_ns // _NS_PER_MS,
        )


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
        rollups_only_before=_time(plan.rollups_only_before_ns),
    )


def _with_completeness(summary: QuerySummary, found: Completeness) -> QuerySummary:
    reasons = (*summary.reasons, *found.reasons)
    until = _time(found.accepted_until_ns)
    return replace(
        summary,
        accepted_until=until,
        held_by=found.held_by,
        partial=bool(reasons),
        reasons=reasons,
    )


def _time(at_ns: int | None) -> str | None:
    return None if at_ns is None else format_rfc3339(at_ns)
