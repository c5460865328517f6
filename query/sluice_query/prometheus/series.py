"""Series of metrics as Prometheus knows them: their labels, and their samples in order.

The labels of a series are the attributes of its records, then the attributes of the resource, and
then `agent`, unless a door has accepted the records: the first with a name counts. Names have the
form of Prometheus: other characters become `_`, in labels as in LogQL. So a series that Prometheus
has sent by remote write has exactly its labels.

Records that only describe a metric (`x_metadata` with a known `type`) are no samples.

A query reads the sources twice: first for the distinct series, on which the matchers decide, then
for the samples of those. Samples are sorted by DuckDB, which spills to disk, and read in batches.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from sluice_protocol.columns import F64, I64
from sluice_protocol.errors import BadUsage
from sluice_protocol.identity import DOOR_AGENT_PREFIX
from sluice_query.engine import DataFilesUnreadable
from sluice_query.logql.expressions import Matcher, MatchOperator
from sluice_query.logql.names import attribute_label_sql, attribute_labels_sql, first_sql
from sluice_query.prometheus.selectors import NAME
from sluice_query.request import (
    END_NS,
    FIRST_NS,
    MAPS,
    NS_PER_MS,
    PATTERN_BYTES_MAX,
    Query,
    check_encodable,
    check_query,
)
from sluice_query.result import QuerySummary
from sluice_query.statements import (
    RecordSources,
    SqlStatement,
    all_conditions,
    any_condition,
    select_sql,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sluice_query.search import Searcher, SearchRead, SourceReader

SERIES_MAX: Final = 50_000
"""Series of one query: their labels are in memory together."""
MATCHERS_MAX: Final = 50
ROWS_PER_PART: Final = 50_000
DESCRIBED: Final = "_metadata"
"""The end of the name of points that describe a metric."""
TYPES: Final = (
    *("unknown", "counter", "gauge", "histogram", "gaugehistogram", "summary", "info", "stateset"),
    *("sum", "exponential_histogram"),
)
"""The types that such points state, of Prometheus and of OTLP."""

_Result = TypeVar("_Result")

Labels = tuple[tuple[str, str], ...]
"""The labels of a series, sorted by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Series with samples between two times, both inclusive, that meet all matchers of a group.

    Without groups, all series are selected.
    """

    start_ms: int
    end_ms: int
    groups: tuple[tuple[Matcher, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class SamplesPart:
    """Samples of one series, in order; a long series has several parts."""

    labels: Labels
    times_ms: I64
    values: F64


_IS_DOOR: Final = f"starts_with(agent_id, '{DOOR_AGENT_PREFIX}')"
_COLUMNS: Final = (
    f"name, attributes, resource, CASE WHEN NOT {_IS_DOOR} THEN agent_id END AS agent,"
    " ts_ns, value, accepted_at, seq"
)
_METRIC: Final = "regexp_replace(name, '^([0-9])|[^A-Za-z0-9_:]', '_\\1', 'g')"
"""The name of a metric in the form of Prometheus."""
_KEY: Final = "name, attributes, resource, agent"
_AGENT: Final = "agent"
_PLAIN_START: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_AFTER_ALL: Final = "\U0010ffff"


def value_sql(name: str) -> SqlStatement:
    """Return the expression for the value of a label of a series; NULL without one."""
    if name == NAME:
        return SqlStatement(_METRIC)
    own = [SqlStatement(_AGENT)] if name == _AGENT else []
    return first_sql([*attribute_label_sql(name), *own])


def matcher_sql(one: Matcher) -> SqlStatement:
    """Return the condition of a matcher: patterns match the whole value."""
    label = value_sql(one.name)
    value, values = f"coalesce({label.text}, '')", (*label.values, one.value)
    if one.operator in (MatchOperator.EQUAL, MatchOperator.UNEQUAL):
        return SqlStatement(f"{value} {one.operator} ?", values)
    no = "NOT " if one.operator is MatchOperator.MATCHES_NOT else ""
    return SqlStatement(f"{no}regexp_full_match({value}, ?, 's')", values)


def _demanded_sql(groups: Sequence[Sequence[Matcher]]) -> SqlStatement:
    """Return what the `=` of matchers demand of each record, cheaper than its labels.

    Names are compared in a form by which row groups are skipped.
    """
    return any_condition([_demanded_by(group) for group in groups]) if groups else _ANY


_ANY: Final = SqlStatement("true")


def _demanded_by(group: Sequence[Matcher]) -> SqlStatement:
    parts = [_ANY]
    for one in group:
        if one.operator is not MatchOperator.EQUAL or not one.value:
            continue
        if one.name == NAME:
            # Other characters become `_`, so those before the first `_` are as they are.
            start = one.value[: len(one.value) - len(one.value.lstrip(_PLAIN_START))]
            text = f"name >= ? AND name <= ? AND (name = ? OR {_METRIC} = ?)"
            parts.append(SqlStatement(text, (start, start + _AFTER_ALL, one.value, one.value)))
        else:
            places = [f"list_contains(map_values({place}), ?)" for place in MAPS]
            places += [f"{_AGENT} = ?"] * (one.name == _AGENT)
            parts.append(any_condition([SqlStatement(text, (one.value,)) for text in places]))
    return all_conditions(parts)


def _records_sql(
    query: Query, sources: RecordSources, groups: Sequence[Sequence[Matcher]]
) -> SqlStatement:
    """Return the statement for the records that may be samples of the series."""
    inner = select_sql(query, SqlStatement(_COLUMNS), sources)
    where = _demanded_sql(groups)
    return SqlStatement(
        f"SELECT * FROM ({inner.text}) WHERE {where.text}",  # noqa: S608 - constants
        (*inner.values, *where.values),
    )


def _series_sql(
    query: Query, sources: RecordSources, groups: Sequence[Sequence[Matcher]]
) -> SqlStatement:
    """Return the statement for the distinct series that meet the matchers of a group."""
    records = _records_sql(query, sources, groups)
    types = ", ".join(f"'{one}'" for one in TYPES)
    conditions = [
        SqlStatement(
            f"NOT (ends_with(name, '{DESCRIBED}') AND coalesce(attributes['job'], '') = ''"
            f" AND coalesce(attributes['type'], '') IN ({types}))"
        )
    ]
    if groups:
        met = [all_conditions([matcher_sql(one) for one in group]) for group in groups if group]
        conditions.append(any_condition(met))
    where = all_conditions(conditions)
    return SqlStatement(
        f"SELECT * FROM (SELECT DISTINCT {_KEY} FROM ({records.text})) WHERE {where.text}",  # noqa: S608 - constants
        (*records.values, *where.values),
    )


def _labels_sql() -> str:
    """Return the expression for the labels of a series in their precedence, without its name."""
    parts = [part.text for part in attribute_labels_sql()]
    parts.append(f"[struct_pack(k := '{_AGENT}', v := {_AGENT})]")
    return " || ".join(parts)


def _labels_of(metric: str, pairs: Sequence[dict[str, str | None]]) -> Labels:
    labels = {NAME: metric}
    for one in pairs:
        name, value = one["k"] or "_", one["v"]
        if value:
            labels.setdefault(name, value)
    return tuple(sorted(labels.items()))


def query_of(selection: Selection) -> Query:
    """Return the query for the records of a selection."""
    from_ns = min(max(selection.start_ms * NS_PER_MS, FIRST_NS), END_NS - 1)
    to_ns = min(max((selection.end_ms + 1) * NS_PER_MS, FIRST_NS + 1), END_NS)
    return check_query(Query(kind="metrics", from_ns=from_ns, to_ns=to_ns))  # type: ignore[arg-type]


@dataclass(slots=True)
class SeriesReader:
    """Reads the series of one selection from what a search has read.

    Data files that cannot be read are left out, and `summary` states why.
    """

    searcher: "Searcher"
    reader: "SourceReader"
    read: "SearchRead"
    selection: Selection

    @property
    def summary(self) -> QuerySummary:
        """Return what was read, and whether it was everything."""
        return self.reader.summarize(QuerySummary(), self.read)

    async def _reading(self, work: Callable[[RecordSources], _Result], nothing: _Result) -> _Result:
        """Return what is computed from the sources; `nothing` without any."""

        def run() -> _Result:
            evaluator = self.searcher.evaluator(self.reader, self.read)
            sources = evaluator.sources(self.read.files.read)
            return work(sources) if sources.names else nothing

        while True:
            try:
                return await self.reader.bounded(run)
            except DataFilesUnreadable as error:
                self.read = await self.reader.without_unreadable(self.read, error)

    async def _rows(self, template: str, *values: str | int) -> list[tuple[Any, ...]]:
        """Return the rows of a statement over the distinct series, which it calls `series`."""

        def work(sources: RecordSources) -> list[tuple[Any, ...]]:
            series = _series_sql(self.reader.query, sources, self.selection.groups)
            text = f"WITH series AS ({series.text}) {template}"
            return self.reader.engine.rows(SqlStatement(text, (*series.values, *values)))

        return await self._reading(work, [])

    async def label_names(self, limit: int) -> list[str]:
        """Return the names of the labels of the series, sorted, at most `limit`."""
        text = (
            f"SELECT DISTINCT one.k FROM (SELECT unnest({_labels_sql()}) AS one FROM series)"  # noqa: S608 - constants
            " WHERE one.v <> '' AND one.k <> '' ORDER BY 1 LIMIT ?"
        )
        names = [name for (name,) in await self._rows(text, limit)]
        if not names and not await self._rows("SELECT 1 FROM series LIMIT 1"):
            return []
        return sorted({NAME, *names})[:limit]

    async def label_values(self, name: str, limit: int) -> list[str]:
        """Return the values of a label, sorted, at most `limit`."""
        value = value_sql(name)
        text = (
            f"SELECT DISTINCT found FROM (SELECT {value.text} AS found FROM series)"  # noqa: S608 - constants
            " WHERE found <> '' ORDER BY found LIMIT ?"
        )
        return [found for (found,) in await self._rows(text, *value.values, limit)]  # type: ignore[arg-type]

    async def series(self) -> list[Labels]:
        """Return the labels of each series, sorted.

        Raises:
            BadUsage: There are too many.
        """
        text = f"SELECT {_METRIC}, {_labels_sql()} FROM series LIMIT {SERIES_MAX + 1}"  # noqa: S608 - constants
        return sorted(set(_listed(await self._rows(text))))

    async def described(self) -> list[tuple[str, int, str | None, str | None, str | None, bool]]:
        """Return each metric: its name, the type of its samples, and what is stated about it.

        That is a type, a description and a unit, and whether a sum only rises, all of the metric
        that the name without its end describes.
        """
        stated = ", ".join(
            f"any_value(attributes['{one}'])" for one in ("type", "description", "unit")
        )

        def work(sources: RecordSources) -> list[tuple[Any, ...]]:
            columns = SqlStatement(f"{_COLUMNS}, type")
            records = select_sql(self.reader.query, columns, sources)
            text = (
                f"SELECT {_METRIC}, max(type), {stated},"  # noqa: S608 - constants
                f" coalesce(any_value(attributes['monotonic']) = 'true', false)"
                f" FROM ({records.text}) GROUP BY ALL ORDER BY 1"
            )
            return self.reader.engine.rows(SqlStatement(text, records.values))

        return await self._reading(work, [])

    async def samples(self) -> "AsyncGenerator[SamplesPart]":
        """Yield the samples of each series, in the order of labels and times.

        Of several samples at one ms the latest counts, and of equal ones the first accepted.
        """
        engine = self.reader.engine
        nothing: tuple[list[Labels], Any, Any] = ([], None, None)
        ordered, opened, batch = await self._reading(self._open, nothing)
        left = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float64))
        while batch is not None:
            columns = (column.to_numpy(zero_copy_only=False) for column in batch.columns)
            place, at_ms, value = (
                np.concatenate([old, new]) for old, new in zip(left, columns, strict=True)
            )
            # The last row may have another sample of its ms in the next batch.
            left = (place[-1:], at_ms[-1:], value[-1:])
            for part in _parts(ordered, place[:-1], at_ms[:-1], value[:-1], left):
                yield part
            batch = await self.reader.bounded(partial(engine.next_rows, opened))
        for part in _parts(ordered, *left, None):
            yield part

    def _open(self, sources: RecordSources) -> tuple[list[Labels], Any, Any]:
        """Return the series, sorted, an Arrow reader of their samples, and its first rows.

        All files are read before there is a row, because the rows are sorted.
        """
        engine, query = self.reader.engine, self.reader.query
        series = _series_sql(query, sources, self.selection.groups)
        keys = f"SELECT *, row_number() OVER () AS number FROM ({series.text} LIMIT ?)"  # noqa: S608 - constants
        keys = f"CREATE OR REPLACE TEMP TABLE series AS {keys}"
        engine.rows(SqlStatement(keys, (*series.values, SERIES_MAX + 1)))
        listed = f"SELECT {_METRIC}, {_labels_sql()} FROM series ORDER BY number"  # noqa: S608 - constants
        found = _listed(engine.rows(SqlStatement(listed)))
        ordered = sorted(set(found))
        places = {labels: place for place, labels in enumerate(ordered)}
        numbers = pa.array(range(1, len(found) + 1), pa.int64())
        of_series = pa.array([places[one] for one in found], pa.int64())
        engine.register_table("places", pa.table({"number": numbers, "place": of_series}))
        records = _records_sql(query, sources, self.selection.groups)
        same = " AND ".join(
            f"records.{one} IS NOT DISTINCT FROM series.{one}" for one in _KEY.split(", ")
        )
        at = f"ts_ns // {NS_PER_MS} - (ts_ns % {NS_PER_MS} < 0)::INT"
        statement = SqlStatement(
            f"SELECT place, ({at})::BIGINT AS at_ms, value FROM ({records.text}) AS records"  # noqa: S608 - constants
            f" JOIN series ON {same} JOIN places USING (number)"
            " ORDER BY place, ts_ns, accepted_at DESC, seq DESC",
            records.values,
        )
        opened = engine.open_reader(statement, ROWS_PER_PART)
        return ordered, opened, engine.next_rows(opened)


def _listed(rows: Sequence[tuple[Any, ...]]) -> list[Labels]:
    """Return the labels of series from their metrics and lists of labels."""
    if len(rows) > SERIES_MAX:
        raise BadUsage(
            f"the selector has more than {SERIES_MAX} series: add a matcher, or choose a shorter"
            " range"
        )
    return [_labels_of(metric, pairs) for metric, pairs in rows]


def _parts(
    ordered: Sequence[Labels],
    place: I64,
    at_ms: I64,
    value: F64,
    following: tuple[I64, I64, F64] | None,
) -> list[SamplesPart]:
    """Return rows as parts; a row is left out if the following has the same series and ms."""
    if not len(place):
        return []
    after = (np.zeros(0, np.int64),) * 2 if following is None else following[:2]
    same = np.zeros(len(place), np.bool_)
    next_place, next_ms = (
        np.concatenate([one[1:], later]) for one, later in zip((place, at_ms), after, strict=True)
    )
    known = len(next_place)
    same[:known] = (next_place == place[:known]) & (next_ms == at_ms[:known])
    place, at_ms, value = place[~same], at_ms[~same], value[~same]
    ends = [*(np.flatnonzero(np.diff(place)) + 1).tolist(), len(place)]
    starts = [0, *ends[:-1]]
    return [
        SamplesPart(ordered[place[start]], at_ms[start:end], value[start:end])
        for start, end in zip(starts, ends, strict=True)
        if start < end
    ]


@asynccontextmanager
async def reading_series(
    searcher: "Searcher", selection: Selection
) -> "AsyncIterator[SeriesReader]":
    """Read what determines the files and the pending batches of a selection, and check it."""
    matchers = [one for group in selection.groups for one in group]
    if len(matchers) > MATCHERS_MAX:
        raise BadUsage(f"a request has at most {MATCHERS_MAX} matchers, matchers=`{len(matchers)}`")
    for one in matchers:
        check_encodable(one.name)
        check_encodable(one.value)
    async with searcher.reading(query_of(selection)) as reader:
        for one in matchers:
            if one.operator in (MatchOperator.MATCHES, MatchOperator.MATCHES_NOT):
                if len(one.value.encode()) > PATTERN_BYTES_MAX:
                    raise BadUsage(f"a pattern has at most {PATTERN_BYTES_MAX} bytes")
                reader.engine.check_pattern(one.value)
        yield SeriesReader(searcher, reader, await reader.read(), selection)
