"""Syslog: split a stream into messages, and map them to records. RFC 5424, RFC 3164 and RFC 6587.

A message that has neither form is kept: its text is the body. Only what has no priority is an
error, because RFC 3164 allows any content after it. Fields are stored as OpenTelemetry maps them.

The first bytes of a connection decide how it is split: a number, a space and `<` begin an octet
count, all others a line, which ends at a line feed or NUL. A message above the limit becomes
several pieces as its bytes arrive, so that neither a count nor a line without an end uses more
memory than the limit.
Source: RFC 5424 section 6, RFC 3164 section 4, OpenTelemetry logs data model, appendix A and B.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Final, Literal, NamedTuple

from sluice_doors.attributes import free_name
from sluice_doors.decoded import ERROR_ATTRIBUTE, DecodedRecords, Tally
from sluice_doors.otlp.logs import logs_from_rows
from sluice_protocol.records import LogRecord
from sluice_protocol.times import read_time, scan_time
from sluice_protocol.utf8 import character_end

HOST: Final = "host.name"
APP: Final = "service.name"
PROCESS: Final = "syslog.procid"
MESSAGE_ID: Final = "syslog.msgid"
FACILITY: Final = "syslog.facility"
VERSION: Final = "syslog.version"
TIMESTAMP: Final = "syslog.timestamp"
STRUCTURED_DATA: Final = "syslog.structured_data"
PEER: Final = "network.peer.address"
"""The address of the sender, in the source of a piece."""
CONTINUES: Final = "sluice.continues"
SEVERITIES: Final = (21, 19, 18, 17, 13, 10, 9, 5)
"""OpenTelemetry's severity number by the severity of syslog, emergency first (appendix B)."""
PRIORITY_MAX: Final = 191
NO_PRIORITY: Final = "message has no priority"
BAD_TIME: Final = "time cannot be read"
BAD_STRUCTURED_DATA: Final = "structured data cannot be read"
TOO_LONG: Final = "message is too long: it continues in the next records"
REST: Final = "rest of a message that is too long"

_PRIORITY: Final = re.compile(r"<([0-9]{1,3})>")
_HEAD_5424: Final = re.compile(
    r"([1-9][0-9]{0,2}) (-|[0-9]{4}-[0-9]{2}-[0-9]{2}T[^ ]+) ([^ ]+) ([^ ]+) ([^ ]+) ([^ ]+) "
)
_VALUE: Final = r'"((?:[^"\\]|\\.)*)"'
_ELEMENT: Final = re.compile(r'\[([^ =\]"\[]+)((?: [^ =\]"]+="(?:[^"\\]|\\.)*")*)\]', re.DOTALL)
_PARAMETER: Final = re.compile(rf' ([^ =\]"]+)={_VALUE}', re.DOTALL)
_ESCAPED: Final = re.compile(r'\\(["\\\]])')
_TIME_END: Final = re.compile(r":? ")
_HOST_3164: Final = re.compile(r"([^ \[]*[^ :\[]) ")
_TAG: Final = re.compile(r"([^ :\[\]]{1,255})(?:\[([^ \]]{0,128})\])?:(?: |$)")


class SyslogPiece(NamedTuple):
    """A message, or a part of one that is too long.

    `error` is why the message is not complete; empty where it is. A piece with `rest` continues the
    piece before it and is kept raw; one that `continues` is continued by the next piece.
    """

    data: bytes
    source: Mapping[str, str]
    error: str = ""
    rest: bool = False
    continues: bool = False


@dataclass(slots=True)
class _Parsed:
    """What was read of one message."""

    body: str
    ts_ns: int | None = None
    severity: int = 0
    error: str = ""


def decode_syslog(
    pieces: Sequence[SyslogPiece], *, received_ns: int, zone: tzinfo | None
) -> DecodedRecords | None:
    """Return one record for each piece; None if there is none.

    `received_ns` is the time of messages that contain none, and the basis of missing years. `zone`
    is that of times that state none; None is the system's zone.
    """
    tally = Tally()
    rows = syslog_records(pieces, SyslogReading(received_ns, zone), tally)
    return tally.decoded(logs_from_rows(rows, tally)) if rows else None


