"""One query from question to answer: spool and queue, then tables, then the engine over all."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sluice_protocol.clock import Clock
from sluice_protocol.identity import Identity
from sluice_protocol.lake import RECORD_TABLES
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.timestamps import format_rfc3339
from sluice_protocol.units import NS_PER_S
from sluice_query.answer import Answer, Point, Row, Summary
from sluice_query.arrow import frame_table
from sluice_query.dead import find_dead
from sluice_query.deletes import read_deletes
from sluice_query.engine import LAKE, TAIL, Engine, open_engine
from sluice_query.index import prune_by_index
from sluice_query.ledger import read_ledger
from sluice_query.request import Query, check_query
from sluice_query.segments import Segments, select_segments
from sluice_query.settings import QuerySettings
from sluice_query.spooled import Spool, Spooled, choose_spooled, read_spooled
from sluice_query.sql import (
    Sources,
    counts_sql,
    records_sql,
    series_sql,
    shown_columns,
)
from sluice_query.waiting import Tail, Waiting, choose_missing, fetch_tail, read_waiting
from sluice_store.port import ObjectStore

_NS_PER_MS = NS_PER_S // 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Searcher:
    """Answers queries over one store.

    Attributes:
        store: The store, open.
        store_url: Its URL; the lake's files are found by it.
        settings: Bounds.
        clock: Time.
        spool: The spool that lands on the store, where a gateway spools.
    """

    store: ObjectStore
    store_url: str
    settings: QuerySettings
    clock: Clock
    spool: Spool | None = None

    async def answer(self, query: Query) -> Answer:
        """Answers one query.

        Raises:
            BadUsage: The question cannot be answered as it is.
            LakeRefused: A table cannot be read rightly.
            InvalidRecord: A delete cannot be understood.
            QueryTimedOut: It took longer than it may.
            QueryTooLarge: It needs more memory than it may have.
            StoreError: The store did not answer.
        """
        check_query(query)
        started_ns = self.clock.monotonic_ns()
        with open_engine(self.settings) as engine:
            if query.regex and query.text is not None:
                engine.check_pattern(query.text)
            run = _Run(searcher=self, engine=engine, query=query, started_ns=started_ns)
            return await run.answer()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One query on its way."""

    searcher: Searcher
    engine: Engine
    query: Query
    started_ns: int

    async def answer(self) -> Answer:
        store, settings = self.searcher.store, self.searcher.settings
        spooled = await self._read_spool()
        waiting = await read_waiting(store, settings)
        deletes = await read_deletes(store, self.query)
        segments, known, dead = await self._bounded(lambda: self._open(waiting))
        segments = await prune_by_index(store, segments, self.query)
        missing = choose_missing(waiting, self.query, segments.lanes, known)
        spooled = await self._still_spooled(spooled, waiting, segments)
        tail = await fetch_tail(self._blobs(), [*missing, *spooled.batches], settings)
        answer = await self._bounded(lambda: self._read(segments, tail, deletes))
        trouble = (*spooled.trouble, *waiting.trouble, *tail.trouble, *dead)
        return self._with_summary(answer, segments, tail, trouble, len(deletes))

    async def _read_spool(self) -> Spooled:
        if self.searcher.spool is None:
            return Spooled()
        return await read_spooled(self.searcher.spool, self.query, self.searcher.settings)

    async def _still_spooled(
        self, spooled: Spooled, waiting: Waiting, segments: Segments
    ) -> Spooled:
        if not spooled.batches:
            return spooled
        # After the records were opened, the queue before the ledger: why is told in `spooled`.
        later = await read_waiting(self.searcher.store, self.searcher.settings)
        url = self.searcher.store_url
        ledger = await self._bounded(lambda: read_ledger(self.engine, url, spooled.batches))
        return choose_spooled(spooled, (waiting, later), ledger, segments.lanes)

    def _lanes(self, waiting: Waiting) -> range | tuple[int, ...]:
        # A lane may get its first entry while the query runs: with a spool every lane counts.
        return waiting.lanes if self.searcher.spool is None else range(self.searcher.spool.lanes)

    def _blobs(self) -> tuple[ObjectStore, ...]:
        spool = self.searcher.spool
        return (self.searcher.store,) if spool is None else (spool.store, self.searcher.store)

    async def _bounded(self, work: Any) -> Any:  # noqa: ANN401 - a thread's result
        used_s = (self.searcher.clock.monotonic_ns() - self.started_ns) / NS_PER_S
        return await self.engine.bounded(work, self.searcher.settings.time_s_max - used_s)

    def _open(self, waiting: Waiting) -> tuple[Segments, list[Identity], tuple[str, ...]]:
        # The ledger before the records: what the ledger has, the later state of the records has.
        # The other way round a batch that enters between the two would be dropped here and missing
        # there. What the records have and the ledger lacks is known by its queue sequence.
        url = self.searcher.store_url
        known = [one.identity for one in read_ledger(self.engine, url, waiting.manifests)]
        table = RECORD_TABLES[self.query.kind]
        segments = select_segments(url, table, self.query, self._lanes(waiting))
        return segments, known, find_dead(self.engine, url, self.query)

    def _read(self, segments: Segments, tail: Tail, deletes: tuple[DeleteRecord, ...]) -> Answer:
        names = []
        if segments.read:
            self.engine.show_files(LAKE, segments.read, segments.location)
            names.append(LAKE)
        if tail.frames:
            tables = [frame_table(one.frame, one.accepted_at_ns) for one in tail.frames]
            self.engine.show_table(TAIL, pa.concat_tables(tables))
            names.append(TAIL)
        if not names:
            return Answer(kind=self.query.kind, summary=Summary())
        return self._ask(Sources(names=tuple(names), deletes=deletes))

    def _ask(self, sources: Sources) -> Answer:
        query, kind = self.query, self.query.kind
        if query.series is not None:
            rows = self.engine.rows(series_sql(query, query.series, sources))
            points = [Point(step_ns=row[0], agent_id=row[1], value=row[2]) for row in rows]
            return Answer(kind=kind, points=points, summary=Summary(results=len(points)))
        if query.stats_only:
            count, first, last = self.engine.rows(counts_sql(query, sources))[0]
            summary = Summary(results=count, first_ts=_time(first), last_ts=_time(last))
            return Answer(kind=kind, summary=summary)
        columns = shown_columns(kind)
        found = self.engine.rows(records_sql(query, sources))
        records: list[Row] = [dict(zip(columns, row, strict=True)) for row in found[: query.limit]]
        more = len(found) > query.limit
        return Answer(kind=kind, records=records, summary=Summary(results=len(records), more=more))

    def _with_summary(
        self,
        answer: Answer,
        segments: Segments,
        tail: Tail,
        trouble: tuple[str, ...],
        deletes: int,
    ) -> Answer:
        found = answer.summary
        elapsed_ns = self.searcher.clock.monotonic_ns() - self.started_ns
        summary = Summary(
            results=found.results,
            more=found.more,
            first_ts=found.first_ts,
            last_ts=found.last_ts,
            segments_read=len(segments.read),
            segments_pruned=segments.pruned,
            bytes_read=segments.size_bytes + sum(one.frame_bytes for one in tail.frames),
            waiting_batches=len(tail.frames),
            deletes_applied=deletes,
            partial=bool(trouble),
            reasons=trouble,
            elapsed_ms=elapsed_ns // _NS_PER_MS,
        )
        return Answer(
            kind=answer.kind, records=answer.records, points=answer.points, summary=summary
        )


def _time(at_ns: int | None) -> str | None:
    return None if at_ns is None else format_rfc3339(at_ns)
