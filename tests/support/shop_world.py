"""A shop whose programs log in different forms: its events, and the requests that send them.

An event is what happened, in the words of no protocol. Truth is computed from events only. Six
programs send them in five forms, each with another name for the level, the message and the time.
"""

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

_NS_PER_S: Final = 10**9
PATHS: Final = tuple(f"/{one}" for one in ("", "cart", "pay", "search", "login", "admin")) + tuple(
    f"/item/{number}" for number in range(20)
)
LEVELS: Final = ("debug", "info", "warn", "error")
_PINO: Final = {"debug": 20, "info": 30, "warn": 40, "error": 50}
_PYTHON: Final = {"debug": "DEBUG", "info": "INFO", "warn": "WARNING", "error": "ERROR"}
_OTEL: Final = {"debug": 5, "info": 9, "warn": 13, "error": 17}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened; times are whole milliseconds."""

    at_ns: int
    service: str
    host: str
    level: str
    path: str
    status: int
    latency_ms: int
    request: str
    trace: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of a sender."""

    path: str
    content_type: str
    body: bytes


def make_events(count: int, *, start_ns: int, end_ns: int, seed: int) -> list[Event]:
    """Return events in order of time, evenly spread over a range.

    A payment has the trace of the latest event of `web`. The last tenth has a message that is new.
    """
    rng = random.Random(seed)
    events: list[Event] = []
    latest_trace = ""
    for place in range(count):
        at_ns = start_ns + (end_ns - start_ns) * place // count
        service = rng.choice((*FORMS, "web"))
        path = PATHS[min(int(rng.expovariate(0.25)), len(PATHS) - 1)]
        status = rng.choices((200, 302, 404, 500, 503), (80, 8, 7, 3, 2))[0]
        level = "error" if status >= 500 else "warn" if status == 404 else rng.choice(LEVELS[:2])
        words = {200: "done", 302: "redirected", 404: "not found", 500: "failed: connection reset"}
        lost = "timed out" if place < count * 9 // 10 else "found no free connection"
        trace = f"{rng.getrandbits(128) | 1:032x}"
        if service == "web":
            latest_trace = trace
        events.append(
            Event(
                at_ns=at_ns // 1_000_000 * 1_000_000,
                service=service,
                host=f"{service}-{rng.randrange(3)}",
                level=level,
                path=path,
                status=status,
                latency_ms=int(rng.lognormvariate(3, 1)) + (900 if status == 503 else 1),
                request=f"{rng.getrandbits(64):016x}",
                trace=latest_trace if service == "payments" and latest_trace else trace,
                message=f"GET {path} {words.get(status, lost)}",
            )
        )
    return events


def _iso(event: Event) -> str:
    at = datetime.fromtimestamp(event.at_ns // _NS_PER_S, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{event.at_ns // 1_000_000 % 1000:03d}Z"


def _pino(event: Event) -> dict[str, object]:
    return {
        "level": _PINO[event.level],
        "time": event.at_ns // 1_000_000,
        "hostname": event.host,
        "name": event.service,
        "service": event.service,
        "msg": event.message,
        "path": event.path,
        "status": event.status,
        "latency_ms": event.latency_ms,
        "requestId": event.request,
        "traceId": event.trace,
    }


def _zap(event: Event) -> dict[str, object]:
    return {
        "level": event.level,
        "ts": _iso(event),
        "message": event.message,
        "service.name": event.service,
        "host.name": event.host,
        "path": event.path,
        "status": event.status,
        "latency_ms": event.latency_ms,
        "request_id": event.request,
        "trace_id": event.trace,
    }


def _python(event: Event) -> dict[str, object]:
    return {
        "asctime": _iso(event),
        "levelname": _PYTHON[event.level],
        "message": event.message,
        "app": event.service,
        "host": event.host,
        "path": event.path,
        "status": event.status,
        "latency_ms": event.latency_ms,
        "request_id": event.request,
        "trace_id": event.trace,
    }


def _elastic(event: Event) -> dict[str, object]:
    return {
        "@timestamp": _iso(event),
        "log.level": event.level.upper(),
        "message": event.message,
        "service": {"name": event.service},
        "host": {"name": event.host},
        "path": event.path,
        "status": event.status,
        "latency_ms": event.latency_ms,
        "request_id": event.request,
        "trace": {"id": event.trace},
    }


def _ndjson(make: Callable[[Event], dict[str, object]]) -> Callable[[Sequence[Event]], Request]:
    def request(events: Sequence[Event]) -> Request:
        body = "\n".join(json.dumps(make(one)) for one in events)
        return Request(path="/v1/ingest", content_type="application/x-ndjson", body=body.encode())

    return request


def _bulk(events: Sequence[Event]) -> Request:
    lines = [line for one in events for line in ('{"create":{}}', json.dumps(_elastic(one)))]
    body = "\n".join([*lines, ""])
    return Request(path="/logs-shop/_bulk", content_type="application/x-ndjson", body=body.encode())


def _otlp_value(value: object) -> dict[str, object]:
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}


