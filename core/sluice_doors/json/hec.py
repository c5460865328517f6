"""The HTTP Event Collector of Splunk: events, metric events, raw lines, health and acks.

A success means that every record is accepted permanently. Indexer acknowledgement adds nothing to
that: where a client names a channel, the response contains an ack id, and the state of every ack
id is `true`.
Source: Splunk Enterprise, "HTTP Event Collector REST API endpoints" and "Troubleshoot HTTP Event
Collector" (codes).
"""

import asyncio
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import hdrs, web

from sluice_doors.attributes import (
    FIELD,
    OWN,
    RESOURCE,
    Pairs,
    json_text,
    merged,
    number,
    shared_resource,
    typed_text,
)
from sluice_doors.decoded import (
    ERROR_ATTRIBUTE,
    BodyUnreadable,
    DecodedRecords,
    Tally,
    check_count,
)
from sluice_doors.json.records import (
    BAD_TIME,
    RecordFields,
    event_record,
    flat_fields,
    parse_time,
    value_as_text,
)
from sluice_doors.json.values import (
    Unread,
    is_binary,
    read_json_lines,
    read_or_keep,
    read_tolerantly,
    value_texts,
)
from sluice_doors.otlp.metrics import GAUGE, STALE, exact_values
from sluice_doors.requests import (
    DoorRequest,
    DoorResult,
    DoorRoute,
    readable_detail,
    request_head,
    retry_later,
    status_for,
)
from sluice_doors.rows import RowPieces, log_pieces, metric_pieces
from sluice_doors.table import DOORS
from sluice_protocol.columns import LogColumns, MetricColumns
from sluice_protocol.errors import UNREADABLE_JSON, ErrorCode
from sluice_protocol.records import RAW_ATTRIBUTE, LogRecord, MetricPoint
from sluice_protocol.units import UnixNs
from sluice_web.endpoints import Endpoint
from sluice_web.json_bodies import JSON_TYPE, check_length
from sluice_web.problems import PROBLEM_RENDERER, HttpRefusal, Problem, ProblemRenderer

FIELDS: Final = "fields."
"""The prefix of those indexed fields whose name the event has too."""
METADATA_NAMES: Final[Mapping[str, str]] = {
    "host": "host.name",
    "source": "com.splunk.source",
    "sourcetype": "com.splunk.sourcetype",
    "index": "com.splunk.index",
}
"""Splunk's fields under the names of OpenTelemetry's conventions."""
_INSIDE: Final = RecordFields(received_ns=0)
_EVENT_FIELDS: Final = frozenset({"time", "event", "fields"})
_METRIC: Final = "metric"
_METRIC_NAME: Final = "metric_name"
_METRIC_PREFIX: Final = "metric_name:"
_METRIC_VALUE: Final = "_value"
_NO_VALUE: Final = "metric has no number"


class _Event(NamedTuple):
    """One object of a request; `text` is what cannot be read, and `error` why."""

    found: Mapping[str, object] = MappingProxyType({})
    text: str = ""
    error: str = ""

    def metadata(self) -> dict[str, str]:
        """Return host, source, sourcetype and index, and what Splunk does not define."""
        pairs = [
            (METADATA_NAMES.get(key, key), value_as_text(value))
            for key, value in self.found.items()
            if key not in _EVENT_FIELDS and value not in (None, "")
        ]
        found = dict(pairs)
        if len(found) < len(pairs) or "" in found:
            return merged([(OWN, pairs)])
        return found


def decode_events(body: bytes, *, received_ns: int) -> tuple[DecodedRecords, ...]:
    """Return the logs and the metrics of a request; empty if the body has no object.

    Objects, or arrays of objects, follow each other with or without whitespace between them.
    `received_ns` is the time of events that contain none.
    """
    events: list[_Event] = []
    for one in _events(body):
        events.append(one)
        check_count(events)
    if not events:
        return ()
    if all(one.error for one in events) and is_binary(body):
        raise BodyUnreadable(
            "cannot read body as events of Splunk: it has no JSON object and is no text; a"
            " compressed body needs its Content-Encoding"
        )
    metadata = [one.metadata() for one in events]
    shared = shared_resource(metadata)
    reader = _Reader(shared=dict(shared), received_ns=received_ns)
    for one, stated in zip(events, metadata, strict=True):
        reader.add(one, stated)
    decoded = []
    if reader.logs:
        decoded.append(reader.log_tally.decoded(reader.logs.columns(), shared))
    if reader.points:
        decoded.append(reader.point_tally.decoded(reader.points.columns(), shared))
    return tuple(decoded)


