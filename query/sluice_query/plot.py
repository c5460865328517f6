"""Answers for a terminal: a series as a plot, histograms and values as bars, or plain lines."""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any, Final

from sluice_protocol.timestamps import format_rfc3339, parse_rfc3339
from sluice_protocol.units import NS_PER_S
from sluice_protocol.utf8 import printable_text
from sluice_query.request import Series
from sluice_query.result import QuerySummary, SeriesPoint
from sluice_query.views import HistogramBucket, HistogramResult, TopValuesResult

_HEIGHT: Final = 20
_LINES_MAX: Final = 20
_EXACT_END: Final = 2**53


def draw_series(
    series: Series,
    points: Sequence[SeriesPoint],
    width: int | None,
    summary: QuerySummary,
    zone: tzinfo | None = UTC,
    title: str = "",
) -> str:
    """Return a series as text, a plot of at most `width` columns.

    With None as width it is one line for each point. The last line of a plot states from `summary`
    how complete the points are. Of many groups the first are drawn. Labels that all groups have in
    common are left out.
    """
    name = _namer(points) if series.each else _group
    drawn = [one for one in points if one.value is not None and math.isfinite(one.value)]
    if width is None or not drawn:
        return "".join(
            f"{_moment(one.step_ns, zone)} {name(one)} {_number(one.value)}\n" for one in points
        )
    import plotext  # noqa: PLC0415 - takes 0.6 s to import; few queries draw

    figure = plotext.figure
    figure.clear()
    plotext.terminal.limit(False, False)  # noqa: FBT003 - the library's own signature
    figure.plot_size(width, _HEIGHT)
    figure.theme("simple")
    shown = title or f"{series.aggregate.value} of {series.metric}"
    figure.title(printable_text(shown))
    figure.date("x").activate(form="%Y-%m-%d %H:%M:%S")
    groups: dict[str, list[SeriesPoint]] = {}
    for one in drawn:
        groups.setdefault(name(one), []).append(one)
    divided = series.by or len(groups) > 1
    for group, found in sorted(groups.items())[:_LINES_MAX]:
        # The library shows the digits of a moment; without a zone they are those of this machine.
        when = [datetime.fromtimestamp(one.step_ns / NS_PER_S, zone) for one in found]
        when = [one.replace(tzinfo=UTC) for one in when]
        label = group[:_VALUE_CHARS] if divided else ""
        figure.draw(figure.signal(when, [one.value for one in found]).lines().label(label))
    plot = str(figure.build().string()).rstrip("\n")
    state = "partial" if summary.partial else "complete"
    more = max(len(groups) - _LINES_MAX, 0)
    left = f"{more} more lines are not drawn, --json has them; " if more else ""
    return f"{plot}\n{left}{state}, {summary.until_text}\n"


def _moment(at_ns: int, zone: tzinfo | None) -> str:
    """Return a time as RFC 3339 with the offset of a zone."""
    seconds, rest_ns = divmod(at_ns, NS_PER_S)
    moment = datetime.fromtimestamp(seconds, UTC).astimezone(zone)
    if not moment.utcoffset():
        return format_rfc3339(at_ns)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest_ns:09d}{moment.isoformat()[19:]}"


def draw_labelled(
    title: str,
    series: Sequence[Mapping[str, Any]],
    width: int | None,
    summary: QuerySummary,
    zone: tzinfo | None,
) -> str:
    """Return the series of a metric query as a plot, or without a width a line for each point."""
    points = []
    for one in series:
        by = dict(one["labels"])
        points += [
            SeriesPoint(step_ns=parse_rfc3339(at["ts"]), by=by, value=float(at["value"]))
            for at in one["points"]
        ]
    points.sort(key=lambda one: one.step_ns)
    labelled = Series(metric=title, step_ns=1, each=True)
    return draw_series(labelled, points, width, summary, zone, title)


def table_of_series(series: Sequence[Mapping[str, Any]]) -> str:
    """Return the last values of a metric query, the greatest first, with their labels."""
    points = [
        SeriesPoint(step_ns=0, by=dict(one["labels"]), value=float(one["points"][-1]["value"]))
        for one in series
    ]
    name = _namer(points) if len(points) > 1 else lambda one: _name(one.by, list(one.by))
    # NaN is not ordered, so it comes last, after -Inf.
    points.sort(key=_rank, reverse=True)
    numbers = [_number(one.value) for one in points]
    size = max(map(len, numbers), default=0)
    rows = zip(numbers, points, strict=True)
    return "".join(f"{number:>{size}}  {name(one)}\n" for number, one in rows)


