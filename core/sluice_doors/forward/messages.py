"""Messages of Fluent's forward protocol: where one ends, its parts, and its log records.

A message is an array: a tag, then entries or a time and a record, then options.
Source: Fluent forward protocol specification 1 and 1.5.
"""

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC
from decimal import Decimal
from typing import Final, Literal, NamedTuple

import msgpack

from sluice_doors.attributes import (
    BAD_TIME,
    FIELD,
    OWN,
    RESOURCE,
    json_text,
    merged,
    shared_resource,
    typed_text,
)
from sluice_doors.content_coding import decompress
from sluice_doors.decoded import (
    ERROR_ATTRIBUTE,
    REASON_CHARACTERS_MAX,
    BodyTooLarge,
    BodyUnreadable,
    DecodedRecords,
    Tally,
    check_count,
)
from sluice_doors.forward.values import (
    NotMsgpack,
    build,
    element_spans,
    json_form,
    json_map,
    key_text,
    time_of,
    value_spans,
)
from sluice_doors.json.records import event_record
from sluice_doors.rows import log_pieces
from sluice_protocol.records import RAW_ATTRIBUTE, LogRecord
from sluice_protocol.times import TS_END, read_time
from sluice_protocol.units import NS_PER_S

Mode = Literal["message", "forward", "packed"]
"""One event, an array of entries, or entries as bytes."""
_NIL: Final = 0xC0
_ARRAYS: Final = frozenset({*range(0x90, 0xA0), 0xDC, 0xDD})
_MAPS: Final = frozenset({*range(0x80, 0x90), 0xDE, 0xDF})
_TEXTS: Final = frozenset({*range(0xA0, 0xC0), 0xD9, 0xDA, 0xDB, 0xC4, 0xC5, 0xC6})
_READ_BYTES_MAX: Final = 1024 * 1024
"""What may be fed at a time, in addition to the limit of a message."""
_PARTS_MIN, _PARTS_MAX = 2, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardMessage:
    """The parts of one message.

    The pairs of places are start and end in `data`. The entries of mode `message` are time and
    record.
    """

    data: bytes
    mode: Mode
    tag: tuple[int, int]
    entries: tuple[int, int]
    option: Mapping[str, object] = field(default_factory=dict)

    @property
    def chunk(self) -> str | bytes | None:
        """The name of the message, which the client waits for; None if it sent none."""
        found = self.option.get("chunk")
        return found if isinstance(found, str | bytes) and found else None


def read_message(data: bytes) -> ForwardMessage | None:
    """Return the parts of a complete message; None if it has another form than the protocol's."""
    try:
        parts = list(element_spans(data, count_max=_PARTS_MAX))
        if len(parts) < _PARTS_MIN:
            return None
        first = data[parts[1][0]]
        if first in _ARRAYS or first in _TEXTS:
            mode: Mode = "forward" if first in _ARRAYS else "packed"
            place, entries = 2, parts[1]
        else:
            mode, place = "message", 3
            entries = (parts[1][0], parts[2][1]) if len(parts) > 2 else (0, 0)  # noqa: PLR2004 - time and record
        option = _option(data, parts, place)
    except NotMsgpack:
        return None
    if option is None or entries == (0, 0):
        return None
    return ForwardMessage(data=data, mode=mode, tag=parts[0], entries=entries, option=option)


def _option(data: bytes, parts: list[tuple[int, int]], place: int) -> dict[str, object] | None:
    """Return the options; None where another value is in their place."""
    if len(parts) <= place:
        return {}
    start, end = parts[place]
    if data[start] == _NIL:
        return {}
    if len(parts) > place + 1 or data[start] not in _MAPS:
        return None
    found = build(data[start:end])
    return {key_text(key): one for key, one in found.items()} if isinstance(found, dict) else None