def decode_raw(
    body: bytes, metadata: Mapping[str, str], *, received_ns: int
) -> tuple[DecodedRecords, ...]:
    """Return one record for each line that is not empty.

    A line ends with LF or CR LF and has no time, so `received_ns` is the time of all. `metadata` is
    host, source, sourcetype and index from the query of the request.
    """
    pairs = {METADATA_NAMES[key]: value for key, value in metadata.items() if value}
    shared = shared_resource([pairs])
    own = merged([(OWN, [pair for pair in pairs.items() if pair not in shared])])
    tally = Tally(timed=False)
    rows = log_pieces(tally)
    for line in body.split(b"\n"):
        text = line.rstrip(b"\r").decode(errors="surrogateescape")
        if text.strip():
            tally.add(own, text)
            rows.append(LogRecord(ts_ns=received_ns, body=text, attributes=own))
            check_count(rows)
    if not rows:
        return ()
    return (tally.decoded(rows.columns(), shared),)


@dataclass(slots=True)
class _Reader:
    """Maps the events of one request."""

    shared: Mapping[str, str]
    received_ns: int
    log_tally: Tally = field(default_factory=Tally)
    point_tally: Tally = field(default_factory=Tally)
    logs: RowPieces[LogRecord, LogColumns] = field(init=False)
    points: RowPieces[MetricPoint, MetricColumns] = field(init=False)

    def __post_init__(self) -> None:
        self.logs, self.points = log_pieces(self.log_tally), metric_pieces(self.point_tally)

    def add(self, event: _Event, stated: Mapping[str, str]) -> None:
        """Map one event, for which `stated` is its metadata."""
        metadata = [pair for pair in stated.items() if pair[0] not in self.shared]
        if event.error:
            self._raw(event.text, event.error, metadata)
            return
        fields = event.found.get("fields")
        values = _metric_values(event.found.get("event"), fields)
        if values is not None and isinstance(fields, dict):
            self._metrics(event.found, values, fields, metadata)
        elif event.found.get("event") is None:
            self._raw(json_text(event.found), "object has no event", ())
        else:
            self._log(event.found, metadata)

    def _log(self, found: Mapping[str, object], metadata: Pairs) -> None:
        event, fields = found["event"], found.get("fields")
        plain = event if isinstance(event, dict) else {"message": event}
        inside_ns = _time_inside(plain) if found.get("time") is None else None
        if inside_ns is None:
            ts_ns, stated = self._time(found.get("time"), self.log_tally)
        else:
            ts_ns, stated = inside_ns, ()
        if isinstance(fields, dict):
            indexed = _flat_texts(fields)
        else:
            indexed = [] if fields is None else [("fields", typed_text(fields))]
        sources = ((FIELDS, indexed), (FIELD, stated), (RESOURCE, metadata))
        row = event_record(plain, ts_ns=ts_ns, sources=sources)
        self.log_tally.add(row.attributes, str(row.body))
        self.logs.append(row)

    def _raw(self, text: str, reason: str, metadata: Pairs) -> None:
        self.log_tally.timed = False
        self.log_tally.unreadable += 1
        attributes = merged([(OWN, [(ERROR_ATTRIBUTE, reason)]), (RESOURCE, metadata)])
        self.log_tally.add(attributes, text)
        self.logs.append(LogRecord(ts_ns=self.received_ns, body=text, attributes=attributes))

    def _metrics(
        self,
        found: Mapping[str, object],
        values: Mapping[str, object],
        fields: Mapping[str, object],
        metadata: Pairs,
    ) -> None:
        ts_ns, stated = self._time(found.get("time"), self.point_tally)
        taken = {_METRIC_NAME, _METRIC_VALUE} if _METRIC_NAME in fields else set()
        dimensions = {
            key: value
            for key, value in fields.items()
            if key not in taken and not key.startswith(_METRIC_PREFIX)
        }
        labels = merged([(OWN, _flat_texts(dimensions)), (FIELD, stated), (RESOURCE, metadata)])
        for name, stated_value in values.items():
            value, attributes = _number(stated_value), labels
            if value is None:
                self.point_tally.unreadable += 1
                raw = [(ERROR_ATTRIBUTE, _NO_VALUE), (RAW_ATTRIBUTE, json_text(stated_value))]
                attributes = merged([(OWN, list(labels.items())), (FIELD, raw)])
            exact = [("", STALE)] if value is None else _exact(stated_value, value)
            for suffix, one in exact:
                self.point_tally.add(attributes, name)
                self.points.append(
                    MetricPoint(ts_ns=ts_ns, name=name + suffix, value=one, attributes=attributes)
                )

    def _time(self, stated: object, tally: Tally) -> tuple[int, Pairs]:
        """Return the time of an event, and attributes with one that cannot be read."""
        ts_ns = None if stated is None else parse_time(stated, self.received_ns)
        if ts_ns is not None:
            return ts_ns, ()
        tally.timed = False
        if stated is None:
            return self.received_ns, ()
        tally.unreadable += 1
        return self.received_ns, [("time", typed_text(stated)), (ERROR_ATTRIBUTE, BAD_TIME)]


