"""A second, faster reader for small CBOR maps whose keys are known.

It accepts only what `cbor.CborReader` accepts too, and only the common forms: it compares whole
keys with their encodings instead of decoding them. For everything else it returns None, and the
caller reads the map again with `CborReader`, which decides and names the field.
"""

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final, NamedTuple

from sluice_protocol.cbor import (
    SHORTEST_ARGUMENTS,
    encode_tag_head,
    encode_text,
    key_order,
)

SHORT_BYTES_MAX: Final = 64 << 10
"""Size of a map up to which the time for heads and keys exceeds that for the data."""
SHORT_TEXTS_MAX: Final = 1024
"""Number of texts in an array up to which this reader reads it."""
_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _ARRAY, _MAP = range(6)
_INLINE_MAX: Final = 23
_WIDEST_INFO: Final = 27
_SHORT_TEXT: Final = 0x60
"""The head of a text of no bytes; those of up to 23 bytes follow."""
_SHORT_TEXT_END: Final = 0x77
_BYTES_1: Final = 0x58
"""The head of a byte string whose length is the next byte."""
_BYTES_2: Final = 0x59


class ShortForm(Enum):
    """The form of a value."""

    INTEGER = "integer"
    TEXT = "text"
    BYTES = "bytes"
    TEXTS = "texts"
    TEXT_MAP = "text_map"


ShortValue = int | str | memoryview | tuple[str, ...] | tuple[tuple[str, str], ...]


class ShortKey(NamedTuple):
    """One key that a map may have.

    Attributes:
        name: The key.
        prefix: The encoded key, and the tag of a typed array.
        read: Reads the value at an offset; None for a byte string, which is not copied.
    """

    name: str
    prefix: bytes
    read: Callable[[bytes, int], tuple[ShortValue, int]] | None


class _NotShort(Exception):
    """The map is not one that this reader accepts."""


def short_keys(forms: Iterable[tuple[str, ShortForm, int | None]]) -> tuple[ShortKey, ...]:
    """Return the keys of a map in the order in which they are encoded.

    Args:
        forms: Name, form, and the tag of a typed array or None.
    """
    ordered = sorted(forms, key=lambda one: key_order(one[0]))
    return tuple(
        ShortKey(
            name, encode_text(name) + (b"" if tag is None else encode_tag_head(tag)), _READ[form]
        )
        for name, form, tag in ordered
    )


def read_short_map(view: memoryview, keys: tuple[ShortKey, ...]) -> dict[str, ShortValue] | None:
    """Return the values of a map by key; None if the other reader has to decide.

    Byte strings are views of `view` without a copy.
    """
    if len(view) > SHORT_BYTES_MAX:
        return None
    data = bytes(view)
    try:
        return _read(data, view, keys)
    except (_NotShort, IndexError, UnicodeDecodeError):
        return None


def _read(
    data: bytes, view: memoryview, keys: tuple[ShortKey, ...]
) -> dict[str, ShortValue] | None:
    found: dict[str, ShortValue] = {}
    major, pairs, at = _head(data, 0)
    if major != _MAP:
        return None
    for name, prefix, read in keys:
        if not data.startswith(prefix, at):
            continue
        at += len(prefix)
        if read is not None:
            found[name], at = read(data, at)
            continue
        size, at = _bytes_head(data, at)
        if at + size > len(data):
            return None
        found[name] = view[at : at + size]
        at += size
    return found if len(found) == pairs and at == len(data) else None


def _integer(data: bytes, at: int) -> tuple[int, int]:
    first = data[at]
    if first <= _INLINE_MAX:
        return first, at + 1
    major, size, at = _head(data, at)
    if major not in (_UNSIGNED, _NEGATIVE):
        raise _NotShort
    return (size if major == _UNSIGNED else -1 - size), at


def _texts(data: bytes, at: int) -> tuple[tuple[str, ...], int]:
    size, at = _size_of(_ARRAY, data, at)
    if size > SHORT_TEXTS_MAX:
        raise _NotShort
    texts: list[str] = []
    for _ in range(size):
        text, at = _string(data, at)
        texts.append(text)
    return tuple(texts), at


def _text_map(data: bytes, at: int) -> tuple[tuple[tuple[str, str], ...], int]:
    size, at = _size_of(_MAP, data, at)
    pairs: list[tuple[str, str]] = []
    last: tuple[int, bytes] | None = None
    for _ in range(size):
        key, at = _string(data, at)
        order = key_order(key)
        if last is not None and order <= last:
            raise _NotShort
        value, at = _string(data, at)
        pairs.append((key, value))
        last = order
    return tuple(pairs), at


def _string(data: bytes, at: int) -> tuple[str, int]:
    first = data[at]
    if _SHORT_TEXT <= first <= _SHORT_TEXT_END:
        size, at = first - _SHORT_TEXT, at + 1
    else:
        size, at = _size_of(_TEXT, data, at)
    end = at + size
    if end > len(data):
        raise _NotShort
    return data[at:end].decode(), end


def _size_of(wanted: int, data: bytes, at: int) -> tuple[int, int]:
    major, size, at = _head(data, at)
    if major != wanted:
        raise _NotShort
    return size, at


def _bytes_head(data: bytes, at: int) -> tuple[int, int]:
    first = data[at]
    if first == _BYTES_1 and data[at + 1] > _INLINE_MAX:
        return data[at + 1], at + 2
    if first == _BYTES_2 and data[at + 1]:
        return data[at + 1] << 8 | data[at + 2], at + 3
    return _size_of(_BYTES, data, at)


def _head(data: bytes, at: int) -> tuple[int, int, int]:
    first = data[at]
    info = first & 31
    if info <= _INLINE_MAX:
        return first >> 5, info, at + 1
    if info > _WIDEST_INFO:
        raise _NotShort
    place = info - _INLINE_MAX - 1
    end = at + 1 + (1 << place)
    value = int.from_bytes(data[at + 1 : end], "big")
    if end > len(data) or value < SHORTEST_ARGUMENTS[place]:
        raise _NotShort
    return first >> 5, value, end


_READ: Final[dict[ShortForm, Callable[[bytes, int], tuple[ShortValue, int]] | None]] = {
    ShortForm.INTEGER: _integer,
    ShortForm.TEXT: _string,
    ShortForm.BYTES: None,
    ShortForm.TEXTS: _texts,
    ShortForm.TEXT_MAP: _text_map,
}
