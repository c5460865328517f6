"""Metrics of the console: what an alert needs and no other service knows."""

from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from sluice_console.policy_attention import PolicyTotals

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