def _time_inside(event: Mapping[str, object]) -> int | None:
    """Return the time inside an event, which stays an attribute; None if it has none."""
    return _INSIDE.time_of(flat_fields(event, _INSIDE.undivided), None)[1]


def _metric_values(event: object, fields: object) -> dict[str, object] | None:
    """Return the values of a metric event by name; None if it is another event."""
    if event != _METRIC or not isinstance(fields, dict):
        return None
    found = {
        key.removeprefix(_METRIC_PREFIX): value
        for key, value in fields.items()
        if key.startswith(_METRIC_PREFIX) and key != _METRIC_PREFIX
    }
    name = fields.get(_METRIC_NAME)
    if isinstance(name, str) and name and _METRIC_VALUE in fields and name not in found:
        found[name] = fields[_METRIC_VALUE]
    return found or None


def _exact(stated: object, value: float) -> list[tuple[str, float]]:
    """Return a value, and what a double loses of an integer, by their suffixes."""
    found = exact_values("", stated, GAUGE) if isinstance(stated, int | str) else ()
    return [(suffix, one) for suffix, one, _, _ in found] or [("", value)]


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        return None
    try:
        return number(value)
    except ValueError:
        return None


def _flat_texts(found: Mapping[str, object]) -> list[tuple[str, str]]:
    return [(key, typed_text(value)) for key, value in flat_fields(found, "").items()]


def _events(body: bytes) -> Iterator[_Event]:
    try:
        values = read_json_lines(body)
    except UNREADABLE_JSON:
        # Most clients put no line end between two objects.
        values = []
        for text in value_texts(body):
            values += _read_values(text)
            check_count(values)
    for value in values:
        yield from _of_value(value)


def _read_values(text: bytes) -> list[Any]:
    """Return the value of a text; if it is damaged, the values on each of its lines."""
    found = read_tolerantly(text, 1 if text.startswith(b"[") else 0)
    if not isinstance(found, Unread) or b"\n" not in text:
        return [found]
    values: list[Any] = []
    for line in filter(bytes.strip, text.split(b"\n")):
        values += map(read_or_keep, value_texts(line))
        check_count(values)
    return values if any(isinstance(one, dict) for one in values) else [found]


def _of_value(value: object) -> Iterator[_Event]:
    found = value if isinstance(value, list) else [value]
    check_count(found)
    for one in found:
        if isinstance(one, dict):
            yield _Event(found=one)
        elif isinstance(one, Unread):
            yield _Event(text=one.text, error=one.reason)
        else:
            yield _Event(text=json_text(one), error="event is not a JSON object")


ACK_BYTES_MAX: Final = 1024 * 1024
ACK_BITS: Final = 52
"""Ack ids are random, so that those of all gateways differ; JSON numbers have 53 bits."""
_ACK_BODY_S: Final = 10.0
_NOT_FOUND: Final = 404
_EMPTY: Final = web.RequestKey("empty", bool)
_SCHEMES: Final = frozenset({"splunk", "bearer", "basic", "apikey"})

NO_TOKEN, BAD_AUTHORIZATION, BAD_TOKEN, DISABLED = 2, 3, 4, 1
NO_DATA, BAD_DATA, BUSY, NO_CHANNEL = 5, 6, 9, 10
HEALTHY, UNHEALTHY, TOO_LARGE = 17, 18, 27
_TEXTS: Final = {
    DISABLED: "Token disabled",
    NO_TOKEN: "Token is required",
    BAD_AUTHORIZATION: "Invalid authorization",
    BAD_TOKEN: "Invalid token",
    NO_DATA: "No data",
    BAD_DATA: "Invalid data format",
    BUSY: "Server is busy",
    NO_CHANNEL: "Data channel is missing",
    HEALTHY: "HEC is healthy",
    UNHEALTHY: "HEC is unhealthy, queues are full",
    TOO_LARGE: "Request entity too large",
}


class AckQuery(msgspec.Struct, frozen=True):
    """The body of a query for the state of ack ids."""

    acks: tuple[int, ...]


def _read_events(request: web.Request) -> DoorRequest:
    def decode(body: bytes, received_ns: UnixNs) -> Sequence[DecodedRecords]:
        _check_data(request, body)
        return decode_events(body, received_ns=received_ns)

    return request_head(request, "hec", decode)


def _read_raw(request: web.Request) -> DoorRequest:
    metadata = {name: request.query.get(name, "") for name in METADATA_NAMES}

    def decode(body: bytes, received_ns: UnixNs) -> Sequence[DecodedRecords]:
        _check_data(request, body)
        return decode_raw(body, metadata, received_ns=received_ns)

    return request_head(request, "hec", decode)


