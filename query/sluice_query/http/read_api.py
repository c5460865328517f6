"""The routes for records (`/v1/query`, `/v1/query/stream`), views and dead letters."""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Final

import msgspec
from aiohttp import web

from sluice_protocol.errors import BadUsage, SluiceError
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
    PARAMETERS,
    STREAMED,
    VALUES,
    Given,
    parse_context,
    parse_fields,
    parse_histogram,
    parse_metrics,
    parse_query,
    parse_values,
)
from sluice_query.request import Query
from sluice_query.result import ViewResult, result_lines
from sluice_query.streaming import stream_lines, stream_search
from sluice_query.views import (
    FieldListResult,
    HistogramResult,
    MetricListResult,
    NeighboursResult,
    TopValuesResult,
)
from sluice_web.endpoints import Endpoint
from sluice_web.json_bodies import json_response
from sluice_web.parameters import (
    AgentParameter,
    IntegerParameter,
    Parameter,
    TextParameter,
    check_names,
)
from sluice_web.problems import Handler

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
