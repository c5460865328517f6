"""The routes of Jaeger that read: services, operations, traces by conditions and by id.

Times are Unix µs, so the nanoseconds of sluice are rounded down. An attribute is a tag with its
type; kind, status and the resource become the tags by which Jaeger shows them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
from aiohttp import web

from sluice_protocol.errors import UNREADABLE_JSON, BadUsage, ErrorCode
from sluice_protocol.meaning import plain_id
from sluice_protocol.timestamps import parse_rfc3339
from sluice_protocol.units import UnixNs
from sluice_query.http.responses import given_parameters
from sluice_query.http.runner import QueryRunner
from sluice_query.logql.expressions import LogQuery, Matcher, MatchOperator
from sluice_query.logql.names import UNKNOWN_SERVICE
from sluice_query.logql.planning import narrowed
from sluice_query.loki.parameters import SINCE_DEFAULT_NS, parse_loki_duration
from sluice_query.parameters import parse_operations, parse_trace
from sluice_query.request import (
    END_NS,
    FILTERS_MAX,
    FIRST_NS,
    OPERATIONS_MAX,
    FilterOperator,
    Query,
    RecordField,
    RecordFilter,
    check_query,
)
from sluice_query.result import QueryResult, QuerySummary, Row, record_json
from sluice_query.views import Operation, OperationsResult
from sluice_web.endpoints import Endpoint
from sluice_web.json_bodies import JSON_TYPE, encode_json
from sluice_web.problems import (
    PROBLEM_RENDERER,
    HttpRefusal,
    Problem,
    ProblemRenderer,
    while_connected,
)

_NS_PER_US: Final = 1_000
_INT64_END: Final = 1 << 63


def answer(data: Sequence[object], summaries: Iterable[QuerySummary] = ()) -> dict[str, object]:
    """Return an answer; `errors` state why it may be incomplete."""
    reasons = dict.fromkeys(why for one in summaries if one.partial for why in one.reasons)
    errors = [{"code": 206, "msg": f"the answer may be incomplete: {why}"} for why in reasons]
    return {"data": data, "total": len(data), "limit": 0, "offset": 0, "errors": errors or None}


def traces_json(rows: Iterable[Row]) -> list[dict[str, object]]:
    """Return spans as traces, in the order in which each trace occurs first."""
    traces: dict[str, list[Row]] = {}
    for row in rows:
        traces.setdefault(str(row["trace_id"]), []).append(row)
    return [_trace(trace_id, spans) for trace_id, spans in traces.items()]


def _trace(trace_id: str, rows: Sequence[Row]) -> dict[str, object]:
    names: dict[bytes, str] = {}
    processes: dict[str, object] = {}
    spans = []
    for row in rows:
        span = msgspec.json.decode(msgspec.json.encode(record_json("spans", row)))
        resource = span.get("resource", {})
        process = {
            "serviceName": span.get("service") or UNKNOWN_SERVICE,
            "tags": _tags({key: one for key, one in resource.items() if key != "service.name"}),
        }
        key = msgspec.json.encode(process)
        if key not in names:
            names[key] = f"p{len(names) + 1}"
            processes[names[key]] = process
        spans.append(_span(trace_id, span, row, names[key]))
    return {"traceID": trace_id, "spans": spans, "processes": processes, "warnings": None}


def _span(trace_id: str, span: Mapping[str, Any], row: Row, process: str) -> dict[str, object]:
    tags = dict(span.get("attributes", {}))
    if span.get("span_kind", "unspecified") != "unspecified":
        tags["span.kind"] = span["span_kind"]
    if span.get("status") == "error":
        tags["error"] = True
    if span.get("status", "unset") != "unset":
        tags["otel.status_code"] = span["status"].upper()
    if span.get("status_message"):
        tags["otel.status_description"] = span["status_message"]
    if span.get("trace_state"):
        tags["w3c.tracestate"] = span["trace_state"]
    parent = span.get("parent_id")
    references = [_reference("CHILD_OF", trace_id, parent)] if parent else []
    references += [
        _reference("FOLLOWS_FROM", one.get("trace_id", ""), one.get("span_id", ""))
        for one in _listed(span.get("links"))
    ]
    return {
        "traceID": trace_id,
        "spanID": span.get("span_id", ""),
        "operationName": span.get("name", ""),
        "references": references,
        "flags": 1,
        "startTime": int(str(row["ts_ns"])) // _NS_PER_US,
        "duration": max(int(str(row["duration_ns"])), 0) // _NS_PER_US,
        "tags": _tags(tags),
        "logs": [_log(one) for one in _listed(span.get("events"))],
        "processID": process,
        "warnings": None,
    }


def _reference(kind: str, trace_id: str, span_id: str) -> dict[str, object]:
    return {"refType": kind, "traceID": trace_id, "spanID": span_id}


def _log(event: Mapping[str, Any]) -> dict[str, object]:
    at_ns = parse_rfc3339(event["ts"]) if event.get("ts") else 0
    fields = {"event": event.get("name", "")} | event.get("attributes", {})
    return {"timestamp": at_ns // _NS_PER_US, "fields": _tags(fields)}


def _listed(text: str | None) -> list[dict[str, Any]]:
    """Return the objects of a JSON list; a text that is none has no objects."""
    if not text:
        return []
    found = msgspec.json.decode(text)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _tags(values: Mapping[str, Any]) -> list[dict[str, object]]:
    tags = []
    for key, value in values.items():
        match value:
            case bool():
                kind = "bool"
            case int() if -_INT64_END <= value < _INT64_END:
                kind = "int64"
            case float():
                kind = "float64"
            case _:
                kind = "string"
        shown = value
        if kind == "string" and not isinstance(value, str):
            shown = msgspec.json.encode(value).decode()
        tags.append({"key": key, "type": kind, "value": shown})
    return tags


LISTED_SINCE: Final = "1d"
"""Age of the spans whose services and operations are listed: both routes have no range."""
TRACES_DEFAULT: Final = 20
SPANS_MATCHED_MAX: Final = 5_000
"""The newest spans that meet the conditions of a search, of which traces are returned."""
SPANS_MAX: Final = 20_000
"""Spans of all traces of an answer."""
_US: Final = 1_000

_Answer = Callable[[web.Request], Awaitable[dict[str, object]]]


class JaegerApi:
    """The endpoints."""

    def __init__(self, runner: QueryRunner) -> None:
        self._runner = runner

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints."""
        routes: Mapping[str, tuple[_Answer, str]] = {
            "/api/services": (self._services, "Return the services that have spans"),
            "/api/services/{service}/operations": (
                self._operations,
                "Return the names of a service's spans",
            ),
            "/api/traces": (self._search, "Return the traces with a span that meets conditions"),
            "/api/traces/{id}": (self._trace, "Return one trace; 404 for an unknown one"),
        }
        return tuple(
            Endpoint(
                method="GET",
                path=path,
                handler=while_connected(_handler(find)),
                summary=f"{summary}, in Jaeger's form",
                result=dict[str, Any],
            )
            for path, (find, summary) in routes.items()
        )

    async def _listed(self, service: str = "") -> QueryResult:
        given = {"from": (LISTED_SINCE,), "limit": (str(OPERATIONS_MAX),)}
        query = parse_operations(given, self._runner.searcher.clock.now_ns())
        return await self._runner.search(_of_service(query, service))

    async def _services(self, request: web.Request) -> dict[str, object]:
        del request
        found = await self._listed()
        names = {one.service or UNKNOWN_SERVICE for one in _operations_of(found)}
        return answer(sorted(names), [found.summary])

    async def _operations(self, request: web.Request) -> dict[str, object]:
        found = await self._listed(request.match_info["service"])
        return answer(sorted({one.name for one in _operations_of(found)}), [found.summary])

    async def _search(self, request: web.Request) -> dict[str, object]:
        given = {name: values[0] for name, values in given_parameters(request).items()}
        limit = _number(given, "limit", TRACES_DEFAULT, FILTERS_MAX)
        matching = search_query(given, self._runner.searcher.clock.now_ns())
        found = await self._runner.search(matching)
        ids = dict.fromkeys(str(row["trace_id"]) for row in found.records if row.get("trace_id"))
        chosen = [*ids][:limit]
        if not chosen:
            return answer([], [found.summary])
        field = RecordField("trace_id")
        filters = tuple(RecordFilter(field, FilterOperator.EQUAL, one) for one in chosen)
        whole = Query(
            kind="spans", from_ns=FIRST_NS, to_ns=END_NS, limit=SPANS_MAX, filters=filters
        )
        spans = await self._runner.search(whole)
        place = {name: at for at, name in enumerate(chosen)}
        rows = sorted(spans.records, key=lambda row: place[str(row["trace_id"])])
        data = await asyncio.to_thread(traces_json, rows)
        return answer(data, [found.summary, _cut(spans)])

    async def _trace(self, request: web.Request) -> dict[str, object]:
        trace_id = plain_id("trace_id", request.match_info["id"])
        # Jaeger leaves out the zeros at the start of an id.
        padded = trace_id.rjust(32, "0") if trace_id.isalnum() else trace_id
        now_ns = self._runner.searcher.clock.now_ns()
        found = await self._runner.search(parse_trace(padded, {"limit": (str(SPANS_MAX),)}, now_ns))
        if not found.records:
            # Grafana reads the first trace of a 200 without looking whether there is one.
            raise HttpRefusal(ErrorCode.NOT_FOUND, f"trace not found, trace_id=`{trace_id[:64]}`")
        return answer(await asyncio.to_thread(traces_json, found.records), [_cut(found)])


