"""The types of attribute values: a value is a text, and its type states what the text is.

`attr_type` of a frame, `attribute_types` of a table and the JSON of a result contain the type. An
integer has the digits of JSON, without a limit. A float has a point or an exponent, or is `NaN`,
`Infinity` or `-Infinity`. JSON is an object, an array or `null`, and bytes are base64. JSON of more
than 128 levels is text.

Between a sender's bytes and the columns, a value is a `str`, and one of another type than text an
object of a subclass of `TypedText`, so that whatever renames or moves values keeps their types.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import ClassVar, Final

import msgspec
import numpy as np
import numpy.typing as npt

from sluice_protocol.errors import UNREADABLE_JSON, InvalidFrame

U8 = npt.NDArray[np.uint8]
_STEP: Final = 8_192
"""Values that are checked together, so that copies of them stay small."""


class ValueType(IntEnum):
    """What a value is, by its number in frames; tables have the name in lower case."""

    TEXT = 0
    INTEGER = 1
    FLOAT = 2
    BOOLEAN = 3
    JSON = 4
    BYTES = 5

    @property
    def label(self) -> str:
        """The name of the type in tables and results."""
        return self.name.lower()


LABELS: Final = tuple(one.label for one in ValueType)
"""The names of the types, in the order of their numbers."""


class TypedText(str):
    """The text of a value that is no text."""

    __slots__ = ()
    type: ClassVar[ValueType]


class IntegerText(TypedText):
    """Digits, with a minus if the integer is negative."""

    __slots__ = ()
    type = ValueType.INTEGER


class FloatText(TypedText):
    """A number with a point or an exponent, or one of the three that are not finite."""

    __slots__ = ()
    type = ValueType.FLOAT


class BooleanText(TypedText):
    """`true` or `false`."""

    __slots__ = ()
    type = ValueType.BOOLEAN


class JsonText(TypedText):
    """An object, an array or `null`."""

    __slots__ = ()
    type = ValueType.JSON


class BytesText(TypedText):
    """Bytes in base64."""

    __slots__ = ()
    type = ValueType.BYTES


CLASSES: Final[tuple[type[str], ...]] = (
    str,
    IntegerText,
    FloatText,
    BooleanText,
    JsonText,
    BytesText,
)
"""The class of the texts of each type, in the order of their numbers."""
_NUMBER_OF: Final[Mapping[type, int]] = {one: place for place, one in enumerate(CLASSES)}


def value_types(values: Sequence[str]) -> U8 | None:
    """Return the type of each value; None if all are text."""
    classes = list(map(type, values))
    if set(classes) <= {str}:
        return None
    types = np.zeros(len(values), np.uint8)
    typed = [place for place, one in enumerate(classes) if one is not str]
    types[typed] = [_NUMBER_OF[classes[place]] for place in typed]
    return types


def some_types(types: U8) -> U8 | None:
    """Return types; None if all are text."""
    return types if types.any() else None


def joined_types(parts: Iterable[tuple[U8 | None, int]]) -> U8 | None:
    """Return the types of values that follow each other; None if all are text.

    A part is the types of some values, None if these are text, and their number.
    """
    listed = list(parts)
    if all(types is None for types, _ in listed):
        return None
    return np.concatenate(
        [np.zeros(count, np.uint8) if types is None else types for types, count in listed]
    )


def typed_values(values: list[str], types: U8 | None) -> list[str]:
    """Return texts as objects of the classes of their types."""
    if types is None:
        return values
    return [CLASSES[kind](text) for text, kind in zip(values, types.tolist(), strict=True)]


def number_text(text: str) -> str:
    """Return the digits of a number of JSON as an integer or a float, whichever they show."""
    return IntegerText(text) if _INTEGER.fullmatch(text.encode() + b"\n") else FloatText(text)


LEVELS_MAX: Final = 128
"""JSON of more levels is a text, so that no reader of it depends on the size of its stack."""
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[{}\[\]]', re.DOTALL)


def nested_text(text: str) -> str:
    """Return JSON with its type unless it has too many levels."""
    return JsonText(text) if _has_few_levels(text.encode(errors="replace")) else text


def _has_few_levels(data: bytes) -> bool:
    if data.count(b"[") + data.count(b"{") <= LEVELS_MAX:
        return True
    depth = 0
    for token in _TOKEN.finditer(data):
        depth += (token[0] in b"{[") - (token[0] in b"}]")
        if depth > LEVELS_MAX:
            return False
    return True


NOT_FINITE: Final = frozenset({"NaN", "Infinity", "-Infinity"})


def json_of(text: str, kind: int) -> str | msgspec.Raw:
    """Return a value for JSON: a number, a boolean or JSON as such, all others as a string."""
    if kind in (ValueType.TEXT, ValueType.BYTES) or text in NOT_FINITE:
        return str(text)
    return msgspec.Raw(text.encode())


def is_shown_by_json(text: str, kind: int) -> bool:
    """Return whether the form of `json_of` shows the type."""
    return kind != ValueType.BYTES and (kind != ValueType.FLOAT or text not in NOT_FINITE)


def json_attributes(attributes: Mapping[str, str]) -> dict[str, str | msgspec.Raw]:
    """Return the attributes of a record for JSON, each value with its type."""
    return {
        key: json_of(value, value.type) if isinstance(value, TypedText) else value
        for key, value in attributes.items()
    }


def types_not_in_json(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return the types that the JSON of attributes does not show."""
    return {
        key: value.type.label
        for key, value in attributes.items()
        if isinstance(value, TypedText) and not is_shown_by_json(value, value.type)
    }


