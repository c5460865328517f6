"""Metrics of the reconciler, and the backlog and clock that some of them are computed from.

| name | type | labels | meaning |
|---|---|---|---|
| sluice_reconciler_passes_total | counter | outcome | full passes over `accepted/` |
| sluice_reconciler_listed_total | counter | none | keys that full passes listed |
| sluice_reconciler_enqueued_total | counter | queue | batches enqueued |
| sluice_reconciler_maybe_doubled_total | counter | queue | batches that may be enqueued twice |
| sluice_reconciler_repeated_parts_total | counter | queue | requests that repeat earlier ones |
| sluice_reconciler_known_requests | gauge | none | requests that are remembered |
| sluice_reconciler_held_batches | gauge | none | batches that are held |
| sluice_reconciler_hints_dropped_total | counter | none | event keys left to the next full pass |
| sluice_reconciler_event_messages_total | counter | outcome | messages of the event queue |
| sluice_reconciler_events_total | counter | kind | events: accepted, foreign, invalid |
| sluice_reconciler_lanes_lost_total | counter | queue | lanes that another reconciler took over |
| sluice_reconciler_lanes | gauge | none | lanes that this process works on |
| sluice_reconciler_lost_registers | gauge | none | lanes that are halted until a rebuild |
| sluice_reconciler_oldest_gap_seconds | gauge | none | age of the oldest gap, 0 for none |
| sluice_reconciler_tail_missing_records | gauge | none | reported records that are not accepted |
| sluice_reconciler_lag_seconds | gauge | stage | age of the batch last `indexed`, `enqueued` |
| sluice_reconciler_oldest_waiting_seconds | gauge | stage | oldest at `index`, `enqueue`, `ack` |
| sluice_reconciler_waiting_entries | gauge | queue | entries that are not acknowledged |
| sluice_reconciler_pass_seconds | gauge | none | duration of the last full pass |
| sluice_reconciler_frontier_age_seconds | gauge | none | age of `complete_through_unix_ns` |
| sluice_reconciler_journal_lag_seconds | gauge | gateway | age of the processed journal |
| sluice_reconciler_journal_objects_total | counter | none | journal objects that were processed |
| sluice_reconciler_journal_entries_waiting | gauge | none | entries that are not processed |
| sluice_reconciler_journal_entries_absent_total | counter | none | entries without a manifest |
| sluice_reconciler_missed_by_journals_total | counter | none | batches only a full pass found |
| sluice_reconciler_unjournaled_gateways_total | counter | none | sightings without a registration |
| sluice_reconciler_journals_removed_total | counter | none | journal objects removed |
| sluice_reconciler_store_requests_total | counter | op | requests; a `list` is one page |
| sluice_reconciler_index_entries_missing | gauge | index | of a sample of 100 batches |
| sluice_queue_objects | gauge | part | objects of `queue`, `journals`, `dead_letters` |
| sluice_queue_bytes | gauge | part | their size |
"""

from collections import OrderedDict
from collections.abc import Iterable
from enum import StrEnum
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from sluice_protocol.clock import Clock
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_store.port import ObjectStore
from sluice_store.wrapped import WrappedStore

BACKLOG_MAX: Final = 100_000
"""Batches that one stage remembers; beyond it the latest is dropped, as the oldest sets the age."""


