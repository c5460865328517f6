"""Values of OTLP as text: strings as they are, all others as canonical JSON text.

Maps are sorted by key. A key that a map has twice is kept under `<key>#2`. Bytes are base64, and
NaN and infinities are the strings of OTLP's JSON encoding.
"""

import json
import math
from contextlib import suppress
from decimal import Decimal
from typing import Final

import msgspec

from sluice_doors.decoded import BodyUnreadable
from sluice_doors.json.values import Unread, decimal_of, integer_of
from sluice_doors.otlp.messages import AnyValue, EntityRef, KeyValue, OtlpNumber


def _kept(value: object) -> str:
    """Return damaged JSON inside a value as a text."""
    if isinstance(value, Unread):
        return value.text
    raise NotImplementedError(type(value).__name__)


_JSON: Final = msgspec.json.Encoder(order="sorted", decimal_format="number", enc_hook=_kept)


def json_text(value: object) -> str:
    """Return the canonical JSON text of a value; surrogates in it remain.

    Raises:
        BodyUnreadable: It is nested too deeply.
    """
    try:
        return _encoded(value)
    except RecursionError as error:
        raise BodyUnreadable("cannot read body: a value is nested too deeply") from error


def _encoded(value: object) -> str:
    with suppress(UnicodeEncodeError):
        try:
            return _JSON.encode(value).decode()
        except OverflowError:  # an integer of more than 64 bits
            return _JSON.encode(_with_decimals(value)).decode()
    # Surrogates are in text of protocols that are no JSON, so this value has no decimal.
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)


def _with_decimals(value: object) -> object:
    """Return a value with a decimal in place of each integer, which has no limit."""
    match value:
        case dict():
            return {key: _with_decimals(one) for key, one in value.items()}
        case list() | tuple():
            return [_with_decimals(one) for one in value]
        case bool():
            return value
        case int():
            return Decimal(value)
        case _:
            return value


def value_text(value: AnyValue) -> str:
    """Return the text of a value."""
    if value.string_value is not None:
        return value.string_value
    if value.bytes_value is not None:
        return value.bytes_value
    plain = json_value(value)
    return plain if isinstance(plain, str) else json_text(plain)


def json_value(value: AnyValue) -> object:  # noqa: PLR0911 - one for each type
    """Return the value as JSON represents it, with integers as numbers.

    The text of a number that is not one remains a text.
    """
    if value.string_value is not None:
        return value.string_value
    if value.int_value is not None:
        return _integer(value.int_value)
    if value.bool_value is not None:
        return value.bool_value
    if value.double_value is not None:
        return _double(value.double_value)
    if value.array_value is not None:
        return [json_value(each) for each in value.array_value.values]
    if value.kvlist_value is not None:
        return json_map(value.kvlist_value.values)
    if value.string_value_strindex is not None:
        return {"stringValueStrindex": value.string_value_strindex}
    return value.bytes_value


def json_map(pairs: tuple[KeyValue, ...]) -> dict[str, object]:
    """Return pairs as one map; a later value of a key is kept under `<key>#2` and so on."""
    found: dict[str, object] = {}
    next_number: dict[str, int] = {}
    for pair in pairs:
        found[free_name(key_of(pair), found, next_number)] = json_value(pair.value)
    return found


def key_of(pair: KeyValue) -> str:
    """Return the key of a pair."""
    return pair.key or (f"#{pair.key_strindex}" if pair.key_strindex else "")


def entities_text(references: tuple[EntityRef, ...]) -> str:
    """Return the references of a resource as canonical JSON text."""
    return json_text([msgspec.to_builtins(one) for one in references])


def free_name(name: str, taken: "dict[str, object] | dict[str, str]", after: dict[str, int]) -> str:
    """Return the name, or `<name>#2` and so on if it is taken.

    Args:
        name: The name.
        taken: The names in use.
        after: The number to continue with for each name; kept by the caller, so that many equal
            names do not take quadratic time.
    """
    if name not in taken:
        return name
    place = after.get(name, 2)
    while f"{name}#{place}" in taken:
        place += 1
    after[name] = place + 1
    return f"{name}#{place}"


_NOT_FINITE: Final = frozenset({"NaN", "Infinity", "-Infinity"})


def number(value: OtlpNumber | Decimal) -> float:
    """Return a number as a double.

    A text is a number by JSON's grammar, or NaN or an infinity as protobuf's JSON has them.

    Raises:
        ValueError: The text is not a number, or no double is near to it.
    """
    if isinstance(value, str):
        if value in _NOT_FINITE:
            return float(value)
        stated = decimal_of(value)
        if stated is None:
            raise ValueError(f"text is not a number: {value[:40]}")
        value = stated
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if isinstance(value, int | Decimal) and math.isinf(found):
        raise ValueError("number is out of range")
    return found


def _integer(value: int | str) -> int | str:
    found = integer_of(value)
    return value if found is None else found


def _double(value: OtlpNumber) -> float | str:
    try:
        return json_double(number(value))
    except ValueError:
        return str(value)


def json_double(value: float) -> float | str:
    """Return a double as JSON represents it."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def double_text(value: float) -> str:
    """Return the text of a double: the shortest that reads as the same double."""
    plain = json_double(value)
    return plain if isinstance(plain, str) else json_text(plain)
