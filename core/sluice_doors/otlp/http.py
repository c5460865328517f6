"""OTLP over HTTP: its signals, in protobuf or JSON, and the choice of the decoder for a body.

Source: OpenTelemetry protocol specification 1.x, "OTLP/HTTP"; the messages of the responses are
`ExportLogsServiceResponse`, those of metrics and traces with the same fields, and
`google.rpc.Status`.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web

from sluice_doors.decoded import BodyUnreadable, DecodedRecords
from sluice_doors.otlp import json as otlp_json
from sluice_doors.otlp import protobuf as otlp_protobuf
from sluice_doors.otlp.logs import logs_from_groups
from sluice_doors.otlp.metrics import metrics_from_groups
from sluice_doors.otlp.spans import spans_from_groups
from sluice_doors.protobuf import arrow_road, field_head
from sluice_doors.requests import (
    DoorRequest,
    DoorResult,
    DoorRoute,
    readable_detail,
    request_head,
    retry_later,
    status_for,
)
from sluice_doors.table import DOORS
from sluice_protocol.errors import ErrorCode
from sluice_protocol.units import UnixNs
from sluice_web.json_bodies import JSON_TYPE
from sluice_web.problems import HttpRefusal, Problem

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"


class _Signal(NamedTuple):
    """The decoders of a signal.

    `arrow` is the module and the function that read protobuf by columns; `protobuf` and `json`
    return what `by_groups` maps record by record.
    """

    arrow: tuple[str, str]
    protobuf: Callable[[bytes], Any]
    json: Callable[[bytes], Any]
    by_groups: Callable[..., DecodedRecords | None]


def _decode(
    signal: _Signal, body: bytes, content_type: str, *, received_ns: int
) -> tuple[DecodedRecords, ...]:
    """Return the records of a request of a signal; empty if it has none.

    `content_type` is `application/x-protobuf` or `application/json`; parameters are ignored.
    `received_ns` is the time of records that contain none.
    """
    if _is_protobuf(content_type):
        found = _from_protobuf(signal, body, received_ns)
    else:
        found = signal.by_groups(signal.json(body), received_ns=received_ns)
    return () if found is None else (found,)


def _from_protobuf(signal: _Signal, body: bytes, received_ns: int) -> DecodedRecords | None:
    module, decode = signal.arrow
    fast = arrow_road(module, body)
    if fast is not None:
        with suppress(fast.NotPlain):
            found: DecodedRecords | None = getattr(fast, decode)(body, received_ns=received_ns)
            return found
    return signal.by_groups(signal.protobuf(body), received_ns=received_ns)


decode_otlp_logs = partial(
    _decode,
    _Signal(
        arrow=("otlp.arrow_logs", "decode_logs"),
        protobuf=otlp_protobuf.log_groups,
        json=otlp_json.log_groups,
        by_groups=logs_from_groups,
    ),
)
decode_otlp_metrics = partial(
    _decode,
    _Signal(
        arrow=("otlp.arrow_metrics", "decode_metrics"),
        protobuf=otlp_protobuf.metric_groups,
        json=otlp_json.metric_groups,
        by_groups=metrics_from_groups,
    ),
)
decode_otlp_traces = partial(
    _decode,
    _Signal(
        arrow=("otlp.arrow_spans", "decode_spans"),
        protobuf=otlp_protobuf.span_groups,
        json=otlp_json.span_groups,
        by_groups=spans_from_groups,
    ),
)
SIGNALS: Final = {
    "logs": decode_otlp_logs,
    "metrics": decode_otlp_metrics,
    "traces": decode_otlp_traces,
}
"""The decoder of each signal, by the last part of its path."""


def _is_protobuf(content_type: str) -> bool:
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type not in (PROTOBUF, JSON):
        raise BodyUnreadable(
            f"cannot read body as OTLP: media type is not supported, type=`{content_type[:80]}`;"
            f" use {PROTOBUF} or {JSON}"
        )
    return media_type == PROTOBUF


PROTOBUF_TYPE: Final = "application/x-protobuf"
_RPC_CODES: Final = {400: 3, 401: 16, 403: 7, 404: 12, 413: 3, 415: 3, 503: 14}
"""`google.rpc.Code` by HTTP status."""
_UNKNOWN: Final = 2


def _read(decode: Callable[..., Sequence[DecodedRecords]], request: web.Request) -> DoorRequest:
    media_type = request.content_type
    if media_type not in {PROTOBUF_TYPE, JSON_TYPE}:
        raise HttpRefusal(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE, f"send Content-Type: {PROTOBUF_TYPE} or {JSON_TYPE}"
        )

    def decode_body(body: bytes, received_ns: UnixNs) -> Sequence[DecodedRecords]:
        return decode(body, media_type, received_ns=received_ns)

    return request_head(request, "otlp", decode_body)


def export_response(result: DoorResult) -> bytes:
    """Return a full success in protobuf; records that were kept raw are a warning."""
    warning = _warning(result)
    return _field(1, _field(2, warning.encode())) if warning else b""


def _warning(result: DoorResult) -> str:
    if not result.unreadable:
        return ""
    return f"{result.unreadable} records were kept raw: see their attribute sluice.error"


def _respond(request: web.Request, result: DoorResult) -> web.Response:
    warning = _warning(result)
    if request.content_type == JSON_TYPE:
        partial_success = {"partialSuccess": {"errorMessage": warning}} if warning else {}
        return web.Response(body=msgspec.json.encode(partial_success), content_type=JSON_TYPE)
    return web.Response(body=export_response(result), content_type=PROTOBUF_TYPE)


def _refuse(request: web.Request, problem: Problem) -> web.Response:
    status = status_for(problem)
    code = _RPC_CODES.get(status, _UNKNOWN)
    detail = readable_detail(problem)
    if request.content_type == PROTOBUF_TYPE:
        message = b"\x08" + bytes([code]) + _field(2, detail.encode())
        return retry_later(web.Response(status=status, body=message, content_type=PROTOBUF_TYPE))
    text = msgspec.json.encode({"code": code, "message": detail})
    return retry_later(web.Response(status=status, body=text, content_type=JSON_TYPE))


def _field(number: int, content: bytes) -> bytes:
    """Return a length-delimited protobuf field."""
    return field_head(number, len(content)) + content


ROUTES: Final = tuple(
    DoorRoute(
        door="otlp",
        path=path,
        summary=f"Send {path.rpartition('/')[2]} as an OTLP exporter does",
        media_type=PROTOBUF_TYPE,
        read=partial(_read, SIGNALS[path.rpartition("/")[2]]),
        respond=_respond,
        refuse=_refuse,
    )
    for path in DOORS["otlp"].paths
)
