"""The push endpoint of Loki, in protobuf or JSON. Source: Loki HTTP API, "Ingest logs"."""

from collections.abc import Sequence
from typing import Final

from aiohttp import web

from sluice_door_http.paths import PUSH_PATH
from sluice_door_http.routes import (
    DoorRequest,
    DoorResult,
    DoorRoute,
    refuse_in_text,
    request_head,
)
from sluice_doors.decoded import DecodedRecords
from sluice_doors.loki import decode_loki
from sluice_protocol.units import UnixNs
from sluice_web.endpoints import Endpoint
from sluice_web.json_bodies import JSON_TYPE


def _read(request: web.Request) -> DoorRequest:
    media_type = request.content_type
    # Clients send protobuf as a snappy block and name no coding for it.
    usual = "identity" if media_type == JSON_TYPE else "snappy"

    def decode(body: bytes, received_ns: UnixNs) -> Sequence[DecodedRecords]:
        return decode_loki(body, media_type, received_ns=received_ns)

    return request_head(request, "loki", decode, usual_coding=usual)


def _respond(request: web.Request, result: DoorResult) -> web.Response:
    del request, result
    return web.Response(status=204)


def probe_endpoints(*, open_host: bool) -> list[Endpoint]:
    """Return the endpoints that Vector requests before it sends records.

    Args:
        open_host: Whether the gate accepts any `Host`; the response is a constant.
    """

    async def ready(request: web.Request) -> web.StreamResponse:
        del request
        return web.Response(text="ready\n")

    return [
        Endpoint(
            method="GET",
            path="/ready",
            handler=ready,
            summary="Respond as a client of Loki expects",
            open_host=open_host,
        )
    ]


ROUTES: Final = (
    DoorRoute(
        door="loki",
        path=PUSH_PATH,
        summary="Send log lines as a client of Loki does",
        media_type="application/x-protobuf",
        read=_read,
        respond=_respond,
        refuse=refuse_in_text,
    ),
)
