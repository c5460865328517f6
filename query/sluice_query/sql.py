"""A query as SQL of DuckDB: text with placeholders, and the values for them.

No value of a person stands in the text. Patterns run in RE2, whose time grows with the text alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sluice_protocol.lake import RECORD_TABLES
from sluice_protocol.manifests import Kind
from sluice_protocol.record_deletes import DeleteRecord
from sluice_query.request import Aggregate, Query, Series

SEARCHED: Final[dict[Kind, str]] = {"logs": "body", "metrics": "name"}
"""The column that a text is looked for in."""
_ACCEPTED_NS: Final = "epoch_us(accepted_at) * 1000"
_ORDER: Final = "at_ns, agent_id, boot_id, seq"
_REVERSED: Final = "at_ns DESC, agent_id DESC, boot_id DESC, seq DESC"
_LEFT_OUT: Final = frozenset({"ts", "queue_sequence", "accepted_date"})

Value = str | int | float | list[str]


@dataclass(slots=True)
class Statement:
    """SQL and the values of its placeholders, in order."""

    text: str
    values: list[Value] = field(default_factory=list)


def shown_columns(kind: Kind) -> list[str]:
    """Gives the columns of a kind that a record of an answer has."""
    names = [column.name for column in RECORD_TABLES[kind].columns]
    return [name for name in names if name not in _LEFT_OUT]


def when(kind: Kind) -> str:
    """Gives the time of a record; one without a time counts by the acceptance of its batch."""
    return f"coalesce(ts_ns, {_ACCEPTED_NS})" if kind == "entries" else "ts_ns"


def condition(query: Query, deletes: Sequence[DeleteRecord] = ()) -> Statement:
    """Gives the condition that a record must meet."""
    # The plain comparisons come first: row groups are skipped by them.
    at = when(query.kind)
    parts = [Statement(f"{at} >= ? AND {at} < ?", [query.from_ns, query.to_ns])]
    if query.agents:
        marks = ", ".join("?" for _ in query.agents)
        parts.append(Statement(f"agent_id IN ({marks})", [*query.agents]))
    parts += [_attribute(key, value) for key, value in query.attributes]
    if query.series is not None:
        parts.append(Statement("name = ?", [query.series.metric]))
    if query.text is not None:
        parts.append(_text(query, query.text))
    parts += [_not_deleted(record) for record in deletes]
    return _all(parts)


def _all(parts: Sequence[Statement]) -> Statement:
    values = [value for part in parts for value in part.values]
    return Statement(" AND ".join(part.text for part in parts), values)


def _attribute(key: str, value: str) -> Statement:
    return Statement("(attributes[?] = ? OR resource[?] = ?)", [key, value, key, value])


def _not_deleted(record: DeleteRecord) -> Statement:
    at = when(record.kind)
    parts = [Statement(f"{_ACCEPTED_NS} <= ?", [record.accepted_until_unix_ns])]
    if record.from_unix_ns is not None:
        parts.append(Statement(f"{at} >= ?", [record.from_unix_ns]))
    if record.to_unix_ns is not None:
        parts.append(Statement(f"{at} < ?", [record.to_unix_ns]))
    if record.agent_id is not None:
        parts.append(Statement("agent_id = ?", [record.agent_id]))
    if record.contains is not None:
        plain = "name = ?" if record.kind == "metrics" else "contains(body, ?)"
        parts.append(Statement(plain, [record.contains]))
    parts += [_attribute(key, value) for key, value in record.attributes.items()]
    met = _all(parts)
    # A record without attributes compares as unknown, which is not deleted.
    return Statement(f"NOT coalesce({met.text}, false)", met.values)


def _text(query: Query, text: str) -> Statement:
    column = SEARCHED[query.kind]
    if query.regex:
        options = "i" if query.ignore_case else "c"
        return Statement(f"regexp_matches({column}, ?, '{options}')", [text])
    if query.ignore_case:
        return Statement(f"contains(lower({column}), lower(?))", [text])
    return Statement(f"contains({column}, ?)", [text])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What records are taken from, and what hides some of them.

    Attributes:
        names: Tables or views of the engine, each with the columns of the lake.
        deletes: Deletes of the kind that is asked for.
    """

    names: tuple[str, ...]
    deletes: tuple[DeleteRecord, ...] = ()


def records_sql(query: Query, sources: Sources) -> Statement:
    """Gives the records of a query in order, at most `limit + 1` of them."""
    columns = ", ".join(shown_columns(query.kind))
    inner = _from(query, f"{when(query.kind)} AS at_ns, {columns}", sources)
    order = _REVERSED if query.newest_first else _ORDER
    # One more than asked for tells whether there are more.
    inner.text = f"SELECT {columns} FROM ({inner.text}) ORDER BY {order} LIMIT ?"  # noqa: S608 - names of ours
    inner.values.append(query.limit + 1)
    return inner


def counts_sql(query: Query, sources: Sources) -> Statement:
    """Gives how many records match, and the first and last of their times."""
    inner = _from(query, f"{when(query.kind)} AS at_ns", sources)
    inner.text = f"SELECT count(*), min(at_ns), max(at_ns) FROM ({inner.text})"  # noqa: S608 - names of ours
    return inner


def series_sql(query: Query, series: Series, sources: Sources) -> Statement:
    """Gives (start of the step, agent, value) of a series in order; the agent is '' for all."""
    agent = "agent_id" if series.by_agent else "''"
    inner = _from(query, f"ts_ns, {agent} AS agent, value, boot_id, seq", sources)
    # Steps begin at whole multiples of their width, so that two questions have the same steps.
    step = f"ts_ns - ((ts_ns % {series.step_ns}) + {series.step_ns}) % {series.step_ns}"
    inner.text = (
        f"SELECT {step} AS step, agent, {_aggregate(series.aggregate)}"  # noqa: S608 - numbers of ours
        f" FROM ({inner.text}) GROUP BY ALL ORDER BY ALL"
    )
    return inner


def _aggregate(aggregate: Aggregate) -> str:
    if aggregate is Aggregate.COUNT:
        return "count(*)::DOUBLE"
    if aggregate is Aggregate.LAST:
        return "arg_max(value, (ts_ns, boot_id, seq))"
    return f"{aggregate.value}(value)"


def _from(query: Query, columns: str, sources: Sources) -> Statement:
    where = condition(query, sources.deletes)
    selects = [
        f"SELECT {columns} FROM {source} WHERE {where.text}"  # noqa: S608 - names of ours
        for source in sources.names
    ]
    return Statement(" UNION ALL ".join(selects), where.values * len(sources.names))
