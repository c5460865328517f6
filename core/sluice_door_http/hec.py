"""The HTTP Event Collector of Splunk: events, metric events, raw lines, health and acks.

A success means that every record is accepted permanently. Indexer acknowledgement adds nothing to
that: where a client names a channel, the response contains an ack id, and the state of every ack
id is `true`.
Source: Splunk Enterprise, "HTTP Event Collector REST API endpoints" and "Troubleshoot HTTP Event
Collector" (codes).
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from aiohttp import hdrs, web

from sluice_door_http.paths import COLLECTOR_PATH, EVENT_PATHS, RAW_PATHS
from sluice_door_http.routes import (
    DoorRequest,
    DoorResult,
    DoorRoute,
    readable_detail,
    request_head,
    retry_later,
    status_for,
)
from sluice_doors.decoded import BodyUnreadable, DecodedRecords
from sluice_doors.hec import METADATA_NAMES, decode_events, decode_raw
from sluice_protocol.errors import ErrorCode
from sluice_protocol.json_errors import UNREADABLE_JSON
from sluice_protocol.units import UnixNs
from sluice_web.endpoints import Endpoint
from sluice_web.json_bodies import JSON_TYPE, check_length
from sluice_web.problems import PROBLEM_RENDERER, HttpRefusal, Problem, ProblemRenderer

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
    body: dict[str, object] = {"text": _TEXTS[code], "code": code}
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


def state_endpoints(is_full: Callable[[], bool], *, open_host: bool) -> list[Endpoint]:
    """Return the endpoints of health and of ack ids.

    Args:
        is_full: Whether requests are answered "later" now.
        open_host: Whether the gate accepts any `Host`; the responses contain nothing secret.
    """

    async def health(request: web.Request) -> web.StreamResponse:
        del request
        status, code = (503, UNHEALTHY) if is_full() else (200, HEALTHY)
        return retry_later(_json(status, {"text": _TEXTS[code], "code": code}))

    return [
        *(
            Endpoint(
                method="GET",
                path=COLLECTOR_PATH + path,
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
                path=COLLECTOR_PATH + path,
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
        parameters=("channel", *METADATA_NAMES) if path in RAW_PATHS else ("channel",),
    )


ROUTES: Final = (
    *(
        _route(path, "Send events or metrics as to Splunk", _read_events, JSON_TYPE)
        for path in EVENT_PATHS
    ),
    *(_route(path, "Send lines as to Splunk", _read_raw, "text/plain") for path in RAW_PATHS),
)
