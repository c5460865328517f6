"""A series drawn for a terminal, or as a plain table where nobody watches."""

from collections.abc import Sequence

import plotext

from sluice_protocol.timestamps import format_rfc3339
from sluice_query.answer import Point
from sluice_query.request import Series

_HEIGHT = 20


def draw_series(series: Series, points: Sequence[Point], watched: bool) -> str:  # noqa: FBT001
    """Gives a series as text.

    Args:
        series: What was asked for.
        points: Its points, in order.
        watched: Whether a person watches; else one line for each point.
    """
    if not watched or not points:
        return "".join(
            f"{format_rfc3339(point.step_ns)} {point.agent_id or '-'} {point.value}\n"
            for point in points
        )
    plotext.clear_figure()
    plotext.plotsize(None, _HEIGHT)
    plotext.title(f"{series.aggregate.value} of {series.metric}")
    for agent in sorted({point.agent_id for point in points}):
        mine = [point for point in points if point.agent_id == agent]
        plotext.plot(
            [point.step_ns / 1e9 for point in mine],
            [point.value for point in mine],
            label=agent or None,
        )
    edges = (points[0].step_ns, points[-1].step_ns)
    plotext.xticks([edge / 1e9 for edge in edges], [format_rfc3339(edge)[:19] for edge in edges])
    return str(plotext.build()) + "\n"
