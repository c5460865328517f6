"""One query from start to result: what the engine computes, and the ranges that match."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from msgspec.structs import replace as copy_with

from sluice_lake.data_files import DataFile
from sluice_lake.tables import RECORD_TABLES
from sluice_protocol.fields import KINDS
from sluice_protocol.record_deletes import DeleteRecord
from sluice_query.answer.result import (
    HIGHLIGHTS,
    MatchCount,
    QueryResult,
    QuerySummary,
    Row,
)
from sluice_query.compute.engine import LAKE, PENDING, QueryEngine, open_engine
from sluice_query.compute.sql import (
    RecordSources,
    SqlStatement,
    counts_sql,
    matches_sql,
    records_sql,
    returned_columns,
)
from sluice_query.errors import DataFilesUnreadable
from sluice_query.question.request import (
    Query,
    check_query,
)
from sluice_query.sources.reading import SearchedStore, SearchRead, SourceReader, time_text

RANGES_MAX: Final = 100
_START: Final = "\ue0f5"
_END: Final = "\ue0f6"
"""Characters for private use; a text that contains one is not highlighted."""
_ABOVE_BMP: Final = 0xFFFF


def add_highlights(engine: QueryEngine, query: Query, records: Sequence[Row]) -> None:
    """Add the matching ranges to records, under the name `highlights`."""
    column = KINDS[query.kind].searched
    if query.text is None or column is None or not records:
        return
    texts = [str(row[column]) for row in records]
    marked = [str(found) for (found,) in engine.rows(_marking_sql(query, query.text, texts))]
    for row, text, with_marks in zip(records, texts, marked, strict=True):
        hidden = _START in text or _END in text
        row[HIGHLIGHTS] = [] if hidden else marked_ranges(with_marks)


def _marking_sql(query: Query, text: str, texts: list[str]) -> SqlStatement:
    options = "g" + ("" if query.regex else "l") + ("i" if query.ignore_case else "")
    return SqlStatement(
        f"SELECT regexp_replace(found, ?, '{_START}\\0{_END}', '{options}')"  # noqa: S608 - constants
        " FROM (SELECT unnest(?) AS found)",
        (text, texts),
    )


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
        if query.series is not None:
            from sluice_query.compute.series import compute_series  # noqa: PLC0415 - for metrics

            points = compute_series(self.engine, query.series, read)
            summary = QuerySummary(results=len(points))
            return QueryResult(kind=query.kind, points=points, summary=summary)
        if query.view is not None:
            from sluice_query.compute.views import compute_view  # noqa: PLC0415 - for views

            view, results = compute_view(self, query.view)
            return QueryResult(kind=query.kind, view=view, summary=QuerySummary(results=results))
        sources = self.sources(read.files.read)
        if not sources.names:
            return QueryResult(kind=query.kind, summary=QuerySummary())
        return self._records(sources)

    def sources(self, files: tuple[DataFile, ...], *, pending_first: bool = False) -> RecordSources:
        """Register files, and the pending batches, as the sources of a statement.

        With `pending_first` they are read before the files, for a bounded sample of the newest.
        """
        names = []
        if files:
            self.engine.register_files(LAKE, files, self.read.files.location)
            names.append(LAKE)
        if self.read.fetched.tables:
            self.engine.register_table(PENDING, pa.concat_tables(self.read.fetched.tables))
            names.insert(0 if pending_first else len(names), PENDING)
        return RecordSources(names=tuple(names), deletes=self.read.deletes)

    def rows(self, found: list[tuple[object, ...]]) -> list[Row]:
        """Return rows of the returned columns as records, highlighted if the query wants that."""
        columns = returned_columns(self.query.kind)
        records: list[Row] = [dict(zip(columns, row, strict=True)) for row in found]
        if self.query.highlight:
            add_highlights(self.engine, self.query, records)
        return records

    def _records(self, sources: RecordSources) -> QueryResult:
        query, kind = self.query, self.query.kind
        if query.deleting is not None:
            found_in = _count_matches(self.engine, query, query.deleting, sources)
            total = sum(one.records for one in found_in)
            return QueryResult(kind=kind, matches=found_in, summary=QuerySummary(results=total))
        if query.stats_only:
            count, first, last = self.engine.rows(counts_sql(query, sources))[0]
            summary = QuerySummary(
                results=count, first_ts=time_text(first), last_ts=time_text(last)
            )
            return QueryResult(kind=kind, summary=summary)
        found = self.engine.rows(records_sql(query, sources))
        records = self.rows(found[: query.limit])
        summary = QuerySummary(results=len(records), more=len(found) > query.limit)
        return QueryResult(kind=kind, records=records, summary=summary)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Searcher(SearchedStore):
    """Runs queries over one store."""

    async def search(self, query: Query) -> QueryResult:
        """Run one query.

        Raises:
            TableRefused: A table cannot be used safely.
            InvalidRecord: A delete cannot be decoded.
            QueryTimedOut: The time limit is exceeded.
            QueryTooLarge: The memory limit is exceeded.
        """
        async with self.reading(query) as reader:
            read = await reader.read()
            while True:
                try:
                    result = await reader.bounded(self.evaluator(reader, read).result)
                    break
                except DataFilesUnreadable as error:
                    read = await reader.without_unreadable(read, error)
            summary = reader.summarize(result.summary, read)
        view = None if result.view is None else copy_with(result.view, summary=summary)
        return replace(result, summary=summary, view=view)

    @asynccontextmanager
    async def reading(self, query: Query) -> AsyncIterator[SourceReader]:
        """Open an engine for one query, and check the query."""
        check_query(query)
        started_ns = self.clock.monotonic_ns()
        with open_engine(self.settings) as engine:
            for pattern in query.patterns:
                engine.check_pattern(pattern)
            yield SourceReader(target=self, engine=engine, query=query, started_ns=started_ns)

    def evaluator(self, reader: SourceReader, read: SearchRead) -> Evaluator:
        """Return the evaluator for what was read for a query."""
        most = self.settings.sample_records_max
        return Evaluator(engine=reader.engine, query=reader.query, read=read, records_max=most)
