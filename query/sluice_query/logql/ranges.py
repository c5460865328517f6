"""Range aggregations as SQL: the values of each series at the times of an evaluation.

Records are first reduced to one row for each series and each set of windows that they are in, so
the rows do not grow with the overlap of windows. A window function then combines those of a window.
Quantiles need every number, so their rows are not reduced.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sluice_protocol.errors import BadUsage
from sluice_protocol.units import NS_PER_S
from sluice_query.logql.expressions import (
    Conversion,
    Evaluation,
    Grouping,
    LabelFilter,
    RangeAggregation,
    RangeOperator,
    Unit,
    Unwrap,
)
from sluice_query.logql.names import hidden_fields
from sluice_query.logql.planning import last_time, leaf_query
from sluice_query.logql.stages import (
    DETAILS,
    ERROR,
    ERRORS,
    Wanted,
    condition_names,
    number_of,
    over,
    with_filter,
)
from sluice_query.request import Query
from sluice_query.statements import RecordSources, SqlStatement, record_time, select_sql

if TYPE_CHECKING:
    from sluice_query.engine import QueryEngine

SeriesKey = tuple[tuple[str, str], ...]
"""The labels of a series, sorted."""
Vectors = dict[SeriesKey, dict[int, float]]
"""The values of each series, by the number of the evaluation's step."""
POINTS_MAX: Final = 2_000_000
"""Steps of all series of one range aggregation."""
_BUCKETS: Final = "logql_buckets"
_SERIES: Final = "logql_series"
_UNITS: Final = {
    Conversion.NUMBER: Unit.NUMBER,
    Conversion.DURATION: Unit.DURATION,
    Conversion.BYTES: Unit.BYTES,
}


@dataclass(frozen=True, slots=True)
class _Figures:
    """The columns of a row by series and set of windows, and the value of a window from them."""

    reduced: str
    combined: str


_SUM: Final = _Figures("sum(number)::DOUBLE AS a", "sum(a) OVER w")
_FIGURES: Final = {
    RangeOperator.COUNT: _SUM,
    RangeOperator.RATE: _SUM,
    RangeOperator.BYTES: _SUM,
    RangeOperator.BYTES_RATE: _SUM,
    RangeOperator.SUM: _SUM,
    RangeOperator.AVG: _Figures(
        "sum(number)::DOUBLE AS a, count(*) AS b", "sum(a) OVER w / sum(b) OVER w"
    ),
    RangeOperator.MIN: _Figures("min(number) AS a", "min(a) OVER w"),
    RangeOperator.MAX: _Figures("max(number) AS a", "max(a) OVER w"),
    RangeOperator.FIRST: _Figures(
        "arg_min(number, (at_ns, number)) AS a, min(at_ns) AS b", "arg_min(a, (b, a)) OVER w"
    ),
    RangeOperator.LAST: _Figures(
        "arg_max(number, (at_ns, number)) AS a, max(at_ns) AS b", "arg_max(a, (b, a)) OVER w"
    ),
}


def range_vectors(
    engine: "QueryEngine",
    query: Query,
    sources: RecordSources,
    one: RangeAggregation,
    evaluation: Evaluation,
    grouping: Grouping | None,
) -> Vectors:
    """Return the values of a range aggregation, whose series a grouping may have fewer labels."""
    engine.rows(buckets_sql(query, sources, one, evaluation, grouping))
    ((error,),) = engine.rows(SqlStatement(f"SELECT max(error) FROM {_BUCKETS}"))  # noqa: S608 - constants
    if error:
        raise BadUsage(
            f'some lines have an error: add `| {ERROR}=""` before the range to leave them out, or'
            f" `| drop {ERROR}, {DETAILS}` to keep them, error=`{error}`"
        )
    engine.rows(
        SqlStatement(
            f"CREATE OR REPLACE TEMP TABLE {_SERIES} AS SELECT row_number() OVER () AS id, key"  # noqa: S608 - constants
            f" FROM (SELECT DISTINCT key FROM {_BUCKETS})"
        )
    )
    # The labels of too many series would not fit into memory, so they are counted first.
    ((count,),) = engine.rows(SqlStatement(f"SELECT count(*) FROM {_SERIES}"))  # noqa: S608 - constants
    steps = (evaluation.end_ns - evaluation.start_ns) // evaluation.step_ns + 1
    if count * steps > POINTS_MAX:
        raise BadUsage(
            f"a range has too many series: at most {POINTS_MAX // steps} at {steps} times; group"
            f" them by fewer labels, add filters, or choose a longer step, series=`{count}`"
        )
    keys: dict[int, SeriesKey] = {
        number: tuple((str(pair["key"]), str(pair["value"])) for pair in key)
        for number, key in engine.rows(SqlStatement(f"SELECT id, key FROM {_SERIES}"))  # noqa: S608 - constants
    }
    found: Vectors = {key: {} for key in keys.values()}
    for number, step, value in engine.rows(step_values_sql(one, evaluation)):
        found[keys[number]][step] = value
    return found


