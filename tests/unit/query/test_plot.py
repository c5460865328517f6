"""Plots and bars of a terminal, and the widths of buckets."""

import re
from dataclasses import replace
from datetime import timedelta, timezone

import pytest

from sluice_query.plot import (
    bar_of,
    draw_histogram,
    draw_series,
    draw_values,
    table_of_series,
)
from sluice_query.request import (
    BUCKETS_MIN,
    END_NS,
    FIRST_NS,
    WIDTHS_NS,
    Aggregate,
    RecordField,
    Series,
    bucket_starts,
    choose_width,
)
from sluice_query.result import QuerySummary, SeriesPoint
from sluice_query.views import (
    HistogramBucket,
    HistogramResult,
    HistogramSplit,
    TopValuesResult,
    ValueCount,
)

SUMMARY = QuerySummary(accepted_until="2026-09-21T14:20:00.000000000Z", partial=True)
SERIES = Series(metric="cpu", step_ns=60_000_000_000, aggregate=Aggregate.MAX)
BY_AGENT = replace(SERIES, by=(RecordField("agent_id"),))


def _points(*values: float | None, agent: str | None = None) -> list[SeriesPoint]:
    return [
        SeriesPoint(
            step_ns=1_790_000_000_000_000_000 + n * SERIES.step_ns,
            by={} if agent is None else {"agent_id": agent},
            value=value,
        )
        for n, value in enumerate(values)
    ]


def test_on_a_terminal_a_series_is_a_plot() -> None:
    """It has a title, times and a legend of the agents, and the width of the terminal."""
    points = _points(1.0, 2.0, 3.0, agent="h1") + _points(3.0, None, 1.0, agent="h2")
    drawn = re.sub(r"\x1b\[[0-9;]*m", "", draw_series(BY_AGENT, points, 80, SUMMARY))
    assert "max of cpu" in drawn
    assert "2026-09-21 14:1" in drawn
    assert "h1" in drawn
    assert "h2" in drawn
    *plot, state = drawn.splitlines()
    assert {len(line) for line in plot} <= set(range(70, 81))
    assert state == "partial, accepted until 2026-09-21T14:20:00.000000000Z"


def test_elsewhere_a_series_is_one_line_a_step() -> None:
    """So is a series without a number to draw."""
    points = _points(1.5, float("nan"))
    lines = draw_series(SERIES, points, None, SUMMARY).splitlines()
    assert lines == ["2026-09-21T14:13:20.000000000Z - 1.5", "2026-09-21T14:14:20.000000000Z - nan"]
    assert draw_series(SERIES, points[1:], 80, SUMMARY).splitlines() == lines[1:]
    zone = timezone(timedelta(hours=5, minutes=30))
    (line, _) = draw_series(SERIES, points, None, SUMMARY, zone).splitlines()
    assert line == "2026-09-21T19:43:20.000000000+05:30 - 1.5"
    assert draw_series(SERIES, [], 80, SUMMARY) == ""


def test_values_of_a_table_are_sorted_and_nan_is_last() -> None:
    values = ["NaN", "-Inf", "1", "+Inf"]
    series = [{"labels": {"n": one}, "points": [{"ts": TS, "value": one}]} for one in values]
    names = [line.split()[1] for line in table_of_series(series).splitlines()]
    assert names == ["n=+Inf", "n=1", "n=-Inf", "n=NaN"]


def test_of_many_groups_the_first_are_drawn() -> None:
    """Names of groups are one line each, without characters that a terminal would execute."""
    points = [one for n in range(25) for one in _points(1.0, 2.0, agent=f"{n:02}\n\x1b[2J")]
    drawn = draw_series(BY_AGENT, points, 80, SUMMARY)
    assert "5 more lines are not drawn, --json has them; partial, accepted" in drawn
    assert "19" in drawn
    assert "\x1b[2J" not in drawn
    (line, *_) = draw_series(BY_AGENT, points[:1], None, SUMMARY).splitlines()
    assert line == "2026-09-21T14:13:20.000000000Z 00\ufffd\ufffd[2J 1"


TS = "2026-09-21T14:13:20.000000000Z"


@pytest.mark.parametrize(
    ("count", "most", "room", "wanted"),
    [(0, 0, 10, ""), (0, 5, 10, ""), (5, 5, 3, "███"), (1, 2, 3, "█▌"), (1, 10**9, 3, "▏")],
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
