"""Problem documents (RFC 9457): the one mapping from an error to an HTTP response.

Every error response of every service has the members `type`, `title`, `status`, `detail`, `code`,
`retryable` and `effect`. For 401 and 403 `detail` is constant: a client without access must not
learn why. The reason is logged. The exception is the request gate: it refuses before the sender is
known.

A response may be sent before the request body was read. A socket that is closed with unread bytes
sends a reset, which can overtake the response. So the response is sent, the sending side is closed,
and the rest of the body is discarded for a bounded time and size.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog
from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from sluice_protocol.errors import (
    Effect,
    ErrorCode,
    SluiceError,
    effect_of,
    retryable,
    status_of,
)
from sluice_protocol.system_clock import SystemClock
from sluice_web.rare_warnings import EventBudget, RareWarnings

DISCARD_BYTES_MAX: Final = 256 * 1024
DISCARD_S_MAX: Final = 2.0


async def send_before_body(request: web.Request, response: web.Response) -> web.Response:
    """Send a response; where the body has not arrived completely, half-close and discard it."""
    if request.content.is_eof():
        return response
    response.force_close()
    await response.prepare(request)
    await response.write_eof()
    await _discard(request)
    return response


async def _discard(request: web.Request) -> None:
    """Discard the body up to the bounds, then wait until the time is over.

    Bytes that stay unread stop the sender by flow control, so it has time to read the response.
    Closing immediately would reset the connection before that.
    """
    transport = request.transport
    if transport is None:
        return
    if transport.can_write_eof():
        transport.write_eof()
    with contextlib.suppress(TimeoutError, ConnectionError, web.RequestPayloadError):
        async with asyncio.timeout(DISCARD_S_MAX):
            if not await _read_to_bound(request):
                transport.pause_reading()
                await asyncio.get_running_loop().create_future()  # ends with the timeout
    transport.close()


async def _read_to_bound(request: web.Request) -> bool:
    """Return whether the body ended within `DISCARD_BYTES_MAX`."""
    size_bytes = 0
    while size_bytes < DISCARD_BYTES_MAX:
        chunk = await request.content.readany()
        if not chunk:
            return True
        size_bytes += len(chunk)
    return False


PROBLEM_TYPE: Final = "application/problem+json"
RETRY_AFTER_S: Final = 1
"""`Retry-After` of every 503. Agents add jitter and try another gateway first."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_CONSTANT_DETAILS: Final = {
    ErrorCode.UNAUTHENTICATED: "the sender is not known",
    ErrorCode.FORBIDDEN: "the sender may not do this",
    ErrorCode.FORBIDDEN_AGENT: "the sender may not send for this agent",
    ErrorCode.IDENTITY_QUARANTINED: "an operator has quarantined this agent and boot",
}
_REASONS_LOGGED: Final = frozenset(
    (ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN, ErrorCode.FORBIDDEN_AGENT)
)
"""Codes whose responses contain no reason, and that nothing else logs."""
_FRAMEWORK_CODES: Final = {
    404: ErrorCode.NOT_FOUND,
    405: ErrorCode.METHOD_NOT_ALLOWED,
    413: ErrorCode.TOO_LARGE,
    415: ErrorCode.UNSUPPORTED_MEDIA_TYPE,
}
_FRAMEWORK_DETAILS: Final = {
    404: "no such path: check the URL",
    405: "the path does not have this method: `Allow` lists those that it has",
}
_UNKNOWN_PATHS: Final = frozenset((404, 405))
_UNKNOWN_LOGGED: Final = EventBudget(SystemClock(), events_max=20)
_UNAVAILABLE: Final = 503
_UNAVAILABLE_LOGGED: Final = RareWarnings(SystemClock())
_ENCODER: Final = msgspec.json.Encoder(order="sorted")

