"""A series drawn for a terminal, or as a plain table where nobody watches."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import plotext

from sluice_protocol.timestamps import format_rfc3339
from sluice_protocol.units import NS_PER_S
from sluice_query.answer import Point
from sluice_query.request import Series

_HEIGHT: Final = 20


def draw_series(series: Series, points: Sequence[Point], width: int | None) -> str:
    """Gives a series as text.

    Args:
        series: What was asked for.
        points: Its points, in order.
        width: Columns of the terminal of a person who watches; None gives one line for each point.
    """
    drawn = [one for one in points if one.value is not None and math.isfinite(one.value)]
    if width is None or not drawn:
        return "".join(
            f"{format_rfc3339(one.step_ns)} {one.agent_id or '-'} {one.value}\n" for one in points
        )
    figure = plotext.figure
    figure.clear()
    plotext.terminal.limit(False, False)  # noqa: FBT003 - the library's own signature
    figure.plot_size(width, _HEIGHT)
    figure.theme("simple")
    figure.title(f"{series.aggregate.value} of {series.metric}")
    figure.date("x").activate(form="%Y-%m-%d %H:%M:%S")
    for agent in sorted({one.agent_id for one in drawn}):
        mine = [one for one in drawn if one.agent_id == agent]
        when = [datetime.fromtimestamp(one.step_ns / NS_PER_S, UTC) for one in mine]
        figure.draw(figure.signal(when, [one.value for one in mine]).lines().label(agent))
    return str(figure.build().string()).rstrip("\n") + "\n"
