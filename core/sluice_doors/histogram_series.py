"""Histograms as the cumulative buckets that Prometheus uses."""

import itertools
import math
from collections.abc import Sequence
from typing import Final

from sluice_doors.any_values import double_text

SCALES: Final = range(-20, 41)
"""Scales of exponential histograms that are converted; the protocol's clients use -10 to 20."""
_EXPONENT_MAX: Final = 1024.0
_EXPONENT_MIN: Final = -1080.0

Bucket = tuple[float, float]
"""An upper bound, inclusive, and the number of measurements up to it."""
Run = tuple[int, Sequence[float]]
"""Counts of consecutive buckets: bucket `i` of index `offset + i` ends at the base to that power
plus one.
"""


def bound_text(bound: float) -> str:
    """Return a bound as the text of `le` or `quantile`."""
    if math.isinf(bound):
        return "+Inf" if bound > 0 else "-Inf"
    return double_text(bound)


def explicit_buckets(
    bounds: Sequence[float], counts: Sequence[float], count: float
) -> list[Bucket]:
    """Return the buckets of a histogram; without counts, the one bucket of all measurements.

    Raises:
        ValueError: The number of counts is not the number of bounds plus one, or one is negative.
    """
    if not counts and not bounds:
        return [(math.inf, count)]
    if len(counts) != len(bounds) + 1:
        raise ValueError(
            f"histogram has {len(counts)} counts and {len(bounds)} bounds, not one count more"
        )
    if min(counts) < 0:
        raise ValueError("histogram has a negative count")
    return list(zip((*bounds, math.inf), itertools.accumulate(counts), strict=True))


def exponential_buckets(
    scale: int, zero: Bucket, positive: Sequence[Run], negative: Sequence[Run], count: float
) -> list[Bucket]:
    """Return the buckets of an exponential histogram: both edges of each one that is not empty.

    Args:
        scale: The scale; the base is 2 to the power of 2 to the power of -scale.
        zero: The zero threshold, and the count of values up to it.
        positive: The counts of positive values, by rising index.
        negative: The counts of negative values, by rising index of the absolute value.
        count: The number of measurements.

    Raises:
        ValueError: The scale is out of range, or a count is negative.
    """
    if scale not in SCALES:
        raise ValueError(f"scale of an exponential histogram is out of range, scale={scale}")
    if zero[1] < 0 or any(min(counts, default=0) < 0 for _, counts in (*positive, *negative)):
        raise ValueError("exponential histogram has a negative count")
    buckets: dict[float, float] = {}
    total: float = 0
    for offset, counts in reversed(negative):
        top = offset + len(counts)
        edges = [-_edge(scale, top - place) for place in range(len(counts) + 1)]
        total = _add_run(buckets, total, edges, counts[::-1])
    if zero[1] or total:
        total += zero[1]
        buckets[zero[0] + 0.0] = total
    for offset, counts in positive:
        edges = [_edge(scale, offset + place) for place in range(len(counts) + 1)]
        total = _add_run(buckets, total, edges, counts)
    buckets.pop(math.inf, None)
    return [*buckets.items(), (math.inf, max(count, total))]


def _add_run(
    buckets: dict[float, float], total: float, edges: Sequence[float], counts: Sequence[float]
) -> float:
    """Add the edges of consecutive buckets: count `i` lies between the edges `i` and `i + 1`."""
    for place, edge in enumerate(edges):
        before = counts[place - 1] if place else 0
        after = counts[place] if place < len(counts) else 0
        total += before
        if before or after:
            buckets[edge] = total
    return total


def _edge(scale: int, index: int) -> float:
    exponent = math.ldexp(float(index), -scale)
    if exponent >= _EXPONENT_MAX:
        return math.inf
    return 2.0**exponent if exponent > _EXPONENT_MIN else 0.0
