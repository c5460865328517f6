"""The operator API: what the reconciler knows, events for it, and its queues over HTTP."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Final

import msgspec
import structlog
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from sluice_protocol.errors import BadUsage, ErrorCode, SluiceError, status_of
from sluice_protocol.errors import effect_of as effect
from sluice_protocol.errors import retryable as may_retry
from sluice_protocol.services import holds_token
from sluice_queue.inspection import read_status
from sluice_reconciler.completeness import BootReport
from sluice_reconciler.events import parse_counted_events
from sluice_reconciler.http_queue import HttpQueue
from sluice_reconciler.openapi import OPENAPI
from sluice_reconciler.operator import Operator, number_of
from sluice_reconciler.service import Reconciler
from sluice_reconciler.verify import list_hold_records

log = structlog.get_logger()

RECONCILER: Final = web.AppKey("reconciler", Reconciler)
OPERATOR: Final = web.AppKey("operator", Operator)
BODY_BYTES_MAX: Final = 4 * 1024 * 1024
LISTED_MAX: Final = 1000
LIVE_LINES_MAX: Final = 10_000
LIVE_WAIT_S_MAX: Final = 30

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Leases(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of commit, failed and heartbeat."""

    lease_ids: list[str]
    queue: str | None = None


def make_app(reconciler: Reconciler) -> web.Application:
    """Gives the operator API around a reconciler that runs as long as the application."""
    app = web.Application(middlewares=[_guarded], client_max_size=BODY_BYTES_MAX)
    app[RECONCILER] = reconciler
    app[OPERATOR] = Operator(reconciler.store)
    app.cleanup_ctx.append(_runs)
    app.router.add_routes(
        [
            web.get("/livez", _livez),
            web.get("/readyz", _readyz),
            web.get("/metrics", _metrics),
            web.get("/openapi.json", _openapi),
            web.get("/v1/agents", _agents),
            web.get("/v1/gaps", _gaps),
            web.get("/v1/unhealthy", _unhealthy),
            web.get("/v1/conflicts", _answered(Operator.conflicts)),
            web.get("/v1/conflicts/{id}", _answered(Operator.conflict)),
            web.post("/v1/conflicts/{id}/resolve", _answered(Operator.resolve)),
            web.get("/v1/audits", _answered(Operator.audits)),
            web.get("/v1/gc/plans", _answered(Operator.plans)),
            web.get("/v1/live", _live),
            web.post("/v1/events", _events),
            web.get("/v1/queue", _queue),
            web.get("/v1/queue/next", _next),
            web.post("/v1/queue/commit", _commit),
            web.post("/v1/queue/failed", _failed),
            web.post("/v1/queue/heartbeat", _heartbeat),
        ]
    )
    return app


async def _runs(app: web.Application) -> AsyncIterator[None]:
    task = asyncio.create_task(_watched(app[RECONCILER]))
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _watched(reconciler: Reconciler) -> None:
    """Runs the work; if it ends, `/livez` says so and whoever watches the process restarts it."""
    try:
        await reconciler.run()
    except Exception:
        reconciler.health.ended = True
        log.exception("the reconciler's work ended: restart it and report this")


