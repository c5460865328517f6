"""Health checks and metrics of a running agent: `/livez`, `/readyz` and `/metrics`."""

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

from sluice_agent.metrics import AgentMetrics
from sluice_protocol.errors import ErrorCode
from sluice_web.application import make_application
from sluice_web.health import live_endpoint, metrics_endpoint, ready_endpoint
from sluice_web.listening import listening
from sluice_web.problems import Problem, problem_middleware, problem_of

ReadinessCheck = Callable[[], str]
"""Returns the condition that an operator must resolve; empty if there is none."""


@asynccontextmanager
async def serve_health(
    address: str,
    metrics: AgentMetrics,
    check: ReadinessCheck,
    allowed_hosts: Collection[str] = (),
) -> AsyncIterator[None]:
    """Serve while the block runs; an empty address serves nothing.

    Raises:
        BadUsage: The address is not `HOST:PORT`, or cannot be bound.
    """
    if not address:
        yield
        return

    def why_not_ready() -> Problem | None:
        reason = check()
        return problem_of(ErrorCode.OVERLOADED, reason) if reason else None

    endpoints = [
        live_endpoint(),
        ready_endpoint(why_not_ready),
        metrics_endpoint(metrics.registry),
    ]
    app = make_application(
        endpoints,
        middlewares=[problem_middleware()],
        title="sluice agent: health",
        allowed_hosts=allowed_hosts,
    )
    async with listening(app, address):
        yield
