"""The routes of Loki that read: records, series, labels, fields and forms of lines.

Every answer is computed by the query that `sluice query` would run for the same question: values
of a label are the series of `sum by (label) (count_over_time(…))`. An error has Loki's form: its
status, and the reason as text.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from aiohttp import web

from sluice_protocol.errors import BadUsage
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_query.following import newest_of
from sluice_query.http.responses import given_with_form
from sluice_query.http.runner import QueryRunner
from sluice_query.http.tail_api import TailApi
from sluice_query.logql.expressions import (
    Grouping,
    LogQuery,
    MetricQuery,
    RangeAggregation,
    RangeOperator,
    VectorAggregation,
    VectorOperator,
)
from sluice_query.logql.formatting import format_logql
from sluice_query.logql.grammar import parse_logql
from sluice_query.logql.planning import plan_question
from sluice_query.logql.stages import split_conditions
from sluice_query.logql.vectors import SERIES_MAX
from sluice_query.loki.answers import (
    CATEGORIZED,
    STREAM_FIELDS,
    by_size,
    detected_fields,
    detected_labels_json,
    matrix_json,
    patterns_json,
    stream_labels,
    streams_json,
    success,
    vector_json,
    with_warnings,
)
from sluice_query.loki.parameters import LokiParameters, log_part
from sluice_query.request import FieldList, LinePatterns, Query, check_query, choose_width
from sluice_query.result import LabelledSeries, QueryResult
from sluice_query.views import FieldListResult, LinePatternsResult
from sluice_web.endpoints import Endpoint
from sluice_web.json_bodies import encode_json, json_response
from sluice_web.problems import PROBLEM_RENDERER, Problem, ProblemRenderer, while_connected

PREFIX: Final = "/loki/api/v1"
VERSION: Final = "3.5.0"
"""The version of Loki whose routes these are; Drilldown wants 3.2 or later."""
CATEGORIZE_HEADER: Final = "X-Loki-Response-Encoding-Flags"
LINES_SAMPLED: Final = 1_000
"""Records whose fields are detected, unless the client wants another number."""
FIELDS_MAX: Final = 1_000
VOLUME_LIMIT: Final = 100
PATTERN_STEPS: Final = 100
_HEARTBEAT_S: Final = 10.0
_HEALTH_CHECK: Final = "vector(1)+vector(1)"
"""The question that Grafana sends when a data source is saved."""

_Answer = Callable[[LokiParameters, web.Request], Awaitable[dict[str, object]]]


class LokiApi:
    """The endpoints, each for `GET` and for `POST` with a form."""

    def __init__(self, runner: QueryRunner, tail: TailApi, tail_s_max: float) -> None:
        self._runner = runner
        self._tail = tail
        self._tail_s_max = tail_s_max

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints; Grafana 12.3 repeats the prefix in some of its requests."""
        routes: Mapping[str, tuple[_Answer, str]] = {
            "query_range": (self._query_range, "records, or series over a range, in Loki's form"),
            "query": (self._query, "the series of a metric query at one time, in Loki's form"),
            "labels": (self._labels, "the labels of streams"),
            "label": (self._labels, "the labels of streams"),
            "label/{name}/values": (self._values, "the values of a label"),
            "series": (self._series, "the streams that selectors find"),
            "index/stats": (self._stats, "how much a query reads"),
            "index/volume": (self._volume, "the bytes of lines by label"),
            "index/volume_range": (self._volume_range, "the bytes of lines by label over time"),
            "detected_labels": (self._detected_labels, "labels with the number of their values"),
            "detected_fields": (self._detected_fields, "the fields of a sample of records"),
            "detected_field/{name}/values": (self._field_values, "the values of such a field"),
            "patterns": (self._patterns, "the forms of lines"),
            "format_query": (self._format, "a question in its usual form"),
            "drilldown-limits": (_limits, "what Drilldown may ask for"),
            "config": (_limits, "what Drilldown may ask for"),
            "status/buildinfo": (_buildinfo, "the version of Loki whose routes these are"),
        }
        tails = tuple(
            Endpoint(
                method="GET",
                path=f"{prefix}/tail",
                handler=self._send_tail,
                summary="Send new records over a WebSocket",
                described=prefix == PREFIX,
            )
            for prefix in (PREFIX, PREFIX * 2)
        )
        return tails + tuple(
            Endpoint(
                method=method,
                path=f"{prefix}/{path}",
                handler=while_connected(self._handler(answer)),
                summary=f"Return {summary}",
                described=method == "GET" and prefix == PREFIX,
                result=dict[str, Any],
                reads=True,
            )
            for path, (answer, summary) in routes.items()
            for prefix in (PREFIX, PREFIX * 2)
            for method in ("GET", "POST")
        )

    def _handler(self, answer: _Answer) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def send(request: web.Request) -> web.StreamResponse:
            request[PROBLEM_RENDERER] = _REFUSALS
            return json_response(await answer(await self._parameters(request), request))

        return send

    async def _parameters(self, request: web.Request) -> LokiParameters:
        given = await given_with_form(request)
        return LokiParameters(given=given, now_ns=self._runner.searcher.clock.now_ns())

    async def _query_range(self, given: LokiParameters, request: web.Request) -> dict[str, object]:
        question = parse_logql(given.text("query"))
        if given.optional("interval").strip("0smhd"):
            raise BadUsage("interval is not supported: omit it, or write a metric query")
        if not isinstance(question, LogQuery):
            found = await self._runner.search(_over(question, given.range(), given.step_ns()))
            return success(matrix_json(found.series), [found.summary])
        found = await self._runner.search(given.records(question, given.limit()))
        flags = request.headers.get(CATEGORIZE_HEADER, "")
        categorized = CATEGORIZED in (one.strip() for one in flags.split(","))
        data: dict[str, object] = {
            "resultType": "streams",
            "result": streams_json(found.records, categorized=categorized),
        }
        if categorized:
            data["encodingFlags"] = [CATEGORIZED]
        # A limit is what the client wanted, so further records are no reason for a warning.
        return success(data, [replace(found.summary, more=False)])

    async def _query(self, given: LokiParameters, request: web.Request) -> dict[str, object]:
        del request
        text = given.text("query")
        if "".join(text.split()) == _HEALTH_CHECK:
            two = LabelledSeries(labels={}, points=[(given.time(), 2.0)])
            return success(vector_json([two]))
        question = parse_logql(text)
        if isinstance(question, LogQuery):
            raise BadUsage(
                "a log query has no value at one time: use query_range, or write a metric query"
                " such as `sum(count_over_time({} [5m]))`"
            )
        found = await self._runner.search(_at(question, given.time()))
        return success(vector_json(found.series), [found.summary])

    async def _send_tail(self, request: web.Request) -> web.StreamResponse:
        request[PROBLEM_RENDERER] = _REFUSALS
        given = await self._parameters(request)
        question = parse_logql(given.text("query"))
        if not isinstance(question, LogQuery):
            raise BadUsage("query must be a log query: a metric query cannot be followed")
        query = replace(given.records(question, given.limit()), newest_first=False)
        async with self._tail.following(query) as groups:
            socket = web.WebSocketResponse(heartbeat=_HEARTBEAT_S)
            await socket.prepare(request)
            with suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(self._tail_s_max):
                    await _send_groups(socket, query, groups)
            await socket.close()
        return socket

    # Labels

    async def _fields(self, given: LokiParameters, selected: LogQuery) -> QueryResult:
        query = given.selection(LogQuery(selected.matchers))
        return await self._runner.search(replace(query, view=FieldList()))

    async def _labels(self, given: LokiParameters, request: web.Request) -> dict[str, object]:
        del request
        found = await self._fields(given, given.selector())
        return success(sorted(stream_labels(_listed(found))), [found.summary])

    async def _values(self, given: LokiParameters, request: web.Request) -> dict[str, object]:
        name = _label_name(request)
        found = await self._counted(given, given.selector(), [name])
        values = sorted(one.labels[name] for one in found.series if name in one.labels)
        return success(values, [found.summary])

    async def _series(self, given: LokiParameters, request: web.Request) -> dict[str, object]:
        del request
        texts = given.texts("match[]", "match") or ("{}",)
        labels: list[Mapping[str, str]] = []
        summaries = []
        for text in texts:
            selected = log_part(text)
            listed = await self._fields(given, selected)
            names = [*stream_labels(_listed(listed))]
            found = await self._counted(given, selected, names)
            labels += [one.labels for one in found.series if one.labels not in labels]
            summaries += [listed.summary, found.summary]
        return success(labels, summaries)

    async def _detected_labels(
        self, given: LokiParameters, request: web.Request
    ) -> dict[str, object]:
        del request
        found = await self._fields(given, given.selector())
        listed = detected_labels_json(stream_labels(_listed(found)))
        return {"detectedLabels": listed} | with_warnings([found.summary])

    # Numbers of records and bytes

    async def _counted(
        self,
        given: LokiParameters,
        selected: LogQuery,
        names: Sequence[str],
        operator: RangeOperator = RangeOperator.COUNT,
    ) -> QueryResult:
        """Return the records, or the bytes of their lines, of the whole range by labels."""
        from_ns, to_ns = given.range()
        question = _summed(selected, names, operator, max(to_ns - from_ns, 1))
        # A range contains its end and not its start, a request its start and not its end.
        return await self._runner.search(_at(question, UnixNs(to_ns - 1)))

    async def _stats(self, given: LokiParameters, request: web.Request) -> dict[str, object]:
        del request
        selected = log_part(given.text("query"))
        found = await self._counted(given, selected, STREAM_FIELDS)
        return {
            "streams": len(found.series),
            "chunks": found.summary.segments_read + found.summary.waiting_batches,
            "entries": int(sum(one.points[-1][1] for one in found.series)),
            "bytes": found.summary.bytes_read,
        } | with_warnings([found.summary])

    async def _volume(self, given: LokiParameters, request: web.Request) -> dict[str, object]:
        del request
        selected, names = _volume_of(given)
        found = await self._counted(given, selected, names, RangeOperator.BYTES)
        largest = by_size(found.series, given.limit(default=VOLUME_LIMIT))
        return success(vector_json(largest), [found.summary])

    async def _volume_range(self, given: LokiParameters, request: web.Request) -> dict[str, object]:
        del request
        selected, names = _volume_of(given)
        from_ns, to_ns = given.range()
        step_ns = given.step_ns() or choose_width(from_ns, to_ns, PATTERN_STEPS)
        question = _summed(selected, names, RangeOperator.BYTES, step_ns)
        # A value is of the step that ends at its time, so the first is one step after the start.
        ends = UnixNs(from_ns + step_ns), UnixNs(to_ns + step_ns - 1)
        found = await self._runner.search(_over(question, ends, step_ns))
        largest = by_size(found.series, given.limit(default=VOLUME_LIMIT))
        return success(matrix_json(largest), [found.summary])

    # Fields and forms of lines

    async def _sample(self, given: LokiParameters) -> QueryResult:
        lines = given.limit("line_limit", LINES_SAMPLED)
        question = _without_parsers(log_part(given.text("query")))
        return await self._runner.search(given.records(question, min(lines, LINES_SAMPLED)))

    async def _detected_fields(
        self, given: LokiParameters, request: web.Request
    ) -> dict[str, object]:
        del request
        found = await self._sample(given)
        limit = given.limit("field_limit" if given.optional("field_limit") else "limit", FIELDS_MAX)
        fields = detected_fields(found.records)
        shown = [fields[name].describe(name) for name in sorted(fields)[:limit]]
        summary = replace(found.summary, more=False)
        return {"fields": shown, "limit": limit} | with_warnings([summary])

    async def _field_values(self, given: LokiParameters, request: web.Request) -> dict[str, object]:
        found = await self._sample(given)
        limit = given.limit(default=FIELDS_MAX)
        field = detected_fields(found.records).get(_label_name(request))
        values = [] if field is None else [one for one, _ in field.values.most_common(limit)]
        summary = replace(found.summary, more=False)
        return {"values": values, "limit": limit} | with_warnings([summary])

    async def _patterns(self, given: LokiParameters, request: web.Request) -> dict[str, object]:
        del request
        from_ns, to_ns = given.range()
        step_ns = given.step_ns() or choose_width(from_ns, to_ns, PATTERN_STEPS)
        query = given.selection(_without_parsers(log_part(given.text("query"))))
        view = LinePatterns(step_ns=max(step_ns, NS_PER_S))
        found = await self._runner.search(replace(query, view=view))
        listed = found.view if isinstance(found.view, LinePatternsResult) else LinePatternsResult()
        return success(patterns_json(listed), [replace(found.summary, more=False)])

    async def _format(self, given: LokiParameters, request: web.Request) -> dict[str, object]:
        del request
        return success(format_logql(parse_logql(given.text("query"))))


