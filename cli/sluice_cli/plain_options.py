"""Read the options of a command without the command-line library, for a quick start.

Importing the library and parsing with it needs a seventh of the processor time in which an agent
starts, and 2 MiB of memory. This module reads the plain forms that service units and containers
use: `--name value`, `--name=value`, `--flag`, environment variables, and keys of the
settings file. For every other form, wrong ones included, the result is None; then the library
parses the command line, and words the error.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Final, Literal, get_args, get_origin

_TEXT: Final = re.compile(r".*", re.DOTALL)
_SCALARS: Final[Mapping[object, tuple[re.Pattern[str], Callable[[str], object]]]] = {
    str: (_TEXT, str),
    Path: (_TEXT, Path),
    int: (re.compile(r"[0-9]{1,15}", re.ASCII), int),
    float: (re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?", re.ASCII), float),
}
"""The plain form of each type, and what converts it."""
_SWITCHES: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_NONE: Final = frozenset({"none", "null"})


class _OtherForm(Exception):
    """The library has to parse this."""


def read_plain(
    kinds: Mapping[str, object],
    *,
    tokens: Sequence[str],
    variables: Mapping[str, str],
    table: Mapping[str, object],
) -> dict[str, object] | None:
    """Return the values that are set, by option, or None if the library has to parse them.

    Flags have precedence over variables, and variables over the table.

    Args:
        kinds: The type of each option, by its name as an identifier.
        tokens: The words behind the command.
        variables: Values of environment variables, by option.
        table: The command's table of the settings file.
    """
    try:
        return {
            **_of_table(kinds, table),
            **{name: _of_variable(kinds[name], text) for name, text in variables.items()},
            **_of_tokens(kinds, tokens),
        }
    except _OtherForm:
        return None


def _of_tokens(kinds: Mapping[str, object], tokens: Sequence[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    lists: dict[str, tuple[object, ...]] = {}
    words = iter(tokens)
    for word in words:
        option, equals, text = word.partition("=")
        name = option.removeprefix("--").replace("-", "_")
        if option != f"--{name.replace('_', '-')}" or name not in kinds or name in found:
            raise _OtherForm
        kind = kinds[name]
        element = _element_of(kind)
        if kind is bool:
            if equals:
                raise _OtherForm
            found[name] = True
            continue
        text = text if equals else next(words, "")
        if element is None:
            found[name] = _parse(kind, text)
        else:
            lists[name] = (*lists.get(name, ()), _parse(element, text))
    return {**found, **lists}


def _of_variable(kind: object, text: str) -> object:
    element = _element_of(kind)
    if kind is bool:
        if text not in _SWITCHES:
            raise _OtherForm
        return _SWITCHES[text]
    if element is None:
        return _parse(kind, text)
    _parse(str, text)  # an empty text, or JSON
    return tuple(_parse(element, one) for one in text.split())


def _of_table(kinds: Mapping[str, object], table: Mapping[str, object]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in kinds or name in found:
            raise _OtherForm
        found[name] = _of_toml(kinds[name], value)
    return found


def _of_toml(kind: object, value: object) -> object:
    element = _element_of(kind)
    match value:
        case bool() if kind is bool:
            return value
        case int() if kind in {int, float} and not isinstance(value, bool):
            return value if kind is int else float(value)
        case float() if kind is float:
            return value
        case str() if element is None and kind is not bool:
            return _parse(kind, value)
        case [*texts] if element is not None and texts:
            return tuple(_parse(element, one) for one in texts)
        case _:
            raise _OtherForm


def _parse(kind: object, text: object) -> object:
    """Return the value of a text, as the library converts it."""
    if not isinstance(text, str) or not text or text != text.strip() or text[0] in "-[{":
        raise _OtherForm
    if isinstance(kind, UnionType):  # `T | None`
        if text.lower() in _NONE:
            raise _OtherForm
        kind = next(one for one in get_args(kind) if one is not type(None))
    if kind in _SCALARS:
        form, make = _SCALARS[kind]
        if form.fullmatch(text):
            return make(text)
    for choice in _choices_of(kind):
        if choice == text:
            return choice
    raise _OtherForm


def _choices_of(kind: object) -> tuple[object, ...]:
    """Return the values of an enumeration or of a literal type; empty for every other type."""
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return tuple(kind)
    return get_args(kind) if get_origin(kind) is Literal else ()


def _element_of(kind: object) -> object | None:
    """Return the type of the elements of `tuple[T, ...]`, or None for every other type."""
    return get_args(kind)[0] if get_origin(kind) is tuple else None
