"""Metrics of the console: what an alert needs and no other service knows."""

from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from sluice_console.attention import PolicyTotals, lanes_without_owner
from sluice_queue.inspection import LaneStatus
from sluice_reconciler.discovery import DiscoveryStatus
from sluice_store.stored_expiry import RetentionState

DENIALS: Final = "sluice_console_denials"


class ConsoleMetrics:
    """The metrics of one process, in a separate registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.denials = Gauge(
            DENIALS,
            "Required denials of the bucket by result of the newest proof; none without a proof.",
            ("result",),
            registry=self.registry,
        )
        self.lanes_without_owner = Gauge(
            "sluice_console_lanes_without_owner",
            "Lanes that stay without one owner, by state; none if that could not be read.",
            ("state",),
            registry=self.registry,
        )

        self.holds_due = Gauge(
            "sluice_console_holds_due",
            "Holds whose review date is over, or that cannot be read.",
            registry=self.registry,
        )

    def show_holds(self, state: RetentionState | None) -> None:
        """Set the gauge to a sample; holds that could not be listed leave it."""
        if state is not None:
            self.holds_due.set(len(state.due) + len(state.unreadable))

    def show_lanes(
        self, lanes: Sequence[LaneStatus] | None, discovery: DiscoveryStatus | None
    ) -> None:
        """Set the gauges to a sample; lanes that could not be read remove them."""
        if lanes is None:
            self.lanes_without_owner.clear()
            return
        for state, found in lanes_without_owner(lanes, discovery).items():
            self.lanes_without_owner.labels(state.value).set(len(found))

    def show_proof(self, totals: PolicyTotals) -> None:
        """Set the gauges to the newest proof; a proof that failed removes them."""
        if totals.problem:
            self.denials.clear()
            return
        for result, number in (
            ("denied", totals.denied),
            ("allowed", totals.allowed),
            ("undecided", totals.undecided),
        ):
            self.denials.labels(result).set(number)
