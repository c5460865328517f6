"""The SQL of a query: statements with placeholders, conditions on fields, and whole selects.

The text never contains a value from a request.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import TYPE_CHECKING, Final, assert_never

from sluice_lake.tables import RECORD_TABLES, Column, ColumnType
from sluice_protocol.fields import KINDS, Kind
from sluice_protocol.identity import DOOR_AGENT_PREFIX
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.units import NS_PER_S
from sluice_query.request import (
    FIELDS,
    MAPS,
    FilterOperator,
    Query,
    RecordField,
    RecordFilter,
)

if TYPE_CHECKING:
    from sluice_query.logql.expressions import LogQuery

SqlValue = str | int | float | list[str] | list[int]
Promoted = Mapping[RecordField, Column]
"""The promoted columns of a source, by the fields that they contain."""
_NONE: Final[Promoted] = {}
StagedLabels = tuple[frozenset[str] | None, frozenset[str]]
"""The labels that are read after stages, None for all that a record is shown with, and the fields
that are read in addition to these.
"""
_NO_LABELS: Final[StagedLabels] = (frozenset(), frozenset())


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


def compose(template: str, *parts: SqlStatement) -> SqlStatement:
    """Return the statement of a template in which `{0}`, `{1}` and so on are other statements."""
    values: list[SqlValue] = []

    def put(found: re.Match[str]) -> str:
        part = parts[int(found[1])]
        values.extend(part.values)
        return part.text

    text = re.sub(r"\{(\d)\}", put, template)
    return SqlStatement(text, tuple(values))


REFUSED: Final = "refused by the query: "
"""The beginning of the message of an error that a statement raises itself."""
IS_NUMBER: Final = "NOT isnan(nextafter(value, 0))"
"""Whether the value of a sample is not NaN. The statistics of a Parquet file omit NaN, and DuckDB
may decide `isnan(value)` and comparisons of `value` by them alone.
"""


def field_sql(field: RecordField, promoted: Promoted = _NONE) -> SqlStatement:
    """Return the expression for the value of a field; NULL where a record does not have it.

    A promoted text is exactly what its map contains; other columns show no text that was sent.
    """
    if field.key is not None:
        column = promoted.get(field)
        if column is not None and column.type is ColumnType.STRING:
            return SqlStatement(column.name)
        return SqlStatement(f"{field.column}[?]", (field.key,))
    known = FIELDS.get(field.column)
    if known is None:
        return SqlStatement(field.column)
    if known.labels:
        cases = " ".join(f"WHEN {at} THEN '{label}'" for at, label in enumerate(known.labels))
        return SqlStatement(f"CASE {known.name} {cases} END")
    if known.is_optional and known.is_number:
        return SqlStatement(f"nullif({known.name}, 0)")  # 0 means that it is not known
    return SqlStatement(known.name)


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
    value = field_sql(one.field)
    match one.operator:
        case FilterOperator.ABSENT:
            return SqlStatement(f"{value.text} IS NULL", value.values)
        case FilterOperator.UNEQUAL:
            return SqlStatement(f"{value.text} IS DISTINCT FROM ?", (*value.values, one.value))
        case FilterOperator.EQUAL | FilterOperator.AT_MOST | FilterOperator.AT_LEAST:
            return SqlStatement(f"{value.text} {one.operator} ?", (*value.values, one.value))
        case _:
            assert_never(one.operator)


_ACCEPTED_NS: Final = "epoch_us(accepted_at) * 1000"
_WINDOW_NS: Final = "epoch_us(window_start) * 1000"
_WINDOW_SIZE_NS: Final = (
    f"CASE \"window\" WHEN '1m' THEN {60 * NS_PER_S} ELSE {3600 * NS_PER_S} END"
)
_ORDER: Final = "at_ns, agent_id, boot_id, seq"
_REVERSED: Final = "at_ns DESC, agent_id DESC, boot_id DESC, seq DESC"
_NOT_RETURNED: Final = frozenset({"ts", "queue_sequence", "accepted_date"})
_IDENTITY: Final = "agent_id, boot_id, seq_start, seq_end"
_HOUR: Final = "strftime(make_timestamp(accepted_at_ns // 1000), '%Y-%m-%dT%H')"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSources:
    """The sources of a query's records, and the deletes that hide some of them.

    `promoted` has, by the name of a source, the promoted columns that all its files have.
    """

    names: tuple[str, ...]
    deletes: tuple[DeleteRecord, ...] = ()
    promoted: Mapping[str, Promoted] = dataclass_field(default_factory=dict)


def returned_columns(kind: Kind) -> list[str]:
    """Return the columns that a returned record of a kind has."""
    names = [column.name for column in RECORD_TABLES[kind].columns]
    return [name for name in names if name not in _NOT_RETURNED]


def result_columns(query: Query) -> list[str]:
    """Return the columns of a query's records: after stages of LogQL also `labels` and `line`.

    The records of a view have them as they are stored.
    """
    columns = returned_columns(query.kind)
    if query.pipeline is not None and query.view is None:
        from sluice_query.logql.stages import changes_lines, changes_records  # noqa: PLC0415 - only for LogQL

        columns += ["labels"] * changes_records(query.pipeline)
        columns += ["line"] * changes_lines(query.pipeline)
    return columns


def records_sql(query: Query, sources: RecordSources) -> SqlStatement:
    """Return the statement for a query's records, in order, at most `limit + 1` of them."""
    columns = ", ".join(result_columns(query))
    # One record over the limit shows whether there are more.
    return ordered_sql(query, columns, sources, limit=query.limit + 1)


