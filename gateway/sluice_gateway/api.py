"""The HTTP surface of a gateway: parse a request, call the gateway, render the response."""

from functools import partial
from typing import Final

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from sluice_gateway.answers import AcceptedAnswer, ConflictProblem
from sluice_gateway.gateway import Gateway
from sluice_gateway.guard import guard_of
from sluice_gateway.readiness import why_not_ready
from sluice_gateway.receive import Pace, receive
from sluice_gateway.timing import Phases
from sluice_protocol.upload_http import FRAME_MEDIA_TYPE
from sluice_store.stored_conflicts import StoredConflicts
from sluice_web.application import make_application
from sluice_web.conflicts import ConflictAccess, ConflictsApi
from sluice_web.endpoints import Endpoint
from sluice_web.health import live_endpoint, metrics_endpoint, ready_endpoint
from sluice_web.json_bodies import check_length, json_response
from sluice_web.problems import Handler, Problem, problem_middleware, problem_response

RESOLVE_BYTES_MAX: Final = 64 * 1024
_PHASES: Final = web.RequestKey("phases", Phases)
_UPLOAD_PROBLEMS: Final = {
    "400": "The frame is not valid, of an unknown version, or does not match Content-Digest",
    "401": "The sender is not known",
    "403": "The sender may not send for this agent, or agent and boot are quarantined",
    "409": "Other bytes own this identity",
    "411": "Content-Length is missing",
    "413": "The frame is too large",
    "415": "The media type is another one, or there is a Content-Encoding",
    "500": "A stored object is damaged; the same bytes may be sent again",
    "503": "The same bytes may be sent to any gateway",
}

log = structlog.get_logger()


def make_app(gateway: Gateway) -> web.Application:
    """Return the HTTP application of a gateway."""
    return make_application(
        [_upload_endpoint(gateway), *_conflicts_api(gateway).endpoints(), *_health(gateway)],
        middlewares=[watch_connection, _problems(gateway)],
        title="sluice gateway",
        body_bytes_max=gateway.settings.frame_bytes_max,
    )


def make_health_app(gateway: Gateway) -> web.Application:
    """Return the application of a worker's separate port: health checks and metrics."""
    return make_application(_health(gateway), middlewares=[_problems(gateway)])


def _health(gateway: Gateway) -> tuple[Endpoint, ...]:
    return (
        live_endpoint(),
        ready_endpoint(partial(why_not_ready, gateway)),
        metrics_endpoint(gateway.metrics.registry),
    )


def _upload_endpoint(gateway: Gateway) -> Endpoint:
    async def accept_upload(request: web.Request) -> web.StreamResponse:
        phases = request[_PHASES] = Phases(gateway.clock)
        result = await gateway.take(request, phases)
        response = _render(result)
        _finish_upload(gateway, request, response, _outcome(result))
        return response

    return Endpoint(
        method="POST",
        path="/v1/batches",
        handler=accept_upload,
        summary="Upload one batch",
        body=bytes,
        body_type=FRAME_MEDIA_TYPE,
        result=AcceptedAnswer,
        result_summary="The batch is accepted, by this upload or an earlier one",
        problems=_UPLOAD_PROBLEMS,
        problem_types={"409": ConflictProblem},
        sends_continue=True,
    )


def _render(result: AcceptedAnswer | Problem) -> web.Response:
    if isinstance(result, Problem):
        return problem_response(result)
    response = json_response(result)
    response.headers["X-Sluice-Frame-Sha256"] = result.frame_sha256
    return response


def _outcome(result: AcceptedAnswer | Problem) -> str:
    if isinstance(result, Problem):
        return result.code.value
    return "duplicate" if result.duplicate else "new"


def _finish_upload(
    gateway: Gateway, request: web.Request, response: web.Response, outcome: str
) -> None:
    """Count an upload, report its phases, and close a share of connections under load."""
    phases, metrics = request[_PHASES], gateway.metrics
    metrics.count(metrics.accepts, outcome)
    metrics.duration.observe(phases.total_s())
    for name, spent_s in phases.seconds.items():
        metrics.observe(metrics.phase, name, spent_s)
    response.headers["Server-Timing"] = phases.server_timing()
    if gateway.lifecycle.draining or gateway.budget.sheds():
        response.force_close()
    log.debug("upload_finished", outcome=outcome, timing=response.headers["Server-Timing"])


def _problems(gateway: Gateway) -> Middleware:
    def finish(request: web.Request, response: web.Response, problem: Problem) -> None:
        if _PHASES in request:
            _finish_upload(gateway, request, response, problem.code.value)

    return problem_middleware(finish=finish)


@web.middleware
async def watch_connection(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Report to the guard of the connection when a request begins and ends."""
    guard = guard_of(request)
    if guard is not None:
        guard.begin()
    try:
        return await handler(request)
    finally:
        if guard is not None:
            guard.end()


def _conflicts_api(gateway: Gateway) -> ConflictsApi:
    conflicts = StoredConflicts(
        gateway.store, gateway.decisions, clock=gateway.clock, ids=gateway.ids, refreshes=False
    )

    def access(request: web.Request) -> ConflictAccess:
        sender = gateway.sender_of(request)
        return ConflictAccess(
            principal=sender.principal,
            agents=None if sender.operator else sender.agents,
            may_resolve=sender.operator,
        )

    async def read_body(request: web.Request) -> bytes:
        length_bytes = check_length(request, RESOLVE_BYTES_MAX)
        settings = gateway.settings
        pace = Pace(grace_s=settings.body_grace_s, rate_min=settings.body_rate_min_bytes_per_s)
        with gateway.budget.take(length_bytes):
            received = await receive(request, length_bytes, pace)
        return received.body

    return ConflictsApi(conflicts, access=access, read_body=read_body)
