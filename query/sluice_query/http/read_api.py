"""The routes for records, views, traces, operations of services, and dead letters."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final

import msgspec
from aiohttp import web

from sluice_protocol.errors import BadUsage, ErrorCode, SluiceError
from sluice_protocol.meaning import plain_id
from sluice_protocol.units import UnixNs
from sluice_query.dead_letters import DeadLetterList, list_dead_letters
from sluice_query.http.responses import LateResponse, given_parameters, problem_line, read_endpoint
from sluice_query.http.runner import QueryRunner
from sluice_query.logql.completion import Suggestions, complete
from sluice_query.logql.expressions import LogQuery
from sluice_query.logql.grammar import TEXT_CHARS_MAX, parse_logql
from sluice_query.parameters import (
    CONTEXT,
    FIELDS,
    HISTOGRAM,
    METRICS,
    OPERATIONS,
    PARAMETERS,
    STREAMED,
    TRACE,
    VALUES,
    Given,
    parse_context,
    parse_fields,
    parse_histogram,
    parse_metrics,
    parse_operations,
    parse_query,
    parse_trace,
    parse_values,
)
from sluice_query.request import Query
from sluice_query.result import QueryResult, ViewResult, record_json, result_lines
from sluice_query.streaming import stream_lines, stream_search
from sluice_query.views import (
    FieldListResult,
    HistogramResult,
    MetricListResult,
    NeighboursResult,
    OperationsResult,
    TopValuesResult,
)
from sluice_web.endpoints import Endpoint
from sluice_web.json_bodies import JSON_TYPE, encode_json, json_response
from sluice_web.parameters import (
    AgentParameter,
    IntegerParameter,
    Parameter,
    TextParameter,
    check_names,
)
from sluice_web.problems import Handler, HttpRefusal

NDJSON: Final = "application/x-ndjson"


LIMIT_DEFAULT: Final = 100
LIMIT_MAX: Final = 500
_AGENT: Final = AgentParameter()
_LIMIT: Final = IntegerParameter(name="limit", default=LIMIT_DEFAULT, maximum=LIMIT_MAX)
_PARAMETERS: Final = (_AGENT, _LIMIT)

_LOGQL: Final = TextParameter(name="query", chars_max=TEXT_CHARS_MAX)
_CURSOR: Final = IntegerParameter(
    name="cursor", default=TEXT_CHARS_MAX, minimum=0, maximum=TEXT_CHARS_MAX
)

_Parse = Callable[[Given, UnixNs], Query]


class LogqlText(msgspec.Struct, frozen=True, kw_only=True):
    """What a text is in LogQL, and what can follow in it.

    Attributes:
        is_metric: Whether it computes series; false also for a text with an error.
        problem: Where the text is wrong and what to write instead; null if it is accepted.
        suggestions: What can follow at the cursor; null where nothing is known.
    """

    is_metric: bool = False
    problem: str | None = None
    suggestions: Suggestions | None


class ReadApi:
    """The endpoints that return records as NDJSON, what is computed from them, and dead letters."""

    def __init__(self, runner: QueryRunner) -> None:
        self._runner = runner

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints."""
        return (
            read_endpoint(
                path="/v1/query",
                handler=self._send_results,
                summary="Return records or a series as NDJSON; the last line is a summary",
                parameters=PARAMETERS,
                result_type=NDJSON,
            ),
            read_endpoint(
                path="/v1/query/stream",
                handler=self._send_stream,
                summary="Return the newest records first, as NDJSON, while the search runs",
                parameters=STREAMED,
                result_type=NDJSON,
            ),
            self._endpoint(
                "/v1/histogram",
                parse_histogram,
                HISTOGRAM,
                HistogramResult,
                "Return the number of records in each bucket of time",
            ),
            self._endpoint(
                "/v1/fields",
                parse_fields,
                FIELDS,
                FieldListResult,
                "Return the fields that records have",
            ),
            self._endpoint(
                "/v1/fields/values",
                parse_values,
                VALUES,
                TopValuesResult,
                "Return the most frequent values of a field",
            ),
            self._endpoint(
                "/v1/metrics",
                parse_metrics,
                METRICS,
                MetricListResult,
                "Return the metrics that have samples",
            ),
            self._endpoint(
                "/v1/context",
                parse_context,
                CONTEXT,
                NeighboursResult,
                "Return the records before and after a record",
            ),
            read_endpoint(
                path="/v1/logql",
                handler=self._describe_logql,
                summary="Return whether a LogQL text is accepted, and what can follow at a cursor",
                parameters=(_LOGQL, _CURSOR),
                result=LogqlText,
            ),
            read_endpoint(
                path="/v1/dead-letters",
                handler=self._list,
                summary="Return the batches that could not be ingested, and why",
                parameters=_PARAMETERS,
                result=DeadLetterList,
            ),
        )

    async def _send_results(self, request: web.Request) -> web.StreamResponse:
        query = parse_query(given_parameters(request), self._runner.searcher.clock.now_ns())
        result = await self._runner.search(query)
        response = LateResponse(request, {"Content-Type": NDJSON})
        for line in result_lines(result):
            await response.write(line)
        return await response.finish()

    async def _send_stream(self, request: web.Request) -> web.StreamResponse:
        searcher = self._runner.searcher
        query = parse_query(given_parameters(request), searcher.clock.now_ns(), known=STREAMED)
        query = replace(query, newest_first=True)
        response = LateResponse(request, {"Content-Type": NDJSON, "Cache-Control": "no-store"})
        # The engine reports the same limit in a line; that of `within` is for a slow client.
        limit_s = searcher.settings.time_s_max + 1.0
        async with self._runner.counted() as counted, response.within(limit_s):
            try:
                async with aclosing(stream_search(searcher, query)) as parts:
                    async for part in parts:
                        for line in stream_lines(query.kind, part):
                            await response.write(line)
                        await response.flush()
                        if part.summary is not None:
                            counted.finish(part.summary)
            except SluiceError as error:
                if not response.started:
                    raise
                await response.write(problem_line(response.problem(error)))
            return await response.finish()

    def _endpoint(
        self,
        path: str,
        parse: _Parse,
        parameters: Sequence[Parameter],
        result: type[ViewResult],
        summary: str,
    ) -> Endpoint:
        return read_endpoint(
            path=path,
            handler=self._handler(parse),
            summary=summary,
            parameters=parameters,
            result=result,
        )

    def _handler(self, parse: _Parse) -> Handler:
        async def send_view(request: web.Request) -> web.StreamResponse:
            query = parse(given_parameters(request), self._runner.searcher.clock.now_ns())
            result = await self._runner.search(query)
            return json_response(result.view)

        return send_view

    @staticmethod
    async def _describe_logql(request: web.Request) -> web.StreamResponse:
        check_names(request.query, (_LOGQL, _CURSOR))
        text = _LOGQL.read(request.query) or ""
        suggestions = complete(text, _CURSOR.read(request.query))
        try:
            is_metric = not isinstance(parse_logql(text or "{}"), LogQuery)
        except BadUsage as error:
            return json_response(LogqlText(problem=str(error), suggestions=suggestions))
        return json_response(LogqlText(is_metric=is_metric, suggestions=suggestions))

    async def _list(self, request: web.Request) -> web.StreamResponse:
        check_names(request.query, _PARAMETERS)
        agent, limit = _AGENT.read(request.query), _LIMIT.read(request.query)
        async with self._runner.running:
            found = await list_dead_letters(self._runner.searcher, agent, limit)
        return json_response(found)