async def _send_groups(
    socket: web.WebSocketResponse, query: Query, groups: AsyncGenerator[QueryResult]
) -> None:
    """Send each group with records, until the client closes the connection."""
    closed = asyncio.ensure_future(socket.receive())  # a client of a tail sends nothing else
    following = asyncio.ensure_future(anext(groups))
    try:
        while not closed.done():
            await asyncio.wait({closed, following}, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                continue
            group = newest_of(following.result(), query.limit)
            following = asyncio.ensure_future(anext(groups))
            if group.records:
                streams = streams_json(group.records, categorized=False)
                body = {"streams": streams, "dropped_entries": []}
                await socket.send_str(encode_json(body).decode())
    finally:
        for one in (closed, following):
            one.cancel()
        await asyncio.wait({closed, following})


def _refusal(request: web.Request, problem: Problem) -> web.Response:
    """Return an error as Loki sends it: text."""
    del request
    return web.Response(status=problem.status, text=problem.detail)


_REFUSALS: Final = ProblemRenderer(_refusal)


async def _limits(given: LokiParameters, request: web.Request) -> dict[str, object]:
    """Return the limits that Drilldown reads before its first question."""
    del given, request
    limits = {
        "discover_log_levels": True,
        "discover_service_name": ["service_name"],
        "log_level_fields": ["level"],
        "max_entries_limit_per_query": 100_000,
        "max_query_series": SERIES_MAX,
        "metric_aggregation_enabled": False,
        "pattern_persistence_enabled": False,
        "retention_period": "0s",
        "volume_enabled": True,
        "volume_max_series": SERIES_MAX,
    }
    return {
        "limits": limits,
        "pattern_ingester_enabled": True,
        "version": VERSION,
        "maxDetectedFields": FIELDS_MAX,
        "maxDetectedValues": FIELDS_MAX,
        "maxLabelValues": SERIES_MAX,
        "maxLines": LINES_SAMPLED,
    }


async def _buildinfo(given: LokiParameters, request: web.Request) -> dict[str, object]:
    """Return a version by which a client chooses its requests."""
    del given, request
    names = ("revision", "branch", "buildUser", "buildDate", "goVersion")
    return {"version": VERSION, **dict.fromkeys(names, "sluice")}


def _listed(found: QueryResult) -> FieldListResult:
    return found.view if isinstance(found.view, FieldListResult) else FieldListResult()


def _label_name(request: web.Request) -> str:
    name = request.match_info["name"]
    if not name.isidentifier() or not name.isascii():
        raise BadUsage(f"label must be letters, digits and _, label=`{name[:40]}`")
    return name


def _at(question: MetricQuery, at_ns: UnixNs) -> Query:
    """Return the query for a metric query at one time."""
    return check_query(plan_question(question, Query(from_ns=at_ns, to_ns=at_ns), 1))


def _over(question: MetricQuery, ends: tuple[UnixNs, UnixNs], step_ns: int | None) -> Query:
    """Return the query for a metric query over a range."""
    query = check_query(Query(from_ns=ends[0], to_ns=ends[1]))
    return plan_question(question, query, step_ns)


def _summed(
    selected: LogQuery, names: Sequence[str], operator: RangeOperator, range_ns: int
) -> MetricQuery:
    """Return the question for the sum of a range by labels."""
    counted = RangeAggregation(operator=operator, query=selected, range_ns=range_ns)
    by = Grouping(tuple(names))
    return VectorAggregation(operator=VectorOperator.SUM, inner=counted, grouping=by)


def _volume_of(given: LokiParameters) -> tuple[LogQuery, tuple[str, ...]]:
    """Return the records and the labels of a volume."""
    if given.optional("aggregateBy") not in ("", "series"):
        raise BadUsage("aggregateBy=labels is not supported: use series with targetLabels")
    selected = log_part(given.text("query"))
    targets = tuple(one.strip() for one in given.optional("targetLabels").split(",") if one.strip())
    return selected, targets or tuple(dict.fromkeys(one.name for one in selected.matchers))


def _without_parsers(question: LogQuery) -> LogQuery:
    """Return the selection of a log query: matchers and line filters before any other stage."""
    matchers, lines, _ = split_conditions(question)
    return LogQuery(matchers, lines)
