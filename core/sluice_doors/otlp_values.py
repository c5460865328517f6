"""The values of OTLP data points: suffix, value, type and label of each series."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from sluice_doors.any_values import json_double, json_text, number
from sluice_doors.histogram_series import Bucket, bound_text, explicit_buckets, exponential_buckets
from sluice_doors.otlp_messages import DataPoint, Exemplar, OtlpNumber

GAUGE, DELTA, CUMULATIVE = 0, 1, 2
STALE: Final = float(np.array([0x7FF0000000000002], np.uint64).view(np.float64)[0])
"""Prometheus' stale marker: the NaN that ends a series."""

Value = tuple[str, float, int, tuple[str, str] | None]
"""A value: the suffix of its name, the value, its type, and the label of a bucket or quantile."""


def value_of(point: DataPoint | Exemplar, *, stale: bool) -> float:
    """Return the value of a point.

    Raises:
        ValueError: It has none, or it is not a number.
    """
    value: OtlpNumber | None = point.as_int if point.as_double is None else point.as_double
    if value is not None:
        return number(value)
    if stale:
        return STALE
    raise ValueError("point has no value")


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
    yield "_count", number(count), type_, None
    for suffix, value, its_type in (
        ("_sum", point.sum, type_),
        ("_min", point.min, GAUGE),
        ("_max", point.max, GAUGE),
    ):
        if value is not None:
            yield suffix, number(value), its_type, None
    for bound, below in buckets:
        yield "_bucket", number(below), type_, ("le", bound_text(bound))


def summary_values(point: DataPoint) -> Iterator[Value]:
    """Yield the values of a summary.

    Raises:
        ValueError: A value has the wrong form.
    """
    yield "_count", number(_count(point.count)), CUMULATIVE, None
    yield "_sum", number(point.sum or 0.0), CUMULATIVE, None
    for each in point.quantile_values:
        label = ("quantile", bound_text(number(each.quantile)))
        yield "", number(each.value), GAUGE, label


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
    try:
        return int(text)
    except ValueError:
        return text


def _count(value: int | str) -> int:
    return int(value) if value else 0