class ReconcilerMetrics:
    """The reconciler's metrics on one registry; without a registry, on a private one."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        on = registry if registry is not None else CollectorRegistry()
        self.registry = on
        self._create_queue_metrics(on)
        self._create_pass_metrics(on)
        self._create_event_metrics(on)
        self._create_lag_gauges(on)
        self._create_journal_metrics(on)
        self._create_store_metrics(on)

    def _create_queue_metrics(self, on: CollectorRegistry) -> None:
        self.enqueued = Counter(
            "sluice_reconciler_enqueued", "batches enqueued", ["queue"], registry=on
        )
        self.maybe_doubled = Counter(
            "sluice_reconciler_maybe_doubled",
            "batches that may be enqueued twice",
            ["queue"],
            registry=on,
        )
        self.repeated_parts = Counter(
            "sluice_reconciler_repeated_parts",
            "requests in combined batches that repeat earlier ones",
            ["queue"],
            registry=on,
        )
        self.known_requests = Gauge(
            "sluice_reconciler_known_requests",
            "requests of combined batches that are remembered",
            registry=on,
        )
        self.lanes_lost = Counter(
            "sluice_reconciler_lanes_lost",
            "lanes that another reconciler took over",
            ["queue"],
            registry=on,
        )
        self.lanes_shared = Gauge(
            "sluice_reconciler_lanes", "lanes that this process works on", registry=on
        )
        self.registers_lost = Gauge(
            "sluice_reconciler_lost_registers",
            "lanes that are halted until a rebuild",
            registry=on,
        )

    def _create_pass_metrics(self, on: CollectorRegistry) -> None:
        self.passes = Counter(
            "sluice_reconciler_passes", "full passes over accepted/", ["outcome"], registry=on
        )
        self.listed = Counter(
            "sluice_reconciler_listed", "keys that full passes listed", registry=on
        )
        self.held = Gauge("sluice_reconciler_held_batches", "batches that are held", registry=on)
        self.oldest_gap = Gauge(
            "sluice_reconciler_oldest_gap_seconds",
            "age of the oldest gap, 0 for none",
            registry=on,
        )
        self.tail_missing = Gauge(
            "sluice_reconciler_tail_missing_records",
            "records reported by agents that are not accepted yet",
            registry=on,
        )

    def _create_event_metrics(self, on: CollectorRegistry) -> None:
        self.hints_dropped = Counter(
            "sluice_reconciler_hints_dropped",
            "event keys left to the next full pass",
            registry=on,
        )
        self.event_messages = Counter(
            "sluice_reconciler_event_messages",
            "messages of the event queue by outcome",
            ["outcome"],
            registry=on,
        )
        self.events = Counter(
            "sluice_reconciler_events", "object events by kind", ["kind"], registry=on
        )

    def _create_lag_gauges(self, on: CollectorRegistry) -> None:
        self.lag = Gauge(
            "sluice_reconciler_lag_seconds",
            "age of the batch last indexed or enqueued",
            ["stage"],
            registry=on,
        )
        self.oldest_waiting = Gauge(
            "sluice_reconciler_oldest_waiting_seconds",
            "age of the oldest batch pending at a stage, 0 for none",
            ["stage"],
            registry=on,
        )
        self.waiting = Gauge(
            "sluice_reconciler_waiting_entries",
            "entries that are not acknowledged",
            ["queue"],
            registry=on,
        )
        self.pass_seconds = Gauge(
            "sluice_reconciler_pass_seconds", "duration of the last full pass", registry=on
        )

    def _create_journal_metrics(self, on: CollectorRegistry) -> None:
        self.frontier_age = Gauge(
            "sluice_reconciler_frontier_age_seconds",
            "age of the time through which every acknowledged batch is enqueued or held",
            registry=on,
        )
        self.journal_lag = Gauge(
            "sluice_reconciler_journal_lag_seconds",
            "age of the time through which a gateway's journal is processed",
            ["gateway"],
            registry=on,
        )
        self.journal_objects = Counter(
            "sluice_reconciler_journal_objects",
            "journal objects that were processed",
            registry=on,
        )
        self.journal_entries_waiting = Gauge(
            "sluice_reconciler_journal_entries_waiting",
            "journal entries that were read and are not processed",
            registry=on,
        )
        self.journal_entries_absent = Counter(
            "sluice_reconciler_journal_entries_absent",
            "journal entries whose manifest does not exist",
            registry=on,
        )
        self.missed_by_journals = Counter(
            "sluice_reconciler_missed_by_journals",
            "batches that a full pass found and a journal should have named",
            registry=on,
        )
        self.unjournaled_gateways = Counter(
            "sluice_reconciler_unjournaled_gateways",
            "gateways without a registration, each time a batch of one was met",
            registry=on,
        )
        self.journals_removed = Counter(
            "sluice_reconciler_journals_removed", "journal objects removed", registry=on
        )

    def _create_store_metrics(self, on: CollectorRegistry) -> None:
        self.store_requests = Counter(
            "sluice_reconciler_store_requests", "requests to the store", ["op"], registry=on
        )
        self.index_entries_missing = Gauge(
            "sluice_reconciler_index_entries_missing",
            "wrong or missing index entries of the batches in the last sample",
            ["index"],
            registry=on,
        )
        self.queue_objects = Gauge(
            "sluice_queue_objects",
            "objects of the registers, the journals and the dead letters",
            ["part"],
            registry=on,
        )
        self.queue_bytes = Gauge(
            "sluice_queue_bytes",
            "bytes of the registers, the journals and the dead letters",
            ["part"],
            registry=on,
        )


class StoreClock:
    """The store's clock: its last reported time, advanced by the local monotonic clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._date_ns = 0
        self._read_at_ns = 0

    def observe(self, date_ns: UnixNs) -> None:
        """Record the time that the store reported; an earlier one is ignored."""
        if date_ns > self._date_ns:
            self._date_ns, self._read_at_ns = date_ns, self._clock.monotonic_ns()

    def now_ns(self) -> UnixNs:
        """Return the store's time; 0 before its first response."""
        passed_ns = self._clock.monotonic_ns() - self._read_at_ns
        return UnixNs(self._date_ns + passed_ns if self._date_ns else 0)

    def age_s(self, since_ns: int) -> float:
        """Return the time since an instant of the store's clock, seconds."""
        return max(0, self.now_ns() - since_ns) / NS_PER_S