@web.middleware
async def _guarded(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Lets in who may, and turns errors into problem documents (RFC 9457)."""
    token = request.app[RECONCILER].settings.api_token
    given = request.headers.get("Authorization", "")
    if request.path.startswith("/v1/") and not holds_token(given, token):
        return _problem(ErrorCode.UNAUTHENTICATED, "authentication failed")
    try:
        return await handler(request)
    except SluiceError as error:
        return _problem(error.code, str(error))
    except web.HTTPException as error:
        return _refused(error)


def _refused(error: web.HTTPException) -> web.Response:
    """Gives what the framework itself refuses: no such path or method, a body too large."""
    codes = {404: ErrorCode.NOT_FOUND, 413: ErrorCode.TOO_LARGE}
    body = _problem_body(codes.get(error.status, ErrorCode.BAD_REQUEST), error.reason or "")
    headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
    return web.Response(
        body=msgspec.json.encode(body | {"status": error.status}),
        status=error.status,
        content_type="application/problem+json",
        headers=headers,
    )


def _problem_body(code: ErrorCode, detail: str) -> dict[str, object]:
    return {
        "type": "about:blank",
        "title": code.value.replace("_", " "),
        "status": status_of(code),
        "detail": detail,
        "code": code.value,
        "retryable": may_retry(code),
        "effect": effect(code).value,
    }


def _problem(code: ErrorCode, detail: str) -> web.Response:
    headers = {"Retry-After": "1"} if status_of(code) == 503 else {}  # noqa: PLR2004 - RFC 9110
    return web.Response(
        body=msgspec.json.encode(_problem_body(code, detail)),
        status=status_of(code),
        content_type="application/problem+json",
        headers=headers,
    )


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


async def _livez(request: web.Request) -> web.Response:
    if request.app[RECONCILER].health.ended:
        return web.Response(text="the work ended\n", status=503)
    return web.Response(text="ok\n")


async def _readyz(request: web.Request) -> web.Response:
    health = request.app[RECONCILER].health
    body = {"ready": health.ready, "passes": health.passes, "failures": health.failures}
    return web.json_response(body, status=200 if health.ready else 503)


async def _metrics(request: web.Request) -> web.Response:
    body = generate_latest(request.app[RECONCILER].metrics.registry)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _openapi(_request: web.Request) -> web.Response:
    return _json(OPENAPI)


def _boots(request: web.Request) -> list[BootReport]:
    """Gives the boots of the last full pass, of one agent or of all."""
    last, agent = request.app[RECONCILER].health.last, request.query.get("agent")
    boots = last.boots if last is not None else ()
    return [boot for boot in boots if agent in (None, boot.agent_id)]


async def _agents(request: web.Request) -> web.Response:
    return _json({"boots": _boots(request)})


async def _gaps(request: web.Request) -> web.Response:
    return _json({"boots": [boot for boot in _boots(request) if boot.gaps or boot.overlaps]})


async def _unhealthy(request: web.Request) -> web.Response:
    store = request.app[RECONCILER].store
    found = []
    async for mark in list_hold_records(store):
        found.append(mark)
        if len(found) >= LISTED_MAX:
            break
    return _json({"marks": found, "partial": len(found) >= LISTED_MAX})


def _answered(ask: Callable[[Operator, web.Request], Awaitable[object]]) -> _Handler:
    async def handler(request: web.Request) -> web.Response:
        return _json(await ask(request.app[OPERATOR], request))

    return handler


async def _live(request: web.Request) -> web.Response:
    """Gives recent records as NDJSON, a summary in the last line; waits for new ones if asked."""
    live = request.app[RECONCILER].live
    agent, after = request.query.get("agent"), request.query.get("after")
    limit = number_of(request, "limit", LISTED_MAX, LIVE_LINES_MAX)
    wait_s = number_of(request, "wait", 1, LIVE_WAIT_S_MAX) if "wait" in request.query else 0
    seen = await live.view(agent_id=agent, after=after, limit=limit, wait_s=wait_s)
    summary = {"partial": seen.partial, "reasons": seen.reasons, "next": seen.next}
    last = msgspec.json.encode({"summary": summary | {"more": seen.more}})
    body = b"".join(line + b"\n" for line in (*seen.lines, last))
    return web.Response(body=body, content_type="application/x-ndjson")


async def _events(request: web.Request) -> web.Response:
    """Takes an object event as a hint; the store is read for what it names."""
    reconciler = request.app[RECONCILER]
    hints = parse_counted_events(await request.read(), reconciler.metrics)
    taken = reconciler.hint(hints.keys)
    return _json({"taken": taken, "foreign": hints.foreign})


async def _queue(request: web.Request) -> web.Response:
    store = request.app[RECONCILER].store
    return _json({"lanes": await read_status(store, request.query.get("queue"))})


def _served(request: web.Request, name: str | None) -> HttpQueue:
    """Gives the queue that a consumer means; with one queue it need not say which."""
    queues = request.app[RECONCILER].http_queues
    if name is None and len(queues) == 1:
        return next(iter(queues.values()))
    if name not in queues:
        known = ", ".join(queues) or "none; set http_queues"
        raise BadUsage(f"no such queue over HTTP, queue=`{name}`, known=`{known}`")
    return queues[name]


async def _next(request: web.Request) -> web.Response:
    count = request.query.get("max", "1")
    if not count.isdecimal():
        raise BadUsage(f"max must be a number, max=`{count}`")
    queue = _served(request, request.query.get("queue"))
    claims = await queue.claim(int(count), request.query.get("consumer", ""))
    return _json({"queue": queue.queue, "entries": claims})


async def _leases(request: web.Request) -> tuple[HttpQueue, list[str]]:
    try:
        body = msgspec.json.decode(await request.read(), type=Leases)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadUsage(f"the body names leases: {error}") from error
    return _served(request, body.queue), body.lease_ids


async def _commit(request: web.Request) -> web.Response:
    queue, lease_ids = await _leases(request)
    return _json({"committed": await queue.commit(lease_ids)})


async def _failed(request: web.Request) -> web.Response:
    queue, lease_ids = await _leases(request)
    await queue.fail(lease_ids)
    return _json({"returned": len(lease_ids)})


async def _heartbeat(request: web.Request) -> web.Response:
    queue, lease_ids = await _leases(request)
    await queue.extend(lease_ids)
    return _json({"extended": len(lease_ids)})