class MessageSplitter:
    """Divides a stream of bytes into messages, with a limit for each."""

    def __init__(self, bytes_max: int) -> None:
        """Start with no bytes; `bytes_max` is the largest message."""
        self._bytes_max = bytes_max
        self._unpacker = msgpack.Unpacker(max_buffer_size=bytes_max + 4 * _READ_BYTES_MAX)
        self._pending = bytearray()
        self._base = 0
        self._fed = 0

    @property
    def pending_bytes(self) -> int:
        """The bytes that are not part of a returned message."""
        return len(self._pending)

    def feed(self, data: bytes) -> None:
        """Append bytes of the stream."""
        self._pending += data

    def take(self) -> list[bytes]:
        """Return the complete messages; empty values of heartbeats are left out."""
        found: list[bytes] = []
        start = 0
        while True:
            try:
                end = self._next_end(start)
            except BodyUnreadable:
                if not found:
                    raise
                end = None  # the messages before the error are returned, the next call fails
            if end is None:
                break
            if self._pending[start] != _NIL:
                found.append(bytes(self._pending[start:end]))
            start = end
        del self._pending[:start]
        self._base += start
        if len(self._pending) > self._bytes_max:
            raise BodyTooLarge(f"a message is larger than {self._bytes_max} bytes")
        return found

    def _next_end(self, start: int) -> int | None:
        """Return where the message that starts here ends; None if it is not complete."""
        if start == len(self._pending):
            return None
        if self._pending[start] not in _ARRAYS and self._pending[start] != _NIL:
            raise BodyUnreadable("the stream is not of Fluent's forward protocol: no array")
        while True:
            try:
                self._unpacker.skip()
            except msgpack.OutOfData:
                if not self._feed_unpacker():
                    return None
            except ValueError as error:
                raise BodyUnreadable(f"the stream is not valid MessagePack: {error}") from error
            else:
                return int(self._unpacker.tell()) - self._base

    def _feed_unpacker(self) -> bool:
        """Feed the bytes that the parser has not seen; return False if there are none."""
        start = self._fed - self._base
        piece = bytes(self._pending[start : start + _READ_BYTES_MAX])
        if not piece:
            return False
        self._unpacker.feed(piece)
        self._fed += len(piece)
        return True


TAG_KEY: Final = "fluent.tag"
OPTION_PREFIX: Final = "fluent.option."
METADATA_PREFIX: Final = "fluent.metadata."
TIME_KEY: Final = "time"
_MEANT: Final = frozenset({"chunk", "size", "compressed", "fluent_signal"})
"""The options with a meaning of the protocol; all others are kept."""
_SIGNALS: Final[Mapping[object, str]] = {1: "metrics", 2: "traces"}
_CODINGS: Final = frozenset({"gzip", "zstd"})
_NOT_STATED: Final = (None, "", "text")
_PAIR: Final = 2


class _Entry(NamedTuple):
    """A record with its time; `raw` is what cannot be read, and `error` why."""

    ts_ns: int | None = None
    time: str = ""
    record: Mapping[str, object] | None = None
    metadata: tuple[tuple[str, str], ...] = ()
    text: str = ""
    raw: bytes = b""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """The tag and options of a message as pairs, and its entries."""

    pairs: dict[str, str]
    entries: Iterator[_Entry]
    data: bytes


def decode_forward(body: bytes, *, received_ns: int, bytes_max: int) -> tuple[DecodedRecords, ...]:
    """Return the records of messages with at most `bytes_max` after decompression; may be empty."""
    room = bytes_max
    groups = []
    try:
        for start, end in value_spans(body):
            group, size = _group(body[start:end], room)
            room -= size
            groups.append(group)
    except NotMsgpack as error:
        raise BodyUnreadable(f"cannot read body as messages of Fluent: {error}") from error
    shared = shared_resource([one.pairs for one in groups])
    tally = Tally()
    rows = log_pieces(tally)
    for one in groups:
        before = len(rows)
        for row in _rows(one, dict(shared), received_ns, tally):
            rows.append(row)
            check_count(rows)
        if len(rows) == before:
            # A client that waits for an ack would send a refused message again and again.
            empty = replace(one, entries=iter((_raw(one.data, "message has no entries"),)))
            rows.extend(_rows(empty, dict(shared), received_ns, tally))
    if not rows:
        return ()
    return (tally.decoded(rows.columns(), shared),)


def _group(data: bytes, room: int) -> tuple[_Group, int]:
    """Return what a message contains, and the size of its entries after decompression."""
    message = read_message(data)
    if message is None:
        return _Group(
            pairs={}, entries=iter((_raw(data, "message has the wrong form"),)), data=data
        ), 0
    pairs = [(TAG_KEY, _text(_built(data[slice(*message.tag)])))]
    pairs += [
        (OPTION_PREFIX + key, _text(value))
        for key, value in message.option.items()
        if key not in _MEANT
    ]
    entries, size = _entries(message, room)
    return _Group(pairs=dict(pairs), entries=entries, data=data), size


def _entries(message: ForwardMessage, room: int) -> tuple[Iterator[_Entry], int]:
    """Return the entries of a message, and their size after decompression."""
    data = message.data[slice(*message.entries)]
    stated = message.option.get("fluent_signal")
    signal = _SIGNALS.get(stated) if isinstance(stated, int) else None
    if signal is not None:
        return iter((_raw(data, f"{signal} of Fluent Bit are not decoded"),)), 0
    if message.mode == "message":
        return iter((_entry(b"\x92" + data),)), 0
    if message.mode == "forward":
        return (_entry(data[slice(*part)]) for part in element_spans(data)), 0
    packed = _built(data)
    stream = packed.encode(errors="surrogateescape") if isinstance(packed, str) else packed
    return _packed(stream if isinstance(stream, bytes) else data, message.option, room)