def search_query(given: Mapping[str, str], now_ns: UnixNs) -> Query:
    """Return the query for the spans that meet the conditions of a search, the newest first."""
    to_ns = _time(given, "end") or now_ns
    from_ns = _time(given, "start") or UnixNs(to_ns - SINCE_DEFAULT_NS)
    filters = []
    if name := given.get("operation"):
        filters.append(RecordFilter(RecordField("name"), FilterOperator.EQUAL, name))
    filters += _durations(given)
    attributes = []
    for key, value in _tags_of(given.get("tags", "")).items():
        if key == "error":
            operator = FilterOperator.EQUAL if value == "true" else FilterOperator.UNEQUAL
            filters.append(RecordFilter(RecordField("status"), operator, _ERROR))
        elif key == "span.kind":
            filters.append(RecordFilter(RecordField("span_kind"), FilterOperator.EQUAL, value))
        else:
            attributes.append((key, value))
    query = Query(
        kind="spans",
        from_ns=from_ns,
        to_ns=UnixNs(to_ns + 1),
        limit=SPANS_MATCHED_MAX,
        newest_first=True,
        filters=tuple(filters),
        attributes=tuple(attributes),
    )
    return _of_service(check_query(query), given.get("service", ""))


def _durations(given: Mapping[str, str]) -> list[RecordFilter]:
    """Return the conditions on the duration of a span."""
    bounds = {"minDuration": FilterOperator.AT_LEAST, "maxDuration": FilterOperator.AT_MOST}
    filters = []
    for name, operator in bounds.items():
        if text := given.get(name):
            try:
                length_ns = parse_loki_duration(text)
            except BadUsage as error:
                raise BadUsage(f"{name}: {error}") from error
            filters.append(RecordFilter(RecordField("duration_ns"), operator, length_ns))
    return filters


