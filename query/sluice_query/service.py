"""`GET /v1/query`: the same questions over HTTP, answered as streamed NDJSON."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
from aiohttp import web
from multidict import MultiMapping

from sluice_protocol.errors import (
    BadUsage,
    ErrorCode,
    SluiceError,
    effect_of,
    retryable,
    status_of,
)
from sluice_protocol.manifests import Kind
from sluice_protocol.services import check_open, holds_token, parse_listen
from sluice_protocol.units import UnixNs
from sluice_query.answer import answer_lines
from sluice_query.request import (
    LIMIT_DEFAULT,
    Aggregate,
    Query,
    Series,
    parse_duration,
    parse_instant,
    parse_pair,
)
from sluice_query.search import Searcher
from sluice_query.settings import ServeSettings

QUERIES_MAX: Final = 4
"""Queries that run at once; what is more waits."""
_SEARCHER: Final = web.AppKey("searcher", Searcher)
_TOKEN: Final = web.AppKey("token", str)
_GATE: Final = web.AppKey("gate", asyncio.Semaphore)
_CHUNK_BYTES: Final = 64 << 10
_KINDS: Final[Mapping[str, Kind]] = {"logs": "logs", "metrics": "metrics", "entries": "entries"}
_KNOWN: Final = frozenset(
    {"from", "to", "q", "regex", "ignore_case", "kind", "agent", "attribute", "stats_only"}
    | {"limit", "newest_first", "metric", "step", "agg", "by_agent"}
)


def make_app(searcher: Searcher, api_token: str = "") -> web.Application:
    """Gives the service over one searcher, for those who hold the token."""
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
    """Serves until SIGTERM or SIGINT; `ready` is told the URL once it listens.

    Raises:
        BadUsage: The address has another form, cannot be used, or is open to others without a
            token.
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
    question = parse_parameters(request.query, searcher.clock.now_ns())
    async with request.app[_GATE]:
        answer = await searcher.answer(question)
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    await response.prepare(request)
    chunk = bytearray()
    for line in answer_lines(answer):
        chunk += line
        if len(chunk) >= _CHUNK_BYTES:
            await response.write(bytes(chunk))
            chunk.clear()
    await response.write(bytes(chunk))
    await response.write_eof()
    return response


def parse_parameters(given: MultiMapping[str], now_ns: UnixNs) -> Query:
    """Gives the query that URL parameters mean; they are named as the command's options.

    Raises:
        BadUsage: A parameter is unknown, stands twice, or has another form.
    """
    _check_names(given)
    series = None
    if "metric" in given:
        series = Series(
            metric=given["metric"],
            step_ns=parse_duration(given.get("step", "1m")),
            aggregate=_aggregate(given.get("agg", "avg")),
            by_agent=_flag(given, "by_agent"),
        )
    return Query(
        from_ns=parse_instant(given.get("from", "1h"), now_ns),
        to_ns=parse_instant(given.get("to", "now"), now_ns),
        kind="metrics" if series else _kind(given.get("kind", "logs")),
        text=given.get("q"),
        regex=_flag(given, "regex"),
        ignore_case=_flag(given, "ignore_case"),
        agents=tuple(given.getall("agent", [])),
        attributes=tuple(parse_pair(text) for text in given.getall("attribute", [])),
        stats_only=_flag(given, "stats_only"),
        limit=_limit(given.get("limit", str(LIMIT_DEFAULT))),
        newest_first=_flag(given, "newest_first"),
        series=series,
    )


def _check_names(given: MultiMapping[str]) -> None:
    for name in given:
        if name not in _KNOWN:
            raise BadUsage(f"there is no such parameter, parameter=`{name[:40]}`")
        if name not in ("agent", "attribute") and len(given.getall(name)) > 1:
            raise BadUsage(f"parameter stands twice, parameter=`{name}`")


def _flag(given: MultiMapping[str], name: str) -> bool:
    value = given.get(name, "false")
    if value not in ("true", "false", "1", "0", ""):
        raise BadUsage(f"{name} must be true or false, {name}=`{value[:40]}`")
    return value in ("true", "1", "")


def _kind(text: str) -> Kind:
    if text not in _KINDS:
        raise BadUsage(f"kind must be logs, metrics or entries, kind=`{text[:40]}`")
    return _KINDS[text]


def _aggregate(text: str) -> Aggregate:
    try:
        return Aggregate(text)
    except ValueError as error:
        raise BadUsage(f"agg must be one of {', '.join(Aggregate)}, agg=`{text[:40]}`") from error


def _limit(text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise BadUsage(f"limit must be a number, limit=`{text[:40]}`")
    return int(text[:10])


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
