"""A second, faster reader for small CBOR maps whose keys are known.

It accepts only what `cbor.CborReader` accepts too, and only the common forms: it compares whole
keys with their encodings instead of decoding them. For everything else it returns None, and the
caller reads the map again with `CborReader`, which decides and names the field.
"""

from collections.abc import Iterable
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
_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _ARRAY, _MAP = range(6)
_INLINE_MAX: Final = 23
_WIDEST_INFO: Final = 27
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
        form: The form of the value.
    """

    name: str
    prefix: bytes
    form: ShortForm


class _NotShort(Exception):
    """The map is not one that this reader accepts."""


def short_keys(forms: Iterable[tuple[str, ShortForm, int | None]]) -> tuple[ShortKey, ...]:
    """Return the keys of a map in the order in which they are encoded.

    Args:
        forms: Name, form, and the tag of a typed array or None.
    """
    ordered = sorted(forms, key=lambda one: key_order(one[0]))
    return tuple(
        ShortKey(name, encode_text(name) + (b"" if tag is None else encode_tag_head(tag)), form)
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
    for name, prefix, form in keys:
        if not data.startswith(prefix, at):
            continue
        at += len(prefix)
        if form is not ShortForm.BYTES:
            found[name], at = _value(data, at, form)
            continue
        size, at = _bytes_head(data, at)
        if at + size > len(data):
            return None
        found[name] = view[at : at + size]
        at += size
    return found if len(found) == pairs and at == len(data) else None


def _value(data: bytes, at: int, form: ShortForm) -> tuple[ShortValue, int]:
    major, size, at = _head(data, at)
    if form is ShortForm.INTEGER and major in (_UNSIGNED, _NEGATIVE):
        return (size if major == _UNSIGNED else -1 - size), at
    if form is ShortForm.TEXT and major == _TEXT:
        return _text(data, at, size)
    if form is ShortForm.TEXTS and major == _ARRAY:
        return _texts(data, at, size)
    if form is ShortForm.TEXT_MAP and major == _MAP:
        return _text_map(data, at, size)
    raise _NotShort


def _texts(data: bytes, at: int, size: int) -> tuple[tuple[str, ...], int]:
    texts: list[str] = []
    for _ in range(size):
        text, at = _string(data, at)
        texts.append(text)
    return tuple(texts), at


def _text_map(data: bytes, at: int, size: int) -> tuple[tuple[tuple[str, str], ...], int]:
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
    major, size, at = _head(data, at)
    if major != _TEXT:
        raise _NotShort
    return _text(data, at, size)


def _text(data: bytes, at: int, size: int) -> tuple[str, int]:
    end = at + size
    if end > len(data):
        raise _NotShort
    return data[at:end].decode(), end


def _bytes_head(data: bytes, at: int) -> tuple[int, int]:
    first = data[at]
    if first == _BYTES_1 and data[at + 1] > _INLINE_MAX:
        return data[at + 1], at + 2
    if first == _BYTES_2 and data[at + 1]:
        return data[at + 1] << 8 | data[at + 2], at + 3
    major, size, at = _head(data, at)
    if major != _BYTES:
        raise _NotShort
    return size, at


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
