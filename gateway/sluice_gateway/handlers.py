"""The HTTP surface: parse, call, render. One middleware turns errors into problem documents."""

from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from sluice_gateway.answers import AcceptedAnswer, json_response
from sluice_gateway.conflicts import list_page, resolve, show
from sluice_gateway.gateway import Gateway
from sluice_gateway.guard import guard_of
from sluice_gateway.health import why_not_ready
from sluice_gateway.openapi import openapi_document
from sluice_gateway.problems import Problem, Refusal, problem_of, problem_response
from sluice_gateway.refuse import send_refusal
from sluice_gateway.timing import Phases
from sluice_protocol.errors import ErrorCode, SluiceError
from sluice_protocol.upload_http import UPLOAD_PATH

GATEWAY: Final = web.AppKey("gateway", Gateway)
PHASES: Final = web.RequestKey("phases", Phases)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = structlog.get_logger()


async def post_batch(request: web.Request) -> web.StreamResponse:
    """Takes one upload."""
    gateway = request.app[GATEWAY]
    phases = request[PHASES] = Phases(gateway.clock)
    answer = await gateway.take(request, phases)
    response = _render(answer)
    _finish_upload(request, response, _outcome(answer))
    return response


def _render(answer: AcceptedAnswer | Problem) -> web.Response:
    if isinstance(answer, Problem):
        return problem_response(answer)
    response = json_response(answer)
    response.headers["X-Sluice-Frame-Sha256"] = answer.frame_sha256
    return response


def _outcome(answer: AcceptedAnswer | Problem) -> str:
    if isinstance(answer, Problem):
        return answer.code.value
    return "duplicate" if answer.duplicate else "new"


def _finish_upload(request: web.Request, response: web.Response, outcome: str) -> None:
    """Counts an upload, tells its phases, and closes a share of connections under pressure."""
    gateway, phases = request.app[GATEWAY], request[PHASES]
    metrics = gateway.metrics
    metrics.count(metrics.accepts, outcome)
    metrics.duration.observe(phases.total_s())
    for name, spent_s in phases.seconds.items():
        metrics.observe(metrics.phase, name, spent_s)
    response.headers["Server-Timing"] = phases.server_timing()
    if gateway.lifecycle.draining or gateway.budget.sheds():
        response.force_close()
    log.debug("upload", outcome=outcome, timing=response.headers["Server-Timing"])


async def get_conflicts(request: web.Request) -> web.StreamResponse:
    """A page of conflicts."""
    return json_response(await list_page(request.app[GATEWAY], request))


async def get_conflict(request: web.Request) -> web.StreamResponse:
    """One conflict with the difference of its records."""
    return json_response(await show(request.app[GATEWAY], request))


async def post_resolve(request: web.Request) -> web.StreamResponse:
    """An operator's decision."""
    return json_response(await resolve(request.app[GATEWAY], request))


async def get_livez(request: web.Request) -> web.StreamResponse:
    """The process answers."""
    del request
    return web.Response(text="ok\n")


async def get_readyz(request: web.Request) -> web.StreamResponse:
    """Whether an upload sent now has a chance."""
    reason = why_not_ready(request.app[GATEWAY])
    if reason is None:
        return web.Response(text="ready\n")
    return problem_response(problem_of(reason.code, reason.detail))


async def get_metrics(request: web.Request) -> web.StreamResponse:
    """This worker's metrics in the Prometheus text format."""
    body = generate_latest(request.app[GATEWAY].metrics.registry)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def get_openapi(request: web.Request) -> web.StreamResponse:
    """The description of this surface, made from its types."""
    del request
    return json_response(openapi_document())


@web.middleware
async def watch_connection(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Tells the connection's guard when a request begins and ends."""
    guard = guard_of(request)
    if guard is not None:
        guard.begin()
    try:
        return await handler(request)
    finally:
        if guard is not None:
            guard.end()


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turns every error into a problem document; the only place that does."""
    try:
        return await handler(request)
    except SluiceError as error:
        problem = problem_of(error.code, str(error))
        _note(request, error)
    except web.HTTPException as error:
        if error.status < 400:  # noqa: PLR2004 - RFC 9110 section 15.5
            raise
        problem = _http_problem(error)
    except (ConnectionError, web.RequestPayloadError):
        raise  # the client is gone: there is nobody to answer
    except Exception:
        log.exception("internal error", path=request.path)
        problem = problem_of(ErrorCode.INTERNAL, "a defect of the gateway: see the log")
    response = problem_response(problem)
    if PHASES in request:
        _finish_upload(request, response, problem.code.value)
    return await send_refusal(request, response, request.app[GATEWAY].clock)


def _note(request: web.Request, error: SluiceError) -> None:
    """Logs why, where the answer must not say it."""
    if error.code in {ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN_AGENT}:
        log.info("refused", code=error.code.value, reason=str(error), peer=request.remote)
    elif not isinstance(error, Refusal) and problem_of(error.code, "").status >= 500:  # noqa: PLR2004
        log.error("failed", code=error.code.value, reason=str(error))


def _http_problem(error: web.HTTPException) -> Problem:
    code = ErrorCode.NOT_FOUND if error.status in {404, 405} else ErrorCode.BAD_REQUEST
    return Problem(
        title=error.reason,
        status=error.status,
        detail=error.reason,
        code=code,
        retryable=False,
        effect=problem_of(code, "").effect,
    )


async def no_expectation(request: web.Request) -> None:
    """Leaves `Expect: 100-continue` to the handler: a refusal needs no body first."""
    del request


def routes() -> list[web.RouteDef]:
    """Gives every route."""
    return [
        web.post(UPLOAD_PATH, post_batch, expect_handler=no_expectation),
        web.get("/v1/conflicts", get_conflicts),
        web.get("/v1/conflicts/{id}", get_conflict),
        web.post("/v1/conflicts/{id}/resolve", post_resolve, expect_handler=no_expectation),
        *health_routes(),
        web.get("/openapi.json", get_openapi),
    ]


def health_routes() -> list[web.RouteDef]:
    """Gives the routes of the worker's own port."""
    return [
        web.get("/livez", get_livez),
        web.get("/readyz", get_readyz),
        web.get("/metrics", get_metrics),
    ]
