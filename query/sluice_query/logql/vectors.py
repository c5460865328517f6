"""A metric query: its range aggregations, and what is computed from their series.

Range aggregations are SQL (`ranges.py`). They leave at most two million values, for which the
labels decide what belongs together, so the rest is computed here. A `sum` of a range that counts
or adds up is grouped by the range itself, so labels that the sum drops are never computed.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from sluice_query.logql.expressions import (
    BinaryOperation,
    BinaryOperator,
    Evaluation,
    Grouping,
    MetricQuery,
    RangeAggregation,
    RangeOperator,
    VectorAggregation,
    VectorOperator,
)
from sluice_query.logql.ranges import SeriesKey, Vectors, range_vectors
from sluice_query.result import LabelledSeries

if TYPE_CHECKING:
    from sluice_query.search import Evaluator
    from sluice_query.statements import RecordSources

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
