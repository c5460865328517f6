"""`sluice query`: find records, and print them as lines for people or tables for programs."""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from cyclopts import App, Parameter

from sluice_cli.shell.asking import (
    Ask,
    Given,
    RangeOptions,
    SpoolUrl,
    asking,
    decode_lines,
    flag_of,
    format_moment,
    run_with_searcher,
)
from sluice_cli.shell.options import STORE_DEFAULT, FoundStoreUrl, Json
from sluice_cli.shell.output import csv_line, print_summary, value_text
from sluice_protocol.errors import BadUsage
from sluice_protocol.fields import KINDS, Kind
from sluice_protocol.identity import DOOR_AGENT_PREFIX
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.timestamps import parse_rfc3339
from sluice_protocol.units import NS_PER_S
from sluice_protocol.utf8 import printable_text
from sluice_query.settings import LIMIT_DEFAULT, QuerySettings

if TYPE_CHECKING:
    from sluice_query.search import Searcher

Record = Mapping[str, Any]
"""One record as the query service returns it."""
Coloring = Literal["auto", "always", "never"]

_RESET: Final = "\x1b[0m"
_DIM: Final = "\x1b[2m"
_COLORS: Final = {
    "fatal": "\x1b[1;31m",
    "error": "\x1b[31m",
    "warn": "\x1b[33m",
    "debug": _DIM,
    "trace": _DIM,
}
_OTHER_NAMES: Final = {
    "time": "ts",
    "agent": "agent_id",
    "service_name": "service",
    "line": "body",
}
_UNIT_END: Final = 1_000


def is_colored(coloring: Coloring) -> bool:
    """Return whether lines are colored: on a terminal, unless NO_COLOR is set."""
    if coloring == "auto":
        return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return coloring == "always"


class LineWriter:
    """Returns the line of each record."""

    def __init__(
        self,
        kind: Kind,
        *,
        zone: tzinfo | None,
        columns: Sequence[str] = (),
        colored: bool = False,
    ) -> None:
        self._kind: Kind = kind
        self._zone = zone
        self._columns = columns
        self._colored = colored
        self._is_terminal = sys.stdout.isatty()

    def line(self, record: Record, mark: str = "") -> str:
        """Return one record as a line, after a mark; control characters of it execute nothing."""
        when = format_moment(parse_rfc3339(record["ts"]), self._zone) if "ts" in record else "-"
        if self._columns:
            text = "  ".join(self._value(record, one, when) for one in self._columns)
            return mark + self._safe(text)
        sender = self._safe(sender_of(record))
        what = self._safe(self._what(record))
        level = str(record.get("level", ""))[:5].lower()
        shown = f"{self._safe(level or '-'):<5} " if self._kind == "logs" else ""
        if not self._colored:
            return f"{mark}{when} {shown}{sender} {what}"
        color = _COLORS.get(level, "")
        return f"{mark}{_DIM}{when}{_RESET} {color}{shown}{_RESET if color else ''}{sender} {what}"

    def _what(self, record: Record) -> str:
        if self._kind == "logs":
            return str(record.get("line", record.get("body", "")))
        if self._kind == "metrics":
            attributes = record.get("attributes", {})
            labels = ",".join(f'{key}="{value}"' for key, value in attributes.items())
            return f"{record['name']}{f'{{{labels}}}' if labels else ''} {record['value']}"
        if self._kind == "spans":
            duration = format_duration(int(record["duration_ns"]))
            return f"{record['name']} {duration} {record['status']}"
        return f"{record['key']} {record['value']}"

    def _value(self, record: Record, column: str, when: str) -> str:
        if _OTHER_NAMES.get(column, column) == "ts":
            return when
        value = column_value(record, column)
        return "-" if value is None else value_text(value)

    def _safe(self, text: str) -> str:
        """Return text for a terminal: it executes nothing, and further lines are indented.

        Otherwise a sender of records could write to the terminal, or imitate another record.
        """
        if not self._is_terminal:
            return text
        return "\n    ".join(printable_text(one, kept="\t") for one in text.split("\n"))


def sender_of(record: Record) -> str:
    """Return what a record's sender is called: its service, else host, else agent."""
    agent = str(record.get("agent_id", "-"))
    if agent.startswith(DOOR_AGENT_PREFIX):
        agent = agent.removeprefix(DOOR_AGENT_PREFIX).rpartition(":")[0]
    return str(record.get("service") or record.get("host") or agent)