def ordered_sql(query: Query, columns: str, sources: RecordSources, *, limit: int) -> SqlStatement:
    """Return the statement for some columns of a query's records, in the order of the query.

    `at_ns` is the time of the record.
    """
    every = f"{record_time(query.kind)} AS at_ns, {', '.join(returned_columns(query.kind))}"
    inner = select_sql(query, SqlStatement(every), sources)
    order = _REVERSED if query.newest_first else _ORDER
    values = (*inner.values, limit)
    if query.pipeline is None or "labels" not in result_columns(query):
        text = f"SELECT {columns} FROM ({inner.text}) ORDER BY {order} LIMIT ?"  # noqa: S608 - constants
        return SqlStatement(text, values)
    # Every label is computed for the records of the result only.
    text = f"SELECT * FROM ({inner.text}) ORDER BY {order} LIMIT ?"  # noqa: S608 - constants
    staged = _staged(query, query.pipeline, SqlStatement(f"({text})", values), (None, frozenset()))
    return SqlStatement(f"SELECT {columns} FROM {staged.text} ORDER BY {order}", staged.values)  # noqa: S608 - constants


def counts_sql(query: Query, sources: RecordSources) -> SqlStatement:
    """Return the statement for the number of matching records, their first and last time."""
    inner = select_sql(query, SqlStatement(f"{record_time(query.kind)} AS at_ns"), sources)
    return SqlStatement(
        f"SELECT count(*), min(at_ns), max(at_ns) FROM ({inner.text})",  # noqa: S608 - constants
        inner.values,
    )


def condition(
    query: Query, deletes: Sequence[DeleteRecord] = (), promoted: Promoted = _NONE
) -> SqlStatement:
    """Return the condition that a record must meet."""
    # The plain comparisons are first, because the engine skips row groups by them.
    at = record_time(query.kind)
    parts = [SqlStatement(f"{at} >= ? AND {at} < ?", (query.from_ns, query.to_ns))]
    if query.agents:
        parts.append(is_agent(query.agents))
    if query.around is not None:
        parts.append(SqlStatement("boot_id = ?", (query.around.boot_id,)))
    if query.accepted_from_ns is not None:
        parts.append(SqlStatement(f"{_ACCEPTED_NS} >= ?", (query.accepted_from_ns,)))
    parts += [_attribute(key, value, promoted) for key, value in query.attributes]
    parts += filter_conditions(query.filters)
    if query.series is not None:
        parts.append(SqlStatement("name = ?", (query.series.metric,)))
    if query.pipeline is not None:
        from sluice_query.logql.stages import own_condition  # noqa: PLC0415 - only for LogQL

        parts.append(own_condition(query.pipeline, query.kind, promoted))
    parts += [_not_deleted(record) for record in deletes]
    return all_conditions(parts)


def ledger_sql(source: str, agents: list[str]) -> SqlStatement:
    """Return the statement for the identities, lanes and sequences of some agents' batches."""
    return SqlStatement(
        f"SELECT {_IDENTITY}, lane, queue_sequence FROM {source}"  # noqa: S608 - constants
        " WHERE list_contains(?, agent_id)",
        (agents,),
    )


