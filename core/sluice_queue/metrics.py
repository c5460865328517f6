"""Metrics of the queue."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class QueueMetrics:
    """The counters of the queue, in one registry; without an argument in a private one."""

    def __init__(self, registry: "CollectorRegistry | None" = None) -> None:
        # Readers of a queue count nothing, and a command should start fast.
        from prometheus_client import CollectorRegistry, Counter  # noqa: PLC0415

        on = registry if registry is not None else CollectorRegistry()
        by_role = ["queue", "role"]
        self.swaps = Counter("sluice_queue_swaps", "register writes tried", by_role, registry=on)
        self.conflicts = Counter(
            "sluice_queue_conflicts", "swaps that found another state", by_role, registry=on
        )
        self.unknown = Counter(
            "sluice_queue_unknown", "swaps without a known outcome", by_role, registry=on
        )
        self.entries = Counter("sluice_queue_entries", "entries appended", ["queue"], registry=on)
        self.register_bytes = Counter(
            "sluice_queue_register_bytes",
            "bytes of registers sent by producers",
            ["queue"],
            registry=on,
        )
        self.maybe_doubled = Counter(
            "sluice_queue_maybe_doubled",
            "appends repeated after an eviction",
            ["queue"],
            registry=on,
        )
        self.segments = Counter("sluice_queue_segments", "segments written", ["queue"], registry=on)
        self.fenced = Counter("sluice_queue_fenced", "consumers overtaken", ["queue"], registry=on)
        self.collected = Counter(
            "sluice_queue_collected", "objects deleted", ["queue", "kind"], registry=on
        )
