"""The fields of records, and the most frequent values of one field."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from sluice_query.fields import COLUMN_FIELDS, MAPS, RecordField
from sluice_query.filter_sql import field_sql
from sluice_query.histogram import VALUE_CHARS_MAX, shown_value
from sluice_query.request import Query
from sluice_query.result import ViewResult
from sluice_query.sql import RecordSources, select_sql
from sluice_query.statements import SqlStatement
from sluice_query.views import FieldList, TopValues

VALUES_DEFAULT: Final = 10
VALUES_MAX: Final = 1_000
_UNREAD: Final = "body"
"""Every log has a body; reading all of them only to count would be slow."""


class FieldCount(msgspec.Struct, frozen=True, kw_only=True):
    """One field.

    Attributes:
        field: Its name, as filters use it.
        count: The number of records that have it.
        distinct: An estimate of the number of its values; null for the body, which is not read.
    """

    field: str
    count: int
    distinct: int | None


class FieldListResult(ViewResult, frozen=True, kw_only=True):
    """The fields of records.

    Attributes:
        fields: The columns, then the keys by their count.
        records: The number of records that were counted.
        sampled: Whether more records match than were counted.
        more: Whether there are more keys than are listed.
    """

    fields: tuple[FieldCount, ...] = ()
    records: int = 0
    sampled: bool = False
    more: bool = False


class ValueCount(msgspec.Struct, frozen=True, kw_only=True):
    """One value of a field.

    Attributes:
        value: The value.
        count: The number of records that have it.
        cut: Whether the value is longer than it is shown.
    """

    value: str | float | int | None
    count: int
    cut: bool = False


class TopValuesResult(ViewResult, frozen=True, kw_only=True):
    """The most frequent values of a field.

    Attributes:
        field: The field.
        values: The values, the most frequent first.
        distinct: The number of values.
        missing: The number of records without the field.
        records: The number of records that were counted.
        sampled: Whether more records match than were counted.
    """

    field: str
    values: tuple[ValueCount, ...] = ()
    distinct: int = 0
    missing: int = 0
    records: int = 0
    sampled: bool = False


def values_sql(
    query: Query, top: TopValues, sources: RecordSources, *, records_max: int
) -> SqlStatement:
    """Return the statement for the values of a field.

    Its rows are a value, its count, the number of values, of records without one, and of all
    records. The value None is last. One record over the limit shows whether there are more.
    """
    value = field_sql(top.field)
    columns = SqlStatement(f"{value.text} AS found", value.values)
    inner = select_sql(query, columns, sources)
    text = (
        f"WITH counted AS (SELECT found, count(*) AS n FROM ({inner.text} LIMIT ?) GROUP BY found)"  # noqa: S608 - constants
        " SELECT found, n, count(found) OVER (),"
        " coalesce(sum(n) FILTER (found IS NULL) OVER (), 0)::BIGINT, (sum(n) OVER ())::BIGINT"
        " FROM counted ORDER BY found IS NULL, n DESC, found LIMIT ?"
    )
    return SqlStatement(text, (*inner.values, records_max + 1, top.limit))


def make_values(
    top: TopValues, rows: Sequence[tuple[Any, ...]], *, records_max: int
) -> TopValuesResult:
    """Return the result of the rows of `values_sql`."""
    if not rows:
        return TopValuesResult(field=top.field.name)
    _, _, distinct, missing, records = rows[0]
    values = tuple(
        ValueCount(
            value=shown_value(found),
            count=count,
            cut=isinstance(found, str) and len(found) > VALUE_CHARS_MAX,
        )
        for found, count, *_ in rows
        if found is not None
    )
    return TopValuesResult(
        field=top.field.name,
        values=values,
        distinct=distinct,
        missing=missing,
        records=records,
        sampled=records > records_max,
    )


def fields_sql(
    query: Query, wanted: FieldList, sources: RecordSources, *, records_max: int
) -> SqlStatement:
    """Return the statement for the fields.

    Its rows are a column, a key or None, the number of records with the field, and the estimated
    number of values. The row without a column has the number of all records.
    """
    columns = [RecordField(name) for name in COLUMN_FIELDS[query.kind] if name != _UNREAD]
    shown = [f"{field_sql(one).text} AS {one.column}_found" for one in columns]
    inner = select_sql(query, SqlStatement(", ".join([*shown, *MAPS])), sources)
    parts = ["SELECT NULL AS col, NULL AS key, count(*) AS n, 0 AS d FROM found"]
    parts += [
        f"SELECT '{one.column}', NULL, count({one.column}_found),"  # noqa: S608 - constants
        f" approx_count_distinct({one.column}_found) FROM found"
        for one in columns
    ]
    parts += [
        f"(SELECT '{one}', pair.key, count(*) AS n, approx_count_distinct(pair.value)"  # noqa: S608 - constants
        f" FROM (SELECT unnest(map_entries({one})) AS pair FROM found)"
        " GROUP BY pair.key ORDER BY n DESC, pair.key LIMIT ?)"
        for one in MAPS
    ]
    text = f"WITH found AS MATERIALIZED ({inner.text} LIMIT ?) {' UNION ALL '.join(parts)}"
    limits = (wanted.keys_max + 1,) * len(MAPS)
    return SqlStatement(text, (*inner.values, records_max + 1, *limits))


def make_fields(
    query: Query, wanted: FieldList, rows: Sequence[tuple[Any, ...]], *, records_max: int
) -> FieldListResult:
    """Return the result of the rows of `fields_sql`."""
    records = next((count for column, _, count, _ in rows if column is None), 0)
    found: dict[tuple[str, str | None], tuple[int, int | None]]
    found = {(column, key): (count, distinct) for column, key, count, distinct in rows}
    found[_UNREAD, None] = (records, None)
    columns = [
        _field_count(RecordField(name), *found[name, None])
        for name in COLUMN_FIELDS[query.kind]
        if found.get((name, None), (0, 0))[0]
    ]
    keys = [
        _field_count(RecordField(column, key), count, distinct)
        for column, key, count, distinct in rows
        if key is not None
    ]
    keys.sort(key=lambda one: (-one.count, one.field))
    return FieldListResult(
        fields=(*columns, *keys[: wanted.keys_max]),
        records=records,
        sampled=records > records_max,
        more=len(keys) > wanted.keys_max,
    )


def _field_count(field: RecordField, count: int, distinct: int | None) -> FieldCount:
    return FieldCount(field=field.name, count=count, distinct=distinct)
