"""What operators read of a service: `/livez`, `/readyz`, `/metrics`, and refused clients."""

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from sluice_web.endpoints import Endpoint
from sluice_web.json_bodies import json_response
from sluice_web.problems import Handler, Problem, problem_response
from sluice_web.refused_clients import REFUSED_PATH, RefusedClients, RefusedDoor

HealthCheck = Callable[[], Problem | None]
"""Returns why the service is not alive or not ready, or None. It does no I/O."""


def healthy() -> None:
    """Report that the service is alive and ready: it responds."""


def live_endpoint(check: HealthCheck = healthy) -> Endpoint:
    """Return `GET /livez`: on 503 the supervisor restarts the process."""
    return Endpoint(
        method="GET",
        path="/livez",
        handler=_checked(check, lambda: web.Response(text="ok\n")),
        summary="Report that the process runs",
        result_type="text/plain",
        problems={"503": "The process must be restarted"},
        open_host=True,
        needs_token=False,
    )


def ready_endpoint(
    check: HealthCheck = healthy, state: Callable[[], object] | None = None
) -> Endpoint:
    """Return `GET /readyz`; a 200 has the JSON of `state`, or plain text without one."""

    def respond() -> web.Response:
        return web.Response(text="ready\n") if state is None else json_response(state())

    return Endpoint(
        method="GET",
        path="/readyz",
        handler=_checked(check, respond),
        summary="Report whether the service can do its work now",
        result_type="text/plain" if state is None else "application/json",
        problems={"503": "The service cannot do its work now"},
        open_host=True,
        needs_token=False,
    )


def metrics_endpoint(registry: CollectorRegistry) -> Endpoint:
    """Return `GET /metrics` in the Prometheus text format."""

    async def send_metrics(request: web.Request) -> web.Response:
        del request
        return web.Response(
            body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    return Endpoint(
        method="GET",
        path="/metrics",
        handler=send_metrics,
        summary="Return the metrics in the Prometheus text format",
        result_type="text/plain",
        needs_token=False,
    )


def _checked(check: HealthCheck, respond: Callable[[], web.Response]) -> Handler:
    async def send_health(request: web.Request) -> web.Response:
        del request
        problem = check()
        return respond() if problem is None else problem_response(problem)

    return send_health


def refused_endpoint(refused: RefusedClients) -> Endpoint:
    """Return the endpoint that lists the doors whose clients have no valid key."""

    async def send_refused(request: web.Request) -> web.Response:
        del request
        return json_response(refused.recent())

    return Endpoint(
        method="GET",
        path=REFUSED_PATH,
        handler=send_refused,
        summary="Return the doors whose clients were refused in the last minutes, without a key",
        result=tuple[RefusedDoor, ...],
    )