def column_value(record: Record, column: str) -> object:
    """Return a field of a record, or its attribute or that of its resource; None without one."""
    name = _OTHER_NAMES.get(column, column)
    if name in record:
        value: object = record[name]
        return value
    for place in ("labels", "attributes", "resource"):
        pairs = record.get(place, {})
        key = name.removeprefix(f"{place}.")
        if key in pairs:
            found: object = pairs[key]
            return found
    return None


def format_duration(size_ns: int) -> str:
    """Return a duration with three digits in a unit up to seconds, those exact to the ms."""
    size: float = abs(size_ns)
    sign = "-" if size_ns < 0 else ""
    for unit in ("ns", "µs", "ms"):
        if size < _UNIT_END:
            digits = 2 if size < 10 else 1 if size < 100 else 0  # noqa: PLR2004 - three digits
            return f"{sign}{round(size, digits):g} {unit}"
        size /= _UNIT_END
    return f"{sign}{size:.3f} s"


def write_csv(kind: Kind, records: Sequence[Record], columns: Sequence[str]) -> None:
    """Write records as CSV with a header; maps are JSON."""
    for row in ((columns or _table_columns(kind)), *_rows(kind, records, columns)):
        sys.stdout.write(csv_line(row))
    sys.stdout.flush()


def write_parquet(kind: Kind, records: Sequence[Record], columns: Sequence[str]) -> None:
    """Write records as one Parquet file to standard output; numbers keep their types."""
    import pyarrow as pa  # noqa: PLC0415 - only for this output

    from sluice_cli.shell.records_output import open_writer  # noqa: PLC0415 - the same

    names = columns or _table_columns(kind)
    values = list(zip(*_rows(kind, records, columns), strict=True)) or [()] * len(names)
    arrays = []
    for name, column in zip(names, values, strict=True):
        if _OTHER_NAMES.get(name, name) == "ts":
            at_ns = [None if one is None else parse_rfc3339(str(one)) for one in column]
            arrays.append(pa.array(at_ns, pa.timestamp("ns", "UTC")))
        elif column and all(isinstance(one, int | float | None) for one in column):
            arrays.append(pa.array(column))
        else:
            arrays.append(
                pa.array([None if one is None else value_text(one) for one in column], pa.string())
            )
    rows = pa.record_batch(dict(zip(names, arrays, strict=True)))
    writer = open_writer("parquet", rows.schema, sys.stdout.buffer)
    writer.write(rows)
    writer.finish()


def _table_columns(kind: Kind) -> tuple[str, ...]:
    own = [one.name for one in KINDS[kind].read_fields]
    maps = ("attributes", "resource") if KINDS[kind].has_attributes else ("resource",)
    return ("ts", "agent_id", "boot_id", "seq", *own, *maps)


def _rows(kind: Kind, records: Sequence[Record], columns: Sequence[str]) -> Iterator[list[object]]:
    names = columns or _table_columns(kind)
    for one in records:
        yield [column_value(one, name) for name in names]


app = App(name="query", help="Find records by labels, text and time.")
for _name in ("serve", "dead-letters"):
    app.command(f"sluice_cli.query_serve:{_name.replace('-', '_')}", name=_name)

