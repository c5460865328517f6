"""Queries of the service: how many run concurrently, and what is counted.

| name | type | labels | meaning |
|---|---|---|---|
| sluice_query_requests_total | counter | outcome | queries: complete, partial, failed |
| sluice_query_seconds | histogram | none | duration of a query, including its wait for others |
| sluice_query_running_requests | gauge | none | queries that run or wait |
| sluice_query_read_bytes_total | counter | none | bytes of files, index chunks and blobs read |
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from sluice_protocol.errors import ErrorCode, SluiceError
from sluice_query.request import Query
from sluice_query.result import QueryResult, QuerySummary
from sluice_query.search import Searcher

_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60)


class QueryMetrics:
    """The metrics of one query service on one registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "sluice_query_requests", "queries by outcome", ["outcome"], registry=self.registry
        )
        self.seconds = Histogram(
            "sluice_query_seconds", "duration of a query", registry=self.registry, buckets=_BUCKETS
        )
        self.running = Gauge(
            "sluice_query_running_requests", "queries that run or wait", registry=self.registry
        )
        self.read_bytes = Counter(
            "sluice_query_read_bytes", "bytes read by queries", registry=self.registry
        )


QUERIES_MAX: Final = 4
"""Queries that run concurrently; further ones wait."""


class TooManyClients(SluiceError):
    """A request that is refused because as many others as possible are open."""

    code = ErrorCode.OVERLOADED

    def __init__(self, what: str, most: int) -> None:
        super().__init__(what, most)
        self.what = what
        self.most = most

    def __str__(self) -> str:
        return f"too many {self.what} already: wait until one ends, most=`{self.most}`"


class CountedQuery:
    """One query that is counted when it ends."""

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
        """Run one query when its turn comes."""
        async with self.counted() as counted:
            result = await self.searcher.search(query)
            counted.finish(result.summary)
        return result

    @asynccontextmanager
    async def counted(self, places: asyncio.Semaphore | None = None) -> AsyncIterator[CountedQuery]:
        """Wait for a place, and count the query of the block by how it ends.

        With None they share the places of all queries.
        """
        counted = CountedQuery()
        try:
            with self.metrics.running.track_inprogress(), self.metrics.seconds.time():
                async with places or self.running:
                    yield counted
        finally:
            self.metrics.requests.labels(counted.outcome).inc()
            self.metrics.read_bytes.inc(counted.read_bytes)
