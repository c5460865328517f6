"""Health checks and metrics of a running agent: `/livez`, `/readyz` and `/metrics`."""

from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sluice_agent.metrics import PREFIX, AgentMetrics
from sluice_protocol.errors import ErrorCode
from sluice_web.application import make_application
from sluice_web.connection_guard import listening
from sluice_web.health import live_endpoint, metrics_endpoint, ready_endpoint
from sluice_web.problems import Problem, problem_middleware, problem_of

ReadinessCheck = Callable[[], str]
"""Returns the condition that an operator must resolve; empty without one."""


class AgentCollector(Collector):
    """Exports the metrics of an agent to the Prometheus client."""

    def __init__(self, metrics: AgentMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """Yield each metric with its current numbers."""
        for one in self._metrics.listed:
            family = CounterMetricFamily if one.is_counter else GaugeMetricFamily
            exported = family(PREFIX + one.name, one.meaning, labels=one.labels_used)
            for labels, value in one.samples():
                exported.add_metric(labels, value)
            yield exported


@asynccontextmanager
async def serve_health(
    address: str,
    metrics: AgentMetrics,
    check: ReadinessCheck,
    allowed_hosts: Collection[str] = (),
) -> AsyncIterator[None]:
    """Serve while the block runs."""

    def why_not_ready() -> Problem | None:
        reason = check()
        return problem_of(ErrorCode.OVERLOADED, reason) if reason else None

    registry = CollectorRegistry()
    registry.register(AgentCollector(metrics))
    endpoints = [
        live_endpoint(),
        ready_endpoint(why_not_ready),
        metrics_endpoint(registry),
    ]
    app = make_application(
        endpoints,
        middlewares=[problem_middleware()],
        title="sluice agent: health",
        allowed_hosts=allowed_hosts,
    )
    async with listening(app, address):
        yield