_SETTINGS: Final = QuerySettings()
Output = Literal["lines", "json", "csv", "parquet"]
Order = Literal["newest", "oldest"]
CONTEXT_HITS_MAX: Final = 100
"""Hits whose neighbours are printed: each group of them is one more query."""
_POLL_S: Final = 0.25
_WAIT_NS: Final = 3 * NS_PER_S
"""Longest wait on a terminal: journals name a batch about a second after it was accepted."""
_WAIT_REPORT_NS: Final = 8 * NS_PER_S
"""Longest wait with `--wait`: an idle gateway reports every 5 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions:
    """What is searched, and how it is printed.

    Attributes:
        q: Text that a log's body, or the name of a metric or span, must contain.
        kind: Kind of the records.
        limit: Most records to print, the newest of them.
        order: Print the newest record first, or print the oldest records instead of the newest.
            Without it the newest are printed in the order of time, so the last line is the latest.
        after: Print this many records after each hit, of the same agent and boot.
        before: Print this many records before each hit.
        context: Print this many records before and after each hit.
        follow: Then print new records until interrupted.
        wait: Wait until all records accepted before now are found. On a terminal that is the
            default while nothing is found, for at most 3 s.
        output: Form of the records; JSON has all fields, and the summary as its last line.
        columns: Fields to print, separated by commas, such as `time,service,attributes.path`.
        plot: Print the number of records over time as bars.
        step: Width of a bar, such as `1m`; a metric query is computed over time with it, once at
            the end of the range without it and `--plot`.
        color: Color the levels; `auto` on a terminal, unless NO_COLOR is set.
        time_s_max: Longest time for the query, seconds.
        tail_bytes_max: Most bytes of pending batches to read, the newest first.
    """

    q: Annotated[str | None, Parameter(name="-q")] = None
    kind: Kind = "logs"
    limit: int = LIMIT_DEFAULT
    order: Order | None = None
    after: Annotated[int, Parameter(name=("--after", "-A"))] = 0
    before: Annotated[int, Parameter(name=("--before", "-B"))] = 0
    context: Annotated[int, Parameter(name=("--context", "-C"))] = 0
    follow: Annotated[bool, Parameter(name=("--follow", "-f"), negative="")] = False
    wait: Annotated[bool | None, Parameter(negative="--no-wait")] = None
    output: Output = "lines"
    columns: str = ""
    plot: Annotated[bool, Parameter(negative="")] = False
    step: str | None = None
    color: Coloring = "auto"
    time_s_max: float = _SETTINGS.time_s_max
    tail_bytes_max: int = _SETTINGS.tail_bytes_max

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns."""
        return tuple(one for one in self.columns.split(",") if one)


_OPTIONS = QueryOptions()
_RANGE = RangeOptions()


@app.default
def query(
    logql: Annotated[
        str | None,
        Parameter(help='LogQL, such as `{level="error"} |= "timeout"`; by default all records.'),
    ] = None,
    /,
    *,
    options: Annotated[QueryOptions, Parameter(name="*")] = _OPTIONS,
    span: Annotated[RangeOptions, Parameter(name="*")] = _RANGE,
    store: FoundStoreUrl = STORE_DEFAULT,
    spool: SpoolUrl = None,
    json: Json = False,
) -> None:
    """Find records in the lake and in the batches that are not in it yet.

    With `--json` each record is a line of JSON, and the last line is the summary.
    """
    if json and options.output not in {"lines", "json"}:
        raise BadUsage("choose one of `--json` and `--output`")
    options = replace(options, output="json" if json else options.output)
    _refuse_unfit(options, span)
    settings = replace(
        _SETTINGS, time_s_max=options.time_s_max, tail_bytes_max=options.tail_bytes_max
    )
    if options.follow:
        run_with_searcher(store, spool, settings, lambda one: _follow(one, logql, options, span))
        return
    with asking(store, spool, settings) as ask:
        _find(ask, logql, options, span)


def _refuse_unfit(options: QueryOptions, span: RangeOptions) -> None:
    """Refuse options that do not fit together."""
    around = options.after or options.before or options.context
    if options.follow and span.until != "now":
        raise BadUsage("`--follow` has no end: omit `--to`")
    if options.follow and (options.plot or around or options.order or options.wait):
        raise BadUsage(
            "`--follow` prints records as they are accepted: omit `--plot`, `--order`, `--wait` and"
            " the lines around hits"
        )
    if options.follow and options.output not in {"lines", "json"}:
        raise BadUsage("`--follow` prints lines or JSON: choose another `--output`")
    if options.plot and (around or options.columns or options.output not in {"lines", "json"}):
        raise BadUsage(
            "`--plot` counts records: omit `--columns`, other forms of output and the lines around"
            " hits"
        )
    if around and options.output not in {"lines", "json"}:
        raise BadUsage("lines around hits are printed as lines or JSON: choose another `--output`")
    if around and options.limit != LIMIT_DEFAULT and options.limit > CONTEXT_HITS_MAX:
        raise BadUsage(f"at most {CONTEXT_HITS_MAX} hits with lines around them: lower `--limit`")


