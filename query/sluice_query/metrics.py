"""Metrics of the query service.

| name | type | labels | meaning |
|---|---|---|---|
| sluice_query_requests_total | counter | outcome | queries: complete, partial, failed |
| sluice_query_seconds | histogram | none | duration of a query, including its wait for others |
| sluice_query_running_requests | gauge | none | queries that run or wait |
| sluice_query_read_bytes_total | counter | none | bytes of files, index chunks and blobs read |
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

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
