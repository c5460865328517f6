"""A series: its SQL and its computation from samples, pending batches and rollups.

Each source is reduced to partial results by step and group, which are then combined. Quantiles are
exact: they are computed from all numbers, and interpolate linearly between two of them, as
`quantile_over_time` of Prometheus and Loki; between an infinity of each sign the result is NaN.
Rollups contain no NaN, so NaN in samples is ignored too. Of several samples of the latest time,
`last` is the greatest. Both rules make a value independent of the source that it is computed from.

A rate is how much a counter increases each second. Each set of labels is a counter: of cumulative
samples the increase is the difference to the sample before, or the value itself if that is smaller,
because the counter was reset; delta samples are increases already. The first sample of a counter
has no increase. The sum of the increases of a step is divided by the part of the step that the
range of the query covers, so the first and the last step are not lower than the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from sluice_protocol.authority import LaneCounts
from sluice_protocol.errors import BadUsage
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.timestamps import format_rfc3339
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_query.engine import LAKE, PENDING, QueryEngine
from sluice_query.request import FIRST_NS, MAPS, Aggregate, Query, RecordField, Series
from sluice_query.result import SeriesPoint
from sluice_query.rollups import (
    HOUR_NS,
    MINUTE_NS,
    ChosenRollups,
    RollupPlan,
    TimeSpan,
)
from sluice_query.statements import (
    IS_NUMBER,
    SERIES_LABELS,
    SqlStatement,
    SqlValue,
    all_conditions,
    any_condition,
    condition,
    field_sql,
    is_agent,
    record_time,
)

if TYPE_CHECKING:
    from sluice_query.search import SearchRead

_WINDOW_NS: Final = "(epoch_us(window_start) * 1000)"
_LANE: Final = "(CAST('0x' || substr(sha256(agent_id), 1, 16) AS UBIGINT) % {lanes})::BIGINT"


POINTS_MAX: Final = 100_000
GROUPS_MAX: Final = 1_000
BY_CHARS_MAX: Final = 1_000
"""Longer values of a text are cut, so those that begin alike are one group."""
SPANS_APART_MAX: Final = 4
"""Spans of one source that are read by separate parts of the statement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSource:
    """A table or view of the engine with samples.

    Attributes:
        spans: None uses all of the query's range.
        later_than: The last sequence of each lane; only later samples are used. None uses all.
        lanes: The number of lanes of each sample, with `later_than`.
    """

    name: str
    spans: tuple[TimeSpan, ...] | None = None
    later_than: tuple[int, ...] | None = None
    lanes: LaneCounts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesSources:
    """The sources of a series.

    `minutes` and `hours` name the files of `rollups` with rows of minutes and hours, and `plan`
    selects among these; all three are None without rollups. A rate begins at `from_ns`, its samples
    earlier.
    """

    from_ns: UnixNs = FIRST_NS
    samples: tuple[SampleSource, ...] = ()
    deletes: tuple[DeleteRecord, ...] = ()
    minutes: str | None = None
    hours: str | None = None
    plan: RollupPlan | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figures:
    """The columns `a` and `b` of each source by step and group, and the value of a step from them.

    `rollups` is empty if rollups do not have them, and `samples` if every number is needed.
    """

    samples: str = ""
    rollups: str = ""
    combined: str


_FIGURES: Final[dict[Aggregate, _Figures]] = {
    Aggregate.AVG: _Figures(
        samples="sum(value) AS a, count(*) AS b",
        rollups='sum("sum") AS a, sum("count") AS b',
        combined="sum(a) / sum(b)",
    ),
    Aggregate.MIN: _Figures(
        samples="min(value) AS a", rollups='min("min") AS a', combined="min(a)"
    ),
    Aggregate.MAX: _Figures(
        samples="max(value) AS a", rollups='max("max") AS a', combined="max(a)"
    ),
    Aggregate.SUM: _Figures(
        samples="sum(value) AS a", rollups='sum("sum") AS a', combined="sum(a)"
    ),
    Aggregate.COUNT: _Figures(
        samples="count(*) AS a", rollups='sum("count") AS a', combined="sum(a)::DOUBLE"
    ),
    Aggregate.LAST: _Figures(
        samples="arg_max(value, (at_ns, value)) AS a, max(at_ns) AS b",
        rollups='arg_max("last", (last_ts_ns, "last")) AS a, max(last_ts_ns) AS b',
        combined="arg_max(a, (b, a))",
    ),
    **{
        one: _Figures(combined=f"quantile_cont(a, {one.quantile})")
        for one in Aggregate
        if one.quantile is not None
    },
}


