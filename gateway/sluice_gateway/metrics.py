"""What the gateway counts. Labels are closed sets; an agent id is never one.

| name | type | labels | meaning |
|---|---|---|---|
| sluice_accepts_total | counter | outcome | uploads answered, by outcome |
| sluice_accept_duration_seconds | histogram | | from head read to answer ready, of uploads |
| sluice_accept_phase_seconds | histogram | phase | receive, validate, blob, manifest, quarantine |
| sluice_accepted_bytes_total | counter | | frame bytes of uploads answered 200, not duplicates |
| sluice_inflight_bytes | gauge | | body bytes promised or held |
| sluice_connections | gauge | | open connections |
| sluice_connections_closed_total | counter | reason | connections that the gateway cut |
| sluice_store_requests_total | counter | op, result | store calls |
| sluice_store_request_seconds | histogram | op | time of a store call |
| sluice_store_own_write_412_total | counter | | our own write, met again after an unknown outcome |
| sluice_healed_blobs_total | counter | | wrong blobs met and overwritten: someone must look |
| sluice_cache_hits_total | counter | | duplicates answered without the store |
| sluice_principals_stale | gauge | | 1 while a broken principals file is ignored |
| sluice_draining | gauge | | 1 after SIGTERM |
| sluice_spool_pending_batches | gauge | | local_spool: batches not yet landed |
| sluice_spool_landed_total | counter | result | local_spool: batches landed |
"""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

ACCEPTS: Final = "sluice_accepts"
ACCEPT_DURATION: Final = "sluice_accept_duration_seconds"
ACCEPT_PHASE: Final = "sluice_accept_phase_seconds"
ACCEPTED_BYTES: Final = "sluice_accepted_bytes"
INFLIGHT_BYTES: Final = "sluice_inflight_bytes"
CONNECTIONS: Final = "sluice_connections"
CONNECTIONS_CLOSED: Final = "sluice_connections_closed"
STORE_REQUESTS: Final = "sluice_store_requests"
STORE_REQUEST_SECONDS: Final = "sluice_store_request_seconds"
OWN_WRITE_412: Final = "sluice_store_own_write_412"
HEALED_BLOBS: Final = "sluice_healed_blobs"
CACHE_HITS: Final = "sluice_cache_hits"
PRINCIPALS_STALE: Final = "sluice_principals_stale"
DRAINING: Final = "sluice_draining"
SPOOL_PENDING: Final = "sluice_spool_pending_batches"
SPOOL_LANDED: Final = "sluice_spool_landed"

_SECONDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 30.0)


class GatewayMetrics:
    """One worker's metrics in a registry of its own.

    `count` and `observe` keep the labelled children that the hot path uses: looking one up in the
    library takes a lock and several times longer.
    """

    def __init__(self) -> None:
        """Makes every metric at zero."""
        made = self.registry = CollectorRegistry()
        self._children: dict[tuple[int, tuple[str, ...]], Counter | Histogram] = {}
        self.accepts = Counter(ACCEPTS, "Uploads answered.", ["outcome"], registry=made)
        self.duration = Histogram(
            ACCEPT_DURATION, "Time of one upload.", buckets=_SECONDS, registry=made
        )
        self.phase = Histogram(
            ACCEPT_PHASE, "Time of one phase.", ["phase"], buckets=_SECONDS, registry=made
        )
        self.accepted_bytes = Counter(ACCEPTED_BYTES, "New frame bytes.", registry=made)
        self.inflight_bytes = Gauge(INFLIGHT_BYTES, "Body bytes held.", registry=made)
        self.connections = Gauge(CONNECTIONS, "Open connections.", registry=made)
        self.closed = Counter(
            CONNECTIONS_CLOSED, "Connections cut by the gateway.", ["reason"], registry=made
        )
        self.store_requests = Counter(
            STORE_REQUESTS, "Store calls.", ["op", "result"], registry=made
        )
        self.store_seconds = Histogram(
            STORE_REQUEST_SECONDS, "Time of a store call.", ["op"], buckets=_SECONDS, registry=made
        )
        self.own_write_412 = Counter(OWN_WRITE_412, "Our own write met again.", registry=made)
        self.healed = Counter(HEALED_BLOBS, "Wrong blobs overwritten.", registry=made)
        self.cache_hits = Counter(CACHE_HITS, "Duplicates without the store.", registry=made)
        self.principals_stale = Gauge(PRINCIPALS_STALE, "Broken file ignored.", registry=made)
        self.draining = Gauge(DRAINING, "1 after SIGTERM.", registry=made)
        self.spool_pending = Gauge(SPOOL_PENDING, "Batches not yet landed.", registry=made)
        self.spool_landed = Counter(SPOOL_LANDED, "Batches landed.", ["result"], registry=made)

    def count(self, metric: Counter, *labels: str) -> None:
        """Adds one to a labelled counter."""
        child = self._children.get((id(metric), labels))
        if child is None:
            child = self._children[id(metric), labels] = metric.labels(*labels)
        if isinstance(child, Counter):
            child.inc()

    def observe(self, metric: Histogram, label: str, seconds: float) -> None:
        """Adds a time to a labelled histogram."""
        child = self._children.get((id(metric), (label,)))
        if child is None:
            child = self._children[id(metric), (label,)] = metric.labels(label)
        if isinstance(child, Histogram):
            child.observe(seconds)
