"""The JSON door: lines or arrays of objects, from any client that can send HTTP."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import Any, Final

import msgspec
from aiohttp import web
from yarl import URL

from sluice_doors.api import QUERIES_MAX
from sluice_doors.decoded import (
    RECORDS_MAX,
    BodyUnreadable,
    DecodedRecords,
    Tally,
    check_count,
    check_lines,
)
from sluice_doors.json.records import RecordFields, columns_of
from sluice_doors.json.timed_lines import TimedLines, timed_lines
from sluice_doors.json.values import (
    decode_objects,
    is_array,
    is_binary,
    read_or_keep,
    read_tolerantly,
    value_texts,
    without_bom,
)
from sluice_doors.requests import (
    Decode,
    DoorRequest,
    DoorResult,
    DoorRoute,
    request_head,
    retry_later,
    status_for,
)
from sluice_doors.table import DOORS
from sluice_protocol.errors import UNREADABLE_JSON
from sluice_protocol.identity import IdentitySource
from sluice_protocol.meaning import BODY_KEYS, TIME_KEYS
from sluice_protocol.units import UnixNs
from sluice_web.json_bodies import json_response
from sluice_web.problems import Problem, problem_response


def decode_json(body: bytes, fields: RecordFields) -> tuple[DecodedRecords, ...]:
    """Return the records of a body of JSON; empty if it has none.

    What is not an object is kept as text. The body has lines of objects, one array of objects, or
    objects that follow each other.
    """
    check_lines(body)
    objects = _objects(body)
    check_count(objects)
    if not objects:
        return ()
    tally = Tally()
    tally.add_sizes(0, len(body))
    columns = columns_of(objects, fields, tally)
    return (tally.decoded(columns, is_canonical=True),)


def _objects(body: bytes) -> list[Any]:
    """Return the values of a body; an `Unread` for each part that cannot be read."""
    with suppress(*UNREADABLE_JSON):
        return decode_objects(body)
    if is_array(body):
        found = read_tolerantly(body, 1)
        if isinstance(found, list):
            return found
    lines = [read_or_keep(line) for line in body.split(b"\n") if without_bom(line).strip()]
    # An object may have line ends inside, and another may follow it on the same line.
    texts = list(islice(value_texts(body), RECORDS_MAX + 1))
    found = max(lines, [read_or_keep(text) for text in texts], key=_goodness)
    if is_binary(body) and not any(isinstance(one, dict) for one in found):
        raise BodyUnreadable(
            "cannot read body as JSON: it has no object and is no text; a compressed body needs"
            " its Content-Encoding"
        )
    return found


def _goodness(values: list[Any]) -> tuple[int, int]:
    """Return the sort key of a way to divide a body; the better way has the higher key."""
    return sum(isinstance(one, dict) for one in values), -len(values)


PARAMETERS: Final = ("time", "message")


class IngestResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a 200: every record is accepted.

    `unreadable` of the accepted records were kept raw, with the attribute `sluice.error`.
    `duplicate` is true if all were accepted before this request.
    """

    accepted: int
    unreadable: int
    duplicate: bool
    identity: IdentitySource


@lru_cache(maxsize=QUERIES_MAX)
def _readers(query: str) -> tuple[Decode, Callable[[bytes], TimedLines | None]]:
    """Return the readers of a body for the query of its request; most clients repeat one query."""
    named = URL.build(query_string=query, encoded=True).query
    time = (named["time"],) if "time" in named else TIME_KEYS
    message = (named["message"],) if "message" in named else BODY_KEYS

    def decode(body: bytes, received_ns: UnixNs) -> Sequence[DecodedRecords]:
        fields = RecordFields(time=time, message=message, received_ns=received_ns)
        return decode_json(body, fields)

    def read_lines(body: bytes) -> TimedLines | None:
        return timed_lines(body, time, message)

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


ROUTES: Final = tuple(
    DoorRoute(
        door="json",
        path=path,
        summary="Send records as lines or an array of JSON",
        media_type="application/x-ndjson",
        read=_read,
        respond=_respond,
        refuse=refuse,
        parameters=PARAMETERS,
        ignores_others=False,
    )
    for path in DOORS["json"].paths
)
