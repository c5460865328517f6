"""Metrics of the queue.

| name | type | labels | meaning |
|---|---|---|---|
| sluice_queue_swaps_total | counter | queue, role | register writes tried |
| sluice_queue_conflicts_total | counter | queue, role | swaps that found another state |
| sluice_queue_unknown_total | counter | queue, role | swaps without a known outcome |
| sluice_queue_entries_total | counter | queue | entries appended |
| sluice_queue_register_bytes_total | counter | queue | bytes of registers sent by producers |
| sluice_queue_maybe_doubled_total | counter | queue | appends repeated after an eviction |
| sluice_queue_segments_total | counter | queue | segments written |
| sluice_queue_fenced_total | counter | queue | consumers that found a newer epoch |
| sluice_queue_collected_total | counter | queue, kind | work lists and segments deleted |
"""

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