def _check_data(request: web.Request, body: bytes) -> None:
    """Refuse an empty body: clients send one to test a token, and expect the code for it."""
    if not body.strip():
        request[_EMPTY] = True
        raise BodyUnreadable("the body is empty")


def _respond(request: web.Request, result: DoorResult) -> web.Response:
    del result
    body: dict[str, object] = {"text": "Success", "code": 0}
    if _channel(request):
        body["ackId"] = secrets.randbits(ACK_BITS)
    return _json(200, body)


def _channel(request: web.Request) -> str:
    header = request.headers.get("X-Splunk-Request-Channel", "")
    return header or request.query.get("channel", "")


def _refuse(request: web.Request, problem: Problem) -> web.Response:
    status = status_for(problem)
    if status == _NOT_FOUND:  # the form of Splunk where its collector is disabled
        return _json(status, {"text": readable_detail(problem), "code": status})
    status, code = _status_and_code(request, problem)
    # Clients compare text and code with Splunk's, and log the whole body.
    body: dict[str, object] = {
        "text": _TEXTS[code], "code": code, "detail": readable_detail(problem),
    }  # fmt: skip
    if code == BAD_DATA:
        body["invalid-event-number"] = 0
    return retry_later(_json(status, body))


def _status_and_code(request: web.Request, problem: Problem) -> tuple[int, int]:
    """Return the status and the code of a refusal, as Splunk defines them."""
    status = status_for(problem)
    match status:
        case 401:
            return _credentials_code(request)
        case 403:
            return 403, DISABLED
        case 413:
            return 413, TOO_LARGE
        case 503:
            return 503, BUSY
        case _:
            return 400, NO_DATA if request.get(_EMPTY) else BAD_DATA


def _credentials_code(request: web.Request) -> tuple[int, int]:
    stated = request.headers.get(hdrs.AUTHORIZATION)
    if stated is None:
        return 401, NO_TOKEN
    scheme, _, value = stated.partition(" ")
    known = scheme.lower() in _SCHEMES and value.strip()
    return (403, BAD_TOKEN) if known else (401, BAD_AUTHORIZATION)


def _json(status: int, body: object) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(body), content_type=JSON_TYPE)


_COLLECTOR: Final = DOORS["hec"].paths[0]


def probe_endpoints(is_full: Callable[[], bool], *, open_host: bool) -> list[Endpoint]:
    """Return the endpoints of health and of ack ids, which contain nothing secret."""

    async def health(request: web.Request) -> web.StreamResponse:
        del request
        status, code = (503, UNHEALTHY) if is_full() else (200, HEALTHY)
        return retry_later(_json(status, {"text": _TEXTS[code], "code": code}))

    return [
        *(
            Endpoint(
                method="GET",
                path=_COLLECTOR + path,
                handler=health,
                summary="Respond whether the collector is healthy",
                problems={"503": "Requests are not accepted now"},
                open_host=open_host,
            )
            for path in ("/health", "/health/1.0")
        ),
        *(
            Endpoint(
                method="POST",
                path=_COLLECTOR + path,
                handler=_ack,
                summary="Respond that every ack id is accepted",
                body=AckQuery,
                problems={"400": "The body is no list of ack ids", "413": "The body is too large"},
                open_host=open_host,
            )
            for path in ("/ack", "/ack/1.0")
        ),
    ]


_ACK_REFUSALS: Final = ProblemRenderer(_refuse)


async def _ack(request: web.Request) -> web.StreamResponse:
    request[PROBLEM_RENDERER] = _ACK_REFUSALS
    if not _channel(request):
        return _json(400, {"text": _TEXTS[NO_CHANNEL], "code": NO_CHANNEL})
    check_length(request, ACK_BYTES_MAX)
    try:
        async with asyncio.timeout(_ACK_BODY_S):
            body = await request.read()
    except TimeoutError as error:
        raise HttpRefusal(ErrorCode.OVERLOADED, "the body arrived too slowly") from error
    try:
        query = msgspec.json.decode(body, type=AckQuery)
    except UNREADABLE_JSON as error:
        raise BodyUnreadable("the body is no list of ack ids") from error
    return _json(200, {"acks": {str(one): True for one in query.acks}})


def _route(
    path: str, summary: str, read: Callable[[web.Request], DoorRequest], media_type: str
) -> DoorRoute:
    return DoorRoute(
        door="hec",
        path=path,
        summary=summary,
        media_type=media_type,
        read=read,
        respond=_respond,
        refuse=_refuse,
        parameters=("channel", *METADATA_NAMES) if "/raw" in path else ("channel",),
    )


ROUTES: Final = tuple(
    _route(path, "Send lines as to Splunk", _read_raw, "text/plain")
    if "/raw" in path
    else _route(path, "Send events or metrics as to Splunk", _read_events, JSON_TYPE)
    for path in DOORS["hec"].paths
)
