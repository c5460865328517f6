"""The fields of a record by name, and conditions on them."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from sluice_protocol.errors import UNREADABLE_JSON, BadUsage
from sluice_protocol.fields import KINDS, Kind

COLUMN_FIELDS: Final[dict[Kind, tuple[str, ...]]] = {
    name: ("agent_id", "boot_id", *(field.name for field in kind.queried_fields))
    for name, kind in KINDS.items()
}
MAPS: Final = ("attributes", "resource")
FIELDS: Final = {field.name: field for kind in KINDS.values() for field in kind.queried_fields}
"""The fields of all kinds; kinds that have a name in common have the same field."""
NUMBERS: Final = tuple(name for name, field in FIELDS.items() if field.is_number)
"""Fields whose values are numbers."""
_ORDERED: Final = f"{', '.join(NUMBERS[:-1])} and {NUMBERS[-1]}"
FIELD_PATTERN: Final = (
    r'(?P<column>[a-z_]+)(?:\.(?:(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<plain>[^=!<>~"]+)))?'
)
_FIELD: Final = re.compile(FIELD_PATTERN, re.DOTALL)
_PLAIN_KEY: Final = re.compile(r'[^=!<>~"]+', re.DOTALL)
_SHOWN_CHARS_MAX: Final = 80


@dataclass(frozen=True, slots=True)
class RecordField:
    """One field: a column, or a key of a column that is a map."""

    column: str
    key: str | None = None

    @property
    def name(self) -> str:
        """The name that clients use for the field."""
        if self.key is None:
            return self.column
        if _PLAIN_KEY.fullmatch(self.key):
            return f"{self.column}.{self.key}"
        return f"{self.column}.{msgspec.json.encode(self.key).decode()}"

    @property
    def is_number(self) -> bool:
        """Whether its values are numbers."""
        return self.column in NUMBERS


def parse_field(text: str, kind: Kind) -> RecordField:
    """Return the field of a name; raise `BadUsage` if records of the kind have no such field."""
    found = _FIELD.fullmatch(text)
    if found is None:
        raise unknown_field(text, kind)
    return field_of_match(found, text, kind)


def field_of_match(found: re.Match[str], text: str, kind: Kind) -> RecordField:
    """Return the field that `FIELD_PATTERN` found in a text."""
    column, quoted, plain = found["column"], found["quoted"], found["plain"]
    key = plain
    if quoted is not None:
        try:
            key = msgspec.json.decode(quoted, type=str)
        except (*UNREADABLE_JSON, UnicodeError) as error:
            raise BadUsage(f"key is not a JSON string, key=`{_shown(quoted)}`") from error
    known = MAPS if key is not None else COLUMN_FIELDS[kind]
    if column not in known:
        raise unknown_field(text, kind)
    return RecordField(column, key)


def unknown_field(text: str, kind: Kind) -> BadUsage:
    """Return the error for a text that names no field of a kind."""
    columns = ", ".join(COLUMN_FIELDS[kind])
    maps = " or ".join(f"{one}.KEY" for one in MAPS)
    return BadUsage(f"unknown field: use one of {columns}, {maps}, field=`{_shown(text)}`")


def check_encodable(text: str) -> None:
    """Raise `BadUsage` if a text cannot be encoded as UTF-8: half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadUsage("text is not valid UTF-8") from error


def _shown(text: str) -> str:
    return text[:_SHOWN_CHARS_MAX].encode(errors="replace").decode()


FILTERS_MAX: Final = 50
_SEVERITIES: Final = {
    "trace": 1,
    "debug": 5,
    "info": 9,
    "warn": 13,
    "warning": 13,
    "error": 17,
    "fatal": 21,
}
"""The lowest number of each severity of OpenTelemetry, for messages."""


class FilterOperator(StrEnum):
    """How a field is compared."""

    EQUAL = "="
    UNEQUAL = "!="
    MATCHES = "=~"
    MATCHES_NOT = "!~"
    LESS = "<"
    AT_MOST = "<="
    GREATER = ">"
    AT_LEAST = ">="
    EXISTS = "exists"
    ABSENT = "absent"


PATTERN_OPERATORS: Final = frozenset({FilterOperator.MATCHES, FilterOperator.MATCHES_NOT})
ORDER_OPERATORS: Final = frozenset(
    {
        FilterOperator.LESS,
        FilterOperator.AT_MOST,
        FilterOperator.GREATER,
        FilterOperator.AT_LEAST,
    }
)
_FILTER: Final = re.compile(
    rf"(?P<absent>!?){FIELD_PATTERN}(?:(?P<operator>=~|!~|!=|>=|<=|=|>|<)(?P<value>.*))?",
    re.DOTALL,
)
_NUMBER: Final = re.compile(
    r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?|[+-]?(?:inf|nan)",
    re.ASCII | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """One condition; `value` is empty for `EXISTS` and `ABSENT`."""

    field: RecordField
    operator: FilterOperator
    value: str | float = ""


def parse_filter(text: str, kind: Kind) -> RecordFilter:
    """Return the condition of a text."""
    check_encodable(text)
    found = _FILTER.fullmatch(text)
    if found is None:
        raise unknown_field(text, kind)
    field = field_of_match(found, text, kind)
    if found["operator"] is None:
        absent = found["absent"] == "!"
        return RecordFilter(field, FilterOperator.ABSENT if absent else FilterOperator.EXISTS)
    if found["absent"]:
        raise BadUsage(f"a filter with `!` has no value: use FIELD!=VALUE, field=`{field.name}`")
    operator = FilterOperator(found["operator"])
    if operator in ORDER_OPERATORS and not field.is_number:
        raise BadUsage(
            f"only {_ORDERED} have an order: use = or =~, field=`{field.name}`,"
            f" operator=`{operator}`"
        )
    if not field.is_number:
        return RecordFilter(field, operator, found["value"])
    if operator in PATTERN_OPERATORS:
        raise BadUsage(f"a number does not match a pattern: use = or >=, field=`{field.name}`")
    number = _parse_number(field, found["value"])
    if operator in ORDER_OPERATORS and math.isnan(number):
        raise BadUsage(f"NaN has no order: use = or !=, field=`{field.name}`")
    return RecordFilter(field, operator, number)


def agents_of(filters: Sequence[RecordFilter]) -> tuple[str, ...]:
    """Return the agents to which filters restrict the records; empty if they do not."""
    return tuple(
        str(one.value)
        for one in filters
        if one.field.column == "agent_id" and one.operator is FilterOperator.EQUAL
    )


def _parse_number(field: RecordField, text: str) -> float:
    if _NUMBER.fullmatch(text) is None:
        number = _SEVERITIES.get(text.lower()) if field.name == "severity" else None
        meant = f": {text} is {number}" if number else ""
        raise BadUsage(f"must be a number{meant}, field=`{field.name}`, value=`{text[:40]}`")
    return float(text)
