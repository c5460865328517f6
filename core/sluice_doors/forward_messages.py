"""The messages of Fluent's forward protocol: where one ends, and what its parts are.

A message is an array: a tag, then entries or a time and a record, then options.
Source: Fluent forward protocol specification 1 and 1.5.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import msgpack

from sluice_doors.decoded import BodyTooLarge, BodyUnreadable
from sluice_doors.msgpack_values import NotMsgpack, build, element_spans, key_text

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

    Attributes:
        data: The whole message.
        mode: How it contains its entries.
        tag: Start and end of the tag.
        entries: Start and end of the entries; in mode `message` of time and record.
        option: The options by name.
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
    """Return the options; None where another value is in their place.

    Raises:
        NotMsgpack: They cannot be built.
    """
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
        """Start with no bytes.

        Args:
            bytes_max: Largest message.
        """
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
        """Return the complete messages; empty values of heartbeats are left out.

        Raises:
            BodyUnreadable: The stream is no sequence of messages; nothing after it can be read.
            BodyTooLarge: A message is larger than the limit.
        """
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
