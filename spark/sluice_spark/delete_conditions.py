"""Deletes as Spark SQL conditions on the rows of `rollups`."""

from collections.abc import Sequence
from typing import Final

from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.units import NS_PER_S

_WINDOW_START_NS: Final = "(unix_micros(window_start) * 1000)"
_WINDOW_SIZE_NS: Final = f"(CASE window WHEN '1m' THEN 60 ELSE 3600 END * {NS_PER_S}L)"


def sql_literal(text: str) -> str:
    """Return a text as a literal of Spark SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def any_of(conditions: Sequence[str]) -> str:
    """Return the condition that one of some conditions is true.

    It is a balanced tree. Spark descends into a condition by recursion, and its stack does not
    suffice for a thousand conditions in a row.
    """
    if not conditions:
        return "false"
    if len(conditions) == 1:
        return conditions[0]
    middle = len(conditions) // 2
    return f"({any_of(conditions[:middle])} OR {any_of(conditions[middle:])})"


def touched_condition(record: DeleteRecord) -> str:
    """Return the Spark SQL condition that a row of `rollups` may contain a deleted point."""
    parts = _series_conditions(record)
    if record.from_unix_ns is not None:
        parts.append(f"{_WINDOW_START_NS} + {_WINDOW_SIZE_NS} > {record.from_unix_ns}")
    if record.to_unix_ns is not None:
        parts.append(f"{_WINDOW_START_NS} < {record.to_unix_ns}")
    return f"coalesce({' AND '.join(parts) or 'true'}, false)"


def certain_condition(record: DeleteRecord) -> str:
    """Return the Spark SQL condition that every point of a row of `rollups` is deleted."""
    parts = _series_conditions(record)
    if record.from_unix_ns is not None:
        parts.append(f"{_WINDOW_START_NS} >= {record.from_unix_ns}")
    if record.to_unix_ns is not None:
        parts.append(f"{_WINDOW_START_NS} + {_WINDOW_SIZE_NS} <= {record.to_unix_ns}")
    parts += [
        f"attributes[{sql_literal(key)}] = {sql_literal(value)}"
        for key, value in record.attributes.items()
    ]
    return f"coalesce({' AND '.join(parts) or 'true'}, false)"


def _series_conditions(record: DeleteRecord) -> list[str]:
    parts = []
    if record.agent_id is not None:
        parts.append(f"agent_id = {sql_literal(record.agent_id)}")
    if record.contains is not None:
        parts.append(f"name = {sql_literal(record.contains)}")
    return parts
