"""Spans in the form of Jaeger's answers.

Times are Unix µs, so the nanoseconds of sluice are rounded down. An attribute is a tag with its
type; kind, status and the resource become the tags by which Jaeger shows them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from sluice_protocol.timestamps import parse_rfc3339
from sluice_query.logql.names import UNKNOWN_SERVICE
from sluice_query.result import QuerySummary, Row, record_json

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
