"""Split a stream of syslog into messages, by octet counts or at line feeds or NUL (RFC 6587).

The first bytes of a connection decide: a number, a space and `<` begin an octet count, all others a
line. A message above the limit becomes several pieces as its bytes arrive, so that neither a count
nor a line without an end uses more memory than the limit.
"""

import re
from collections.abc import Mapping
from typing import Final, Literal

from sluice_doors.syslog import TOO_LONG, SyslogPiece
from sluice_protocol.utf8 import character_end

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

    Attributes:
        broken: The stream cannot be split any further, because an octet count was expected. What
            follows is kept raw.
    """

    def __init__(self, source: Mapping[str, str], *, bytes_max: int) -> None:
        """Start a connection.

        Args:
            source: Attributes of all its messages.
            bytes_max: Limit of a message; longer ones become several pieces.
        """
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
        """Read the count of the next message.

        Returns:
            Where the message begins; None if the count is not complete, or is none.
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

    Args:
        data: The message.
        source: Attributes that state where it came from.
        bytes_max: Limit of a piece, at least 4.
        rest: The message continues an earlier piece.
    """
    pieces: list[SyslogPiece] = []
    while len(data) > bytes_max:
        cut = character_end(data[:bytes_max])
        pieces.append(SyslogPiece(data[:cut], source, TOO_LONG, rest, continues=True))
        data, rest = data[cut:], True
    pieces.append(SyslogPiece(data, source, rest=rest))
    return pieces