class Stage(StrEnum):
    """The next step of a pending batch."""

    INDEX = "index"
    ENQUEUE = "enqueue"


class StageBacklog:
    """The batches pending at each stage, by accepted key.

    A batch is pending from when this process has read its manifest. If a stage fails, the batch
    stays pending, so the age grows during an outage. A full pass that left no batch behind has
    completed everything known before it, here or at another reconciler, and clears it.
    """

    def __init__(self, clock: StoreClock) -> None:
        self._clock = clock
        self._pending: dict[Stage, OrderedDict[ObjectKey, UnixNs]] = {
            stage: OrderedDict() for stage in Stage
        }

    def begin(self, stage: Stage, key: ObjectKey, accepted_at_ns: UnixNs) -> None:
        """Add a batch to a stage."""
        pending = self._pending[stage]
        pending[key] = accepted_at_ns
        if len(pending) > BACKLOG_MAX:
            pending.popitem()

    def end(self, stage: Stage, keys: Iterable[ObjectKey]) -> None:
        """Remove batches that completed a stage, here or at another reconciler."""
        pending = self._pending[stage]
        for key in keys:
            pending.pop(key, None)

    def known(self) -> dict[Stage, tuple[ObjectKey, ...]]:
        """Return what is pending now; a full pass that begins now and succeeds ends it."""
        return {stage: tuple(pending) for stage, pending in self._pending.items()}

    def oldest_s(self, stage: Stage) -> float:
        """Return the age of the oldest batch pending at a stage, 0 for none, seconds."""
        since_ns = min(self._pending[stage].values(), default=None)
        return 0.0 if since_ns is None else self._clock.age_s(since_ns)

    def export(self, gauge: Gauge) -> None:
        """Let a gauge read the age of the oldest batch of each stage."""
        for stage in Stage:
            gauge.labels(stage.value).set_function(partial(self.oldest_s, stage))


class CountedStore(WrappedStore):
    """A store whose requests are counted; each page of a listing is one, as a bucket charges."""

    def __init__(self, inner: ObjectStore, clock: Clock, requests: Counter) -> None:
        super().__init__(inner, clock)
        self._requests = requests

    def ended(self, op: str, outcome: object, size_bytes: int, started_ns: int) -> None:
        """Count the request."""
        del outcome, size_bytes, started_ns
        self._requests.labels(op).inc()
