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
"""

from prometheus_client import CollectorRegistry, Counter, Gauge


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