def buckets_sql(
    query: Query,
    sources: RecordSources,
    one: RangeAggregation,
    evaluation: Evaluation,
    grouping: Grouping | None,
) -> SqlStatement:
    """Return the statement that reduces records to rows by series and set of windows."""
    grouping = one.grouping or grouping
    wanted: Wanted = None
    if grouping is not None and not grouping.is_without:
        wanted = frozenset(grouping.names)
    kept: frozenset[str] = frozenset()
    if one.unwrap is not None:
        kept = frozenset({one.unwrap.name}.union(*map(condition_names, one.unwrap.conditions)))
    if wanted is not None:
        wanted |= kept
    leaf = leaf_query(query, one, evaluation)
    at = SqlStatement(f"{record_time(query.kind)} + {one.offset_ns} AS at_ns, line, labels")
    samples = select_sql(leaf, at, sources, staged=(wanted, kept))
    number = "1"
    if one.unwrap is not None:
        samples, number = _unwrapped(samples, one.unwrap), "sample"
    elif one.operator in (RangeOperator.BYTES, RangeOperator.BYTES_RATE):
        number = "strlen(line)"
    excluded = [*ERRORS, *hidden_fields(kept, query.kind)]
    excluded += [one.unwrap.name] if one.unwrap is not None else []
    names = excluded if grouping is None else [*grouping.names]
    chosen = "NOT list_contains(?::VARCHAR[], one.key)"
    values = [excluded]
    if grouping is not None:
        chosen += f" AND {'NOT ' * grouping.is_without}list_contains(?::VARCHAR[], one.key)"
        values.append(names)
    key = f"list_sort(list_filter(map_entries(labels), lambda one: one.value <> '' AND {chosen}))"
    start_ns, step_ns = evaluation.start_ns, evaluation.step_ns
    last = (last_time(evaluation) - start_ns) // step_ns
    # A record at `t` is in the windows that end at `t` or later, and before `t` plus the range.
    first_step = f"greatest(at_ns - {start_ns} + {step_ns - 1}, 0) // {step_ns}"
    last_step = f"least((at_ns - {start_ns} + {one.range_ns - 1}) // {step_ns}, {last})"
    rows = over(
        f"{key} AS key, at_ns, {first_step} AS first_step, {last_step} AS last_step,"
        f" {number} AS number, coalesce(labels['{ERROR}'], '') AS error",
        samples,
        values=values,
    )
    figures = _FIGURES.get(one.operator)
    shown, grouped = "key, at_ns AS last_ns, number AS a, error", ""
    if figures is not None:
        shown = f"key, max(at_ns) AS last_ns, {figures.reduced}, max(error) AS error"
        grouped = " GROUP BY key, first_step, last_step"
    return SqlStatement(
        f"CREATE OR REPLACE TEMP TABLE {_BUCKETS} AS SELECT {shown} FROM ({rows.text})"  # noqa: S608 - constants
        f" WHERE first_step <= last_step{grouped}",
        rows.values,
    )


def step_values_sql(one: RangeAggregation, evaluation: Evaluation) -> SqlStatement:
    """Return the statement for the values: number of a series, of a step, and the value."""
    figures = _FIGURES.get(one.operator)
    combined, values = "quantile_cont(a, ?) OVER w", [float(one.parameter or 0)]
    if figures is not None:
        combined, values = figures.combined, []
    if one.operator is RangeOperator.BYTES_RATE or one.operator is RangeOperator.RATE:
        combined, values = f"{combined} / ?", [one.range_ns / NS_PER_S]
    start_ns, step_ns = evaluation.start_ns, evaluation.step_ns
    steps = (last_time(evaluation) - start_ns) // step_ns + 1
    columns = [name for name in ("a", "b") if figures and f"AS {name}" in figures.reduced] or ["a"]
    names, nulls = ", ".join(columns), ", ".join("NULL" for _ in columns)
    return SqlStatement(
        f"SELECT id, step, value FROM (SELECT id, step, {combined} AS value,"  # noqa: S608 - constants
        f" count(a) OVER w AS rows FROM (SELECT id, NULL AS step, last_ns, {names}"
        f" FROM {_BUCKETS} JOIN {_SERIES} USING (key)"
        f" UNION ALL SELECT id, step, {start_ns} + step * {step_ns}, {nulls} FROM {_SERIES},"
        f" range({steps}) AS steps(step)) WINDOW w AS (PARTITION BY id ORDER BY last_ns"
        f" RANGE BETWEEN {one.range_ns - 1} PRECEDING AND CURRENT ROW))"
        " WHERE step IS NOT NULL AND rows > 0",
        tuple(values),
    )


def _unwrapped(samples: SqlStatement, unwrap: Unwrap) -> SqlStatement:
    """Return the select with the number of a label as `sample`; without the label, no record."""
    unit = _UNITS[unwrap.conversion]
    listed = over("*, coalesce(labels[?], '') AS sample_text", samples, values=[unwrap.name])
    number = number_of("sample_text", unit)
    scaled = f"{number} / {NS_PER_S}.0" if unit is Unit.DURATION else number
    listed = over(f"*, {scaled} AS sample", listed, where=SqlStatement("sample_text <> ''"))
    failed = (
        f"CASE WHEN sample IS NULL THEN map_concat(labels, MAP {{'{ERROR}': 'SampleExtractionErr',"
        f" '{DETAILS}': 'the label is not a number'}}) ELSE labels END"
    )
    listed = over(f"at_ns, line, coalesce(sample, 0) AS sample, {failed} AS labels", listed)
    for condition in unwrap.conditions:
        listed = with_filter(LabelFilter(condition), listed)
    return listed
