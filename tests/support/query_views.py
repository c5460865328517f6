"""Small random tables of records, and the engine over them."""

import atexit
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from random import Random
from typing import Any, Final

import pyarrow as pa
from support.query_lake import DAY0_NS

from sluice_lake.schemas import arrow_schema
from sluice_lake.tables import LOGS, Table
from sluice_protocol.units import UnixNs
from sluice_query.engine import QueryEngine, open_engine
from sluice_query.logql.expressions import LineFilter, LineOperator, LogQuery
from sluice_query.request import FilterOperator, Query, RecordField, RecordFilter
from sluice_query.result import Row
from sluice_query.settings import QuerySettings
from sluice_query.statements import RecordSources, records_sql, returned_columns

SPAN_NS: Final = 4_000_000_000
SOURCES: Final = RecordSources(names=("lake", "pending"))
FIELDS: Final = (
    RecordField("agent_id"),
    RecordField("boot_id"),
    RecordField("severity"),
    RecordField("body"),
    RecordField("attributes", "k"),
    RecordField("attributes", "a=b"),
    RecordField("resource", "service.name"),
)
TEXTS: Final = ("", "x", "y", "X y", "it's", "%", "ä")


def random_record(random: Random, seq: int) -> dict[str, object]:
    """Return one row of the table of logs."""
    at_ns = random.choice((DAY0_NS, -SPAN_NS)) + random.randrange(SPAN_NS)
    attributes = {key: random.choice(TEXTS) for key in ("k", "a=b") if random.random() < 0.6}
    return {
        "agent_id": random.choice(("host-1", "host-2")),
        "boot_id": random.choice(("b1", "b2")),
        "seq": seq,
        "ts_ns": None if random.random() < 0.1 else at_ns,
        "body": random.choice(TEXTS),
        "severity": random.choice((None, 0, 5, 9, 17)),
        "attributes": None if random.random() < 0.1 else attributes,
        "resource": {"service.name": random.choice(TEXTS)} if random.random() < 0.5 else {},
        "accepted_at": at_ns // 1000,
    }


@cache
def _engine() -> QueryEngine:
    """Return the one engine of a process: an engine is opened more slowly than it is queried."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(open_engine(QuerySettings(threads=1)))


def opened(
    records: Sequence[Mapping[str, object]], divided: int, table: Table = LOGS
) -> QueryEngine:
    """Return an engine with the first records as the lake and the others as pending."""
    schema = arrow_schema(table, partition=False)
    for name, rows in (("lake", records[:divided]), ("pending", records[divided:])):
        columns = [_column([row.get(field.name) for row in rows], field.type) for field in schema]
        _engine().register_table(name, pa.table(columns, schema=schema))
    return _engine()


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_map(kind):
        values = [None if one is None else list(one.items()) for one in values]
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).view(kind)
    return pa.array(values, kind)


def found_rows(engine: QueryEngine, query: Query) -> list[Row]:
    """Return the records of a query."""
    columns = returned_columns(query.kind)
    rows = engine.rows(records_sql(query, SOURCES))
    return [dict(zip(columns, row, strict=True)) for row in rows]


def value_of(row: Mapping[str, Any], field: RecordField) -> object:
    """Return the value of a field as Python computes it; None without one."""
    if field.key is not None:
        return (row[field.column] or {}).get(field.key)
    if field.column == "severity":
        return row["severity"] or None
    value: object = row[field.column]
    return value


def random_filter(random: Random) -> RecordFilter:
    """Return a condition on one of the fields."""
    field = random.choice(FIELDS)
    kinds = [FilterOperator.ABSENT]
    kinds += [FilterOperator.EQUAL, FilterOperator.UNEQUAL] * 3
    kinds += [FilterOperator.AT_MOST, FilterOperator.AT_LEAST] * field.is_number
    operator = random.choice(kinds)
    if operator is FilterOperator.ABSENT:
        return RecordFilter(field, operator)
    texts = (*TEXTS, "host-1", "b2")
    value = random.choice((0, 5, 9, 17)) if field.is_number else random.choice(texts)
    return RecordFilter(field, operator, value)


def random_query(random: Random) -> Query:
    """Return a query for records, with a range that includes few or all of them."""
    start, end = sorted(random.sample(range(-SPAN_NS, 2 * SPAN_NS, 7_654_321), 2))
    base = DAY0_NS if random.random() < 0.5 else -SPAN_NS
    if random.random() < 0.2:
        start, end, base = -SPAN_NS, DAY0_NS + SPAN_NS, 0
    text = random.choice((None, None, "x", "y"))
    contains = LineFilter(LineOperator.CONTAINS, (text or "",))
    return Query(
        from_ns=UnixNs(base + start),
        to_ns=UnixNs(base + end),
        pipeline=LogQuery((), (contains,)) if text else None,
        agents=random.choice(((), (), ("host-1",))),
        filters=tuple(random_filter(random) for _ in range(random.choice((0, 0, 1, 2)))),
        limit=100_000,
    )