def _parameters(
    logql: str | None, options: QueryOptions, given: dict[str, list[str]]
) -> dict[str, list[str]]:
    """Return the parameters of the query."""
    wanted: dict[str, list[str]] = {**given, "kind": [options.kind]}
    if logql is None:
        if options.q is not None:
            # A text of JSON is one of LogQL.
            wanted["query"] = [f"{{}} |= {msgspec.json.encode(options.q).decode()}"]
        return wanted
    if options.q is None:
        return {**wanted, "query": [logql]}
    from sluice_query.logql.expressions import (  # noqa: PLC0415 - only with LogQL
        LineFilter,
        LineOperator,
        LogQuery,
    )
    from sluice_query.logql.formatting import format_logql  # noqa: PLC0415 - the same
    from sluice_query.logql.grammar import parse_logql  # noqa: PLC0415 - the same

    tree = parse_logql(logql)
    if not isinstance(tree, LogQuery):
        raise BadUsage("`-q` belongs to records: write `|=` after the selector instead")
    # Before the stages, because the text is that of the line as it was sent.
    text = LineFilter(LineOperator.CONTAINS, (options.q,))
    return {**wanted, "query": [format_logql(replace(tree, stages=(text, *tree.stages)))]}


def _find(ask: Ask, logql: str | None, options: QueryOptions, span: RangeOptions) -> None:
    wanted = _parameters(logql, options, span.parameters())
    if logql is not None and _is_metric(logql):
        _compute(ask, logql, wanted, options, span)
    elif options.plot:
        _plot(ask, wanted, options)
    elif options.step is not None:
        raise BadUsage("`--step` is the width of a bar or of a metric query: add `--plot`")
    else:
        _search(ask, wanted, options, span)


def _is_metric(logql: str) -> bool:
    """Return whether LogQL computes series; a selector, which begins every log query, is quick."""
    if logql.lstrip().startswith("{"):
        return False
    from sluice_query.logql.expressions import LogQuery  # noqa: PLC0415 - not for log queries
    from sluice_query.logql.grammar import parse_logql  # noqa: PLC0415 - the same

    return not isinstance(parse_logql(logql), LogQuery)


def _search(
    ask: Ask, wanted: dict[str, list[str]], options: QueryOptions, span: RangeOptions
) -> None:
    around = (options.before or options.context, options.after or options.context)
    limit = min(options.limit, CONTEXT_HITS_MAX) if any(around) else options.limit
    wanted["limit"] = [str(limit)]
    if options.order != "oldest":
        wanted["newest_first"] = ["true"]
    lines = _ask_until_visible(ask, wanted, options)
    summary = msgspec.json.decode(lines[-1])["summary"]
    if options.order is None:
        lines[:-1] = lines[-2::-1]
    if any(around):
        _print_around(ask, lines, around, options, span)
    else:
        _print(lines, options, span)
    if options.output == "json":
        return
    count = f"{summary['results']} results"
    print_summary(summary, count + (" (more match: raise --limit)" if summary["more"] else ""))
    given = {name: texts for name, texts in wanted.items() if name in {"from", "to"}}
    if not summary["results"] and not summary["partial"] and not summary["hints"]:
        why = _explain_empty(ask, options.kind, given, is_waited=options.wait is True)
        sys.stderr.write(why + "\n")
    elif options.columns and summary["results"]:
        records, _ = decode_lines(lines)
        for hint in _unknown_columns(ask, records, options, given):
            sys.stderr.write(printable_text(hint) + "\n")


def _ask_until_visible(
    ask: Ask, wanted: Given, options: QueryOptions, route: str = "query"
) -> list[bytes]:
    """Return an answer, after a wait for what was accepted before its first try."""
    clock = SystemClock()
    started_ns = clock.now_ns()
    is_waiting = sys.stdout.isatty() if options.wait is None else options.wait
    end_ns = clock.monotonic_ns() + (_WAIT_REPORT_NS if options.wait else _WAIT_NS)
    while True:
        lines = ask(route, wanted)
        summary = msgspec.json.decode(lines[-1])["summary"]
        until = summary["accepted_until"]
        reached = until is not None and parse_rfc3339(until) >= started_ns
        enough = summary["results"] and not options.wait
        if not is_waiting or summary["complete_now"] or reached or enough:
            return lines
        if clock.monotonic_ns() >= end_ns:
            return lines
        time.sleep(_POLL_S)


