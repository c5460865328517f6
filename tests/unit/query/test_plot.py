import re

from sluice_query.plot import draw_series
from sluice_query.request import Aggregate, Series
from sluice_query.result import QuerySummary, SeriesPoint

SUMMARY = QuerySummary(accepted_until="2026-09-21T14:20:00.000000000Z", partial=True)
SERIES = Series(metric="cpu", step_ns=60_000_000_000, aggregate=Aggregate.MAX)


def _points(*values: float | None, agent: str = "") -> list[SeriesPoint]:
    return [
        SeriesPoint(
            step_ns=1_790_000_000_000_000_000 + n * SERIES.step_ns, agent_id=agent, value=value
        )
        for n, value in enumerate(values)
    ]


def test_on_a_terminal_a_series_is_a_plot() -> None:
    """It has a title, times and a legend of the agents, and the width of the terminal."""
    points = _points(1.0, 2.0, 3.0, agent="h1") + _points(3.0, None, 1.0, agent="h2")
    drawn = re.sub(r"\x1b\[[0-9;]*m", "", draw_series(SERIES, points, 80, SUMMARY))
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
    assert draw_series(SERIES, [], 80, SUMMARY) == ""