_ID_SHOWN_CHARS: Final = 64
TRACE_BYTES_MAX: Final = 64 << 20
"""A page has the whole trace in memory; 100,000 plain spans are 47 MB of JSON."""


class TraceResult(ViewResult, frozen=True, kw_only=True):
    """The spans of one trace.

    Attributes:
        spans: The spans as `/v1/query` returns records, by their start.
        more: Whether there are further, later spans: more than the limit, or than 64 MiB.
    """

    trace_id: str
    spans: tuple[dict[str, Any], ...]
    more: bool


class TracesApi:
    """The endpoints of traces."""

    def __init__(self, runner: QueryRunner) -> None:
        self._runner = runner

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints."""
        return (
            read_endpoint(
                path="/v1/traces/{id}",
                handler=self._show_trace,
                summary="Return the spans of a trace by their start; 404 for an unknown one",
                parameters=TRACE,
                result=TraceResult,
            ),
            read_endpoint(
                path="/v1/operations",
                handler=self._list_operations,
                summary="Return the services and their operations, with errors and durations",
                parameters=OPERATIONS,
                result=OperationsResult,
            ),
        )

    async def _show_trace(self, request: web.Request) -> web.StreamResponse:
        trace_id = plain_id("trace_id", request.match_info["id"])
        now_ns = self._runner.searcher.clock.now_ns()
        found = await self._runner.search(parse_trace(trace_id, given_parameters(request), now_ns))
        if not found.records and not found.summary.partial:
            # An empty success would be drawn as a trace without spans.
            raise HttpRefusal(
                ErrorCode.NOT_FOUND,
                "no span of this trace: check the id, or `from` and `to` if they are given,"
                f" trace_id=`{trace_id[:_ID_SHOWN_CHARS]}`",
            )
        # Encoding 100,000 spans takes seconds, during which other clients are served.
        body = await asyncio.to_thread(_encode_trace, trace_id, found)
        return web.Response(body=body, content_type=JSON_TYPE)

    async def _list_operations(self, request: web.Request) -> web.StreamResponse:
        now_ns = self._runner.searcher.clock.now_ns()
        found = await self._runner.search(parse_operations(given_parameters(request), now_ns))
        return json_response(found.view)


def _encode_trace(trace_id: str, found: QueryResult) -> bytes:
    """Return the JSON of a `TraceResult`, with as many spans as fit; at least one."""
    spans: list[Any] = []
    room = TRACE_BYTES_MAX
    for row in found.records:
        span = encode_json(record_json("spans", row))
        room -= len(span) + 1
        if room < 0 and spans:
            break
        spans.append(msgspec.Raw(span))
    more = found.summary.more or len(spans) < len(found.records)
    summary = replace(found.summary, results=len(spans), more=more)
    return encode_json(
        TraceResult(trace_id=trace_id, spans=tuple(spans), more=more, summary=summary)
    )