def _otlp(events: Sequence[Event]) -> Request:
    hosts: dict[str, list[dict[str, Any]]] = {}
    for one in events:
        pairs = {
            "path": one.path,
            "status": one.status,
            "latency_ms": one.latency_ms,
            "request_id": one.request,
        }
        record = {
            "timeUnixNano": str(one.at_ns),
            "severityNumber": _OTEL[one.level],
            "severityText": one.level.upper(),
            "body": {"stringValue": one.message},
            "traceId": one.trace,
            "attributes": [
                {"key": key, "value": _otlp_value(value)} for key, value in pairs.items()
            ],
        }
        hosts.setdefault(one.host, []).append(record)
    service = events[0].service
    resources = [
        {
            "resource": {
                "attributes": [
                    {"key": "service.name", "value": {"stringValue": service}},
                    {"key": "host.name", "value": {"stringValue": host}},
                ]
            },
            "scopeLogs": [{"logRecords": records}],
        }
        for host, records in hosts.items()
    ]
    body = json.dumps({"resourceLogs": resources}).encode()
    return Request(path="/v1/logs", content_type="application/json", body=body)


FORMS: Final[Mapping[str, Callable[[Sequence[Event]], Request]]] = {
    "web": _ndjson(_pino),
    "api": _ndjson(_zap),
    "payments": _ndjson(_python),
    "search": _bulk,
    "worker": _otlp,
}
"""How each service sends."""


def requests_of(events: Iterable[Event], size: int = 5_000) -> Iterator[Request]:
    """Return the requests that send events, `size` events of one service in each."""
    waiting: dict[str, list[Event]] = {}
    for one in events:
        found = waiting.setdefault(one.service, [])
        found.append(one)
        if len(found) == size:
            yield FORMS[one.service](found)
            found.clear()
    for service, found in waiting.items():
        if found:
            yield FORMS[service](found)


def _resource(service: str) -> dict[str, object]:
    return {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]}


def counter_request(name: str, samples: Mapping[str, Sequence[tuple[int, int]]]) -> Request:
    """Return a request with a cumulative counter of `web`: (time, value) by path."""
    points = [
        {
            "timeUnixNano": str(at_ns),
            "asInt": str(value),
            "attributes": [{"key": "path", "value": {"stringValue": path}}],
        }
        for path, found in samples.items()
        for at_ns, value in found
    ]
    total = {"aggregationTemporality": 2, "isMonotonic": True, "dataPoints": points}
    scopes = [{"metrics": [{"name": name, "unit": "1", "sum": total}]}]
    body = {"resourceMetrics": [{"resource": _resource("web"), "scopeMetrics": scopes}]}
    return Request(
        path="/v1/metrics", content_type="application/json", body=json.dumps(body).encode()
    )


def spans_request(events: Sequence[Event]) -> Request:
    """Return a request with one span for each event, as long as the event's latency."""
    resources = [
        {
            "resource": _resource(one.service),
            "scopeSpans": [
                {
                    "spans": [
                        {
                            "traceId": one.trace,
                            "spanId": one.request,
                            "name": one.path,
                            "kind": 2,
                            "startTimeUnixNano": str(one.at_ns),
                            "endTimeUnixNano": str(one.at_ns + one.latency_ms * 1_000_000),
                        }
                    ]
                }
            ],
        }
        for one in events
    ]
    body = json.dumps({"resourceSpans": resources}).encode()
    return Request(path="/v1/traces", content_type="application/json", body=body)