def value_of_json(raw: msgspec.Raw) -> str:
    """Return the value that JSON is, with its type; spaces between tokens are left out.

    Raises:
        msgspec.DecodeError: The text of a string is damaged.
    """
    data = bytes(raw)
    match data[:1]:
        case b'"':
            return msgspec.json.decode(data, type=str)
        case b"{" | b"[" | b"n":
            return nested_text(msgspec.json.format(data, indent=-1).decode())
        case b"t" | b"f":
            return BooleanText(data.decode())
        case _:
            return number_text(data.decode())


_DIGITS: Final = rb"-?(?:0|[1-9][0-9]*+)"
_INTEGER: Final = re.compile(rb"(?:" + _DIGITS + rb"\n)*+")
_FLOAT: Final = re.compile(
    rb"(?:(?:"
    + _DIGITS
    + rb"(?:\.[0-9]++(?:[eE][+-]?[0-9]++)?|[eE][+-]?[0-9]++)|NaN|-?Infinity)\n)*+"
)
_BOOLEAN: Final = re.compile(rb"(?:(?:true|false)\n)*+")
_BASE64: Final = re.compile(
    rb"(?:(?:[A-Za-z0-9+/]{4})*+"
    rb"(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?\n)*+"
)
_LISTED: Final = msgspec.json.Decoder(list[msgspec.Raw])


def is_base64(text: str) -> bool:
    """Return whether a text is bytes in base64 with its padding."""
    return "\n" not in text and _BASE64.fullmatch(text.encode(errors="replace") + b"\n") is not None


def _lines_of(form: re.Pattern[bytes]) -> Callable[[list[bytes]], bool]:
    """Return a check of the lines that values are; none of these forms contains a line feed."""

    def check(values: list[bytes]) -> bool:
        lines = b"\n".join([*values, b""])
        return form.fullmatch(lines) is not None and lines.count(b"\n") == len(values)

    return check


def _are_json(values: list[bytes]) -> bool:
    """Return whether each value is an object, an array or null, without spaces around it."""
    if not all(map(_has_few_levels, values)):
        return False
    try:
        found = _LISTED.decode(b"[" + b",".join(values) + b"]")
    except UNREADABLE_JSON:
        return False
    return list(map(bytes, found)) == values and {one[:1] for one in values} <= {b"{", b"[", b"n"}


_CHECKS: Final[tuple[tuple[ValueType, Callable[[list[bytes]], bool]], ...]] = (
    (ValueType.INTEGER, _lines_of(_INTEGER)),
    (ValueType.FLOAT, _lines_of(_FLOAT)),
    (ValueType.BOOLEAN, _lines_of(_BOOLEAN)),
    (ValueType.JSON, _are_json),
    (ValueType.BYTES, _lines_of(_BASE64)),
)


_CHECK_OF: Final = {kind.label: (CLASSES[kind], is_form) for kind, is_form in _CHECKS}


def labelled_value(text: str, label: str) -> str:
    """Return a value with the type of a label; a text if the label or its form is unknown.

    A table may be older than this version, or come from another program.
    """
    if label not in _CHECK_OF:
        return text
    made, is_form = _CHECK_OF[label]
    return made(text) if is_form([text.encode(errors="replace")]) else text


def check_types(types: U8, offsets: npt.NDArray[np.int32], data: bytes) -> None:
    """Reject types that are unknown, or that the form of their value contradicts.

    Value `i` is `data[offsets[i]:offsets[i + 1]]`.

    Raises:
        InvalidFrame: The error names the column as `docs/protocol.md` does.
    """
    count = len(offsets) - 1
    if len(types) != count:
        raise InvalidFrame("attr_type", f"must have {count} values, has {len(types)}")
    if not types.any():
        raise InvalidFrame("attr_type", "has no type other than text: leave the column out")
    if int(types.max()) >= len(ValueType):
        raise InvalidFrame("attr_type", f"contains a value above {len(ValueType) - 1}")
    for kind, is_form in _CHECKS:
        places = np.flatnonzero(types == kind)
        for values in _cut(places, offsets, data):
            if not is_form(values):
                raise InvalidFrame("attr_type", f"a value does not have the form of `{kind.label}`")


def _cut(
    places: npt.NDArray[np.intp], offsets: npt.NDArray[np.int32], data: bytes
) -> Iterator[list[bytes]]:
    """Yield the values at these places in steps."""
    starts, ends = offsets[places].tolist(), offsets[places + 1].tolist()
    for at in range(0, len(starts), _STEP):
        edges = zip(
            itertools.islice(starts, at, at + _STEP),
            itertools.islice(ends, at, at + _STEP),
            strict=True,
        )
        yield [data[a:b] for a, b in edges]