def _rank(point: SeriesPoint) -> tuple[bool, float]:
    value = point.value
    return (False, 0.0) if value is None or math.isnan(value) else (True, value)


def _number(value: float | None) -> str:
    """Return a number for people: whole numbers are exact, others have six digits."""
    if value is None or not math.isfinite(value):
        return str(value)
    if value.is_integer() and abs(value) < _EXACT_END:
        return str(int(value))
    return f"{value:.6g}"


def _namer(points: Sequence[SeriesPoint]) -> Callable[[SeriesPoint], str]:
    """Return the function for the name of a series: the labels by which it differs from others."""
    sets = list({id(one.by): one.by for one in points}.values())
    keys = {key: None for one in sets for key in one}
    differing = [key for key in keys if len({one.get(key) for one in sets}) > 1]
    shown = {id(one): _name(one, differing) for one in sets}
    return lambda point: shown[id(point.by)]


def _name(by: Mapping[str, str | float | None], keys: Sequence[str]) -> str:
    pairs = [f"{key.removeprefix('attributes.')}={_shown(by[key])}" for key in keys if key in by]
    return ",".join(pairs) or "-"


def _group(point: SeriesPoint) -> str:
    return ",".join(map(_shown, point.by.values())) or "-"


_FULL: Final = "█"
_EIGHTHS: Final = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
_BAR_MIN: Final = 10
_VALUE_CHARS: Final = 40
_MS_PER_S: Final = 1000


def draw_histogram(result: HistogramResult, width: int | None) -> str:
    """Return a histogram as text, one line for each bucket.

    Without a width, the lines are tab-separated and have no bars.
    """
    rows = [(bucket, _split_text(result, bucket)) for bucket in result.buckets]
    if width is None:
        lines = ["\t".join([one.ts, str(one.count), *filter(None, [rest])]) for one, rest in rows]
        return "".join(f"{line}\n" for line in lines)
    most = max((bucket.count for bucket in result.buckets), default=0)
    size, digits = len(str(most)), 23 if result.step_ms < _MS_PER_S else 19
    # The bars of all lines have the same scale.
    room = width - digits - size - 3 - max((len(rest) for _, rest in rows), default=0)
    lines = []
    for bucket, rest in rows:
        bar = bar_of(bucket.count, most, max(room, _BAR_MIN))
        lines.append(f"{bucket.ts[:digits]} {bucket.count:>{size}} {bar} {rest}".rstrip())
    return "".join(f"{line}\n" for line in lines)


def _split_text(result: HistogramResult, bucket: HistogramBucket) -> str:
    if result.split is None:
        return ""
    names = [_shown(value) for value in result.split.values]
    counts = [*zip(names, bucket.counts, strict=True), ("other", bucket.other)]
    return " ".join(f"{name}={count}" for name, count in counts if count)


def draw_values(result: TopValuesResult, width: int | None) -> str:
    """Return the values of a field as text, one line for each value.

    Without a width, the lines are tab-separated and have no bars.
    """
    rows = [(_shown(one.value), one.count) for one in result.values]
    if result.missing:
        rows.append(("(missing)", result.missing))
    if width is None:
        return "".join(f"{count}\t{name}\n" for name, count in rows)
    most = max((count for _, count in rows), default=0)
    size = len(str(most))
    shown = [(name[:_VALUE_CHARS], count) for name, count in rows]
    column = max((len(name) for name, _ in shown), default=0)
    lines = []
    for name, count in shown:
        share = f"{100 * count / result.records:5.1f} %"
        head = f"{name:<{column}} {count:>{size}} {share} "
        lines.append(head + bar_of(count, most, max(width - len(head), _BAR_MIN)))
    return "".join(f"{line.rstrip()}\n" for line in lines)


def bar_of(count: int, most: int, room: int) -> str:
    """Return a bar whose length is the share of a count; any count above 0 is visible."""
    if count <= 0:
        return ""
    eighths = max(count * room * 8 // most, 1)
    return _FULL * (eighths // 8) + _EIGHTHS[eighths % 8]


def _shown(value: object) -> str:
    """Return a value on one line, without characters that a terminal would execute."""
    if value is None:
        return "(missing)"
    return printable_text(str(value))
