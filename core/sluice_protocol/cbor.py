"""Strict reader and writer of the subset of CBOR that a frame uses.

The encoding is RFC 8949 with the core deterministic encoding of section 4.2.1: shortest heads,
definite lengths, and map keys in bytewise order of their encodings, each once. The reader supports
only integers, text, byte strings, arrays of text, maps with text keys, and RFC 8746 typed arrays.
It rejects every other item, so none can reach the caller. Byte strings are returned as views
without a copy, and a length is used only after a check that its bytes exist. ADR 0001 explains why
this is not a library.
"""

import sys
from typing import Final

from sluice_protocol.errors import InvalidFrame

_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _ARRAY, _MAP, _TAG = range(7)
_MAJOR_SHIFT: Final = 5
_INFO_MASK: Final = 31
_INLINE_MAX: Final = 23
_WIDEST_INFO: Final = 27
SHORTEST_ARGUMENTS: Final = (24, 1 << 8, 1 << 16, 1 << 32)
"""Smallest argument that a head of 1, 2, 4 or 8 further bytes may contain."""
_SHORT_TEXT: Final = range(_TEXT << _MAJOR_SHIFT, (_TEXT << _MAJOR_SHIFT) + _INLINE_MAX + 1)
_NAME_SHOWN_MAX: Final = 40


class TooManyTexts(Exception):
    """An array has more texts than the caller wants to read now; it may be valid or not."""


class CborReader:
    """A reader of one item after another from a view; every error names `field`.

    Attributes:
        field: The field that is being read; the caller sets it before each item.
    """

    __slots__ = ("_at", "_texts_max", "_view", "field")

    def __init__(self, view: memoryview, field: str, *, texts_max: int = sys.maxsize) -> None:
        """Read `view`; an array of more than `texts_max` texts raises `TooManyTexts`."""
        self._view = view
        self._at = 0
        self._texts_max = texts_max
        self.field = field

    def refuse(self, reason: str) -> InvalidFrame:
        """Return the error for the field that is being read."""
        return InvalidFrame(self.field, reason)

    def integer(self) -> int:
        """Read an integer of either sign, -2**64 to 2**64 - 1."""
        major, value = self._head()
        if major == _UNSIGNED:
            return value
        if major == _NEGATIVE:
            return -1 - value
        raise self.refuse("must be an integer")

    def text(self) -> str:
        """Read a text string."""
        return self._decode(self._string(_TEXT, "must be a text string"))

    def bytes_view(self) -> memoryview:
        """Read a byte string, as a view without a copy."""
        return self._string(_BYTES, "must be a byte string")

    def typed_array(self, tag: int) -> memoryview:
        """Read the bytes of an RFC 8746 typed array of exactly this tag."""
        if self._head() != (_TAG, tag):
            raise self.refuse(f"must be a typed array of tag {tag}")
        return self.bytes_view()

    def map_size(self, limit: int) -> int:
        """Read the head of a map of at most `limit` pairs."""
        major, size = self._head()
        if major != _MAP:
            raise self.refuse("must be a map")
        if size > limit:
            raise self.refuse(f"map has more than {limit} pairs")
        return size

    def key(self, before: str | None) -> str:
        """Read a map key, which must sort after the key `before`."""
        key = self.text()
        if before is not None and key_order(key) <= key_order(before):
            reason = "twice" if key == before else "out of order"
            raise self.refuse(f"map key is {reason}, key=`{shown(key)}`")
        return key

    def texts(self, limit: int) -> tuple[str, ...]:
        """Read an array of at most `limit` text strings.

        Raises:
            TooManyTexts: It has more than the caller wants to read, and is not read.
        """
        major, size = self._head()
        if major != _ARRAY:
            raise self.refuse("must be an array of text")
        if size > min(limit, len(self._view) - self._at):
            raise self.refuse("array is longer than its index column or than the frame")
        if size > self._texts_max:
            raise TooManyTexts
        return tuple([self._item() for _ in range(size)])

    def end(self) -> None:
        """Reject bytes after the last item."""
        if self._at != len(self._view):
            raise self.refuse("bytes follow the last item")

    def _item(self) -> str:
        # The short head is decoded here without a call: arrays of names can have millions of items.
        at = self._at
        if at < len(self._view) and self._view[at] in _SHORT_TEXT:
            self._at = at + 1 + self._view[at] - _SHORT_TEXT.start
            if self._at <= len(self._view):
                return self._decode(self._view[at + 1 : self._at])
            self._at = at
        return self.text()

    def _decode(self, raw: memoryview) -> str:
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError as error:
            raise self.refuse("text is not valid UTF-8") from error

    def _string(self, wanted: int, otherwise: str) -> memoryview:
        major, size = self._head()
        if major != wanted:
            raise self.refuse(otherwise)
        start = self._at
        if size > len(self._view) - start:
            raise self.refuse("string is longer than the frame")
        self._at = start + size
        return self._view[start : self._at]

    def _head(self) -> tuple[int, int]:
        at = self._at
        if at >= len(self._view):
            raise self.refuse("ends too early")
        first = self._view[at]
        major, info = first >> _MAJOR_SHIFT, first & _INFO_MASK
        if info <= _INLINE_MAX:
            self._at = at + 1
            return major, info
        return major, self._long_argument(at + 1, info)

    def _long_argument(self, start: int, info: int) -> int:
        if info > _WIDEST_INFO:
            raise self.refuse("has an indefinite length or a reserved head")
        width_index = info - _INLINE_MAX - 1
        self._at = start + (1 << width_index)
        if self._at > len(self._view):
            raise self.refuse("ends too early")
        value = int.from_bytes(self._view[start : self._at], "big")
        if value < SHORTEST_ARGUMENTS[width_index]:
            raise self.refuse("head is not the shortest")
        return value


