"""The push endpoint of Loki, in protobuf or JSON.

Many usual lines of JSON, a time and a text without metadata, become columns together: requests of
64 KiB line by line take 3.8 (2.9 to 4.7) times the processor time of the gateway.
Source: Loki HTTP API, "Ingest logs"; grafana/loki, `pkg/push/push.proto`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy as np
from aiohttp import web
from google.protobuf.message import DecodeError

from sluice_doors.attributes import (
    BAD_TIME,
    FIELD,
    OWN,
    RESOURCE,
    Pairs,
    merged,
    shared_resource,
)
from sluice_doors.decoded import ERROR_ATTRIBUTE, BodyUnreadable, DecodedRecords, Tally
from sluice_doors.json.records import parse_time, value_as_text
from sluice_doors.json.values import Unread, read_tolerantly
from sluice_doors.protobuf import (
    FOREIGN,
    arrow_road,
    base64_of_message,
    is_foreign,
    message_classes,
)
from sluice_doors.requests import (
    DoorRequest,
    DoorResult,
    DoorRoute,
    refuse_in_text,
    request_head,
)
from sluice_doors.rows import PIECE_ROWS, RowPieces, log_pieces
from sluice_doors.table import DOORS
from sluice_protocol.columns import LogColumns
from sluice_protocol.errors import InvalidFrame
from sluice_protocol.records import RAW_ATTRIBUTE, LogRecord, logs_from_lines
from sluice_protocol.times import NS_FROM, TS_END, read_number
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_web.endpoints import Endpoint
from sluice_web.json_bodies import JSON_TYPE


@cache
def push_classes() -> dict[str, Any]:
    """Return the class of each message by name; `PushRequest` contains all others."""
    label = {"name": (1, "bytes"), "value": (2, "bytes")}
    return message_classes(
        "sluice_doors.loki",
        {
            "Label": label,
            "Timestamp": {"seconds": (1, "int64"), "nanos": (2, "int32")},
            "Entry": {
                "timestamp": (1, "Timestamp"),
                "line": (2, "bytes"),
                "structured_metadata": (3, "*Label"),
                "parsed": (4, "*Label"),
            },
            "Stream": {"labels": (1, "bytes"), "entries": (2, "*Entry"), "hash": (3, "uint64")},
            "PushRequest": {"streams": (1, "*Stream"), "format": (2, "bytes")},
        },
    )


_LABEL: Final = re.compile(
    r"""\s*([A-Za-z_:][\w:.]*)\s*=\s*("(?:[^"\\]|\\.)*"|`[^`]*`)\s*(,|$)""", re.ASCII
)
_ESCAPE: Final = re.compile(
    r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{3}|.)", re.DOTALL
)
_ESCAPES: Final = dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True))
_UNICODE_END: Final = 0x110000
_SURROGATES: Final = range(0xD800, 0xE000)
_OCTAL_DIGITS: Final = 3


def parse_labels(text: str) -> dict[str, str] | None:
    """Return the labels of `{name="value", …}`; None if the text has another form."""
    stripped = text.strip()
    if not (stripped.startswith("{") and stripped.endswith("}")):
        return None
    inner = stripped[1:-1].strip()
    found: dict[str, str] = {}
    place = 0
    while place < len(inner):
        label = _LABEL.match(inner, place)
        if label is None or label[1] in found:
            return None
        found[label[1]] = _unquoted(label[2])
        place = label.end()
    return found


def _unquoted(quoted: str) -> str:
    """Return the text of a Go string literal."""
    if quoted[0] == "`":
        return quoted[1:-1]
    # Bytes that were escaped one by one may be one character together.
    text = _ESCAPE.sub(_unescaped, quoted[1:-1])
    return text.encode(errors="surrogateescape").decode(errors="surrogateescape")


def _unescaped(escape: re.Match[str]) -> str:
    code = escape[1]
    if code[0] in "uU" and len(code) > 1:
        number = int(code[1:], 16)
        return chr(number) if number < _UNICODE_END and number not in _SURROGATES else "\ufffd"
    if code[0] == "x" and len(code) > 1:
        return bytes([int(code[1:], 16)]).decode(errors="surrogateescape")
    if len(code) == _OCTAL_DIGITS:
        return bytes([int(code, 8) & 255]).decode(errors="surrogateescape")
    return _ESCAPES.get(code, code)


_DIGITS_MAX = 19
"""Digits of 2^63."""
_FIELDS = 2


def columns_of_lines(lines: Sequence[object], labels: Pairs, tally: Tally) -> LogColumns | None:
    """Return the columns of lines with the same labels; None if one has another form."""
    times: list[str] = []
    texts: list[bytes] = []
    try:
        for line in lines:
            if not isinstance(line, list) or len(line) != _FIELDS:
                return None
            time, text = line
            times.append(time)
            texts.append(text.encode())
        if not all(one.isdecimal() and len(one) <= _DIGITS_MAX for one in times):
            return None
        if not "".join(times).isascii():
            return None
        ts = np.fromiter(map(int, times), np.uint64, len(times))
        if int(ts.min()) < NS_FROM or int(ts.max()) >= TS_END:
            return None
        attributes = merged([(RESOURCE, labels)])
        columns = logs_from_lines(texts, ts.astype(np.int64), attributes=attributes)
    except (AttributeError, TypeError, UnicodeEncodeError, InvalidFrame):
        return None  # a value of another type, or half of a surrogate pair
    tally.add(attributes, records=len(texts))
    tally.add_sizes(0, len(columns.body.data))
    return columns


PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
LABELS_KEY: Final = "loki.labels"
"""The attribute with the labels of a stream that cannot be parsed."""
BAD_LABELS: Final = "labels of the stream cannot be parsed"
COLUMN_LINES_MIN: Final = 64
"""Lines of a stream in JSON from which they become columns together."""
_ENTRY_LEVEL: Final = 4
"""The lines in a request: of a list, of a stream, of the list of streams."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A line of a stream; a time of None is unreadable, and `time` is its text."""

    ts_ns: int | None
    time: str
    line: str
    metadata: Pairs
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stream:
    """Labels and lines of a stream, read one by one; `error` if the labels are unreadable."""

    labels: dict[str, str]
    lines: Sequence[Any]
    read: Callable[[Any], _Entry]
    error: str = ""


def decode_loki(body: bytes, content_type: str, *, received_ns: int) -> tuple[DecodedRecords, ...]:
    """Return the records of a push request; empty if it has none.

    In protobuf the body is compressed as a snappy block. Any `content_type` but `application/json`
    means protobuf, as for Loki. `received_ns` is the time of lines whose time is unreadable.
    """
    if content_type.partition(";")[0].strip().lower() == JSON:
        found = _decoded(_from_json(body), received_ns)
    else:
        found = _decode_protobuf(body, received_ns)
    return () if found is None else (found,)


def _decode_protobuf(body: bytes, received_ns: int) -> DecodedRecords | None:
    fast = arrow_road("loki.arrow", body)
    if fast is not None:
        with suppress(fast.NotPlain):
            found: DecodedRecords | None = fast.decode_push(body)
            return found
    return _decoded(_from_protobuf(body), received_ns)


def _decoded(read: Iterable[_Stream], received_ns: int) -> DecodedRecords | None:
    """Return the records of streams, made line by line; None if there are none."""
    streams = [one for one in read if one.lines]
    if not streams:
        return None
    tally = Tally()
    shared = shared_resource([one.labels for one in streams])
    common = dict(shared)
    tally.check_repeated((len(one.lines), _own_labels(one, common)) for one in streams)
    rows = log_pieces(tally)
    for one in streams:
        _add_stream(rows, one, common, received_ns, tally)
    return tally.decoded(rows.columns(), shared)


def _add_stream(
    rows: RowPieces[LogRecord, LogColumns],
    stream: _Stream,
    shared: dict[str, str],
    received_ns: int,
    tally: Tally,
) -> None:
    """Add the records of a stream; many lines of the usual form become columns together."""
    if stream.read is not _json_entry or len(stream.lines) < COLUMN_LINES_MIN:
        rows.extend(_rows(stream, shared, received_ns, tally))
        return
    labels = _own_labels(stream, shared)
    for start in range(0, len(stream.lines), PIECE_ROWS):
        lines = stream.lines[start : start + PIECE_ROWS]
        columns = columns_of_lines(lines, labels, tally)
        if columns is None:
            rows.extend(_rows(replace(stream, lines=lines), shared, received_ns, tally))
        else:
            rows.add(columns)


def _own_labels(stream: _Stream, shared: dict[str, str]) -> list[tuple[str, str]]:
    return [pair for pair in stream.labels.items() if pair[0] not in shared]


def _rows(
    stream: _Stream, shared: dict[str, str], received_ns: int, tally: Tally
) -> Iterator[LogRecord]:
    labels = _own_labels(stream, shared)
    for entry in map(stream.read, stream.lines):
        late = BAD_TIME if entry.ts_ns is None and entry.time and not entry.error else ""
        error = "; ".join(filter(None, (entry.error, stream.error, late)))
        tally.timed = tally.timed and entry.ts_ns is not None
        tally.unreadable += bool(error)
        tally.foreign += entry.error == FOREIGN
        fields = [("timestamp", entry.time)] if late else []
        if error:
            fields.append((ERROR_ATTRIBUTE, error))
        attributes = merged([(OWN, entry.metadata), (FIELD, fields), (RESOURCE, labels)])
        tally.add(attributes, entry.line)
        yield LogRecord(
            ts_ns=received_ns if entry.ts_ns is None else entry.ts_ns,
            body=entry.line,
            attributes=attributes,
        )


def _stream(labels: str, lines: Sequence[Any]) -> _Stream:
    found = parse_labels(labels)
    if found is None:
        return _Stream(labels={LABELS_KEY: labels}, lines=lines, read=_entry, error=BAD_LABELS)
    return _Stream(labels=found, lines=lines, read=_entry)


