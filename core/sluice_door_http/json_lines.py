"""The JSON door: lines or arrays of objects, from any client that can send HTTP."""

from collections.abc import Sequence
from typing import Final

import msgspec
from aiohttp import web

from sluice_door_http.paths import INGEST_PATH
from sluice_door_http.routes import (
    DoorRequest,
    DoorResult,
    DoorRoute,
    request_head,
    retry_later,
    status_for,
)
from sluice_doors.decoded import DecodedRecords
from sluice_doors.json_lines import decode_json
from sluice_protocol.request_identity import IdentitySource
from sluice_protocol.units import UnixNs
from sluice_web.json_bodies import json_response
from sluice_web.problems import Problem, problem_response


class IngestResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a 200: every record is accepted.

    Attributes:
        accepted: The number of records.
        unreadable: Those of them that were kept raw, with the attribute `sluice.error`.
        duplicate: Whether all of them were accepted before this request.
        identity: What identified the request.
    """

    accepted: int
    unreadable: int
    duplicate: bool
    identity: IdentitySource


def _read(request: web.Request) -> DoorRequest:
    time_field = request.query.get("time", "time")
    message_field = request.query.get("message", "message")

    def decode(body: bytes, received_ns: UnixNs) -> Sequence[DecodedRecords]:
        return decode_json(
            body, time_field=time_field, message_field=message_field, received_ns=received_ns
        )

    return request_head(request, "json", decode)


def _respond(request: web.Request, result: DoorResult) -> web.Response:
    del request
    return json_response(
        IngestResponse(
            accepted=result.records,
            unreadable=result.unreadable,
            duplicate=result.duplicate,
            identity=result.source,
        )
    )


def refuse(request: web.Request, problem: Problem) -> web.Response:
    """Return a problem document; trouble of the gateway or the store is 503."""
    del request
    response = problem_response(problem)
    response.set_status(status_for(problem))
    return retry_later(response)


ROUTES: Final = (
    DoorRoute(
        door="json",
        path=INGEST_PATH,
        summary="Send records as lines or an array of JSON",
        media_type="application/x-ndjson",
        read=_read,
        respond=_respond,
        refuse=refuse,
    ),
)