def series_sql(query: Query, series: Series, sources: SeriesSources) -> SqlStatement:
    """Return the statement for the start of a step, the values of `by`, and the value of the step.

    One point over the limit shows whether there are more.
    """
    if series.aggregate is Aggregate.RATE:
        return _rate_sql(query, series, sources)
    figures = _FIGURES[series.aggregate]
    parts = [
        _from_samples(source.name, query, series, figures, chosen)
        for source in sources.samples
        for chosen in _samples(query, source, sources)
    ]
    if sources.plan is not None:
        for source, window in ((sources.minutes, _MINUTE), (sources.hours, _HOUR)):
            parts += [
                _from_rollups(source, series, figures, chosen)
                for chosen in _rows(query, series, sources.plan, window)
                if source is not None
            ]
    union = " UNION ALL ".join(part.text for part in parts)
    names = "".join(f"by{place}, " for place in range(_splits(series)))
    return SqlStatement(
        f"SELECT step, {names}{figures.combined} FROM ({union})"  # noqa: S608 - constants
        " GROUP BY ALL ORDER BY ALL LIMIT ?",
        (*(value for part in parts for value in part.values), POINTS_MAX + 1),
    )


def _splits(series: Series) -> int:
    """Return the number of columns `by0`, `by1` and so on."""
    return len(SERIES_LABELS) if series.each else len(series.by)


def _rate_sql(query: Query, series: Series, sources: SeriesSources) -> SqlStatement:
    """Return the statement for the rates of each step; the samples begin before the range."""
    label = ", ".join(f"{text} AS label{place}" for place, text in enumerate(SERIES_LABELS))
    same = ", ".join(f"label{place}" for place in range(len(SERIES_LABELS)))
    parts: list[str] = []
    values: list[SqlValue] = []
    for source in sources.samples:
        for chosen in _samples(query, source, sources):
            grouping = _grouping("ts_ns", series)
            parts.append(
                f"SELECT {grouping.text}, value, ts_ns AS at_ns, type, {label} FROM {source.name}"  # noqa: S608 - constants
                f" WHERE {chosen.text} AND isfinite(value)"
            )
            values += (*grouping.values, *chosen.values)
    names = "".join(f"by{place}, " for place in range(_splits(series)))
    # Samples of one counter at the same time are ordered by value: their order is not a reset.
    before = f"lag(value) OVER (PARTITION BY type, {same} ORDER BY at_ns, value)"
    rise = f"CASE WHEN type = {_DELTA} OR value < {before} THEN value ELSE value - {before} END"
    covered = f"least(step + {series.step_ns}, ?) - greatest(step, ?)"
    return SqlStatement(
        f"SELECT step, {names}sum(rise) * {NS_PER_S}.0 / any_value({covered})"  # noqa: S608 - constants
        f" FROM (SELECT step, {names}at_ns, {rise} AS rise FROM ({' UNION ALL '.join(parts)}))"
        " WHERE at_ns >= ? AND rise IS NOT NULL GROUP BY ALL ORDER BY ALL LIMIT ?",
        (query.to_ns, sources.from_ns, *values, sources.from_ns, POINTS_MAX + 1),
    )


_DELTA: Final = 1


def _grouping(time: str, series: Series) -> SqlStatement:
    """Return the columns `step`, `by0`, `by1` and so on."""
    # Steps begin at multiples of their width, so that two queries have the same steps.
    step = f"{time} - (({time} % {series.step_ns}) + {series.step_ns}) % {series.step_ns}"
    parts = [SqlStatement(f"{step} AS step")]
    if series.each:
        parts += [SqlStatement(f"{text} AS by{place}") for place, text in enumerate(SERIES_LABELS)]
    for place, field in enumerate(series.by):
        value = field_sql(field)
        # A text may be very long, and each point of its series has it.
        text = value.text if field.is_number else f"left({value.text}, {BY_CHARS_MAX})"
        parts.append(SqlStatement(f"{text} AS by{place}", value.values))
    return SqlStatement(
        ", ".join(part.text for part in parts), tuple(one for part in parts for one in part.values)
    )