def _from_protobuf(body: bytes) -> list[_Stream]:
    try:
        request = push_classes()["PushRequest"].FromString(body)
    except DecodeError as error:
        raise BodyUnreadable(f"cannot read body as a push request of Loki: {error}") from error
    return [_stream(_text(stream.labels), stream.entries) for stream in request.streams]


def _entry(entry: Any) -> _Entry:  # noqa: ANN401 - the class is made at run time
    if is_foreign(entry):
        raw = base64_of_message(entry)
        return _Entry(None, "", "", ((RAW_ATTRIBUTE, raw),), FOREIGN)
    time = entry.timestamp
    ts_ns = time.seconds * NS_PER_S + time.nanos
    pairs = (*entry.structured_metadata, *entry.parsed)
    return _Entry(
        ts_ns=ts_ns if 0 <= ts_ns < TS_END else None,
        time=f"{time.seconds} s {time.nanos} ns",
        line=_text(entry.line),
        metadata=[(_text(one.name), _text(one.value)) for one in pairs],
    )


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")


def _from_json(body: bytes) -> list[_Stream]:
    request = read_tolerantly(body, _ENTRY_LEVEL)
    streams = request.get("streams") if isinstance(request, dict) else None
    if not isinstance(streams, list):
        reason = request.reason if isinstance(request, Unread) else "it has no list `streams`"
        raise BodyUnreadable(f"cannot read body as a push request of Loki: {reason}")
    return [stream for one in streams for stream in _json_streams(one)]


def _json_streams(plain: object) -> Iterator[_Stream]:
    """Yield the lines of a stream: in `values`, and in `entries`, the form of Loki's first API."""
    if not isinstance(plain, dict) or not plain.keys() & {"values", "entries"}:
        yield _Stream(labels={}, lines=[plain], read=_raw_stream)
        return
    labels, old_labels = plain.get("stream"), plain.get("labels")
    known: dict[str, str] | None = _texts(labels) if isinstance(labels, dict) else {}
    error = "" if labels is None or isinstance(labels, dict) else BAD_LABELS
    if labels is None and old_labels is not None:
        known = parse_labels(old_labels) if isinstance(old_labels, str) else None
    if known is None or error:
        stated = old_labels if labels is None else labels
        known, error = {LABELS_KEY: value_as_text(stated)}, BAD_LABELS
    for name, read in (("values", _json_entry), ("entries", _old_entry)):
        lines = plain.get(name)
        if isinstance(lines, list):
            yield _Stream(labels=known, lines=lines, read=read, error=error)
        elif lines is not None:
            yield _Stream(labels={}, lines=[plain], read=_raw_stream)


def _old_entry(plain: object) -> _Entry:
    """Return a line of the form `{"ts": time, "line": text}`."""
    if not isinstance(plain, dict) or not isinstance(plain.get("line"), str):
        return _raw_entry(plain, "line has the wrong form")
    stated = next((plain[name] for name in ("ts", "timestamp") if name in plain), None)
    metadata = plain.get("structuredMetadata", {})
    return _Entry(
        ts_ns=None if stated is None else parse_time(stated),
        time="" if stated is None else value_as_text(stated),
        line=plain["line"],
        metadata=list(_texts(metadata).items()) if isinstance(metadata, dict) else (),
    )


def _json_entry(plain: object) -> _Entry:
    match plain:
        case [str() | int() as time, str() as line]:
            return _timed_entry(time, line, {})
        case [str() | int() as time, str() as line, dict() as metadata]:
            return _timed_entry(time, line, metadata)
        case _:
            return _raw_entry(plain, "line has the wrong form")


def _timed_entry(time: str | int, line: str, metadata: Mapping[str, object]) -> _Entry:
    text = str(time)
    digits = text.isascii() and text.isdigit() and len(text) < 20  # noqa: PLR2004 - of 2^63
    # A usual mistake: seconds instead of nanoseconds, a time of 1970 which no search finds.
    ts_ns = read_number(int(text)) if digits else None
    return _Entry(
        ts_ns=ts_ns,
        time=text,
        line=line,
        metadata=list(_texts(metadata).items()),
    )


def _raw_stream(plain: object) -> _Entry:
    return _raw_entry(plain, "stream has no list of lines, `values` or `entries`")


def _raw_entry(plain: object, reason: str) -> _Entry:
    if isinstance(plain, Unread):
        reason = plain.reason
    return _Entry(ts_ns=None, time="", line=value_as_text(plain), metadata=(), error=reason)


def _texts(plain: Mapping[str, object]) -> dict[str, str]:
    return {key: value_as_text(one) for key, one in plain.items()}


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


def probe_endpoints(_is_full: object, *, open_host: bool) -> list[Endpoint]:
    """Return the endpoints that Vector requests before it sends records."""

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


ROUTES: Final = tuple(
    DoorRoute(
        door="loki",
        path=path,
        summary="Send log lines as a client of Loki does",
        media_type="application/x-protobuf",
        read=_read,
        respond=_respond,
        refuse=refuse_in_text,
    )
    for path in DOORS["loki"].paths
)
