"""A series: its SQL and its computation from samples, pending batches and rollups.

Each source is reduced to partial results by step and agent; the partial results are then combined.
Rollups contain no NaN, so NaN in samples is ignored too. Of several samples of the latest time,
`last` is the greatest. Both rules make a value independent of the source that it is computed from.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.timestamps import format_rfc3339
from sluice_query.engine import LAKE, PENDING, QueryEngine
from sluice_query.request import Aggregate, Query, Series
from sluice_query.result import SeriesPoint
from sluice_query.rollups import (
    HOUR_NS,
    MINUTE_NS,
    ChosenRollups,
    RollupPlan,
    TimeSpan,
)
from sluice_query.sql import (
    IS_NUMBER,
    SqlStatement,
    all_conditions,
    any_condition,
    condition,
    is_agent,
    text_condition,
)

if TYPE_CHECKING:
    from sluice_query.search import SearchRead

_WINDOW_NS: Final = "(epoch_us(window_start) * 1000)"
_LANE: Final = "(CAST('0x' || substr(sha256(agent_id), 1, 16) AS UBIGINT) % {lanes})::BIGINT"


SPANS_APART_MAX: Final = 4
"""Spans of one source that are read by separate parts of the statement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSource:
    """A table or view of the engine with samples.

    Attributes:
        spans: None uses all of the query's range.
        later_than: The last sequence of each lane; only later samples are used. None uses all.
    """

    name: str
    spans: tuple[TimeSpan, ...] | None = None
    later_than: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesSources:
    """The sources of a series.

    `minutes` and `hours` name the files of `rollups` with rows of minutes and hours, and `plan`
    selects among these; all three are None without rollups.
    """

    samples: tuple[SampleSource, ...] = ()
    deletes: tuple[DeleteRecord, ...] = ()
    minutes: str | None = None
    hours: str | None = None
    plan: RollupPlan | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figures:
    samples: str
    rollups: str
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
        samples="arg_max(value, (ts_ns, value)) AS a, max(ts_ns) AS b",
        rollups='arg_max("last", (last_ts_ns, "last")) AS a, max(last_ts_ns) AS b',
        combined="arg_max(a, (b, a))",
    ),
}


def series_sql(query: Query, series: Series, sources: SeriesSources) -> SqlStatement:
    """Return the statement for (start of the step, agent, value); the agent is '' for all."""
    figures = _FIGURES[series.aggregate]
    parts = [
        _partial(source.name, "ts_ns", figures.samples, series, chosen)
        for source in sources.samples
        for chosen in _samples(query, source, sources)
    ]
    if sources.plan is not None:
        for source, window in ((sources.minutes, _MINUTE), (sources.hours, _HOUR)):
            parts += [
                _partial(source, _WINDOW_NS, figures.rollups, series, chosen)
                for chosen in _rows(query, series, sources.plan, window)
                if source is not None
            ]
    union = " UNION ALL ".join(part.text for part in parts)
    return SqlStatement(
        f"SELECT step, agent, {figures.combined} FROM ({union})"  # noqa: S608 - constants
        " GROUP BY ALL ORDER BY ALL",
        tuple(value for part in parts for value in part.values),
    )


def _partial(
    source: str, time: str, figures: str, series: Series, chosen: SqlStatement
) -> SqlStatement:
    agent = "agent_id" if series.by_agent else "''"
    # Steps begin at multiples of their width, so that two queries have the same steps.
    step = f"{time} - (({time} % {series.step_ns}) + {series.step_ns}) % {series.step_ns}"
    return SqlStatement(
        f"SELECT {step} AS step, {agent} AS agent, {figures} FROM {source}"  # noqa: S608 - constants
        f" WHERE {chosen.text} GROUP BY ALL",
        chosen.values,
    )


def _samples(query: Query, source: SampleSource, sources: SeriesSources) -> list[SqlStatement]:
    """Return conditions that together select the samples of one source, each of them once."""
    parts = [condition(query, sources.deletes), SqlStatement(IS_NUMBER)]
    if source.later_than is not None:
        # The plain comparison is first, because the engine skips row groups by it.
        parts.append(SqlStatement("queue_sequence > ?", (min(source.later_than),)))
        lane = _LANE.format(lanes=len(source.later_than))
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
    if query.text is not None:
        parts.append(text_condition(query, query.text))
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
    engine: QueryEngine, series: Series, read: "SearchRead", rollups: ChosenRollups
) -> list[SeriesPoint]:
    """Return the points of a series in order."""
    plan, opened, files = rollups.plan, rollups.opened, read.files
    samples: list[SampleSource] = []
    if rollups.samples.every:
        engine.register_files(LAKE, rollups.samples.every, files.location, files.extended)
        samples.append(SampleSource(name=LAKE, spans=plan.samples if plan is not None else None))
    if plan is not None and rollups.samples.later:
        engine.register_files(
            _LATER, rollups.samples.later, read.files.location, read.files.extended
        )
        windows = tuple(plan.windows)
        samples.append(SampleSource(name=_LATER, spans=windows, later_than=plan.through))
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
        samples=tuple(samples),
        deletes=read.deletes,
        minutes=rows.get(_MINUTES),
        hours=rows.get(_HOURS),
        plan=plan,
    )
    found = engine.rows(series_sql(read.query, series, sources))
    return [SeriesPoint(step_ns=row[0], agent_id=row[1], value=row[2]) for row in found]
