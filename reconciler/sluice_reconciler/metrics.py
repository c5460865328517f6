"""Metrics of the reconciler.

| name | type | labels | meaning |
|---|---|---|---|
| sluice_reconciler_passes_total | counter | outcome | full passes over `accepted/` |
| sluice_reconciler_listed_total | counter | none | keys that passes listed |
| sluice_reconciler_enqueued_total | counter | queue | batches appended |
| sluice_reconciler_maybe_doubled_total | counter | queue | batches appended that may be there |
| sluice_reconciler_unhealthy_count | gauge | none | batches that could not be enqueued |
| sluice_reconciler_hints_dropped_total | counter | none | event keys left to the full pass |
| sluice_reconciler_events_total | counter | kind | events taken: accepted, foreign, invalid |
| sluice_reconciler_lanes_lost_total | counter | queue | lanes that another reconciler took over |
| sluice_reconciler_registers_lost_count | gauge | none | lanes that stand until a rebuild |
| sluice_reconciler_oldest_gap_seconds | gauge | none | age of the oldest gap, 0 for none |
| sluice_reconciler_tail_missing_count | gauge | none | records made, by their marks, not come |
| sluice_reconciler_lag_seconds | gauge | stage | age of the last `indexed`, `enqueued`, oldest |
| sluice_reconciler_oldest_waiting_seconds | gauge | stage | before `index`, `enqueue`, `ack` |
| sluice_reconciler_waiting_count | gauge | queue | entries not acknowledged |
| sluice_reconciler_pass_seconds | gauge | none | duration of the last full pass |

How old the oldest batch is that waits before each stage: accepted, indexed, enqueued.

A batch waits from when this process has read its manifest. One whose stage failed goes on waiting,
so the age grows through an outage; a full pass that left nothing has found everything known before
it at its end, here or at another reconciler, so that pass clears what still waits.
"""

from collections import OrderedDict
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from sluice_protocol.clock import Clock
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs


class ReconcilerMetrics:
    """The reconciler's metrics on one registry."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """Registers them; without a registry they count for nobody."""
        on = registry if registry is not None else CollectorRegistry()
        self.registry = on
        self.passes = Counter("sluice_reconciler_passes", "full passes", ["outcome"], registry=on)
        self.listed = Counter("sluice_reconciler_listed", "keys listed", registry=on)
        self.enqueued = Counter(
            "sluice_reconciler_enqueued", "batches appended", ["queue"], registry=on
        )
        self.maybe_doubled = Counter(
            "sluice_reconciler_maybe_doubled", "possible duplicates", ["queue"], registry=on
        )
        self.unhealthy = Gauge(
            "sluice_reconciler_unhealthy_count", "batches held back", registry=on
        )
        self.hints_dropped = Counter(
            "sluice_reconciler_hints_dropped", "event keys dropped", registry=on
        )
        self.events = Counter("sluice_reconciler_events", "events taken", ["kind"], registry=on)
        self.lanes_lost = Counter(
            "sluice_reconciler_lanes_lost", "lanes taken over by others", ["queue"], registry=on
        )
        self.registers_lost = Gauge(
            "sluice_reconciler_registers_lost_count", "registers that are gone", registry=on
        )
        self.oldest_gap = Gauge(
            "sluice_reconciler_oldest_gap_seconds", "age of the oldest gap", registry=on
        )
        self.tail_missing = Gauge(
            "sluice_reconciler_tail_missing_count", "records up to high-water marks", registry=on
        )
        self.lag = Gauge(
            "sluice_reconciler_lag_seconds", "age after the stage", ["stage"], registry=on
        )
        self.oldest_waiting = Gauge(
            "sluice_reconciler_oldest_waiting_seconds", "oldest waiting", ["stage"], registry=on
        )
        self.waiting = Gauge(
            "sluice_reconciler_waiting_count", "entries not acknowledged", ["queue"], registry=on
        )
        self.pass_seconds = Gauge(
            "sluice_reconciler_pass_seconds", "duration of the last pass", registry=on
        )


WAITING_MAX: Final = 100_000
"""Batches that one stage remembers; the latest is dropped beyond, the oldest tells the age."""


class Stage(StrEnum):
    """What a batch waits for."""

    INDEX = "index"
    ENQUEUE = "enqueue"


class StageBacklog:
    """The batches that wait before each stage, by accepted key."""

    def __init__(self, clock: Clock) -> None:
        """Starts with nothing; the clock carries the store's time on between its answers."""
        self._clock = clock
        self._date_ns = 0
        self._dated_ns = 0
        self._waits: dict[Stage, OrderedDict[ObjectKey, UnixNs]] = {
            stage: OrderedDict() for stage in Stage
        }

    def dated(self, date_ns: UnixNs) -> None:
        """Takes the store's clock from an answer."""
        if date_ns > self._date_ns:
            self._date_ns, self._dated_ns = date_ns, self._clock.monotonic_ns()

    def begin(self, stage: Stage, key: ObjectKey, accepted_at_ns: UnixNs) -> None:
        """Lets a batch wait."""
        waits = self._waits[stage]
        waits[key] = accepted_at_ns
        if len(waits) > WAITING_MAX:
            waits.popitem()

    def end(self, stage: Stage, keys: Iterable[ObjectKey]) -> None:
        """Tells that batches are past a stage, or that it is no longer ours to take them there."""
        for key in keys:
            self._waits[stage].pop(key, None)

    def known(self) -> dict[Stage, tuple[ObjectKey, ...]]:
        """Gives what waits now, to be cleared when a full pass that begins now ends well."""
        return {stage: tuple(waits) for stage, waits in self._waits.items()}

    def oldest_s(self, stage: Stage) -> float:
        """Gives the age of the oldest batch before a stage, 0 for none, seconds."""
        since_ns = min(self._waits[stage].values(), default=None)
        return 0.0 if since_ns is None else self.age_s(since_ns)

    def now_ns(self) -> UnixNs:
        """Gives the store's time: its latest answer's, carried on; 0 before the first."""
        passed_ns = self._clock.monotonic_ns() - self._dated_ns
        return UnixNs(self._date_ns + passed_ns if self._date_ns else 0)

    def age_s(self, since_ns: int) -> float:
        """Gives how long ago an instant of the store's clock was, seconds."""
        return max(0, self.now_ns() - since_ns) / NS_PER_S
