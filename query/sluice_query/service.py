"""`GET /v1/query`: queries over HTTP, with the results as streamed NDJSON; and the deletes."""

import asyncio
from collections.abc import Callable
from typing import Final

from aiohttp import web

from sluice_protocol.system_clock import SystemIds
from sluice_query.deletes import Deletes
from sluice_query.deletes_api import DeletesApi
from sluice_query.metrics import QueryMetrics
from sluice_query.parameters import PARAMETERS, parse_query
from sluice_query.request import Query
from sluice_query.result import QueryResult, result_lines
from sluice_query.search import Searcher
from sluice_query.settings import ServeSettings
from sluice_web.addresses import parse_allowed_hosts, parse_listen
from sluice_web.application import guarded_middlewares, make_application
from sluice_web.endpoints import Endpoint
from sluice_web.health import live_endpoint, metrics_endpoint
from sluice_web.listening import listening, stop_event
from sluice_web.tokens import check_token_or_loopback, parse_operators

QUERIES_MAX: Final = 4
"""Queries that run concurrently; further ones wait."""
NDJSON: Final = "application/x-ndjson"
_CHUNK_BYTES: Final = 64 << 10


def make_app(searcher: Searcher, settings: ServeSettings) -> web.Application:
    """Return the service over one searcher."""
    running = asyncio.Semaphore(QUERIES_MAX)
    metrics = QueryMetrics()
    operators = parse_operators(settings.operators)

    async def search(query: Query) -> QueryResult:
        outcome = "failed"
        try:
            async with running:
                result = await searcher.search(query)
            outcome = "partial" if result.summary.partial else "complete"
        finally:
            metrics.requests.labels(outcome).inc()
        metrics.read_bytes.inc(result.summary.bytes_read)
        return result

    async def send_results(request: web.Request) -> web.StreamResponse:
        given = {name: request.query.getall(name) for name in request.query}
        query = parse_query(given, searcher.clock.now_ns())
        with metrics.running.track_inprogress(), metrics.seconds.time():
            result = await search(query)
        response = web.StreamResponse(headers={"Content-Type": NDJSON})
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

    endpoint = Endpoint(
        method="GET",
        path="/v1/query",
        handler=send_results,
        summary="Return records or a series as NDJSON; the last line is a summary",
        parameters=PARAMETERS,
        result_type=NDJSON,
    )
    deletes = Deletes(
        searcher=searcher, run=search, running=running, clock=searcher.clock, ids=SystemIds()
    )
    return make_application(
        [
            endpoint,
            *DeletesApi(deletes, operators).endpoints(),
            live_endpoint(),
            metrics_endpoint(metrics.registry),
        ],
        middlewares=guarded_middlewares(settings.api_token, operators),
        title="sluice query",
        allowed_hosts=parse_allowed_hosts(settings.allowed_hosts),
    )


async def serve_queries(
    searcher: Searcher, settings: ServeSettings, ready: Callable[[str], None]
) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        searcher: The searcher.
        settings: The address and the token.
        ready: Called with the URL when the service listens.

    Raises:
        BadUsage: The address has another form or cannot be bound, or listens beyond this machine
            without a token.
    """
    host, _ = parse_listen(settings.listen)
    check_token_or_loopback(host, settings.api_token)
    stop = stop_event()
    async with listening(make_app(searcher, settings), settings.listen) as urls:
        ready(urls[0])
        await stop.wait()