def _explain_empty(ask: Ask, kind: Kind, given: Given, *, is_waited: bool) -> str:
    """Return why a query has no results, as far as the other records of its range show it."""
    # The newest record is in one row group; the oldest would need a part of every file.
    if len(ask("query", {**given, "kind": [kind], "limit": ["1"], "newest_first": ["true"]})) == 1:
        return f"no {kind} at all in this time range: try an earlier --since, or another --kind"
    if is_waited:
        return "no match: try an earlier --since, or fewer conditions"
    return "no match; what was accepted in the last seconds may follow: add `--wait`"


def _unknown_columns(
    ask: Ask, records: Sequence[Record], options: QueryOptions, given: Given
) -> Iterator[str]:
    """Yield a similar name for each column that neither these nor other records have."""
    from sluice_cli.shell.field_names import find_field  # noqa: PLC0415 - rarely needed

    for name in options.column_names:
        if any(column_value(one, name) is not None for one in records):
            continue
        try:
            find_field(ask, _OTHER_NAMES.get(name, name), options.kind, given)
        except BadUsage as error:
            yield f"--columns: {error}"


def _compute(
    ask: Ask, logql: str, wanted: Given, options: QueryOptions, span: RangeOptions
) -> None:
    """Print a metric query: a table of its values at the end of the range, or its series."""
    if options.output in {"csv", "parquet"} or options.columns:
        raise BadUsage("a metric query has series: print them as lines or JSON")
    if options.before or options.after or options.context:
        raise BadUsage("a metric query has no lines: omit those around hits")
    is_over_time = options.step is not None or options.plot
    if options.step is not None:
        wanted = {**wanted, "step": [options.step]}
    elif not is_over_time:
        at = wanted.get("to", [str(SystemClock().now_ns())])
        wanted = {**wanted, "from": at, "to": at}
    lines = _ask_until_visible(ask, wanted, options)
    if options.output == "json":
        for line in lines:
            sys.stdout.buffer.write(line)
        sys.stdout.flush()
        return
    _print_series(logql, lines, options, span, is_over_time=is_over_time)


def _print_series(
    logql: str,
    lines: Sequence[bytes],
    options: QueryOptions,
    span: RangeOptions,
    *,
    is_over_time: bool,
) -> None:
    from shutil import get_terminal_size  # noqa: PLC0415 - not for records

    from sluice_query.plot import (  # noqa: PLC0415 - not for programs
        draw_labelled,
        table_of_series,
    )
    from sluice_query.result import QuerySummary  # noqa: PLC0415 - the same

    series, last = decode_lines(lines)
    if is_over_time:
        width = get_terminal_size().columns if options.plot or sys.stdout.isatty() else None
        summary = msgspec.convert(last["summary"], QuerySummary)
        sys.stdout.write(draw_labelled(logql, series, width, summary, span.shown_zone))
    else:
        sys.stdout.write(table_of_series(series))
    sys.stdout.flush()
    print_summary(last["summary"], f"{len(series)} series")
    if not is_over_time and span.since != _RANGE.since:
        sys.stderr.write("computed at the end of the range; --step computes it over --since\n")


def _print(lines: Sequence[bytes], options: QueryOptions, span: RangeOptions) -> None:
    columns = options.column_names
    if options.output == "json" and not columns:
        for line in lines:
            sys.stdout.buffer.write(line)
        sys.stdout.flush()
        return

    records, last = decode_lines(lines)
    if options.output == "csv":
        write_csv(options.kind, records, columns)
    elif options.output == "parquet":
        write_parquet(options.kind, records, columns)
    elif options.output == "json":
        rows = [{name: column_value(one, name) for name in columns} for one in records]
        for row in (*rows, last):
            sys.stdout.write(msgspec.json.encode(row).decode() + "\n")
    else:
        writer = _writer(options, span)
        for one in records:
            sys.stdout.write(writer.line(one) + "\n")
    sys.stdout.flush()


def _writer(options: QueryOptions, span: RangeOptions) -> LineWriter:
    return LineWriter(
        options.kind,
        zone=span.shown_zone,
        columns=options.column_names,
        colored=is_colored(options.color),
    )


