"""One query from start to result."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from msgspec.structs import replace as copy_with

from sluice_query.engine import open_engine
from sluice_query.errors import DataFilesUnreadable
from sluice_query.evaluation import Evaluator
from sluice_query.reading import SearchRead, SearchTarget, SourceReader
from sluice_query.request import Query, check_query
from sluice_query.result import QueryResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Searcher(SearchTarget):
    """Runs queries over one store."""

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
        """Open an engine for one query, and check the query.

        Raises:
            BadUsage: The query cannot be answered.
        """
        check_query(query)
        started_ns = self.clock.monotonic_ns()
        with open_engine(self.settings) as engine:
            for pattern in query.patterns:
                engine.check_pattern(pattern)
            yield SourceReader(target=self, engine=engine, query=query, started_ns=started_ns)

    def evaluator(self, reader: SourceReader, read: SearchRead) -> Evaluator:
        """Return what computes the result of a query from what was read for it."""
        most = self.settings.sample_records_max
        return Evaluator(engine=reader.engine, query=reader.query, read=read, records_max=most)
