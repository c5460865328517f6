"""The HTTP endpoint that Amazon Data Firehose delivers to.

Source: Amazon Data Firehose, "Understand HTTP endpoint delivery request and response
specifications". Every status but 200 makes Firehose deliver again, until its retry time ends.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from aiohttp import hdrs, web

from sluice_door_http.paths import FIREHOSE_PATH
from sluice_door_http.routes import (
    RECEIVED_NS,
    DoorRequest,
    DoorResult,
    DoorRoute,
    readable_detail,
    retry_later,
    status_for,
)
from sluice_doors.decoded import DecodedRecords
from sluice_doors.firehose import common_pairs, decode_firehose
from sluice_protocol.units import UnixNs
from sluice_web.json_bodies import JSON_TYPE
from sluice_web.problems import Problem

REQUEST_ID_HEADER: Final = "X-Amz-Firehose-Request-Id"
_COMMON_HEADER: Final = "X-Amz-Firehose-Common-Attributes"
_ARN_HEADER: Final = "X-Amz-Firehose-Source-Arn"
_NS_PER_MS: Final = 1_000_000


def _read(request: web.Request) -> DoorRequest:
    headers = request.headers
    common = common_pairs(headers.get(_COMMON_HEADER, ""), headers.get(_ARN_HEADER, ""))

    def decode(body: bytes, received_ns: UnixNs) -> Sequence[DecodedRecords]:
        return decode_firehose(body, common, received_ns=received_ns)

    return DoorRequest(
        door="firehose",
        decode=decode,
        coding=headers.get(hdrs.CONTENT_ENCODING, "identity"),
        key=_request_id(request).encode(errors="surrogateescape"),
    )


def _request_id(request: web.Request) -> str:
    """Return the id of a request, which every attempt to deliver it has in common."""
    return request.headers.get(REQUEST_ID_HEADER, "")


def _respond(request: web.Request, result: DoorResult) -> web.Response:
    del result
    return _response(request, 200, {})


def _refuse(request: web.Request, problem: Problem) -> web.Response:
    error = {"errorMessage": readable_detail(problem)}
    return retry_later(_response(request, status_for(problem), error))


def _response(request: web.Request, status: int, extra: dict[str, str]) -> web.Response:
    body = {
        "requestId": _request_id(request).encode(errors="replace").decode(),
        "timestamp": request[RECEIVED_NS] // _NS_PER_MS,
        **extra,
    }
    return web.Response(status=status, body=msgspec.json.encode(body), content_type=JSON_TYPE)


ROUTES: Final = (
    DoorRoute(
        door="firehose",
        path=FIREHOSE_PATH,
        summary="Send log records as Amazon Data Firehose does",
        media_type=JSON_TYPE,
        read=_read,
        respond=_respond,
        refuse=_refuse,
    ),
)