def key_order(key: str) -> tuple[int, bytes]:
    """Return the sort key of a deterministic map key: length first, then bytes.

    Source: RFC 8949 section 4.2.1; the head of a text string grows with its length.
    """
    raw = key.encode()
    return len(raw), raw


def shown(name: str) -> str:
    """Return a foreign name in a form that is safe in an error message: ASCII and short."""
    return ascii(name[:_NAME_SHOWN_MAX])[1:-1]


def encode_head(major: int, argument: int) -> bytes:
    """Return the shortest head of a major type and its argument, 0 to 2**64 - 1."""
    if argument <= _INLINE_MAX:
        return bytes((major << _MAJOR_SHIFT | argument,))
    if argument < SHORTEST_ARGUMENTS[1]:
        return bytes((major << _MAJOR_SHIFT | (_INLINE_MAX + 1), argument))
    width_index = sum(argument >= least for least in SHORTEST_ARGUMENTS[1:])
    head = bytes((major << _MAJOR_SHIFT | (_INLINE_MAX + 1 + width_index),))
    return head + argument.to_bytes(1 << width_index, "big")


def encode_integer(value: int) -> bytes:
    """Encode an integer, -2**64 to 2**64 - 1."""
    return encode_head(_UNSIGNED, value) if value >= 0 else encode_head(_NEGATIVE, -1 - value)


def encode_text(text: str) -> bytes:
    """Encode a text string.

    Raises:
        UnicodeEncodeError: The text contains a lone surrogate.
    """
    raw = text.encode()
    return encode_head(_TEXT, len(raw)) + raw


def encode_texts(texts: tuple[str, ...]) -> bytes:
    """Encode an array of text strings."""
    return encode_head(_ARRAY, len(texts)) + b"".join(map(encode_text, texts))


def encode_bytes_head(size_bytes: int) -> bytes:
    """Return the head of a byte string of this length; the bytes follow it."""
    return encode_head(_BYTES, size_bytes)


def encode_tag_head(tag: int) -> bytes:
    """Return the head of a tag; the tagged item follows it."""
    return encode_head(_TAG, tag)


def encode_typed_array_head(tag: int, size_bytes: int) -> bytes:
    """Return the tag and head of an RFC 8746 typed array; the bytes follow it."""
    return encode_tag_head(tag) + encode_bytes_head(size_bytes)


def encode_map_head(pairs: int) -> bytes:
    """Return the head of a map of this many pairs."""
    return encode_head(_MAP, pairs)
