"""Metrics of the agent: counters and gauges as values, which `health.py` exports.

An agent without `health` exports no metrics. It does not import the Prometheus client, which loads
an HTTP server and readers of the process.

| name | type | labels | meaning |
|---|---|---|---|
| sluice_agent_sealed_batches_total | counter | kind | batches made durable in the spool |
| sluice_agent_sealed_records_total | counter | kind | records made durable in the spool |
| sluice_agent_sealed_bytes_total | counter | kind | frame bytes made durable in the spool |
| sluice_agent_answers_total | counter | reaction, reason | upload attempts by reaction |
| sluice_agent_accepted_bytes_total | counter | | frame bytes that gateways accepted |
| sluice_agent_parked_batches_total | counter | | batches parked |
| sluice_agent_parked_questions_total | counter | reaction | parked batches sent again to ask |
| sluice_agent_resolved_batches_total | counter | resolution | refused batches removed by decision |
| sluice_agent_dropped_records_total | counter | | records dropped because the spool was full |
| sluice_agent_door_requests_total | counter | door, result | new, duplicate or the error |
| sluice_agent_door_records_total | counter | door | records of accepted requests |
| sluice_agent_door_unreadable_total | counter | door | those of them that were kept raw |
| sluice_agent_door_connections | gauge | | open connections of HTTP and Fluent clients |
| sluice_agent_door_connections_closed_total | counter | reason | those that the agent closed |
| sluice_agent_syslog_messages_total | counter | transport | messages received |
| sluice_agent_syslog_unreadable_total | counter | transport | records with `sluice.error` |
| sluice_agent_syslog_dropped_datagrams_total | counter | | datagrams that the kernel dropped |
| sluice_agent_syslog_connections | gauge | | open connections of senders |
| sluice_agent_rewritten_files_total | counter | | files read from their start again |
| sluice_agent_resent_file_bytes_total | counter | | bytes of them that were read before |
| sluice_agent_missing_files_total | counter | | known files that could not be found |
| sluice_agent_hole_bytes_total | counter | | zero bytes of files that were skipped |
| sluice_agent_binary_files | gauge | | files that are not read because they are binary |
| sluice_agent_unreadable_files | gauge | | files that cannot be read at present |
| sluice_agent_corrupt_files_total | counter | | spool files moved to `corrupt/` |
| sluice_agent_spool_errors_total | counter | | failed operations on the spool |
| sluice_agent_spool_bytes | gauge | | bytes of batches in the spool, including parked ones |
| sluice_agent_spool_batches | gauge | | batches that are not accepted yet |
| sluice_agent_blocked | gauge | | 1 while a full spool blocks the inputs |
| sluice_agent_refused | gauge | | 1 while gateways refuse this agent; an operator must act |
| sluice_agent_misdirected | gauge | | 1 while only servers that are not gateways respond |
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from sluice_agent.inputs.file_report import FileCounts
from sluice_agent.spool.format import EntryHeader
from sluice_agent.spool.spool import Spool


class MetricValue:
    """One number. Any thread may change it."""

    __slots__ = ("_lock", "_value")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._value = 0.0

    @property
    def value(self) -> float:
        """The number."""
        return self._value

    def inc(self, amount: float = 1) -> None:
        """Add an amount."""
        with self._lock:
            self._value += amount

    def set(self, value: float) -> None:
        """Replace the number."""
        with self._lock:
            self._value = float(value)


class LabelledMetric:
    """A counter or gauge with one number for each combination of labels.

    Attributes:
        name: Without prefix, and without the `_total` of a counter.
    """

    def __init__(self, name: str, meaning: str, labels: tuple[str, ...], *, counter: bool) -> None:
        self.name = name
        self.meaning = meaning
        self.labels_used = labels
        self.is_counter = counter
        self._lock = threading.Lock()
        self._values: dict[tuple[str, ...], MetricValue] = {} if labels else {(): MetricValue()}
        self._read: Callable[[], float] | None = None

    def labels(self, *values: str) -> MetricValue:
        """Return the number of a combination of labels, at first 0."""
        if len(values) != len(self.labels_used):
            raise ValueError(values)
        with self._lock:
            return self._values.setdefault(values, MetricValue())

    def inc(self, amount: float = 1) -> None:
        """Add an amount to a metric without labels."""
        self.labels().inc(amount)

    def dec(self) -> None:
        """Subtract 1 from a gauge without labels."""
        self.labels().inc(-1)

    def set(self, value: float) -> None:
        """Replace the number of a metric without labels."""
        self.labels().set(value)

    def set_function(self, read: Callable[[], float]) -> None:
        """Read the number of a metric without labels at each export."""
        self._read = read

    def samples(self) -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield the labels and the number of each combination that was used."""
        with self._lock:
            values = list(self._values.items())
        for labels, one in values:
            yield labels, one.value if self._read is None else self._read()


PREFIX: Final = "sluice_agent_"


