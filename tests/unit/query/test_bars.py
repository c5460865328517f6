"""Bars of a terminal."""

import pytest

from sluice_query.plot import bar_of, draw_histogram, draw_values
from sluice_query.views import (
    HistogramBucket,
    HistogramResult,
    HistogramSplit,
    TopValuesResult,
    ValueCount,
)

TS = "2026-09-21T14:13:20.000000000Z"


@pytest.mark.parametrize(
    ("count", "most", "room", "wanted"),
    [
        (0, 0, 10, ""),
        (0, 5, 10, ""),
        (5, 5, 3, "███"),
        (1, 2, 3, "█▌"),
        (1, 10**9, 3, "▏"),
    ],
)
def test_a_bar_is_the_share_of_the_longest(count: int, most: int, room: int, wanted: str) -> None:
    assert bar_of(count, most, room) == wanted


def test_a_histogram_has_a_line_for_each_bucket() -> None:
    split = HistogramSplit(field="severity", values=(9, None))
    buckets = (
        HistogramBucket(ts=TS, count=16, counts=(10, 4), other=2),
        HistogramBucket(ts=TS, count=0, counts=(0, 0)),
        HistogramBucket(ts=TS, count=8, counts=(8, 0)),
    )
    result = HistogramResult(step_ms=1000, buckets=buckets, split=split)
    assert (
        draw_histogram(result, None)
        == f"{TS}\t16\t9=10 (missing)=4 other=2\n{TS}\t0\n{TS}\t8\t9=8\n"
    )
    first, second, third = draw_histogram(result, 70).splitlines()
    assert first == "2026-09-21T14:13:20 16 " + "█" * 22 + " 9=10 (missing)=4 other=2"
    assert third == "2026-09-21T14:13:20  8 " + "█" * 11 + " 9=8"
    assert (len(first), second) == (70, "2026-09-21T14:13:20  0")


def test_values_are_printed_on_one_line_each_without_control_characters() -> None:
    values = (ValueCount(value="a\n\x1b[2J", count=3), ValueCount(value=1.5, count=1))
    result = TopValuesResult(field="body", values=values, missing=1, records=5)
    assert draw_values(result, None) == "3\ta��[2J\n1\t1.5\n1\t(missing)\n"
    assert draw_values(result, 40).splitlines()[0].startswith("a��[2J    3  60.0 % ██")
    assert draw_values(TopValuesResult(field="body"), 40) == ""
