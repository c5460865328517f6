"""SQL text with placeholders, and conditions made of it.

The text never contains a value from a request.
"""

from collections.abc import Sequence
from dataclasses import dataclass

SqlValue = str | int | float | list[str] | list[int]


@dataclass(frozen=True, slots=True)
class SqlStatement:
    """SQL text, and the values of its placeholders in order."""

    text: str
    values: tuple[SqlValue, ...] = ()


def all_conditions(parts: Sequence[SqlStatement]) -> SqlStatement:
    """Return the condition that all of several are met."""
    values = tuple(value for part in parts for value in part.values)
    return SqlStatement(" AND ".join(part.text for part in parts), values)


def any_condition(parts: Sequence[SqlStatement]) -> SqlStatement:
    """Return the condition that at least one of several is met; false without any."""
    values = tuple(value for part in parts for value in part.values)
    text = " OR ".join(f"({part.text})" for part in parts) or "false"
    return SqlStatement(f"({text})", values)