def _print_around(
    ask: Ask,
    lines: Sequence[bytes],
    around: tuple[int, int],
    options: QueryOptions,
    span: RangeOptions,
) -> None:
    """Print hits with their neighbours; hits that are close to each other share theirs."""
    records, last = decode_lines(lines)
    before, after = around
    groups = _close_hits(records, before + after + 1)
    writer = _writer(options, span)
    for number, group in enumerate(groups):
        first, final = group[0], group[-1]
        window = {
            "kind": [options.kind],
            "agent": [first["agent_id"]],
            "boot": [first["boot_id"]],
            "seq": [str(first["seq"])],
            "before": [str(before)],
            "after": [str(final["seq"] - first["seq"] + after)],
        }
        found = msgspec.json.decode((ask("context", window))[-1])
        hits = {one["seq"] for one in group}
        shown = [*found["before"], found["record"] or first, *found["after"]]
        if number and options.output == "lines":
            sys.stdout.write("--\n")
        for one in shown:
            is_hit = one["seq"] in hits
            if options.output == "lines":
                line = writer.line(one, "> " if is_hit else "  ")
            else:
                line = msgspec.json.encode(one if is_hit else {**one, "is_context": True}).decode()
            sys.stdout.write(line + "\n")
    if options.output == "json":
        sys.stdout.write(msgspec.json.encode(last).decode() + "\n")
    sys.stdout.flush()


def _close_hits(records: Sequence[dict[str, Any]], reach: int) -> list[list[dict[str, Any]]]:
    """Return hits in groups of one source whose neighbours overlap, in the order of the hits."""
    groups: list[list[dict[str, Any]]] = []
    latest: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in sorted(records, key=lambda one: int(one["seq"])):
        source = (one["agent_id"], one["boot_id"])
        group = latest.get(source)
        if group is None or one["seq"] - group[-1]["seq"] > reach:
            group = latest[source] = []
            groups.append(group)
        group.append(one)
    place = {id(one): number for number, one in enumerate(records)}
    return sorted(groups, key=lambda group: min(place[id(one)] for one in group))


def _plot(ask: Ask, wanted: Given, options: QueryOptions) -> None:
    step = {} if options.step is None else {"step": [options.step]}
    lines = _ask_until_visible(ask, {**wanted, **step}, options, "histogram")
    if options.output == "json":
        sys.stdout.write(lines[-1].decode())
        return
    from shutil import get_terminal_size  # noqa: PLC0415 - not for records

    from sluice_query.plot import draw_histogram  # noqa: PLC0415 - not for programs
    from sluice_query.views import HistogramResult  # noqa: PLC0415 - the same

    found = msgspec.json.decode(lines[-1], type=HistogramResult)
    width = get_terminal_size().columns if sys.stdout.isatty() else None
    sys.stdout.write(draw_histogram(found, width))
    sys.stdout.flush()
    summary = msgspec.to_builtins(found.summary)
    print_summary(summary, f"{summary['results']} results")


async def _follow(
    searcher: "Searcher", logql: str | None, options: QueryOptions, span: RangeOptions
) -> None:
    from sluice_query.following import follow  # noqa: PLC0415 - imports numpy
    from sluice_query.parameters import parse_query  # noqa: PLC0415 - the same
    from sluice_query.result import record_json  # noqa: PLC0415 - the same

    since = span if span.since != _RANGE.since else replace(span, since="1m")

    wanted = _parameters(logql, options, since.parameters())
    wanted["limit"] = [str(options.limit)]
    if logql is not None and _is_metric(logql):
        raise BadUsage("`--follow` prints records: write a log query")
    question = parse_query(wanted, SystemClock().now_ns(), flag_of)
    writer = _writer(options, span)
    polled = replace(searcher, lists_accepted=False)
    told: tuple[str, ...] = ()
    async for result in follow(polled.search, polled.clock, question):
        for row in result.records:
            one = record_json(result.kind, row)
            as_json = options.output == "json"
            line = msgspec.json.encode(one).decode() if as_json else writer.line(one)
            sys.stdout.write(line + "\n")
        sys.stdout.flush()
        # Print each reason once, when it changes, not once a second.
        if result.summary.reasons != told:
            told = result.summary.reasons
            reasons = "".join(f"partial: {printable_text(reason)}\n" for reason in told)
            sys.stderr.write(f"{reasons}{result.summary.until_text}\n")
