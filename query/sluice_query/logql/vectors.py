"""A metric query: its range aggregations, and what is computed from their series.

Range aggregations are SQL. They leave at most two million values, for which the
labels decide what belongs together, so the rest is computed here. A `sum` of a range that counts
or adds up is grouped by the range itself, so labels that the sum drops are never computed.

Records are first reduced to one row for each series and each set of windows that they are in, so
the rows do not grow with the overlap of windows. A window function then combines those of a window.
Quantiles need every number, so their rows are not reduced.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from sluice_protocol.errors import BadUsage
from sluice_protocol.units import NS_PER_S
from sluice_query.logql.expressions import (
    BinaryOperation,
    BinaryOperator,
    Conversion,
    Evaluation,
    Grouping,
    LabelFilter,
    MetricQuery,
    RangeAggregation,
    RangeOperator,
    Unit,
    Unwrap,
    VectorAggregation,
    VectorOperator,
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
from sluice_query.result import LabelledSeries
from sluice_query.statements import RecordSources, SqlStatement, record_time, select_sql

if TYPE_CHECKING:
    from sluice_query.engine import QueryEngine
    from sluice_query.search import Evaluator
    from sluice_query.statements import RecordSources


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


SERIES_MAX: Final = 500
"""Series of a result."""
_ADDED: Final = frozenset(
    {
        RangeOperator.COUNT,
        RangeOperator.RATE,
        RangeOperator.BYTES,
        RangeOperator.BYTES_RATE,
        RangeOperator.SUM,
    }
)
_FUSED: Final = {
    VectorOperator.SUM: _ADDED,
    VectorOperator.MIN: frozenset({RangeOperator.MIN}),
    VectorOperator.MAX: frozenset({RangeOperator.MAX}),
}
"""Aggregations that have the same result if the range is grouped as they are."""


def compute_metric(
    evaluator: "Evaluator", question: MetricQuery, evaluation: Evaluation
) -> tuple[list[LabelledSeries], bool]:
    """Return the series of a metric query by their labels, and whether some were left out."""
    sources = evaluator.sources(evaluator.read.files.read)
    if not sources.names:
        return [], False
    found = _Evaluation(evaluator, sources, evaluation).vectors(question)
    keys = sorted(key for key, values in found.items() if values)
    times = (evaluation.start_ns, evaluation.step_ns)
    series = [
        LabelledSeries(
            labels=dict(key),
            points=[(times[0] + step * times[1], found[key][step]) for step in sorted(found[key])],
        )
        for key in keys[:SERIES_MAX]
    ]
    return series, len(keys) > SERIES_MAX


@dataclass(frozen=True, slots=True)
class _Evaluation:
    evaluator: "Evaluator"
    sources: "RecordSources"
    evaluation: Evaluation

    def vectors(self, question: MetricQuery, grouping: Grouping | None = None) -> Vectors:
        """Return the series of a query; a range without a grouping is grouped as given."""
        match question:
            case RangeAggregation():
                engine, query = self.evaluator.engine, self.evaluator.query
                return range_vectors(
                    engine, query, self.sources, question, self.evaluation, grouping
                )
            case VectorAggregation():
                inner = question.inner
                by = question.grouping or Grouping(())
                fused = _FUSED.get(question.operator, frozenset())
                is_fused = isinstance(inner, RangeAggregation) and inner.operator in fused
                return _aggregated(question, by, self.vectors(inner, by if is_fused else None))
            case BinaryOperation():
                return self._combined(question)

    def _combined(self, question: BinaryOperation) -> Vectors:
        left, right = question.left, question.right
        pairs: dict[SeriesKey, dict[int, tuple[float, float]]] = {}
        if not isinstance(left, Decimal) and not isinstance(right, Decimal):
            ours, theirs = self.vectors(left), self.vectors(right)
            for key in ours.keys() & theirs.keys():
                steps = ours[key].keys() & theirs[key].keys()
                pairs[key] = {step: (ours[key][step], theirs[key][step]) for step in steps}
        elif not isinstance(right, Decimal):
            number = float(str(left))
            for key, values in self.vectors(right).items():
                pairs[key] = {step: (number, value) for step, value in values.items()}
        elif not isinstance(left, Decimal):
            number = float(right)
            for key, values in self.vectors(left).items():
                pairs[key] = {step: (value, number) for step, value in values.items()}
        if question.operator in _COMPARED:
            compare = _COMPARED[question.operator]
            kept = 1 if isinstance(left, Decimal) else 0
            return {
                key: {step: pair[kept] for step, pair in values.items() if compare(*pair)}
                for key, values in pairs.items()
            }
        compute = _COMPUTED[question.operator]
        return {
            key: {step: compute(*pair) for step, pair in values.items()}
            for key, values in pairs.items()
        }


def _divided(left: float, right: float) -> float:
    if right:
        return left / right
    sign = math.copysign(1, left) * math.copysign(1, right)
    return math.nan if not left or math.isnan(left) else sign * math.inf


def _power(left: float, right: float) -> float:
    try:
        return math.pow(left, right)
    except OverflowError:
        return -math.inf if left < 0 and right % 2 == 1 else math.inf
    except ValueError:
        return math.inf if left == 0 else math.nan


_COMPUTED: Final[dict[BinaryOperator, Callable[[float, float], float]]] = {
    BinaryOperator.ADD: lambda left, right: left + right,
    BinaryOperator.SUBTRACT: lambda left, right: left - right,
    BinaryOperator.MULTIPLY: lambda left, right: left * right,
    BinaryOperator.DIVIDE: _divided,
    BinaryOperator.MODULO: lambda left, right: (
        math.fmod(left, right) if right and not math.isinf(left) else math.nan
    ),
    BinaryOperator.POWER: _power,
}
_COMPARED: Final[dict[BinaryOperator, Callable[[float, float], bool]]] = {
    BinaryOperator.EQUAL: lambda left, right: left == right,
    BinaryOperator.UNEQUAL: lambda left, right: left != right,
    BinaryOperator.GREATER: lambda left, right: left > right,
    BinaryOperator.AT_LEAST: lambda left, right: left >= right,
    BinaryOperator.LESS: lambda left, right: left < right,
    BinaryOperator.AT_MOST: lambda left, right: left <= right,
}


def _aggregated(question: VectorAggregation, grouping: Grouping, inner: Vectors) -> Vectors:
    groups: dict[SeriesKey, list[SeriesKey]] = defaultdict(list)
    for key in sorted(inner):
        kept = tuple(one for one in key if (one[0] in grouping.names) != grouping.is_without)
        groups[kept].append(key)
    if question.operator in (VectorOperator.TOPK, VectorOperator.BOTTOMK):
        return _ranked(question, list(groups.values()), inner)
    compute = _AGGREGATED[question.operator]
    found: Vectors = {}
    for group, keys in groups.items():
        values: dict[int, list[float]] = defaultdict(list)
        for key in keys:
            for step, value in inner[key].items():
                values[step].append(value)
        found[group] = {step: compute(numbers) for step, numbers in values.items()}
    return found


def _sum(numbers: list[float]) -> float:
    try:
        return math.fsum(numbers)
    except (OverflowError, ValueError):  # beyond a double, or infinities of both signs
        return sum(numbers)


_AGGREGATED: Final[dict[VectorOperator, Callable[[list[float]], float]]] = {
    VectorOperator.SUM: _sum,
    VectorOperator.AVG: lambda numbers: _sum(numbers) / len(numbers),
    # NaN is the result of no other numbers only, as in PromQL.
    VectorOperator.MIN: lambda numbers: min(numbers, key=lambda one: (math.isnan(one), one)),
    VectorOperator.MAX: lambda numbers: max(numbers, key=lambda one: (not math.isnan(one), one)),
    VectorOperator.COUNT: lambda numbers: float(len(numbers)),
}


def _ranked(question: VectorAggregation, groups: list[list[SeriesKey]], inner: Vectors) -> Vectors:
    """Return the greatest or the smallest values of each group at each time; NaN is after all."""
    sign = -1 if question.operator is VectorOperator.TOPK else 1
    found: Vectors = defaultdict(dict)
    for keys in groups:
        for step in {step for key in keys for step in inner[key]}:
            values = [(sign * inner[key][step], key) for key in keys if step in inner[key]]
            values.sort(key=lambda one: (math.isnan(one[0]), *one))
            for _, key in values[: question.parameter]:
                found[key][step] = inner[key][step]
    return found
