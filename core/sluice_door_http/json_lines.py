"""The JSON door: lines or arrays of objects, from any client that can send HTTP."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

import msgspec
from aiohttp import web
from yarl import URL

from sluice_door_http.paths import INGEST_PATH
from sluice_door_http.query_parameters import QUERIES_MAX
from sluice_door_http.routes import (
    Decode,
    DoorRequest,
    DoorResult,
    DoorRoute,
    request_head,
    retry_later,
    status_for,
)
from sluice_doors.decoded import DecodedRecords
from sluice_doors.json_lines import decode_json
from sluice_doors.timed_lines import TimedLines, timed_lines
from sluice_protocol.request_identity import IdentitySource
from sluice_protocol.units import UnixNs
from sluice_web.json_bodies import json_response
from sluice_web.problems import Problem, problem_response

PARAMETERS: Final = ("time", "message")


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


@lru_cache(maxsize=QUERIES_MAX)
def _readers(query: str) -> tuple[Decode, Callable[[bytes], TimedLines | None]]:
    """Return what reads a body, for the query of its request; most clients always send the same."""
    named = URL.build(query_string=query, encoded=True).query
    time_field = named.get("time", "time")
    message_field = named.get("message", "message")

    def decode(body: bytes, received_ns: UnixNs) -> Sequence[DecodedRecords]:
        return decode_json(
            body, time_field=time_field, message_field=message_field, received_ns=received_ns
        )

    def read_lines(body: bytes) -> TimedLines | None:
        return timed_lines(body, time_field, message_field)

    return decode, read_lines


def _read(request: web.Request) -> DoorRequest:
    decode, read_lines = _readers(request.rel_url.raw_query_string)
    return request_head(request, "json", decode, read_lines=read_lines)


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
        parameters=PARAMETERS,
        ignores_others=False,
    ),
)
