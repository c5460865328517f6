"""SQL of fields and of conditions on them."""

import math
from collections.abc import Sequence
from typing import Final, assert_never

from sluice_protocol.ndjson import METRIC_TYPES
from sluice_query.fields import RecordField
from sluice_query.filters import FilterOperator, RecordFilter
from sluice_query.statements import SqlStatement, SqlValue, any_condition

IS_NUMBER: Final = "NOT isnan(nextafter(value, 0))"
"""Whether the value of a sample is not NaN. The statistics of a Parquet file omit NaN, and DuckDB
may decide `isnan(value)` and comparisons of `value` by them alone.
"""
_IS_NAN: Final = "isnan(nextafter(value, seq))"
"""Whether it is NaN. DuckDB leaves out row groups by the statistics of the only column of a
condition, so this one has a second column.
"""
_TYPE: Final = (
    "CASE type "
    + " ".join(f"WHEN {number} THEN '{name}'" for number, name in enumerate(METRIC_TYPES))
    + " END"
)


def field_sql(field: RecordField) -> SqlStatement:
    """Return the expression for the value of a field; NULL where a record does not have it."""
    if field.key is not None:
        return SqlStatement(f"{field.column}[?]", (field.key,))
    if field.column == "severity":
        return SqlStatement("nullif(severity, 0)")  # 0 means that it is not known
    return SqlStatement(_TYPE if field.column == "type" else field.column)


def filter_conditions(filters: Sequence[RecordFilter]) -> list[SqlStatement]:
    """Return the conditions that must all be met; several `=` of one field are alternatives."""
    equal: dict[RecordField, list[SqlStatement]] = {}
    others = []
    for one in filters:
        if one.operator is FilterOperator.EQUAL:
            equal.setdefault(one.field, []).append(_condition(one))
        else:
            others.append(_condition(one))
    return [*map(any_condition, equal.values()), *others]


def _condition(one: RecordFilter) -> SqlStatement:
    if one.field.column == "value" and not isinstance(one.value, str):
        return _number_condition(one.operator, one.value)
    value = field_sql(one.field)
    return _text_or_level_condition(one, value.text, value.values)


def _text_or_level_condition(
    one: RecordFilter, text: str, values: tuple[SqlValue, ...]
) -> SqlStatement:
    given = (one.value,)
    match one.operator:
        case FilterOperator.EXISTS:
            return SqlStatement(f"{text} IS NOT NULL", values)
        case FilterOperator.ABSENT:
            return SqlStatement(f"{text} IS NULL", values)
        case FilterOperator.UNEQUAL:
            return SqlStatement(f"{text} IS DISTINCT FROM ?", values + given)
        case FilterOperator.MATCHES:
            return SqlStatement(f"regexp_matches({text}, ?)", values + given)
        case FilterOperator.MATCHES_NOT:
            matches = f"regexp_matches({text}, ?)"
            return SqlStatement(f"NOT coalesce({matches}, false)", values + given)
        case (
            FilterOperator.EQUAL
            | FilterOperator.LESS
            | FilterOperator.AT_MOST
            | FilterOperator.GREATER
            | FilterOperator.AT_LEAST
        ):
            return SqlStatement(f"{text} {one.operator} ?", values + given)
        case _:
            assert_never(one.operator)


def _number_condition(operator: FilterOperator, number: float) -> SqlStatement:
    """Return the condition on the value of a sample, which may be NaN: it is in no range."""
    unequal = operator is FilterOperator.UNEQUAL
    if math.isnan(number):
        return SqlStatement(IS_NUMBER if unequal else _IS_NAN)
    if unequal:
        return SqlStatement(f"(value <> ? OR {_IS_NAN})", (number,))
    return SqlStatement(f"(value {operator} ? AND {IS_NUMBER})", (number,))
