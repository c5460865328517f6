"""Remote write of Prometheus, 1.0 and 2.0. Source: the two specifications of remote write."""

from collections.abc import Sequence
from typing import Final

from aiohttp import hdrs, web

from sluice_door_http.paths import WRITE_PATH
from sluice_door_http.routes import DoorRequest, DoorResult, DoorRoute, refuse_in_text
from sluice_doors.decoded import DecodedRecords
from sluice_doors.prometheus import WrittenCounts, decode_remote_write
from sluice_protocol.errors import ErrorCode
from sluice_protocol.units import UnixNs
from sluice_web.problems import HttpRefusal

PROTOBUF_TYPE: Final = "application/x-protobuf"
_WRITTEN: Final = web.RequestKey("written", WrittenCounts)
_HEADER: Final = "X-Prometheus-Remote-Write-{}-Written"


def _read(request: web.Request) -> DoorRequest:
    if request.content_type != PROTOBUF_TYPE:
        raise HttpRefusal(ErrorCode.UNSUPPORTED_MEDIA_TYPE, f"send Content-Type: {PROTOBUF_TYPE}")
    media_type = request.headers[hdrs.CONTENT_TYPE]

    def decode(body: bytes, received_ns: UnixNs) -> Sequence[DecodedRecords]:
        found = decode_remote_write(body, media_type, received_ns=received_ns)
        request[_WRITTEN] = found.written
        return found.records

    return DoorRequest(
        door="prometheus",
        decode=decode,
        coding=request.headers.get(hdrs.CONTENT_ENCODING, "snappy"),
    )


def _respond(request: web.Request, result: DoorResult) -> web.Response:
    """Return 204 with the counts that version 2.0 requires; version 1.0 ignores them."""
    del result
    written = request[_WRITTEN]
    counts = {
        "Samples": written.samples,
        "Histograms": written.histograms,
        "Exemplars": written.exemplars,
    }
    fields = {_HEADER.format(name): str(count) for name, count in counts.items()}
    return web.Response(status=204, headers=fields)


ROUTES: Final = (
    DoorRoute(
        door="prometheus",
        path=WRITE_PATH,
        summary="Send metrics as the remote write of Prometheus does",
        media_type=PROTOBUF_TYPE,
        read=_read,
        respond=_respond,
        refuse=refuse_in_text,
    ),
)
