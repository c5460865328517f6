"""`sluice metrics`: list the metrics of a store, and plot one of them."""

import shutil
import sys
from dataclasses import dataclass
from datetime import tzinfo
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from cyclopts import Parameter

from sluice_cli.shell.asking import (
    Ask,
    RangeOptions,
    SpoolUrl,
    asking,
    decode_lines,
)
from sluice_cli.shell.field_names import find_field
from sluice_cli.shell.options import STORE_DEFAULT, FoundStoreUrl, Json
from sluice_cli.shell.output import fail, print_summary, print_table
from sluice_cli.shell.settings import near_names
from sluice_protocol.errors import BadUsage
from sluice_protocol.timestamps import parse_rfc3339
from sluice_query.request import (
    Aggregate,
    Series,
    choose_width,
    parse_duration,
    parse_field,
)
from sluice_query.settings import STEP_DEFAULT, QuerySettings

_RANGE = RangeOptions()
_STEPS: Final = 120
"""Steps of a plot without `--step`: about as many as a terminal has columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricOptions:
    """What is computed from the samples of a metric.

    Attributes:
        by: Combine the series that have the same value of this label: the rates of counters are
            added.
        agg: How the numbers of one step become one value. The default is `rate` for a counter, its
            increase each second, and `avg` for a gauge.
        step: Width of a step, such as `1m`.
        plot: Draw the series; the default on a terminal.
    """

    by: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    agg: Aggregate | None = None
    step: str | None = None
    plot: Annotated[bool | None, Parameter(negative="--no-plot")] = None


_OPTIONS = MetricOptions()


def metrics(
    name: Annotated[str | None, Parameter(help="The metric; without it all are listed.")] = None,
    /,
    *,
    options: Annotated[MetricOptions, Parameter(name="*")] = _OPTIONS,
    span: Annotated[RangeOptions, Parameter(name="*")] = _RANGE,
    store: FoundStoreUrl = STORE_DEFAULT,
    spool: SpoolUrl = None,
    json: Json = False,
) -> int:
    """List the metrics of a time range, or plot one of them.

    A counter is plotted as its rate, and each set of labels has a line.

    Returns:
        0, or 1 if no metric of the range has the name.
    """
    if name is None:
        if options != _OPTIONS:
            raise BadUsage("`--by`, `--agg`, `--step` and `--plot` need the name of a metric")
        run = partial(_list, span=span, as_json=json)
    else:
        run = partial(_plot, name=name, options=options, span=span, as_json=json)
    with asking(store, spool, QuerySettings()) as ask:
        return run(ask)


def _list(ask: Ask, *, span: RangeOptions, as_json: bool) -> int:
    lines = ask("metrics", span.parameters())
    if as_json:
        sys.stdout.write(lines[-1].decode())
        return 0
    found = msgspec.json.decode(lines[-1])
    print_table(
        [
            ("name", "type", "unit", "series", "samples"),
            *(
                (one["name"], one["type"], one["unit"], str(one["series"]), str(one["samples"]))
                for one in found["metrics"]
            ),
        ]
    )
    if found["more"]:
        sys.stderr.write("more metrics exist: choose a shorter time range\n")
    print_summary(found["summary"], f"{len(found['metrics'])} metrics")
    return 0


def _plot(ask: Ask, *, name: str, options: MetricOptions, span: RangeOptions, as_json: bool) -> int:
    given = span.parameters()
    kind = _type_of(ask, name, given)
    if not isinstance(kind, str):
        fail(f"no metric has this name in the time range{near_names(name, kind)}, name=`{name}`")
        return 1
    default = Aggregate.AVG if kind == "gauge" else Aggregate.RATE
    aggregate = options.agg or default
    wanted: dict[str, list[str]] = {**given, "metric": [name], "agg": [aggregate.value]}
    if options.by:
        its = {**given, "query": [_named(name)]}
        wanted["by"] = [find_field(ask, one, "metrics", its) for one in options.by]
    else:
        wanted["each"] = ["true"]
    wanted["step"] = [options.step or _choose_step(given)]
    lines = ask("query", wanted)
    if as_json:
        for line in lines:
            sys.stdout.buffer.write(line)
        sys.stdout.flush()
        return 0
    points, last = decode_lines(lines)
    series = Series(
        metric=name,
        aggregate=aggregate,
        step_ns=parse_duration(wanted["step"][0]),
        by=tuple(parse_field(one, "metrics") for one in wanted.get("by", ())),
        each=not options.by,
    )
    _draw(series, points, last["summary"], plot=options.plot, zone=span.shown_zone)
    print_summary(last["summary"], f"{len(points)} points")
    return 0


def _type_of(ask: Ask, name: str, given: dict[str, list[str]]) -> str | list[str]:
    """Return the type of a metric, or the names of the others if there is none."""
    for narrowed in ({"query": [_named(name)]}, {}):
        lines = ask("metrics", {**given, **narrowed})
        listed = msgspec.json.decode(lines[-1])["metrics"]
        for one in listed:
            if one["name"] == name:
                return str(one["type"])
    return [one["name"] for one in listed]


def _named(name: str) -> str:
    """Return the selector of a metric."""
    return f"{{__name__={msgspec.json.encode(name).decode()}}}"


def _choose_step(given: dict[str, list[str]]) -> str:
    from sluice_protocol.system_clock import SystemClock  # noqa: PLC0415
    from sluice_query.parameters import parse_instant  # noqa: PLC0415

    now_ns = SystemClock().now_ns()
    start, end = (parse_instant(given.get(one, ["now"])[0], now_ns) for one in ("from", "to"))
    least_ns = parse_duration(STEP_DEFAULT)
    return f"{max(choose_width(start, end, _STEPS), least_ns) // 1_000_000}ms"


def _draw(
    series: Series,
    points: list[dict[str, Any]],
    summary: dict[str, Any],
    *,
    plot: bool | None,
    zone: tzinfo | None,
) -> None:
    from sluice_query.plot import draw_series  # noqa: PLC0415 - not for programs
    from sluice_query.result import QuerySummary, SeriesPoint  # noqa: PLC0415 - the same

    plotted = sys.stdout.isatty() if plot is None else plot
    width = shutil.get_terminal_size().columns if plotted else None
    groups: dict[str, dict[str, Any]] = {}
    shown = []
    for one in points:
        by = one.get("by", {})
        value = None if one["value"] is None else float(one["value"])
        group = groups.setdefault(repr(by), by)
        shown.append(SeriesPoint(step_ns=parse_rfc3339(one["ts"]), by=group, value=value))
    facts = msgspec.convert(summary, QuerySummary)
    sys.stdout.write(draw_series(series, shown, width, facts, zone))
    sys.stdout.flush()
