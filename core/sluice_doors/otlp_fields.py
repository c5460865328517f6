"""Plain JSON as the messages of OTLP, by the rules of protobuf's JSON.

A field has two names, `timeUnixNano` and `time_unix_nano`. A null is a field that is not set. An
integer may be a text, or a number such as `5.0` or `5e0`. Unknown fields are ignored, and reported,
so that the caller keeps the record as it came.
"""

from collections.abc import Collection
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

import msgspec

from sluice_doors.json_values import decimal_of, integer_of

_UNIONS: Final = (Union, UnionType)


class Fitted(msgspec.Struct, frozen=True):
    """Plain JSON with the names and types of a message, and the names that are not known."""

    plain: Any
    unknown: tuple[str, ...]


def fitted(plain: object, form: object) -> Fitted:
    """Return plain JSON as a message needs it; `msgspec.convert` checks the rest.

    Raises:
        ValueError: A field is set twice, by both of its names.
    """
    unknown: dict[str, None] = {}
    found = _fit(plain, form, unknown)
    return Fitted(found, tuple(unknown))


def without_either(plain: dict[str, Any], name: str) -> dict[str, Any]:
    """Return an object without a field, whose name is that of protobuf's JSON."""
    return {key: one for key, one in plain.items() if key not in (name, _snake(name))}


def either(plain: dict[str, Any], name: str) -> Any:  # noqa: ANN401 - any JSON value
    """Return a field by the first of its names that is set; None if neither is."""
    found = plain.get(name)
    return plain.get(_snake(name)) if found is None else found


@cache
def _snake(name: str) -> str:
    return "".join(f"_{one.lower()}" if one.isupper() else one for one in name)


@cache
def _fields(form: type[msgspec.Struct]) -> dict[str, tuple[str, Any]]:
    """Return the field of each name: its name in JSON, and its type."""
    found: dict[str, tuple[str, Any]] = {}
    for one in msgspec.structs.fields(form):
        found[one.encode_name] = found[one.name] = (one.encode_name, one.type)
    return found


@cache
def _choices(form: object) -> tuple[object, ...]:
    """Return the types that a value may have, without None."""
    listed = get_args(form) if get_origin(form) in _UNIONS else (form,)
    return tuple(one for one in listed if one is not NoneType)


def _fit(plain: object, form: object, unknown: dict[str, None]) -> object:
    choices = _choices(form)
    first = choices[0]
    if isinstance(first, type) and issubclass(first, msgspec.Struct):
        return _fit_object(plain, first, unknown) if isinstance(plain, dict) else plain
    if get_origin(first) in (tuple, Collection):
        element = get_args(first)[0]
        return [_fit(one, element, unknown) for one in plain] if isinstance(plain, list) else plain
    if float in choices:
        return _fit_double(plain)
    if int in choices:
        return _fit_integer(plain, is_text_known=str in choices)
    return plain


def _fit_object(
    plain: dict[str, Any], form: type[msgspec.Struct], unknown: dict[str, None]
) -> dict[str, Any]:
    known = _fields(form)
    found: dict[str, Any] = {}
    for key, value in plain.items():
        if key not in known:
            unknown[key] = None
        elif value is not None:
            name, type_ = known[key]
            if name in found:
                raise ValueError(f"field is set twice: {name}")
            found[name] = _fit(value, type_, unknown)
    return found


def _fit_double(plain: object) -> object:
    """Return a number as msgspec converts it; the decimals of the reader are doubles here."""
    if isinstance(plain, str | bool | int):
        return plain
    return float(plain) if hasattr(plain, "as_integer_ratio") else plain  # type: ignore[arg-type]


def _fit_integer(plain: object, *, is_text_known: bool) -> object:
    """Return an integer; a text that is none remains, for example the name of an enumeration."""
    if isinstance(plain, str) and (is_text_known and decimal_of(plain) is None):
        return plain
    found = integer_of(plain)
    if found is None:
        return plain
    return str(found) if is_text_known and isinstance(plain, str) else found