def _from_samples(
    source: str, query: Query, series: Series, figures: _Figures, chosen: SqlStatement
) -> SqlStatement:
    time = record_time(query.kind)
    grouping = _grouping(time, series)
    values = (*grouping.values, *chosen.values)
    found = (
        f"SELECT {grouping.text}, value::DOUBLE AS value, {time} AS at_ns FROM {source}"  # noqa: S608 - constants
        f" WHERE {chosen.text}"
    )
    names = "".join(f"by{place}, " for place in range(_splits(series)))
    if not figures.samples:
        text = f"SELECT step, {names}value AS a FROM ({found}) WHERE value IS NOT NULL"  # noqa: S608 - constants
        return SqlStatement(text, values)
    return SqlStatement(
        f"SELECT step, {names}{figures.samples} FROM ({found}) WHERE value IS NOT NULL"  # noqa: S608 - constants
        " GROUP BY ALL",
        values,
    )


def _from_rollups(
    source: str, series: Series, figures: _Figures, chosen: SqlStatement
) -> SqlStatement:
    grouping = _grouping(_WINDOW_NS, series)
    return SqlStatement(
        f"SELECT {grouping.text}, {figures.rollups} FROM {source}"  # noqa: S608 - constants
        f" WHERE {chosen.text} GROUP BY ALL",
        (*grouping.values, *chosen.values),
    )


def _samples(query: Query, source: SampleSource, sources: SeriesSources) -> list[SqlStatement]:
    """Return conditions that together select the samples of one source, each of them once."""
    parts = [condition(query, sources.deletes), SqlStatement(IS_NUMBER)]
    if source.later_than is not None and source.lanes is not None:
        # The plain comparison is first, because the engine skips row groups by it.
        parts.append(SqlStatement("queue_sequence > ?", (min(source.later_than),)))
        lane = _LANE.format(lanes=source.lanes.sql("queue_sequence"))
        later = f"queue_sequence > (?::BIGINT[])[1 + {lane}]"
        parts.append(SqlStatement(later, (list(source.later_than),)))
    if source.spans is None:
        return [all_conditions(parts)]
    spans = [
        SqlStatement("ts_ns >= ? AND ts_ns < ?", (one.from_ns, one.to_ns)) for one in source.spans
    ]
    return [all_conditions([span, *parts]) for span in _few(spans)]