def dead_letters_condition(query: Query, since_ns: int) -> SqlStatement:
    """Return the condition for dead letters that a query may need, accepted from `since_ns` on."""
    parts = [SqlStatement("accepted_at_ns >= ? AND kind = ?", (since_ns, query.kind))]
    if query.agents:
        parts.append(is_agent(query.agents))
    return all_conditions(parts)


def dead_letter_hours_sql(source: str, wanted: SqlStatement) -> SqlStatement:
    """Return the statement for the accepted hours of dead letters."""
    return SqlStatement(
        f"SELECT DISTINCT {_HOUR} FROM {source} WHERE {wanted.text}",  # noqa: S608 - constants
        wanted.values,
    )


def dead_letters_sql(
    source: str, wanted: SqlStatement, ledger: str | None, *, limit: int
) -> SqlStatement:
    """Return the statement for the identities of dead letters, each with one of its reasons.

    Identities that `ledger` contains do not count; None counts all.
    """
    text = f"SELECT {_IDENTITY}, min(reason) FROM {source} WHERE {wanted.text}"  # noqa: S608 - constants
    if ledger is not None:
        text += f" AND ({_IDENTITY}) NOT IN (SELECT ({_IDENTITY}) FROM {ledger})"  # noqa: S608 - constants
    return SqlStatement(f"{text} GROUP BY {_IDENTITY} LIMIT {limit}", wanted.values)


def dead_letter_list_sql(source: str, agent: str | None, *, limit: int) -> SqlStatement:
    """Return the statement for the dead letters, each once, the latest accepted first."""
    latest = ", ".join(f"arg_max({name}, observed_at)" for name in ("reason", "detail"))
    same = ", ".join(f"min({name})" for name in ("kind", "frame_sha256", "record_count"))
    where, values = ("", ()) if agent is None else (" WHERE agent_id = ?", (agent,))
    return SqlStatement(
        f"SELECT {_IDENTITY}, {same}, min(accepted_at_ns) AS at_ns, {latest},"  # noqa: S608 - constants
        f" epoch_us(max(observed_at)) * 1000 FROM {source}{where} GROUP BY {_IDENTITY}"
        f" ORDER BY at_ns DESC, {_IDENTITY} LIMIT {limit}",
        values,
    )


def entered_sql(source: str, agents: list[str]) -> SqlStatement:
    """Return the statement for the identities of some agents' batches in the ledger."""
    return SqlStatement(
        f"SELECT {_IDENTITY} FROM {source} WHERE list_contains(?, agent_id)",  # noqa: S608 - constants
        (agents,),
    )


def select_sql(
    query: Query,
    columns: SqlStatement,
    sources: RecordSources,
    found: RecordField | None = None,
    staged: StagedLabels | None = None,
) -> SqlStatement:
    """Return the statement for columns of every record of a query, without an order.

    The value of a field is selected too, as `found`. With `staged`, the columns can be the `line`
    and the `labels` after the stages of LogQL.
    """
    selects: list[str] = []
    values: list[SqlValue] = []
    for source in sources.names:
        promoted = sources.promoted.get(source, _NONE)
        where = condition(query, sources.deletes, promoted)
        text, shown = columns.text, columns.values
        if found is not None:
            value = field_sql(found, promoted)
            text = f"{text}, {value.text} AS found" if text else f"{value.text} AS found"
            shown = (*shown, *value.values)
        chosen = SqlStatement(f"{source} WHERE {where.text}", where.values)
        if query.pipeline is not None and (query.pipeline.stages or staged):
            chosen = _staged(query, query.pipeline, chosen, staged)
        selects.append(f"SELECT {text} FROM {chosen.text}")  # noqa: S608 - constants
        values += (*shown, *chosen.values)
    return SqlStatement(" UNION ALL ".join(selects), tuple(values))


def _staged(
    query: Query, pipeline: "LogQuery", chosen: SqlStatement, labels: StagedLabels | None
) -> SqlStatement:
    from sluice_query.logql.stages import split_conditions, staged_sql  # noqa: PLC0415 - LogQL

    _, _, rest = split_conditions(pipeline)
    if not rest.stages and labels is None:
        return chosen
    inner = SqlStatement(f"SELECT * FROM {chosen.text}", chosen.values)  # noqa: S608 - constants
    staged = staged_sql(rest, query.kind, inner, *(labels or _NO_LABELS))
    return SqlStatement(f"({staged.text})", staged.values)


