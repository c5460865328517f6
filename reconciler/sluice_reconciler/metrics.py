"""Metrics of the reconciler, and the clock and pending batches from which some are computed."""

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

PENDING_MAX: Final = 100_000
"""Batches that one stage remembers; beyond it the latest is dropped, as the oldest sets the age."""


class ReconcilerMetrics:
    """The reconciler's metrics on one registry; without a registry, on a private one."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        on = registry if registry is not None else CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=on)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, registry=on)

        self.registry = on
        self.enqueued = counter("sluice_reconciler_enqueued", "batches enqueued", "queue")
        self.maybe_doubled = counter(
            "sluice_reconciler_maybe_doubled", "batches that may be enqueued twice", "queue"
        )
        self.repeated_parts = counter(
            "sluice_reconciler_repeated_parts",
            "requests in combined batches that repeat earlier ones",
            "queue",
        )
        self.known_requests = gauge(
            "sluice_reconciler_known_requests", "requests of combined batches that are remembered"
        )
        self.lanes_lost = counter(
            "sluice_reconciler_lanes_lost", "lanes that another reconciler took over", "queue"
        )
        self.lanes_shared = gauge("sluice_reconciler_lanes", "lanes that this process works on")
        self.registers_lost = gauge(
            "sluice_reconciler_lost_registers", "lanes that are halted until a rebuild"
        )
        self.passes = counter("sluice_reconciler_passes", "full passes over accepted/", "outcome")
        self.listed = counter("sluice_reconciler_listed", "keys that full passes listed")
        self.held = gauge("sluice_reconciler_held_batches", "batches that are held")
        self.oldest_gap = gauge(
            "sluice_reconciler_oldest_gap_seconds", "age of the oldest gap, 0 for none"
        )
        self.tail_missing = gauge(
            "sluice_reconciler_tail_missing_records",
            "records reported by agents that are not accepted yet",
        )
        self.hints_dropped = counter(
            "sluice_reconciler_hints_dropped", "event keys left to the next full pass"
        )
        self.event_messages = counter(
            "sluice_reconciler_event_messages", "messages of the event queue by outcome", "outcome"
        )
        self.events = counter(
            "sluice_reconciler_events", "object events: accepted, foreign, invalid", "kind"
        )
        self.lag = gauge(
            "sluice_reconciler_lag_seconds", "age of the batch last indexed or enqueued", "stage"
        )
        self.oldest_pending = gauge(
            "sluice_reconciler_oldest_waiting_seconds",
            "age of the oldest batch pending at index, enqueue or ack, 0 for none",
            "stage",
        )
        self.pending = gauge(
            "sluice_reconciler_waiting_entries", "entries that are not acknowledged", "queue"
        )
        self.pass_seconds = gauge(
            "sluice_reconciler_pass_seconds", "duration of the last full pass"
        )
        self.frontier_age = gauge(
            "sluice_reconciler_frontier_age_seconds",
            "age of the time through which every acknowledged batch is enqueued or held",
        )
        self.journal_lag = gauge(
            "sluice_reconciler_journal_lag_seconds",
            "age of the time through which a gateway's journal is processed",
            "gateway",
        )
        self.journal_objects = counter(
            "sluice_reconciler_journal_objects", "journal objects that were processed"
        )
        self.journal_entries_pending = gauge(
            "sluice_reconciler_journal_entries_waiting",
            "journal entries that were read and are not processed",
        )
        self.journal_entries_absent = counter(
            "sluice_reconciler_journal_entries_absent",
            "journal entries whose manifest does not exist",
        )
        self.missed_by_journals = counter(
            "sluice_reconciler_missed_by_journals",
            "batches that a full pass found and a journal should have named",
        )
        self.unjournaled_gateways = counter(
            "sluice_reconciler_unjournaled_gateways",
            "gateways without a registration, each time a batch of one was met",
        )
        self.journals_removed = counter(
            "sluice_reconciler_journals_removed", "journal objects removed"
        )
        self.store_requests = counter(
            "sluice_reconciler_store_requests", "requests to the store; a list is one page", "op"
        )
        self.index_entries_missing = gauge(
            "sluice_reconciler_index_entries_missing",
            "wrong or missing index entries of the last sample of 100 batches",
            "index",
        )
        self.queue_objects = gauge(
            "sluice_queue_objects",
            "objects by part: queue, journals, dead_letters",
            "part",
        )
        self.queue_bytes = gauge(
            "sluice_queue_bytes",
            "bytes by part: queue, journals, dead_letters",
            "part",
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


class PendingStages:
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
        if len(pending) > PENDING_MAX:
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