class AgentMetrics:
    """The metrics of one agent.

    Attributes:
        failing: The errors of operations on the spool that are being repeated.
    """

    def __init__(self) -> None:
        self.is_blocked = False
        self.failing: dict[object, str] = {}
        self.listed: list[LabelledMetric] = []
        self._batches = self._counter("sealed_batches", "Batches made durable in the spool", "kind")
        self._records = self._counter("sealed_records", "Records made durable in the spool", "kind")
        self._bytes = self._counter("sealed_bytes", "Frame bytes made durable in the spool", "kind")
        self.answers = self._counter("answers", "Upload attempts by reaction", "reaction", "reason")
        self.accepted_bytes = self._counter("accepted_bytes", "Frame bytes that gateways accepted")
        self.parked = self._counter("parked_batches", "Batches parked")
        self.parked_questions = self._counter(
            "parked_questions", "Parked batches sent again to ask for a decision", "reaction"
        )
        self.resolved = self._counter(
            "resolved_batches", "Refused batches removed by decision", "resolution"
        )
        self.sealed_batches = self.sealed_records = self.sealed_bytes = 0
        self.dropped_records = 0
        self._dropped = self._counter(
            "dropped_records", ("Records dropped because the spool was full")
        )
        self.door_requests = self._counter(
            "door_requests", "Requests to doors by result", "door", "result"
        )
        self.door_records = self._counter("door_records", "Records of successful requests", "door")
        self.door_unreadable = self._counter(
            "door_unreadable", "Records of requests that were kept raw", "door"
        )
        self.door_connections = self._gauge(
            "door_connections", "Connections of HTTP and Fluent clients"
        )
        self.door_connections_closed = self._counter(
            "door_connections_closed",
            "Connections of them that the agent closed",
            "reason",
        )
        self.syslog_messages = self._counter("syslog_messages", "Syslog messages", "transport")
        self.syslog_unreadable = self._counter(
            "syslog_unreadable", "Syslog records with an error", "transport"
        )
        self.syslog_dropped = self._counter(
            "syslog_dropped_datagrams", "Datagrams that the kernel dropped"
        )
        self.syslog_connections = self._gauge("syslog_connections", "Connections of senders")
        self._rewritten = self._counter("rewritten_files", "Files read from their start again")
        self._resent = self._counter("resent_file_bytes", "Bytes of them that were read before")
        self._missing = self._counter("missing_files", "Known files that could not be found")
        self._holes = self._counter("hole_bytes", "Zero bytes of files that were skipped")
        self._binary = self._gauge("binary_files", "Files not read because they are binary")
        self._unreadable = self._gauge("unreadable_files", "Files that cannot be read at present")
        self.corrupt = self._counter("corrupt_files", "Spool files moved to corrupt/")
        self.spool_errors = self._counter("spool_errors", "Failed operations on the spool")
        self._spool_bytes = self._gauge(
            "spool_bytes", ("Bytes of batches in the spool, including parked ones")
        )
        self._spool_batches = self._gauge("spool_batches", "Batches that are not accepted yet")
        self.blocked = self._gauge("blocked", "1 while a full spool blocks the inputs")
        self.refused = self._gauge("refused", "1 while gateways refuse this agent")
        self.misdirected = self._gauge(
            "misdirected", "1 while only servers that are not gateways respond"
        )

    def sealed(self, header: EntryHeader) -> None:
        """Count a batch that became durable."""
        self.sealed_batches += 1
        self.sealed_records += header.identity.count
        self.sealed_bytes += header.frame_bytes
        self._batches.labels(header.kind).inc()
        self._records.labels(header.kind).inc(header.identity.count)
        self._bytes.labels(header.kind).inc(header.frame_bytes)

    def dropped(self, count: int) -> None:
        """Count records that were dropped because the spool is full."""
        self.dropped_records += count
        self._dropped.inc(count)

    def watch(self, spool: Spool) -> None:
        """Read the spool's gauges from `spool` at each scrape."""
        self._spool_bytes.set_function(spool.size_bytes)
        self._spool_batches.set_function(lambda: len(spool.ready()))

    def watch_files(self, counts: FileCounts) -> None:
        """Read the numbers of followed files at each scrape."""
        self._rewritten.set_function(lambda: counts.rewritten)
        self._resent.set_function(lambda: counts.resent_bytes)
        self._missing.set_function(lambda: counts.missing)
        self._holes.set_function(lambda: counts.hole_bytes)
        self._binary.set_function(lambda: len(counts.binary))
        self._unreadable.set_function(lambda: len(counts.unreadable))

    @contextmanager
    def blocking(self) -> Iterator[None]:
        """Report inputs as blocked while the context is active."""
        self.blocked.set(1)
        self.is_blocked = True
        try:
            yield
        finally:
            self.blocked.set(0)
            self.is_blocked = False

    def _counter(self, name: str, meaning: str, *labels: str) -> LabelledMetric:
        return self._listed(LabelledMetric(name, meaning, labels, counter=True))

    def _gauge(self, name: str, meaning: str) -> LabelledMetric:
        return self._listed(LabelledMetric(name, meaning, (), counter=False))

    def _listed(self, metric: LabelledMetric) -> LabelledMetric:
        self.listed.append(metric)
        return metric