class SyslogReading(NamedTuple):
    """How messages are read: see `decode_syslog`.

    Files of syslog daemons have no priority before the time of RFC 3164 (`needs_priority`).
    """

    received_ns: int
    zone: tzinfo | None
    needs_priority: bool = True


def syslog_records(
    pieces: Sequence[SyslogPiece], read: SyslogReading, tally: Tally
) -> list[LogRecord]:
    """Return one record for each piece."""
    return [_record(piece, read, tally) for piece in pieces]


def _record(piece: SyslogPiece, read: SyslogReading, tally: Tally) -> LogRecord:
    text = piece.data.rstrip(b"\r\n\0").decode(errors="surrogateescape")
    found: dict[str, str] = {}
    if piece.rest:
        parsed = _Parsed(body=text, error=piece.error or REST)
    else:
        parsed = _parse(text, found, read)
    error = parsed.error or piece.error
    after: dict[str, int] = {}
    for key, value in piece.source.items():
        found[free_name(key, found, after)] = value
    if HOST not in found and piece.source.get(PEER):
        found[HOST] = piece.source[PEER]  # relays do the same: RFC 3164 section 4.3.2
    if piece.continues:
        found[CONTINUES] = "true"
    if error:
        found[ERROR_ATTRIBUTE] = error
        tally.unreadable += 1
    if parsed.ts_ns is None:
        tally.timed = False
    tally.add(found, parsed.body)
    ts_ns = read.received_ns if parsed.ts_ns is None else parsed.ts_ns
    return LogRecord(ts_ns=ts_ns, body=parsed.body, severity=parsed.severity, attributes=found)


def _parse(text: str, found: dict[str, str], read: SyslogReading) -> _Parsed:
    """Read a message, and add its fields to `found`."""
    priority = _PRIORITY.match(text)
    if priority is None or int(priority[1]) > PRIORITY_MAX:
        if not read.needs_priority and scan_time(text, zone=UTC, received_ns=read.received_ns):
            return _parse_3164(text, 0, found, read.received_ns, read.zone)
        return _Parsed(body=text, error=NO_PRIORITY)
    facility, severity = divmod(int(priority[1]), 8)
    found[FACILITY] = str(facility)
    head = _HEAD_5424.match(text, priority.end())
    if head is not None:
        parsed = _parse_5424(text, head, found)
    else:
        parsed = _parse_3164(text, priority.end(), found, read.received_ns, read.zone)
    parsed.severity = SEVERITIES[severity]
    return parsed


# -- RFC 5424 ----------------------------------------------------------------------------


def _parse_5424(text: str, head: "re.Match[str]", found: dict[str, str]) -> _Parsed:
    version, time, host, app, process, message_id = head.groups()
    if version != "1":
        found[VERSION] = version
    fields = {HOST: host, APP: app, PROCESS: process, MESSAGE_ID: message_id}
    found.update((key, value) for key, value in fields.items() if value != "-")
    ts_ns = None if time == "-" else read_time(time, zone=UTC)
    error = ""
    if time != "-" and ts_ns is None:
        found[TIMESTAMP], error = time, BAD_TIME
    end = _structured_data(text, head.end(), found)
    if end is None:
        return _Parsed(body=text[head.end() :], ts_ns=ts_ns, error=BAD_STRUCTURED_DATA)
    # A byte order mark only states that the text is UTF-8.
    return _Parsed(
        body=text[end:].removeprefix(" ").removeprefix("\ufeff"), ts_ns=ts_ns, error=error
    )


