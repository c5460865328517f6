"""`GET /v1/query`: queries over HTTP, with the results as streamed NDJSON."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from aiohttp import web
from multidict import MultiMapping

from sluice_protocol.manifests import Kind
from sluice_protocol.units import UnixNs
from sluice_query.answer import answer_lines
from sluice_query.request import (
    LIMIT_DEFAULT,
    LIMIT_MAX,
    Aggregate,
    Query,
    Series,
    parse_duration,
    parse_instant,
    parse_pair,
)
from sluice_query.search import Searcher
from sluice_query.settings import ServeSettings
from sluice_web.application import guarded_middlewares, make_application
from sluice_web.endpoints import Endpoint
from sluice_web.health import live_endpoint
from sluice_web.listening import listening, parse_listen, stop_event
from sluice_web.parameters import (
    ChoiceParameter,
    FlagParameter,
    IntegerParameter,
    Parameter,
    TextParameter,
    check_names,
)
from sluice_web.tokens import check_token_or_loopback

QUERIES_MAX: Final = 4
"""Queries that run concurrently; further ones wait."""
NDJSON: Final = "application/x-ndjson"
_CHUNK_BYTES: Final = 64 << 10
_KINDS: Final[Mapping[str, Kind]] = {"logs": "logs", "metrics": "metrics", "entries": "entries"}

_FROM: Final = TextParameter(name="from")
_TO: Final = TextParameter(name="to")
_TEXT: Final = TextParameter(name="q")
_REGEX: Final = FlagParameter(name="regex")
_IGNORE_CASE: Final = FlagParameter(name="ignore_case")
_KIND: Final = ChoiceParameter(name="kind", choices=tuple(_KINDS), default="logs")
_AGENTS: Final = TextParameter(name="agent", repeated=True)
_ATTRIBUTES: Final = TextParameter(name="attribute", repeated=True)
_STATS_ONLY: Final = FlagParameter(name="stats_only")
_LIMIT: Final = IntegerParameter(name="limit", default=LIMIT_DEFAULT, maximum=LIMIT_MAX)
_NEWEST_FIRST: Final = FlagParameter(name="newest_first")
_METRIC: Final = TextParameter(name="metric")
_STEP: Final = TextParameter(name="step")
_AGGREGATE: Final = ChoiceParameter(
    name="agg", choices=tuple(one.value for one in Aggregate), default="avg"
)
_BY_AGENT: Final = FlagParameter(name="by_agent")
PARAMETERS: Final[tuple[Parameter, ...]] = (
    *(_FROM, _TO, _TEXT, _REGEX, _IGNORE_CASE, _KIND, _AGENTS, _ATTRIBUTES, _STATS_ONLY),
    *(_LIMIT, _NEWEST_FIRST, _METRIC, _STEP, _AGGREGATE, _BY_AGENT),
)


def make_app(searcher: Searcher, api_token: str = "") -> web.Application:
    """Return the service over one searcher; a token guards it where it is not empty."""
    running = asyncio.Semaphore(QUERIES_MAX)

    async def send_results(request: web.Request) -> web.StreamResponse:
        query = parse_parameters(request.query, searcher.clock.now_ns())
        async with running:
            answer = await searcher.answer(query)
        response = web.StreamResponse(headers={"Content-Type": NDJSON})
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

    endpoint = Endpoint(
        method="GET",
        path="/v1/query",
        handler=send_results,
        summary="Return records or a series as NDJSON; the last line is a summary",
        parameters=PARAMETERS,
        result_type=NDJSON,
    )
    return make_application([endpoint, live_endpoint()], middlewares=guarded_middlewares(api_token))


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
    async with listening(make_app(searcher, settings.api_token), settings.listen) as urls:
        ready(urls[0])
        await stop.wait()


def parse_parameters(given: MultiMapping[str], now_ns: UnixNs) -> Query:
    """Return the query of URL parameters, which are named like the options of `sluice query`.

    Raises:
        BadUsage: A parameter is unknown, is repeated, or has another form.
    """
    check_names(given, PARAMETERS)
    metric = _METRIC.read(given)
    series = None
    if metric is not None:
        series = Series(
            metric=metric,
            step_ns=parse_duration(given.get("step", "1m")),
            aggregate=Aggregate(_AGGREGATE.read(given)),
            by_agent=_BY_AGENT.read(given),
        )
    return Query(
        from_ns=parse_instant(given.get("from", "1h"), now_ns),
        to_ns=parse_instant(given.get("to", "now"), now_ns),
        kind="metrics" if series else _KINDS[_KIND.read(given)],
        text=_TEXT.read(given),
        regex=_REGEX.read(given),
        ignore_case=_IGNORE_CASE.read(given),
        agents=tuple(given.getall("agent", [])),
        attributes=tuple(parse_pair(text) for text in given.getall("attribute", [])),
        stats_only=_STATS_ONLY.read(given),
        limit=_LIMIT.read(given),
        newest_first=_NEWEST_FIRST.read(given),
        series=series,
    )
