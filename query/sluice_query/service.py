"""`GET /v1/query`: queries over HTTP, with results as streamed NDJSON."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from aiohttp import web

from sluice_protocol.errors import (
    BadUsage,
    ErrorCode,
    SluiceError,
    effect_of,
    retryable,
    status_of,
)
from sluice_protocol.services import check_open, holds_token, parse_listen
from sluice_query.parameters import parse_query
from sluice_query.result import result_lines
from sluice_query.search import Searcher
from sluice_query.settings import ServeSettings

QUERIES_MAX: Final = 4
"""Queries that run concurrently; further queries wait."""
_SEARCHER: Final = web.AppKey("searcher", Searcher)
_TOKEN: Final = web.AppKey("token", str)
_GATE: Final = web.AppKey("gate", asyncio.Semaphore)
_CHUNK_BYTES: Final = 64 << 10


def make_app(searcher: Searcher, api_token: str = "") -> web.Application:
    """Return the service of one searcher, for callers with the token."""
    app = web.Application(middlewares=[_problems])
    app[_SEARCHER] = searcher
    app[_TOKEN] = api_token
    app[_GATE] = asyncio.Semaphore(QUERIES_MAX)
    app.router.add_get("/v1/query", _query)
    app.router.add_get("/livez", _live)
    return app


async def serve_queries(
    searcher: Searcher, settings: ServeSettings, ready: Callable[[str], None]
) -> None:
    """Serve until SIGTERM or SIGINT; call `ready` with the URL when the service listens.

    Raises:
        BadUsage: The address is malformed, cannot be used, or is no loopback address and there is
            no token.
    """
    host, port = parse_listen(settings.listen)
    check_open(host, settings.api_token)
    app = make_app(searcher, settings.api_token)
    runner = web.AppRunner(app, handle_signals=False, auto_decompress=False)
    await runner.setup()
    try:
        await _start(web.TCPSite(runner, host, port), settings.listen)
        address = runner.addresses[0]
        ready(f"http://{address[0]}:{address[1]}")
        await _until_told()
    finally:
        await runner.cleanup()


async def _start(site: web.TCPSite, listen: str) -> None:
    try:
        await site.start()
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadUsage(f"cannot listen there: {reason}, listen=`{listen}`") from error


async def _until_told() -> None:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    await told.wait()


async def _live(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def _query(request: web.Request) -> web.StreamResponse:
    searcher = request.app[_SEARCHER]
    given = {name: request.query.getall(name) for name in request.query}
    query = parse_query(given, searcher.clock.now_ns())
    async with request.app[_GATE]:
        result = await searcher.search(query)
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    await response.prepare(request)
    chunk = bytearray()
    for line in result_lines(result):
        chunk += line
        if len(chunk) >= _CHUNK_BYTES:
            await response.write(bytes(chunk))
            chunk.clear()
    await response.write(bytes(chunk))
    await response.write_eof()
    return response


@web.middleware
async def _problems(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    given = request.headers.get("Authorization", "")
    try:
        if request.path.startswith("/v1/") and not holds_token(given, request.app[_TOKEN]):
            return _problem(ErrorCode.UNAUTHENTICATED, "send the token as `Authorization: Bearer`")
        return await handler(request)
    except SluiceError as error:
        return _problem(error.code, str(error))


def _problem(code: ErrorCode, detail: str) -> web.Response:
    body = {
        "type": "about:blank",
        "title": code.value.replace("_", " "),
        "status": status_of(code),
        "detail": detail,
        "code": code.value,
        "retryable": retryable(code),
        "effect": effect_of(code).value,
    }
    return web.Response(
        status=status_of(code),
        body=msgspec.json.encode(body),
        content_type="application/problem+json",
        headers={"WWW-Authenticate": "Bearer"} if code is ErrorCode.UNAUTHENTICATED else None,
    )