def record_time(kind: Kind) -> str:
    """Return the expression for a record's time: without one, the acceptance of its batch."""
    return f"coalesce(ts_ns, {_ACCEPTED_NS})" if not KINDS[kind].has_every_time else "ts_ns"


def is_agent(agents: Sequence[str]) -> SqlStatement:
    """Return the condition that a row is of one of several agents."""
    placeholders = ", ".join("?" for _ in agents)
    return SqlStatement(f"agent_id IN ({placeholders})", tuple(agents))


def _attribute(key: str, value: str, promoted: Promoted = _NONE) -> SqlStatement:
    if not promoted:
        return SqlStatement("(attributes[?] = ? OR resource[?] = ?)", (key, value, key, value))
    places = [field_sql(RecordField(one, key), promoted) for one in MAPS]
    return any_condition(
        [SqlStatement(f"{place.text} = ?", (*place.values, value)) for place in places]
    )


def matches_sql(
    source: str, record: DeleteRecord, query: Query, hidden: Sequence[DeleteRecord]
) -> SqlStatement:
    """Return the statement for the number of records that a delete hides and of their batches.

    The plain conditions of the query come first, because the engine skips row groups by them.
    `query` is what `query_of_delete` returns. Records that `hidden` deletes hide do not count.
    """
    where = all_conditions([condition(query, hidden), _deleted(record)])
    return SqlStatement(
        f"SELECT count(*), count(DISTINCT (agent_id, boot_id, accepted_at))"  # noqa: S608 - constants
        f" FROM {source} WHERE {where.text}",
        where.values,
    )


def rollup_matches_sql(source: str, record: DeleteRecord) -> SqlStatement:
    """Return the statement for the number of rollup rows that may contain a deleted point."""
    parts = [SqlStatement("true")]
    if record.agent_id is not None:
        parts.append(SqlStatement("agent_id = ?", (record.agent_id,)))
    if record.contains is not None:
        parts.append(SqlStatement("name = ?", (record.contains,)))
    if record.from_unix_ns is not None:
        parts.append(SqlStatement(f"{_WINDOW_NS} + {_WINDOW_SIZE_NS} > ?", (record.from_unix_ns,)))
    if record.to_unix_ns is not None:
        parts.append(SqlStatement(f"{_WINDOW_NS} < ?", (record.to_unix_ns,)))
    where = all_conditions(parts)
    return SqlStatement(f"SELECT count(*) FROM {source} WHERE {where.text}", where.values)  # noqa: S608 - constants


def _not_deleted(record: DeleteRecord) -> SqlStatement:
    deleted = _deleted(record)
    return SqlStatement(f"NOT {deleted.text}", deleted.values)


def _deleted(record: DeleteRecord) -> SqlStatement:
    at = record_time(record.kind)
    parts = [SqlStatement(f"{_ACCEPTED_NS} <= ?", (record.accepted_until_unix_ns,))]
    if record.from_unix_ns is not None:
        parts.append(SqlStatement(f"{at} >= ?", (record.from_unix_ns,)))
    if record.to_unix_ns is not None:
        parts.append(SqlStatement(f"{at} < ?", (record.to_unix_ns,)))
    if record.agent_id is not None:
        parts.append(SqlStatement("agent_id = ?", (record.agent_id,)))
    if record.contains is not None:
        kind = KINDS[record.kind]
        plain = f"{kind.searched} = ?" if kind.is_named else f"contains({kind.searched}, ?)"
        parts.append(SqlStatement(plain, (record.contains,)))
    parts += [_attribute(key, value) for key, value in record.attributes.items()]
    deleted = all_conditions(parts)
    # For a record without attributes the comparison is NULL, which means not deleted.
    return SqlStatement(f"coalesce({deleted.text}, false)", deleted.values)


SERIES_LABELS: Final = (
    "list_sort(map_entries(attributes))",
    "list_sort(map_entries(resource))",
    # Each combined request of a door has another agent, and none of them names a source.
    f"CASE WHEN NOT starts_with(agent_id, '{DOOR_AGENT_PREFIX}') THEN agent_id END",
)
"""What distinguishes the series of one metric."""