log = structlog.get_logger()


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an error response.

    `type` is always `about:blank`; clients distinguish problems by `code`. `title` is the code in
    words, or the reason phrase of the status. `retryable` is true if the same bytes may be sent
    again, and `effect` is whether the request may have changed the store.
    """

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: ErrorCode
    retryable: bool
    effect: Effect


@dataclass(frozen=True, slots=True)
class ProblemRenderer:
    """How the errors of one endpoint are sent, where its protocol defines another form.

    The request is an argument: storing it would create a reference cycle that keeps its body alive.
    """

    render: Callable[[web.Request, Problem], web.Response]


PROBLEM_RENDERER: Final = web.RequestKey("problem_renderer", ProblemRenderer)
"""Set by a handler, for the errors that follow."""


class HttpRefusal(SluiceError):
    """A request that a service refuses with a given code."""

    def __init__(self, code: ErrorCode, detail: str) -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail

    def __str__(self) -> str:
        return self.detail


class UnknownPath(web.HTTPNotFound):
    """No endpoint has the path of a request; `nearest` is one that its sender may mean."""

    def __init__(self, nearest: str) -> None:
        super().__init__()
        self.nearest = nearest


class GateRefusal(SluiceError):
    """A request that is refused before its sender is known.

    Its reason is in the response: it depends on nothing that the service keeps secret.
    """

    code = ErrorCode.FORBIDDEN

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


def problem_of(code: ErrorCode, detail: str) -> Problem:
    """Return the problem document of a code; for 401 and 403 with a constant detail."""
    return Problem(
        title=code.value.replace("_", " "),
        status=status_of(code),
        detail=_CONSTANT_DETAILS.get(code, detail),
        code=code,
        retryable=retryable(code),
        effect=effect_of(code),
    )


def problem_response(problem: Problem) -> web.Response:
    """Return the response that contains a problem document."""
    detail = problem.detail.encode(errors="replace").decode()  # it may quote malformed text
    body = _ENCODER.encode(msgspec.structs.replace(problem, detail=detail))
    response = web.Response(status=problem.status, body=body, content_type=PROBLEM_TYPE)
    if problem.status == 503:  # noqa: PLR2004 - RFC 9110 section 15.6.4
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
    return response


def _document(request: web.Request, problem: Problem) -> web.Response:
    """Return a problem document as a media type that the client accepts.

    The clients of Elasticsearch accept their own types of JSON only, read `application/json` too,
    and would report an unknown media type instead of the problem.
    """
    response = problem_response(problem)
    accepted = request.headers.get(hdrs.ACCEPT, "*")
    if "json" in accepted and "*" not in accepted and PROBLEM_TYPE not in accepted:
        response.content_type = "application/json"
    return response


_DOCUMENT: Final = ProblemRenderer(_document)


def problem_middleware(
    *,
    challenge: str = "",
    finish: Callable[[web.Request, web.Response, Problem], None] | None = None,
) -> Middleware:
    """Return the middleware that turns every error into a problem document.

    `challenge` is the `WWW-Authenticate` field of a 401. `finish` is called with each error
    response before it is sent.
    """

    @web.middleware
    async def send_problems(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except ConnectionError:
            if not is_gone(request):
                raise  # part of a response may be sent: the server closes the connection
            return disconnected(request)
        except Exception as error:
            if _is_final(request, error):
                raise
            problem = describe_error(error, path=request.path, peer=request.remote)
            response = _render(request, error, problem)
        if challenge and problem.code is ErrorCode.UNAUTHENTICATED:
            response.headers["WWW-Authenticate"] = challenge
        if finish is not None:
            finish(request, response, problem)
        return await send_before_body(request, response)

    return send_problems


def _render(request: web.Request, error: Exception, problem: Problem) -> web.Response:
    renderer: ProblemRenderer = request.get(PROBLEM_RENDERER, _DOCUMENT)
    response = renderer.render(request, problem)
    if isinstance(error, web.HTTPException) and "Allow" in error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response


def is_gone(request: web.Request) -> bool:
    """Return whether the connection of a request is closed."""
    return request.transport is None or request.transport.is_closing()


def disconnected(request: web.Request) -> web.Response:
    """Log that the client of a request is gone, and return a response that cannot be sent."""
    log.info("client_disconnected", path=request.path, peer=request.remote)
    return web.Response()


def _is_final(request: web.Request, error: Exception) -> bool:
    """Return whether no problem document follows: a redirect, or a client that is gone."""
    if isinstance(error, web.RequestPayloadError):
        return is_gone(request)
    return isinstance(error, web.HTTPException) and error.status < 400  # noqa: PLR2004 - RFC 9110 section 15.5


def describe_error(error: Exception, *, path: str, peer: str | None) -> Problem:
    """Return the problem document of an error, and log what the document does not contain."""
    match error:
        case GateRefusal():
            _log_refusal(error, path, peer)
            return msgspec.structs.replace(problem_of(error.code, ""), detail=error.reason)
        case SluiceError():
            problem = problem_of(error.code, str(error))
            _log_error(error, problem, path, peer)
            return problem
        case web.RequestPayloadError():
            return problem_of(ErrorCode.BAD_REQUEST, "the request body is malformed")
        case web.HTTPException():
            _log_unknown_path(error, path, peer)
            return _framework_problem(error, path)
        case _:
            log.error("request_failed", path=path, exc_info=error)
            return problem_of(ErrorCode.INTERNAL, "internal error: see the log of this service")


def _log_error(error: SluiceError, problem: Problem, path: str, peer: str | None) -> None:
    """Log the reason where the response does not contain it, or where an operator must act."""
    if error.code in _REASONS_LOGGED:
        _log_refusal(error, path, peer)
    elif not isinstance(error, HttpRefusal) and problem.status >= 500:  # noqa: PLR2004
        code = error.code.value
        left_out = _UNAVAILABLE_LOGGED.left_out(code) if problem.status == _UNAVAILABLE else 0
        if left_out is not None:
            log.error("request_error", code=code, path=path, reason=str(error), left_out=left_out)


def _log_refusal(error: SluiceError, path: str, peer: str | None) -> None:
    log.info("request_refused", code=error.code.value, path=path, reason=str(error), peer=peer)


def _log_unknown_path(error: web.HTTPException, path: str, peer: str | None) -> None:
    """Log a path or a method that does not exist: a sender may have the wrong URL.

    A scanner tries many paths, so the first few of a minute are logged.
    """
    if error.status in _UNKNOWN_PATHS and _UNKNOWN_LOGGED.may_log():
        log.info("http_path_unknown", status=error.status, path=path[:128], peer=peer)


def _framework_problem(error: web.HTTPException, path: str) -> Problem:
    """Return the problem for a request that aiohttp refuses: unknown path or method, large body."""
    code = _FRAMEWORK_CODES.get(error.status, ErrorCode.BAD_REQUEST)
    reason = _FRAMEWORK_DETAILS.get(error.status, error.reason)
    if isinstance(error, UnknownPath) and error.nearest:
        reason += f", did you mean `{error.nearest}`?"
    return Problem(
        title=error.reason,
        status=error.status,
        detail=f"{reason}, path=`{path[:128]}`",
        code=code,
        retryable=False,
        effect=effect_of(code),
    )


POLL_S: Final = 0.2
"""How soon the work stops after the connection is closed."""


def while_connected(handler: Handler) -> Handler:
    """Return a handler that is cancelled when its client closes the connection."""

    async def run(request: web.Request) -> web.StreamResponse:
        task = asyncio.ensure_future(handler(request))
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=POLL_S)
                if not task.done() and is_gone(request):
                    await _cancel(task)
        except asyncio.CancelledError:
            await _cancel(task)
            raise
        if task.cancelled() or (is_gone(request) and task.exception() is not None):
            return disconnected(request)
        try:
            return task.result()
        finally:
            del task  # an error's traceback would keep it, and it the error

    return run


async def _cancel(task: "asyncio.Future[web.StreamResponse]") -> None:
    task.cancel()
    await asyncio.wait({task})