def _packed(stream: bytes, option: Mapping[str, object], room: int) -> tuple[Iterator[_Entry], int]:
    coding = option.get("compressed")
    if coding in _NOT_STATED:
        return _stream(stream), 0
    if not isinstance(coding, str) or coding not in _CODINGS:
        return iter((_raw(stream, f"compression is not known: {coding!s:.40}"),)), 0
    try:
        plain = decompress(stream, coding, bytes_max=room)
    except BodyUnreadable as error:
        return iter((_raw(stream, error.reason),)), 0
    return _stream(plain), len(plain)


def _stream(data: bytes) -> Iterator[_Entry]:
    """Yield the entries that follow each other; what cannot be divided is one of them."""
    last = 0
    try:
        for start, end in value_spans(data):
            yield _entry(data[start:end])
            last = end
    except NotMsgpack:
        yield _raw(data[last:], "entries are truncated or damaged")


def _entry(data: bytes) -> _Entry:
    """Return a pair of time and record, or of time with metadata and record."""
    try:
        found = build(data)
        if not isinstance(found, list) or len(found) != _PAIR:
            return _Entry(text=json_text(json_form(found)), error="entry has the wrong form")
        stated, record = found
        pairs: tuple[tuple[str, str], ...] = ()
        if isinstance(stated, list) and len(stated) == _PAIR:
            stated, metadata = stated
            pairs = _metadata(metadata)
        if not isinstance(record, dict):
            return _Entry(text=json_text(json_form(found)), error="record is not a map")
        ts_ns = _time(stated)
        readable = ts_ns is not None or stated is None
        return _Entry(ts_ns, "" if readable else _text(stated), json_map(record), pairs)
    except (NotMsgpack, RecursionError, BodyUnreadable) as error:
        return _raw(data, str(error))


def _metadata(found: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(found, dict):
        return ()
    return tuple((METADATA_PREFIX + key_text(key), _typed(value)) for key, value in found.items())


def _time(stated: object) -> int | None:
    """Return a time in Unix ns, 0 for none; None if it cannot be read."""
    extension = time_of(stated)
    if extension is not None:
        found = extension[0] * NS_PER_S + extension[1]
    elif isinstance(stated, int) and not isinstance(stated, bool):
        found = stated * NS_PER_S
    elif isinstance(stated, float) and abs(stated) < TS_END:
        found = int(Decimal(str(stated)) * NS_PER_S)
    elif isinstance(stated, str):
        return read_time(stated, zone=UTC)
    else:
        return None
    return found if 0 <= found < TS_END else None


def _rows(
    group: _Group, shared: dict[str, str], received_ns: int, tally: Tally
) -> Iterator[LogRecord]:
    pairs = [pair for pair in group.pairs.items() if pair[0] not in shared]
    for entry in group.entries:
        row = _row(entry, pairs, received_ns, tally)
        tally.add(row.attributes, str(row.body))
        yield row


def _row(entry: _Entry, pairs: list[tuple[str, str]], received_ns: int, tally: Tally) -> LogRecord:
    ts_ns = entry.ts_ns or received_ns
    tally.timed = tally.timed and bool(entry.ts_ns)
    if entry.record is not None:
        late = [(TIME_KEY, entry.time), (ERROR_ATTRIBUTE, BAD_TIME)] if entry.time else []
        tally.unreadable += bool(late)
        sources = ((FIELD, [*entry.metadata, *late]), (RESOURCE, pairs))
        return event_record(entry.record, ts_ns=ts_ns, sources=sources)
    tally.unreadable += 1
    stated = [(ERROR_ATTRIBUTE, entry.error)]
    if entry.raw:
        stated.append((RAW_ATTRIBUTE, base64.b64encode(entry.raw).decode()))
    attributes = merged([(OWN, stated), (RESOURCE, pairs)])
    return LogRecord(ts_ns=ts_ns, body=entry.text, attributes=attributes)


def _raw(data: bytes, reason: str) -> _Entry:
    return _Entry(raw=data, error=reason[:REASON_CHARACTERS_MAX])


def _built(data: bytes) -> object:
    try:
        return build(data)
    except NotMsgpack:
        return base64.b64encode(data).decode()


def _text(value: object) -> str:
    return str(_typed(value))


def _typed(value: object) -> str:
    try:
        return typed_text(json_form(value))
    except RecursionError:
        return ""