def _structured_data(text: str, start: int, found: dict[str, str]) -> int | None:
    """Add the parameters to `found`; return where they end, or None if they cannot be read."""
    if text.startswith("-", start) and text[start + 1 : start + 2] in ("", " "):
        return start + 1
    if text[start : start + 1] not in ("-", "["):
        return start  # Heroku's Logplex leaves it out
    end, elements = start, []
    while (element := _ELEMENT.match(text, end)) is not None:
        elements.append(element.groups())
        end = element.end()
    if not elements or text[end : end + 1] not in ("", " "):
        return None
    after: dict[str, int] = {}
    for name, parameters in elements:
        prefix = f"{STRUCTURED_DATA}.{name}"
        for key, value in _parameters(prefix, parameters):
            found[free_name(key, found, after)] = value
    return end


def _parameters(prefix: str, text: str) -> Iterable[tuple[str, str]]:
    """Yield the parameters of an element; an element without any is an empty text."""
    if not text:
        yield prefix, ""
    for match in _PARAMETER.finditer(text):
        yield f"{prefix}.{match[1]}", _ESCAPED.sub(r"\1", match[2])


# -- RFC 3164 ----------------------------------------------------------------------------


def _parse_3164(
    text: str, start: int, found: dict[str, str], received_ns: int, zone: tzinfo | None
) -> _Parsed:
    """Read time, host and tag if they exist; the rest is the body."""
    time = scan_time(text, start, zone=zone, received_ns=received_ns)
    end = None if time is None else _TIME_END.match(text, time.end)
    if time is None or end is None:
        return _Parsed(body=text[start:])
    ts_ns, error = time.ts_ns, ""
    if ts_ns is None:
        found[TIMESTAMP], error = text[start : time.end], BAD_TIME
    at = end.end()
    host = _HOST_3164.match(text, at)
    if host is not None:  # logger(1) sends to a local socket without it
        found[HOST] = host[1]
        at = host.end()
    tag = _TAG.match(text, at)
    if tag is not None:
        found[APP] = tag[1]
        if tag[2]:
            found[PROCESS] = tag[2]
        at = tag.end()
    return _Parsed(body=text[at:], ts_ns=ts_ns, error=error)


TRUNCATED: Final = "message is truncated: the connection ended within it"
BAD_COUNT: Final = "octet count cannot be read"
_COUNT: Final = re.compile(rb"\n*([1-9][0-9]{0,9}) ")
_PARTIAL_COUNT: Final = re.compile(rb"[1-9][0-9]{0,9} ?")
_FIRST_COUNT: Final = re.compile(rb"[1-9][0-9]{0,9} <")

_NUL_FRAMED: Final = re.compile(rb"\0<")
"""Python's `SysLogHandler` ends messages with NUL, and its messages may have line feeds inside."""

Framing = Literal["octets", "lines"]