def _few(spans: list[SqlStatement]) -> list[SqlStatement]:
    """Return a few conditions apart and many as one: the engine skips row groups by the former."""
    return spans if len(spans) <= SPANS_APART_MAX else [any_condition(spans)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    name: str
    size_ns: int


_MINUTE: Final = _Window(name="1m", size_ns=MINUTE_NS)
_HOUR: Final = _Window(name="1h", size_ns=HOUR_NS)


def _rows(query: Query, series: Series, plan: RollupPlan, window: _Window) -> list[SqlStatement]:
    """Return conditions that together select the rows of one window length that a plan uses."""
    spans = [
        SqlStatement(
            "window_start >= ?::TIMESTAMPTZ AND window_start < ?::TIMESTAMPTZ",
            (format_rfc3339(one.from_ns), format_rfc3339(one.to_ns)),
        )
        for one in (plan.minutes if window == _MINUTE else plan.hours)
    ]
    parts = [SqlStatement('"window" = ? AND name = ?', (window.name, series.metric))]
    if query.agents:
        parts.append(is_agent(query.agents))
    # Rows have the attributes of a series only; the plan uses them if nothing else remains.
    parts += [SqlStatement("attributes[?] = ?", pair) for pair in query.attributes]
    parts += [_not_covered(record, window.size_ns) for record in plan.dropped]
    return [all_conditions([span, *parts]) for span in _few(spans)]


def _not_covered(record: DeleteRecord, size_ns: int) -> SqlStatement:
    """Return the condition that a delete does not cover every sample of a row."""
    parts = []
    if record.from_unix_ns is not None:
        parts.append(SqlStatement(f"{_WINDOW_NS} >= ?", (record.from_unix_ns,)))
    if record.to_unix_ns is not None:
        parts.append(SqlStatement(f"{_WINDOW_NS} + {size_ns} <= ?", (record.to_unix_ns,)))
    if record.agent_id is not None:
        parts.append(is_agent((record.agent_id,)))
    if record.contains is not None:
        parts.append(SqlStatement("name = ?", (record.contains,)))
    parts += [SqlStatement("attributes[?] = ?", pair) for pair in record.attributes.items()]
    covered = all_conditions(parts)
    return SqlStatement(f"NOT coalesce({covered.text}, false)", covered.values)


_LATER: Final = "later"
_MINUTES: Final = "minutes"
_HOURS: Final = "hours"


def compute_series(
    engine: QueryEngine, query: Query, series: Series, read: "SearchRead", rollups: ChosenRollups
) -> list[SeriesPoint]:
    """Return the points of a series in order; raise `BadUsage` if they are too many."""
    plan, opened, files = rollups.plan, rollups.opened, read.files
    samples: list[SampleSource] = []
    every = files.read if plan is None else rollups.samples.every
    if every:
        engine.register_files(LAKE, every, files.location, files.extended)
        samples.append(SampleSource(name=LAKE, spans=plan.samples if plan is not None else None))
    if plan is not None and rollups.samples.later:
        engine.register_files(
            _LATER, rollups.samples.later, read.files.location, read.files.extended
        )
        windows = tuple(plan.windows)
        samples.append(
            SampleSource(name=_LATER, spans=windows, later_than=plan.through, lanes=plan.lanes)
        )
    if read.fetched.tables:
        engine.register_table(PENDING, pa.concat_tables(read.fetched.tables))
        samples.append(SampleSource(name=PENDING))
    rows: dict[str, str] = {}
    if plan is not None and opened is not None:
        for name, spans in ((_MINUTES, plan.minutes), (_HOURS, plan.hours)):
            if rolled := opened.files_of(spans):
                engine.register_files(name, rolled, opened.location)
                rows[name] = name
    if not samples and not rows:
        return []
    sources = SeriesSources(
        from_ns=query.from_ns,
        samples=tuple(samples),
        deletes=read.deletes,
        minutes=rows.get(_MINUTES),
        hours=rows.get(_HOURS),
        plan=plan,
    )
    found = engine.rows(series_sql(read.query, series, sources))
    return points_of(series, found)


def points_of(series: Series, rows: Sequence[tuple[Any, ...]]) -> list[SeriesPoint]:
    """Return the points of the rows of `series_sql`."""
    if len(rows) > POINTS_MAX:
        raise BadUsage(
            f"a series has at most {POINTS_MAX} points: choose a longer step, a shorter time range"
            " or more filters"
        )
    names = [one.name for one in series.by]
    groups: dict[str, dict[str, str | float | None]] = {}
    points = []
    for step_ns, *by, value in rows:
        # NaN is not equal to itself, so its form is the key; that of a text has quotes.
        key = repr(by)
        group = groups.get(key)
        if group is None:
            group = _labels(*by) if series.each else dict(zip(names, by, strict=True))
            groups[key] = group
        points.append(SeriesPoint(step_ns=step_ns, by=group, value=value))
    if len(groups) > GROUPS_MAX:
        raise BadUsage(
            f"a series is divided into at most {GROUPS_MAX} groups: add filters or choose another"
            f" field, groups=`{len(groups)}`, by=`{', '.join(names) or 'labels'}`"
        )
    return points


def _labels(
    attributes: list[dict[str, str]] | None,
    resource: list[dict[str, str]] | None,
    agent_id: str | None,
) -> dict[str, str | float | None]:
    """Return the fields by which one of the series differs from others."""
    found: dict[str, str | float | None] = {} if agent_id is None else {"agent_id": agent_id}
    for column, pairs in zip(MAPS, (attributes, resource), strict=True):
        for one in pairs or ():
            found[RecordField(column, one["key"]).name] = one["value"][:BY_CHARS_MAX]
    return found
