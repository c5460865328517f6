"""Queries of the service: how many run concurrently, and what is counted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from sluice_query.metrics import QueryMetrics
from sluice_query.request import Query
from sluice_query.result import QueryResult, QuerySummary
from sluice_query.search import Searcher

QUERIES_MAX: Final = 4
"""Queries that run concurrently; further ones wait."""


class CountedQuery:
    """One query that is counted when it ends.

    Attributes:
        outcome: `failed` until the query is finished.
        read_bytes: Bytes that it read.
    """

    def __init__(self) -> None:
        self.outcome = "failed"
        self.read_bytes = 0

    def finish(self, summary: QuerySummary) -> None:
        """Record that a query is finished."""
        self.outcome = "partial" if summary.partial else "complete"
        self.read_bytes = summary.bytes_read


class QueryRunner:
    """Runs the queries of all routes, a few at a time."""

    def __init__(self, searcher: Searcher) -> None:
        self.searcher = searcher
        self.running = asyncio.Semaphore(QUERIES_MAX)
        self.metrics = QueryMetrics()

    async def search(self, query: Query) -> QueryResult:
        """Run one query when its turn comes.

        Raises:
            SluiceError: As `Searcher.search`.
        """
        async with self.counted() as counted:
            result = await self.searcher.search(query)
            counted.finish(result.summary)
        return result

    @asynccontextmanager
    async def counted(self, places: asyncio.Semaphore | None = None) -> AsyncIterator[CountedQuery]:
        """Wait for a place, and count the query of the block by how it ends.

        Args:
            places: The places; None for those that all queries share.
        """
        counted = CountedQuery()
        try:
            with self.metrics.running.track_inprogress(), self.metrics.seconds.time():
                async with places or self.running:
                    yield counted
        finally:
            self.metrics.requests.labels(counted.outcome).inc()
            self.metrics.read_bytes.inc(counted.read_bytes)
