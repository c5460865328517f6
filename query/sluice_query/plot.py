"""A series as a plot for a terminal, or as a plain table."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from sluice_protocol.timestamps import format_rfc3339
from sluice_protocol.units import NS_PER_S
from sluice_query.request import Series
from sluice_query.result import QuerySummary, SeriesPoint

_HEIGHT: Final = 20


def draw_series(
    series: Series, points: Sequence[SeriesPoint], width: int | None, summary: QuerySummary
) -> str:
    """Return a series as text.

    Args:
        series: What was queried.
        points: Its points, in order.
        width: Columns of the terminal; None returns one line for each point instead of a plot.
        summary: How complete the points are; the last line of a plot states it.
    """
    drawn = [one for one in points if one.value is not None and math.isfinite(one.value)]
    if width is None or not drawn:
        return "".join(
            f"{format_rfc3339(one.step_ns)} {one.agent_id or '-'} {one.value}\n" for one in points
        )
    import plotext  # noqa: PLC0415 - takes 0.6 s to import; few queries draw

    figure = plotext.figure
    figure.clear()
    plotext.terminal.limit(False, False)  # noqa: FBT003 - the library's own signature
    figure.plot_size(width, _HEIGHT)
    figure.theme("simple")
    figure.title(f"{series.aggregate.value} of {series.metric}")
    figure.date("x").activate(form="%Y-%m-%d %H:%M:%S")
    for agent in sorted({one.agent_id for one in drawn}):
        points_of_agent = [one for one in drawn if one.agent_id == agent]
        when = [datetime.fromtimestamp(one.step_ns / NS_PER_S, UTC) for one in points_of_agent]
        figure.draw(
            figure.signal(when, [one.value for one in points_of_agent]).lines().label(agent)
        )
    plot = str(figure.build().string()).rstrip("\n")
    state = "partial" if summary.partial else "complete"
    return f"{plot}\n{state}, {summary.until_text}\n"
