"""Widths of buckets."""

import pytest

from sluice_query.request import (
    BUCKETS_MIN,
    END_NS,
    FIRST_NS,
    WIDTHS_NS,
    bucket_starts,
    choose_width,
)

SECOND_NS = 1_000_000_000


@pytest.mark.parametrize(
    ("from_ns", "to_ns", "buckets", "width_ns"),
    [
        (0, 60 * SECOND_NS, 60, SECOND_NS),
        (1, 60 * SECOND_NS, 60, SECOND_NS),
        (1, 60 * SECOND_NS + 1, 60, 2 * SECOND_NS),
        (-1, 60 * SECOND_NS, 60, 2 * SECOND_NS),
        (0, 1, 4, 1_000_000),
        (0, 3600 * SECOND_NS, 60, 60 * SECOND_NS),
        (FIRST_NS, END_NS, BUCKETS_MIN, WIDTHS_NS[-1]),
    ],
)
def test_the_width_is_the_smallest_that_needs_no_more_buckets(
    from_ns: int, to_ns: int, buckets: int, width_ns: int
) -> None:
    assert choose_width(from_ns, to_ns, buckets) == width_ns
    assert len(bucket_starts(from_ns, to_ns, width_ns)) <= buckets


def test_each_width_is_a_multiple_of_milliseconds_and_they_grow() -> None:
    assert all(width % 1_000_000 == 0 for width in WIDTHS_NS)
    assert list(WIDTHS_NS) == sorted(set(WIDTHS_NS))
