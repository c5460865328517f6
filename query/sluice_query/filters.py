"""Conditions on single fields: `FIELD=VALUE`, `FIELD!=VALUE`, `FIELD`, `!FIELD` and others."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sluice_protocol.errors import BadUsage
from sluice_protocol.manifests import Kind
from sluice_query.fields import (
    FIELD_PATTERN,
    RecordField,
    check_encodable,
    field_of_match,
    unknown_field,
)

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
    """One condition.

    Attributes:
        field: The field.
        operator: How it is compared.
        value: What it is compared with; empty for `EXISTS` and `ABSENT`.
    """

    field: RecordField
    operator: FilterOperator
    value: str | float = ""


def parse_filter(text: str, kind: Kind) -> RecordFilter:
    """Return the condition of a text.

    Raises:
        BadUsage: The text has another form, or the field does not fit the kind or the operator.
    """
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
            f"only severity and value have an order: use = or =~, field=`{field.name}`,"
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