class SyslogFrames:
    """The messages of one connection.

    A stream is `broken`, and cannot be split any further, if an octet count was expected. What
    follows is kept raw.
    """

    def __init__(self, source: Mapping[str, str], *, bytes_max: int) -> None:
        """Start a connection; messages longer than `bytes_max` become several pieces."""
        self.broken = False
        self._source = source
        self._bytes_max = bytes_max
        self._framing: Framing | None = None
        self._buffer = b""
        self._left = 0  # bytes of the counted message that have not been returned
        # Whether messages end with NUL instead of a line feed.
        self._by_nul = False
        # Whether the last byte was a NUL: a line feed may follow it.
        self._after_nul = False
        self._rest = False  # the next bytes continue a message that is too long

    def feed(self, data: bytes) -> list[SyslogPiece]:
        """Return the pieces that are complete with these bytes."""
        if self.broken:
            return self._raw(data)
        self._buffer += data
        if self._framing is None:
            self._framing = self._detect()
        match self._framing:
            case None:
                return []
            case "lines":
                return self._lines()
            case "octets":
                return self._octets()

    def end(self) -> list[SyslogPiece]:
        """Return what is left at the end of the connection."""
        left, self._buffer = self._buffer, b""
        if self._framing != "octets":
            pieces: list[SyslogPiece] = []
            self._add(left, pieces)
            return pieces
        if not left.strip(b"\n"):
            return []
        is_count = not self._left
        error = BAD_COUNT if is_count else TRUNCATED
        return [SyslogPiece(left, self._source, error, rest=self._rest or is_count)]

    def _detect(self) -> Framing | None:
        """Return how messages are separated; None while the first bytes do not decide."""
        if _FIRST_COUNT.match(self._buffer):
            return "octets"
        return None if not self._buffer or _PARTIAL_COUNT.fullmatch(self._buffer) else "lines"

    def _lines(self) -> list[SyslogPiece]:
        if self._after_nul:
            self._by_nul = not self._buffer.startswith((b"\n", b"\r"))
            self._buffer = self._buffer.lstrip(b"\r\n")
            self._after_nul = False
        self._by_nul = self._by_nul or _NUL_FRAMED.search(self._buffer) is not None
        *lines, self._buffer = self._buffer.split(b"\0" if self._by_nul else b"\n")
        pieces: list[SyslogPiece] = []
        for line in lines:
            self._add(line.lstrip(b"\r\n") if self._by_nul else line, pieces)
        if self._buffer.endswith(b"\0"):
            # The next byte decides what ends messages; this one is complete in any case.
            self._add(self._buffer[:-1], pieces)
            self._buffer, self._after_nul = b"", True
        self._buffer = self._add_growing(self._buffer, pieces)
        return pieces

    def _octets(self) -> list[SyslogPiece]:
        pieces: list[SyslogPiece] = []
        buffer, at = self._buffer, 0
        while at < len(buffer):
            if not self._left:
                start = self._count(buffer, at, pieces)
                if start is None:
                    break
                at = start
            if len(buffer) - at < self._left:
                kept = self._add_growing(buffer[at:], pieces)
                self._left -= len(buffer) - at - len(kept)
                at = len(buffer) - len(kept)
                break
            self._add(buffer[at : at + self._left], pieces)
            at += self._left
            self._left = 0
        self._buffer = b"" if self.broken else buffer[at:]
        return pieces

    def _count(self, buffer: bytes, at: int, pieces: list[SyslogPiece]) -> int | None:
        """Read the count of the next message; return where the message begins.

        Return None if the count is not complete, or is none.
        """
        count = _COUNT.match(buffer, at)
        if count is not None:
            self._left = int(count[1])
            return count.end()
        rest = buffer[at:].lstrip(b"\n")  # some senders end a counted message with a line feed
        if rest and not _PARTIAL_COUNT.fullmatch(rest):
            self.broken = True
            pieces += self._raw(rest)
        return None

    def _raw(self, data: bytes) -> list[SyslogPiece]:
        """Return bytes that cannot be separated into messages."""
        cut = cut_pieces(data, self._source, bytes_max=self._bytes_max, rest=True)
        return [piece._replace(error=BAD_COUNT) for piece in cut]

    def _add(self, data: bytes, pieces: list[SyslogPiece]) -> None:
        """Add a message, or the last part of one."""
        if self._rest or data.strip(b"\r\n\0"):
            pieces += cut_pieces(data, self._source, bytes_max=self._bytes_max, rest=self._rest)
        self._rest = False

    def _add_growing(self, data: bytes, pieces: list[SyslogPiece]) -> bytes:
        """Add the beginning of a message that is too long; return what may still grow."""
        if len(data) <= self._bytes_max:
            return data
        *cut, last = cut_pieces(data, self._source, bytes_max=self._bytes_max, rest=self._rest)
        pieces += cut
        self._rest = True
        return last.data


def cut_pieces(
    data: bytes, source: Mapping[str, str], *, bytes_max: int, rest: bool = False
) -> list[SyslogPiece]:
    """Return a message as pieces, at least one.

    `bytes_max` limits a piece and is at least 4. With `rest` the message continues an earlier
    piece.
    """
    pieces: list[SyslogPiece] = []
    while len(data) > bytes_max:
        cut = character_end(data[:bytes_max])
        pieces.append(SyslogPiece(data[:cut], source, TOO_LONG, rest, continues=True))
        data, rest = data[cut:], True
    pieces.append(SyslogPiece(data, source, rest=rest))
    return pieces
