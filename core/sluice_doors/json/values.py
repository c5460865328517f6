"""The JSON reader of all doors, which also reads what is left of damaged JSON.

Numbers follow JSON's grammar, and keep their digits: a number that a double would change is a
`Decimal`, and one that no double can hold is unreadable. A byte order mark is skipped. In damaged
JSON the members of objects and arrays are read one by one, down to the records of a protocol, so
that one unreadable record costs no other.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import msgspec

from sluice_doors.decoded import REASON_CHARACTERS_MAX, BodyUnreadable
from sluice_protocol.errors import UNREADABLE_JSON

BOM: Final = b"\xef\xbb\xbf"
TOKENS_MAX: Final = 4 * 1024 * 1024
"""Strings, brackets and commas that are visited in damaged JSON; this bounds the time."""
_EXACT_CHARACTERS: Final = 16
"""A decimal with at most 15 digits is the same after it was a double."""
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?", re.ASCII)
_EXPONENT_MAX: Final = 400
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[{}\[\],:"]', re.DOTALL)
_BRACKET: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[{}\[\]"]', re.DOTALL)
_VISIBLE: Final = re.compile(rb"[^ \t\r\n]")
_BINARY: Final = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_OUT_OF_RANGE: Final = "number is out of range"


@dataclass(frozen=True, slots=True)
class Unread:
    """A value in damaged JSON: its text as it came, and why it cannot be read."""

    text: str
    reason: str


def _float(digits: str) -> float | Decimal:
    """Return a number as a double if that is the same number, else as a decimal."""
    value = float(digits)
    if len(digits) <= _EXACT_CHARACTERS and "e" not in digits and "E" not in digits:
        return value
    if value in (float("inf"), float("-inf")):
        raise ValueError(_OUT_OF_RANGE)
    exact = Decimal(digits)
    return value if exact == Decimal(repr(value)) else exact


_JSON: Final = msgspec.json.Decoder(float_hook=_float)


def without_bom(body: bytes) -> bytes:
    """Return a text without a byte order mark at its start."""
    return body.removeprefix(BOM)


def read_json(data: bytes) -> Any:  # noqa: ANN401 - any JSON value
    """Return the value of a text."""
    return _JSON.decode(without_bom(data))


def read_json_lines(data: bytes) -> list[Any]:
    """Return the values on the lines of a text."""
    return _JSON.decode_lines(without_bom(data))


def read_or_keep(data: bytes) -> Any:  # noqa: ANN401 - any JSON value
    """Return the value of a text, or the text with the reason if it cannot be read."""
    try:
        return read_json(data)
    except UNREADABLE_JSON as error:
        return unread(data, str(error))


def unread(data: bytes, reason: str) -> Unread:
    """Return a text that cannot be read."""
    text = without_bom(data).strip(b" \t\r\n").decode(errors="surrogateescape")
    return Unread(text, reason[:REASON_CHARACTERS_MAX])


def read_tolerantly(data: bytes, levels: int) -> Any:  # noqa: ANN401 - any JSON value
    """Return the value of a text that may be damaged in parts.

    `levels` is how deep objects and arrays are divided if they cannot be read as a whole. What is
    unreadable there is an `Unread`.

    Raises:
        BodyUnreadable: It is damaged, and has too many parts to read them one by one.
    """
    data = without_bom(data).strip(b" \t\r\n")
    try:
        return _JSON.decode(data)
    except UNREADABLE_JSON as error:
        found = unread(data, str(error))
    if not levels or data[:1] not in (b"{", b"["):
        return found
    parts = _parts(data)
    if parts is None:
        return found
    if data[:1] == b"[":
        return [read_tolerantly(part, levels - 1) for _, part in parts]
    members: dict[str, Any] = {}
    for key, part in parts:
        name = read_or_keep(key)
        if not isinstance(name, str):
            return found
        members[name] = read_tolerantly(part, levels - 1)
    return members


def _parts(data: bytes) -> list[tuple[bytes, bytes]] | None:
    """Return the members of an object or array with their keys; None if it has another form."""
    marks = _marks(data)
    if not marks or marks[-1].end() != len(data):
        return None
    is_map = data[:1] == b"{"
    start, key = 1, b""
    parts: list[tuple[bytes, bytes]] = []
    for mark in marks:
        part = data[start : mark.start()].strip(b" \t\r\n")
        start = mark.end()
        if mark[0] == b":":
            if not is_map or key:
                return None
            key = part
        elif part or parts or mark[0] == b",":
            if is_map and not key:
                return None
            parts.append((key, part))
            key = b""
    return parts


def _marks(data: bytes) -> "list[re.Match[bytes]]":
    """Return the separators between the members of an object or array, and its end."""
    found: list[re.Match[bytes]] = []
    depth = 0
    for count, token in enumerate(_TOKEN.finditer(data)):
        if count > TOKENS_MAX:
            raise BodyUnreadable("cannot read body as JSON: it is damaged, and too large to repair")
        one = token[0]
        depth += (one in (b"{", b"[")) - (one in (b"}", b"]"))
        if one == b'"':
            return []
        if not depth:
            return [*found, token]
        if depth == 1 and one in (b",", b":"):
            found.append(token)
    return []


def value_texts(data: bytes) -> Iterator[bytes]:
    """Yield the texts of values that follow each other, with or without white space between them.

    Text that does not begin like an object or array is a value up to the end of its line. A value
    that is not closed ends with the data.
    """
    data = without_bom(data)
    end = 0
    while (found := _VISIBLE.search(data, end)) is not None:
        at, end = found.start(), _value_end(data, found.start())
        yield data[at:end]


def _value_end(data: bytes, at: int) -> int:
    if data[at : at + 1] not in (b"{", b"["):
        end = data.find(b"\n", at)
        return len(data) if end < 0 else end
    depth = 0
    for token in _BRACKET.finditer(data, at):
        one = token[0]
        if one == b'"':
            break
        depth += (one in (b"{", b"[")) - (one in (b"}", b"]"))
        if not depth:
            return token.end()
    return len(data)


def is_binary(body: bytes) -> bool:
    """Return whether a body is no text and no JSON, for example because it is compressed."""
    begins = without_bom(body[:64]).lstrip()[:1]
    return begins not in (b"{", b"[") and _BINARY.search(body) is not None


def decimal_of(text: str) -> Decimal | None:
    """Return the number that a text is by JSON's grammar; None if it is none, or out of range."""
    if _NUMBER.fullmatch(text) is None:
        return None
    found = Decimal(text)
    return found if abs(found.adjusted()) <= _EXPONENT_MAX or not found else None


def integer_of(value: object) -> int | None:
    """Return the integer that a number or its text is, as protobuf's JSON allows; None if none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    found = decimal_of(value) if isinstance(value, str) else value
    if isinstance(found, float):
        return int(found) if found.is_integer() else None
    if not isinstance(found, Decimal) or found != found.to_integral_value():
        return None
    return int(found)


def decode_objects(body: bytes) -> list[Any]:
    """Return the values on the lines, or in the one array, of a body."""
    return read_json(body) if is_array(body) else read_json_lines(body)


def is_array(body: bytes) -> bool:
    """Return whether a body begins like an array."""
    return without_bom(body[:64]).lstrip()[:1] == b"["
