"""The values of OTLP data points: suffix, value, type and label of each series."""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from sluice_doors.any_values import json_double, json_text, number
from sluice_doors.histogram_series import Bucket, bound_text, explicit_buckets, exponential_buckets
from sluice_doors.json_values import integer_of
from sluice_doors.otlp_messages import DataPoint, Exemplar, OtlpNumber

GAUGE, DELTA, CUMULATIVE = 0, 1, 2
STALE: Final = float(np.array([0x7FF0000000000002], np.uint64).view(np.float64)[0])
"""Prometheus' stale marker: the NaN that ends a series."""

Value = tuple[str, float, int, tuple[str, str] | None]
"""A value: the suffix of its name, the value, its type, and the label of a bucket or quantile."""


REMAINDER: Final = "_remainder"
"""The suffix of the series with what a double loses of an integer."""


def value_of(point: DataPoint | Exemplar, *, stale: bool) -> float:
    """Return the value of a point.

    Raises:
        ValueError: It has none or two, or it is not a number.
    """
    value = _only_value(point)
    if value is not None:
        return number(value)
    if stale:
        return STALE
    raise ValueError("point has no value")


def value_series(point: DataPoint, type_: int, *, stale: bool) -> Iterator[Value]:
    """Yield the value of a gauge or sum.

    Raises:
        ValueError: It has none or two, or it is not a number.
    """
    value = _only_value(point)
    if value is None or point.as_double is not None:
        yield "", value_of(point, stale=stale), type_, None
    else:
        yield from exact_values("", value, type_)


def _only_value(point: DataPoint | Exemplar) -> OtlpNumber | None:
    if point.as_double is None:
        return point.as_int
    if point.as_int is not None:
        raise ValueError("point has two values: asDouble and asInt")
    return point.as_double


def exact_values(
    suffix: str, value: OtlpNumber, type_: int, label: tuple[str, str] | None = None
) -> Iterator[Value]:
    """Yield a value, and what a double loses of an integer.

    A double has 53 bits. The rest is a separate series, so that the sum of both is exact and no
    series has another name or attributes because of its value.

    Raises:
        ValueError: It is not a number.
    """
    nearest = number(value)
    yield suffix, nearest, type_, label
    exact = integer_of(value)
    if exact is not None and math.isfinite(nearest) and exact != int(nearest):
        yield f"{suffix}{REMAINDER}", float(exact - int(nearest)), GAUGE, label


def histogram_values(kind: str, type_: int, point: DataPoint) -> Iterator[Value]:
    """Yield the values of a histogram.

    Raises:
        ValueError: A value has the wrong form.
    """
    count = _count(point.count)
    counts = [_count(one) for one in point.bucket_counts]
    buckets: Sequence[Bucket]
    if kind == "histogram":
        buckets = explicit_buckets([number(one) for one in point.explicit_bounds], counts, count)
    else:
        buckets = exponential_buckets(
            point.scale,
            (number(point.zero_threshold), _count(point.zero_count)),
            [(point.positive.offset, [_count(one) for one in point.positive.bucket_counts])],
            [(point.negative.offset, [_count(one) for one in point.negative.bucket_counts])],
            count,
        )
    yield from exact_values("_count", count, type_)
    for suffix, value, its_type in (
        ("_sum", point.sum, type_),
        ("_min", point.min, GAUGE),
        ("_max", point.max, GAUGE),
    ):
        if value is not None:
            yield suffix, number(value), its_type, None
    for bound, below in buckets:
        yield from exact_values("_bucket", below, type_, ("le", bound_text(bound)))


def summary_values(point: DataPoint) -> Iterator[Value]:
    """Yield the values of a summary.

    Raises:
        ValueError: A value has the wrong form.
    """
    yield from exact_values("_count", _count(point.count), CUMULATIVE)
    yield "_sum", number(point.sum or 0.0), CUMULATIVE, None
    for each in point.quantile_values:
        label = ("quantile", bound_text(number(each.quantile)))
        yield "", number(each.value), GAUGE, label


_INTEGER: Final = re.compile("-?(0|[1-9][0-9]{0,19})", re.ASCII)
_RAW_FIELDS: Final = (
    *("as_double", "as_int", "count", "sum", "min", "max", "bucket_counts", "explicit_bounds"),
    *("scale", "zero_count", "positive", "negative", "zero_threshold", "quantile_values"),
)


def raw_text(point: DataPoint) -> str:
    """Return the values of a point that are set, as canonical JSON text."""
    plain = msgspec.to_builtins({name: getattr(point, name) for name in _RAW_FIELDS})
    return json_text({name: found for name, one in plain.items() if (found := _plain(one))})


def _plain(value: object) -> object:
    match value:
        case dict():
            return {name: found for name, one in value.items() if (found := _plain(one))}
        case list() | tuple():
            return [_plain(one) for one in value]
        case str():
            return _number_of(value)
        case float():
            return json_double(value)
        case _:
            return value


def _number_of(text: str) -> object:
    return int(text) if _INTEGER.fullmatch(text) else text


def _count(value: int | str) -> int:
    """Return a count.

    Raises:
        ValueError: It is no integer.
    """
    found = integer_of(value) if value else 0
    if found is None:
        raise ValueError(f"count is no integer: {str(value)[:40]}")
    return found
