"""Native histograms of Prometheus as the series of classic ones."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from sluice_doors.histogram_series import Bucket, Run, bound_text, exponential_buckets
from sluice_doors.otlp_values import CUMULATIVE, GAUGE, STALE, Value

CUSTOM_SCHEMA: Final = -53
"""The schema of histograms with stated bounds."""
SCHEMAS: Final = range(-4, 9)
_GAUGE_HINT: Final = 3
"""The reset hint of histograms that are not counters."""


def native_values(histogram: Any) -> Iterator[Value]:  # noqa: ANN401 - the class is made at run time
    """Yield the values of a native histogram.

    Raises:
        ValueError: Its schema or its spans are not valid.
    """
    type_ = GAUGE if histogram.reset_hint == _GAUGE_HINT else CUMULATIVE
    is_float = histogram.HasField("count_float")
    count = histogram.count_float if is_float else float(histogram.count_int)
    if math.isnan(histogram.sum) and not count:
        # The end of a series: Prometheus marks it in the sum. The buckets are not known any more.
        yield "_count", STALE, type_, None
        yield "_sum", histogram.sum, type_, None
        return
    positive = _runs(histogram.positive_spans, _counts(histogram, "positive"))
    if histogram.schema == CUSTOM_SCHEMA:
        buckets = _custom_buckets(histogram.custom_values, positive, count)
    else:
        if histogram.schema not in SCHEMAS:
            raise ValueError(
                f"schema of a native histogram is not known, schema={histogram.schema}"
            )
        zero_is_float = histogram.HasField("zero_count_float")
        zero = histogram.zero_count_float if zero_is_float else float(histogram.zero_count_int)
        negative = _runs(histogram.negative_spans, _counts(histogram, "negative"))
        # Index `i` ends at the base to the power `i` in Prometheus, and of `i + 1` in OTLP.
        buckets = exponential_buckets(
            histogram.schema,
            (histogram.zero_threshold, zero),
            [(offset - 1, counts) for offset, counts in positive],
            [(offset - 1, counts) for offset, counts in negative],
            count,
        )
    yield "_count", count, type_, None
    yield "_sum", histogram.sum, type_, None
    for bound, below in buckets:
        yield "_bucket", below, type_, ("le", bound_text(bound))


def _counts(histogram: Any, side: str) -> list[float]:  # noqa: ANN401 - made at run time
    """Return the counts of one side: stated, or the running sum of differences."""
    stated = getattr(histogram, f"{side}_counts")
    if stated:
        return list(stated)
    return [float(one) for one in itertools.accumulate(getattr(histogram, f"{side}_deltas"))]


def _runs(spans: Sequence[Any], counts: list[float]) -> list[Run]:
    """Return the counts of each span with its first index.

    Raises:
        ValueError: The spans have another number of buckets.
    """
    if sum(span.length for span in spans) != len(counts):
        raise ValueError("spans of a native histogram do not fit its counts")
    found: list[Run] = []
    index = place = 0
    for span in spans:
        index += span.offset
        found.append((index, counts[place : place + span.length]))
        index += span.length
        place += span.length
    return found


def _custom_buckets(bounds: Sequence[float], runs: Sequence[Run], count: float) -> list[Bucket]:
    total: float = 0
    below = [0.0] * (len(bounds) + 1)
    for offset, counts in runs:
        for place, one in enumerate(counts, offset):
            if not 0 <= place < len(below) or one < 0:
                raise ValueError("spans of a native histogram do not fit its bounds")
            below[place] += one
    found: list[Bucket] = []
    for bound, one in zip((*bounds, math.inf), below, strict=True):
        total += one
        found.append((bound, total))
    return [*found[:-1], (math.inf, max(total, count))]
