"""Values of MessagePack: their boundaries without building them, and their form in JSON.

A header of an array claims a length before its elements arrive, and a parser allocates for it. The
boundaries are therefore found first, by skipping. Only values that are complete are built, so that
nothing is allocated for elements that do not exist.
"""

import base64
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgpack

from sluice_doors.attributes import free_name, json_double, json_text
from sluice_protocol.values import BytesText

_HOOKED_BYTES_MIN: Final = 1024 * 1024
"""Values from this size on are counted while they are built: an empty map of one byte takes 70."""
_CONTAINERS_MAX: Final = 1024 * 1024
_EVENT_TIME_CODE: Final = 0
_EVENT_TIME_BYTES: Final = 8
_SIMPLE: Final = frozenset({str, int, bool, type(None)})


class NotMsgpack(ValueError):
    """Bytes are not a value of MessagePack, or one that is too deep or too large to build."""


def value_spans(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each value of a sequence."""
    unpacker = _unpacker(data)
    start = 0
    while start < len(data):
        end = _skipped(unpacker)
        yield start, end
        start = end


def element_spans(data: bytes, *, count_max: int | None = None) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each element of an array."""
    unpacker = _unpacker(data)
    try:
        count = unpacker.read_array_header()
    except (msgpack.OutOfData, ValueError) as error:
        raise NotMsgpack(str(error)) from error
    if count_max is not None and count > count_max:
        raise NotMsgpack("array has too many elements")
    start = unpacker.tell()
    for _ in range(count):
        end = _skipped(unpacker)
        yield start, end
        start = end


def _unpacker(data: bytes) -> msgpack.Unpacker:
    unpacker = msgpack.Unpacker(max_buffer_size=max(len(data), 1))
    unpacker.feed(data)
    return unpacker


def _skipped(unpacker: msgpack.Unpacker) -> int:
    try:
        unpacker.skip()
    except (msgpack.OutOfData, ValueError) as error:
        raise NotMsgpack(str(error) or "data is truncated") from error
    return int(unpacker.tell())


def build(data: bytes) -> object:
    """Return a complete value; text that is not UTF-8 has surrogates."""
    counted = _Counted() if len(data) >= _HOOKED_BYTES_MIN else None
    hooks: dict[str, Callable[[Any], Any]] = (
        {} if counted is None else {"object_hook": counted.one, "list_hook": counted.one}
    )
    try:
        found: object = msgpack.unpackb(
            data, strict_map_key=False, unicode_errors="surrogateescape", timestamp=0, **hooks
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise NotMsgpack(str(error)) from error
    return found


class _Counted:
    """Counts the maps and arrays of one value."""

    def __init__(self) -> None:
        self._count = 0

    def one(self, value: object) -> object:
        """Count a value and return it."""
        self._count += 1
        if self._count > _CONTAINERS_MAX:
            raise NotMsgpack("value has too many maps and arrays")
        return value


def time_of(value: object) -> tuple[int, int] | None:
    """Return the seconds and nanoseconds of an extension that is a time; None for others."""
    if isinstance(value, msgpack.ExtType):
        code, data = value
        if code == _EVENT_TIME_CODE and len(data) == _EVENT_TIME_BYTES:
            return divmod(int.from_bytes(data, "big"), 1 << 32)
    elif isinstance(value, msgpack.Timestamp):
        return value.seconds, value.nanoseconds
    return None


def json_form(value: object) -> object:
    """Return a value as JSON represents it: times in seconds as text.

    Bytes that are UTF-8 are text: Fluentd marks the lines of files as binary. Others are base64.
    """
    if type(value) in _SIMPLE:
        return value
    match value:
        case dict():
            return json_map(value)
        case list():
            return [json_form(one) for one in value]
        case float():
            return json_double(value)
        case bytes():
            return bytes_text(value)
        case _:
            return _extension(value)


def bytes_text(value: bytes) -> str:
    """Return bytes as text if they are UTF-8, else in base64."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return BytesText(base64.b64encode(value).decode())


def _extension(value: object) -> object:
    found = time_of(value)
    if found is not None:
        return f"{found[0]}.{found[1]:09d}"
    code, data = value if isinstance(value, msgpack.ExtType) else (None, b"")
    return {"ext": code, "data": base64.b64encode(data).decode()}


def json_map(found: dict[object, object]) -> dict[str, object]:
    """Return a map as JSON represents it, with texts as keys."""
    plain: dict[str, object] = {}
    after: dict[str, int] = {}
    for key, value in found.items():
        name = key if type(key) is str else free_name(key_text(key), plain, after)
        if name in plain:  # a key of another type had this text
            name = free_name(name, plain, after)
        plain[name] = value if type(value) in _SIMPLE else json_form(value)
    return plain


def key_text(key: object) -> str:
    """Return a key of a map as text; bytes that are not UTF-8 become surrogates."""
    if isinstance(key, str):
        return key
    if isinstance(key, bytes):
        return key.decode(errors="surrogateescape")
    return json_text(json_form(key))
