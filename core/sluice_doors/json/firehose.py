"""The HTTP endpoint that Amazon Data Firehose delivers to, with the events of CloudWatch Logs.

A request is one JSON object with records in base64. A record is a text, JSON objects, or the
payload of a subscription of CloudWatch Logs, which is usually compressed by gzip. Every status but
200 makes Firehose deliver again, until its retry time ends.
Sources: "Understand HTTP endpoint delivery request and response specifications" of Amazon Data
Firehose; "Log group-level subscription filters" of Amazon CloudWatch Logs.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import msgspec
from aiohttp import hdrs, web

from sluice_doors.attributes import (
    FIELD,
    OWN,
    RESOURCE,
    Pairs,
    json_text,
    merged,
    shared_resource,
    typed_text,
)
from sluice_doors.content_coding import decompress
from sluice_doors.decoded import (
    ERROR_ATTRIBUTE,
    REASON_CHARACTERS_MAX,
    RECORDS_MAX,
    BodyTooLarge,
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
    shows_all,
    value_as_text,
)
from sluice_doors.json.values import (
    Unread,
    read_json,
    read_json_lines,
    read_tolerantly,
    value_texts,
    without_bom,
)
from sluice_doors.requests import (
    RECEIVED_NS,
    DoorRequest,
    DoorResult,
    DoorRoute,
    readable_detail,
    retry_later,
    status_for,
)
from sluice_doors.rows import log_pieces
from sluice_doors.table import DOORS
from sluice_protocol.errors import UNREADABLE_JSON
from sluice_protocol.records import LogRecord
from sluice_protocol.units import UnixNs
from sluice_web.json_bodies import JSON_TYPE
from sluice_web.problems import Problem

UNPACKED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Limit of all records of a request after decompression: the largest buffer of Firehose."""
COMMON_PREFIX: Final = "aws.firehose.common_attributes"
ARN_KEY: Final = "aws.firehose.source_arn"
_OBJECT: Final = RecordFields(received_ns=0)
_LOG_EVENT: Final = RecordFields(time=("timestamp",), received_ns=0)
"""The fields of a JSON object with its time; the first that it has."""
_GZIP: Final = b"\x1f\x8b"
_DATA: Final = "DATA_MESSAGE"
_CONTROL: Final = "CONTROL_MESSAGE"
_MESSAGES: Final = (_DATA, _CONTROL)
_CLOUDWATCH_KEYS: Final[Mapping[str, str]] = {
    "logGroup": "aws.log.group.name",
    "logStream": "aws.log.stream.name",
    "owner": "cloud.account.id",
    "subscriptionFilters": "aws.log.subscription_filters",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Objects or a text of one record, and the pairs that its records have in common."""

    pairs: Mapping[str, str] = field(default_factory=dict)
    objects: Sequence[object] = ()
    text: str = ""
    error: str = ""
    cloudwatch: bool = False


def common_pairs(attributes: str, source_arn: str) -> dict[str, str]:
    """Return the pairs of `X-Amz-Firehose-Common-Attributes` and `-Source-Arn`; may be empty."""
    arn = {ARN_KEY: source_arn} if source_arn else {}
    if not attributes:
        return arn
    try:
        plain = read_json(attributes.encode())
    except (*UNREADABLE_JSON, UnicodeError):
        plain = None
    found = plain.get("commonAttributes") if isinstance(plain, dict) else None
    if not isinstance(found, dict):
        return {**arn, COMMON_PREFIX: attributes}
    pairs = [(key, value_as_text(value)) for key, value in found.items()]
    return merged([(OWN, list(arn.items())), (f"{COMMON_PREFIX}.", pairs)])


def decode_firehose(
    body: bytes, common: Mapping[str, str], *, received_ns: int
) -> tuple[DecodedRecords, ...]:
    """Return the log records of a request; empty if it has none."""
    request = read_tolerantly(body, 3)
    records = request.get("records") if isinstance(request, dict) else None
    if not isinstance(records, list):
        reason = request.reason if isinstance(request, Unread) else "it has no list `records`"
        raise BodyUnreadable(f"cannot read body as a request of Firehose: {reason}")
    room = UNPACKED_BYTES_MAX
    parts: list[_Part] = []
    for record in records:
        found, size = _parts(record, common, room)
        room -= size
        parts += found
        check_count(parts)
    if not parts:
        return ()
    shared = shared_resource([{**one.pairs} for one in parts])
    tally = Tally()
    in_all = dict(shared)
    tally.check_repeated((len(one.objects), _own_pairs(one, in_all)) for one in parts)
    rows = log_pieces(tally)
    for one in parts:
        for row in _rows(one, in_all, received_ns, tally):
            rows.append(row)
            check_count(rows)
    return (tally.decoded(rows.columns(), shared),)


def _parts(record: object, common: Mapping[str, str], room: int) -> tuple[list[_Part], int]:
    """Return what a record contains, and its size after decompression."""
    stated = record.get("data") if isinstance(record, dict) else None
    if not isinstance(stated, str):
        error = record.reason if isinstance(record, Unread) else "record has no data"
        return [_Part(pairs=common, text=value_as_text(record), error=error)], 0
    try:
        data = base64.b64decode(stated, validate=True)
        plain = decompress(data, "gzip", bytes_max=room) if data.startswith(_GZIP) else data
    except (binascii.Error, ValueError) as error:
        reason = f"data is not base64: {error}"[:REASON_CHARACTERS_MAX]
        return [_Part(pairs=common, text=stated, error=reason)], len(stated)
    except BodyUnreadable as error:
        return [_Part(pairs=common, text=stated, error=error.reason)], len(stated)
    if len(plain) > room:
        raise BodyTooLarge(f"the records of the request are larger than {UNPACKED_BYTES_MAX} bytes")
    return _unpacked(plain, common), len(plain)


def _unpacked(plain: bytes, common: Mapping[str, str]) -> list[_Part]:
    """Return the parts of a record: each payload of CloudWatch Logs, and the other objects."""
    objects = _objects(plain)
    if objects is None:
        text = without_bom(plain).decode(errors="surrogateescape").rstrip("\r\n")
        return [_Part(pairs=common, text=text, error="" if text else "record is empty")]
    parts: list[_Part] = []
    others: list[object] = []
    for one in objects:
        events = one.get("logEvents") if isinstance(one, dict) else None
        if not isinstance(one, dict) or one.get("messageType") not in _MESSAGES or not events:
            others.append(one)
        elif isinstance(events, list):
            if others:
                parts.append(_Part(pairs=common, objects=others))
                others = []
            pairs = _cloudwatch_pairs(one, common)
            parts.append(_Part(pairs=pairs, objects=events, cloudwatch=True))
        else:
            others.append(one)
    return [*parts, _Part(pairs=common, objects=others)] if others else parts


def _objects(plain: bytes) -> list[Any] | None:
    """Return the JSON objects of a record, and what is between them; None if it has none."""
    if without_bom(plain[:64]).lstrip()[:1] != b"{":
        return None
    try:
        found = read_json_lines(plain)
    except UNREADABLE_JSON:
        found = [read_tolerantly(text, 3) for text in islice(value_texts(plain), RECORDS_MAX + 1)]
    return found if any(isinstance(one, dict) for one in found) else None


def _cloudwatch_pairs(message: Mapping[str, object], common: Mapping[str, str]) -> dict[str, str]:
    stated = [
        (_CLOUDWATCH_KEYS.get(key, f"aws.log.{key}"), value_as_text(value))
        for key, value in message.items()
        if key not in {"messageType", "logEvents"}
    ]
    if message["messageType"] == _CONTROL:
        stated.append(("aws.log.message_type", _CONTROL))
    return merged([(OWN, stated), (f"{COMMON_PREFIX}.", list(common.items()))])


def _rows(
    part: _Part, shared: Mapping[str, str], received_ns: int, tally: Tally
) -> Iterator[LogRecord]:
    pairs = _own_pairs(part, shared)
    if not part.objects and (part.text or part.error):
        row = _text_row(part.text, part.error, pairs, received_ns, tally)
        tally.add(row.attributes, str(row.body))
        yield row
    for one in part.objects:
        if isinstance(one, Unread):
            row = _text_row(one.text, one.reason, pairs, received_ns, tally)
        elif not isinstance(one, dict):
            row = _text_row(json_text(one), "record is not an object", pairs, received_ns, tally)
        elif part.cloudwatch:
            row = _log_event(one, pairs, received_ns, tally)
        else:
            row = _object_row(one, pairs, received_ns, tally)
        tally.add(row.attributes, str(row.body))
        yield row


def _own_pairs(part: _Part, shared: Mapping[str, str]) -> list[tuple[str, str]]:
    return [pair for pair in part.pairs.items() if pair[0] not in shared]


def _text_row(text: str, error: str, pairs: Pairs, received_ns: int, tally: Tally) -> LogRecord:
    tally.timed = False
    tally.unreadable += bool(error)
    stated = [(ERROR_ATTRIBUTE, error)] if error else []
    attributes = merged([(OWN, stated), (RESOURCE, pairs)])
    return LogRecord(ts_ns=received_ns, body=text, attributes=attributes)


def _log_event(
    event: Mapping[str, object], pairs: Pairs, received_ns: int, tally: Tally
) -> LogRecord:
    ts_ns, _, fields = _time(event, _LOG_EVENT, received_ns, tally)
    extracted = event.get("extractedFields")
    own = [
        (f"aws.log.event.{key}", typed_text(value))
        for key, value in event.items()
        if key not in {"timestamp", "message"}
        and not (key == "extractedFields" and isinstance(extracted, dict))
    ]
    if isinstance(extracted, dict):
        own += [(key, typed_text(value)) for key, value in extracted.items()]
    message = event.get("message")
    return LogRecord(
        ts_ns=ts_ns,
        body="" if message is None else value_as_text(message),
        attributes=merged([(OWN, own), (FIELD, fields), (RESOURCE, pairs)]),
    )


def _object_row(
    found: Mapping[str, object], pairs: Pairs, received_ns: int, tally: Tally
) -> LogRecord:
    """Return the record of any other JSON object."""
    flat = flat_fields(found, _OBJECT.undivided)
    ts_ns, key, fields = _time(flat, _OBJECT, received_ns, tally)
    sources = ((FIELD, fields), (RESOURCE, pairs))
    return event_record(found, ts_ns=ts_ns, sources=sources, without=key)


def _time(
    found: Mapping[str, object], wanted: RecordFields, received_ns: int, tally: Tally
) -> tuple[int, str, Pairs]:
    """Return the time of an object, the key that is no attribute, and an unreadable time."""
    key, ts_ns = wanted.time_of(found, received_ns)
    if ts_ns is not None:
        return ts_ns, key if shows_all(key, found[key]) else "", ()
    tally.timed = False
    if not key:
        return received_ns, "", ()
    tally.unreadable += 1
    return received_ns, key, [(key, typed_text(found[key])), (ERROR_ATTRIBUTE, BAD_TIME)]


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


ROUTES: Final = tuple(
    DoorRoute(
        door="firehose",
        path=path,
        summary="Send log records as Amazon Data Firehose does",
        media_type=JSON_TYPE,
        read=_read,
        respond=_respond,
        refuse=_refuse,
    )
    for path in DOORS["firehose"].paths
)