_ERROR: Final = "error"


def _tags_of(text: str) -> dict[str, str]:
    """Return the tags of a JSON object: texts, or other values as JSON writes them."""
    if not text:
        return {}
    try:
        found: Any = msgspec.json.decode(text)
    except UNREADABLE_JSON as error:
        raise BadUsage(
            f'tags must be a JSON object, such as {{"http.method":"GET"}}: {error}'
        ) from error
    if not isinstance(found, dict):
        raise BadUsage('tags must be a JSON object, such as {"http.method":"GET"}')
    return {
        key: one if isinstance(one, str) else msgspec.json.encode(one).decode()
        for key, one in found.items()
    }


def _time(given: Mapping[str, str], name: str) -> UnixNs | None:
    text = given.get(name, "")
    if not text:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 16:  # noqa: PLR2004 - digits of µs until 2262
        raise BadUsage(f"{name} must be a Unix time in µs, {name}=`{text[:40]}`")
    return UnixNs(int(text) * _US)


def _number(given: Mapping[str, str], name: str, default: int, most: int) -> int:
    """Return a number of at least 1; larger ones than `most` are `most`."""
    text = given.get(name, "") or str(default)
    if not text.isascii() or not text.isdecimal() or len(text) > 9 or not int(text):  # noqa: PLR2004 - digits
        raise BadUsage(f"{name} must be a number of at least 1, {name}=`{text[:40]}`")
    return min(int(text), most)


def _of_service(query: Query, service: str) -> Query:
    """Return a query for the spans of a service, as its name is shown; empty means all."""
    if not service:
        return query
    return narrowed(query, LogQuery((Matcher("service_name", MatchOperator.EQUAL, service),)))


def _operations_of(found: QueryResult) -> Sequence[Operation]:
    return found.view.operations if isinstance(found.view, OperationsResult) else ()


def _cut(found: QueryResult) -> QuerySummary:
    """Return a summary that states that there are more spans than an answer has."""
    if not found.summary.more:
        return found.summary
    why = f"the traces have more than {SPANS_MAX} spans"
    return replace(found.summary, partial=True, reasons=(*found.summary.reasons, why))


def _handler(find: _Answer) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def send(request: web.Request) -> web.StreamResponse:
        request[PROBLEM_RENDERER] = _REFUSALS
        found = await find(request)
        return web.Response(
            body=await asyncio.to_thread(encode_json, found), content_type=JSON_TYPE
        )

    return send


def _refusal(request: web.Request, problem: Problem) -> web.Response:
    """Return an error as Jaeger sends it."""
    del request
    body = {"data": None, "total": 0, "limit": 0, "offset": 0}
    errors = [{"code": problem.status, "msg": problem.detail}]
    return web.Response(
        status=problem.status,
        body=encode_json({**body, "errors": errors}),
        content_type=JSON_TYPE,
    )


_REFUSALS: Final = ProblemRenderer(_refusal)
