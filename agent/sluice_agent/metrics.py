"""Metrics of the agent.

| name | type | labels | meaning |
|---|---|---|---|
| sluice_agent_sealed_batches_total | counter | kind | batches made durable in the spool |
| sluice_agent_sealed_records_total | counter | kind | records in them |
| sluice_agent_sealed_bytes_total | counter | kind | frame bytes in them |
| sluice_agent_answers_total | counter | reaction, reason | what came of each try to send |
| sluice_agent_accepted_bytes_total | counter | | frame bytes that gateways accepted |
| sluice_agent_parked_batches_total | counter | | batches parked |
| sluice_agent_dropped_records_total | counter | | records dropped because the settings say so |
| sluice_agent_corrupt_files_total | counter | | spool files set aside |
| sluice_agent_spool_errors_total | counter | | failed writes to the spool |
| sluice_agent_spool_bytes | gauge | | bytes of batches in the spool, parked ones included |
| sluice_agent_spool_batches | gauge | | batches that wait to be accepted |
| sluice_agent_blocked | gauge | | 1 while inputs are held back by a full spool |
| sluice_agent_refused | gauge | | 1 while gateways refuse this agent and a person must act |
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from sluice_agent.spool import Spool
from sluice_agent.spool_format import EntryHeader

PREFIX: Final = "sluice_agent_"


class AgentMetrics:
    """Every metric of one agent, in a registry of its own."""

    def __init__(self) -> None:
        """Makes the registry and the metrics, all at zero."""
        self.is_blocked = False
        self.registry = CollectorRegistry()
        self._batches = self._counter("sealed_batches", "Batches made durable", "kind")
        self._records = self._counter("sealed_records", "Records made durable", "kind")
        self._bytes = self._counter("sealed_bytes", "Frame bytes made durable", "kind")
        self.answers = self._counter("answers", "Tries to send, by result", "reaction", "reason")
        self.accepted_bytes = self._counter("accepted_bytes", "Frame bytes accepted")
        self.parked = self._counter("parked_batches", "Batches parked")
        self.sealed_batches = self.sealed_records = 0
        self.dropped_records = 0
        self._dropped = self._counter("dropped_records", "Records dropped by setting")
        self.corrupt = self._counter("corrupt_files", "Spool files set aside")
        self.spool_errors = self._counter("spool_errors", "Failed spool writes")
        self._spool_bytes = self._gauge("spool_bytes", "Bytes of batches in the spool")
        self._spool_batches = self._gauge("spool_batches", "Batches waiting to be accepted")
        self.blocked = self._gauge("blocked", "1 while inputs are held back")
        self.refused = self._gauge("refused", "1 while gateways refuse this agent")

    def sealed(self, header: EntryHeader) -> None:
        """Counts a batch that became durable."""
        self.sealed_batches += 1
        self.sealed_records += header.identity.count
        self._batches.labels(header.kind).inc()
        self._records.labels(header.kind).inc(header.identity.count)
        self._bytes.labels(header.kind).inc(header.frame_bytes)

    def dropped(self, count: int) -> None:
        """Counts records that were dropped because the settings say so."""
        self.dropped_records += count
        self._dropped.inc(count)

    def watch(self, spool: Spool) -> None:
        """Reads the spool's gauges from it whenever somebody asks."""
        self._spool_bytes.set_function(spool.size_bytes)
        self._spool_batches.set_function(lambda: len(spool.ready()))

    @contextmanager
    def blocking(self) -> Iterator[None]:
        """Shows that inputs are held back while the block runs."""
        self.blocked.set(1)
        self.is_blocked = True
        try:
            yield
        finally:
            self.blocked.set(0)
            self.is_blocked = False

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(PREFIX + name, meaning, labels, registry=self.registry)

    def _gauge(self, name: str, meaning: str) -> Gauge:
        return Gauge(PREFIX + name, meaning, registry=self.registry)
