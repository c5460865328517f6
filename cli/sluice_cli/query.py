"""`sluice query`: search records, plot metrics, and serve both over HTTP."""

import asyncio
import re
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
from cyclopts import App, Parameter

from sluice_cli.shell.options import EXISTING_SPOOL, STORE_DEFAULT, Json, StoreUrl
from sluice_cli.shell.output import emit, format_size
from sluice_protocol.errors import BadUsage
from sluice_protocol.fields import KINDS, Field, FieldType, Kind
from sluice_protocol.identity import format_identity
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.timestamps import format_rfc3339
from sluice_protocol.units import UnixNs
from sluice_protocol.utf8 import printable_text
from sluice_query.parameters import FROM_DEFAULT, parse_instant, parse_query
from sluice_query.request import LIMIT_DEFAULT, Aggregate, Query, parse_field, parse_filter
from sluice_query.settings import QuerySettings, ServeSettings

if TYPE_CHECKING:
    from rich.console import Console

    from sluice_query.dead_letters import DeadLetterList
    from sluice_query.result import QueryResult, QuerySummary, ViewResult
    from sluice_query.search import Searcher

app = App(name="query", help="Search records by time, text and agent.")

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions:
    """The options of a query.

    Attributes:
        since: Start of the range: RFC 3339, a Unix time in seconds, ms, µs or ns, `now`, or a
            duration ago such as `15m`. The default is 1h ago, with `--tail` 1m ago, with a
            reconciler everything that it has.
        until: End of the range, exclusive; the same forms. Records with a later time, of a clock
            that is ahead, are found only with a later end.
        q: Text that a log's body, or the name of a metric or span, must contain.
        regex: Treat the text as an RE2 pattern.
        ignore_case: Ignore case.
        kind: Kind of the records.
        agent: Only records of these agents.
        attribute: Only records with these attributes or resource attributes, each `KEY=VALUE`.
        filter: Only records with a field of this value: `FIELD=VALUE`, `FIELD!=VALUE`,
            `FIELD=~PATTERN`, `'attributes.status >= 500'`, `'duration_ns>=250ms'`, `FIELD` for any
            value, `!FIELD` for none. Quote it: a shell would write a file for `>`.
        histogram: Print the number of records over time as bars.
        by: Divide each bar, or a series, by the values of this field; a series by several.
        top: Print the most frequent values of this field.
        stats_only: Print counts instead of records.
        limit: Maximum number of records.
        newest_first: Print the latest records first.
        metric: Compute a series of this metric.
        of: Compute a series of the numbers in this field, such as `attributes.latency_ms`.
        step: Width of a step of the series, such as `1m`, or of a bar of the histogram.
        agg: How the numbers of one step become one value; `p50` to `p99` are exact quantiles.
        raw: Compute a series from samples only, without rollups.
        tail: Print new records until interrupted; it has no end, so `--to` is refused.
        reconciler: With `--tail`, read new records from this reconciler, `http://host:port`,
            instead of polling the store every second.
        reconciler_token: Its `api_token`; safer in the environment than on a command line.
    """

    since: Annotated[str | None, Parameter(name="--from")] = None
    until: Annotated[str, Parameter(name="--to")] = "now"
    q: Annotated[str | None, Parameter(name=("--text", "-q"))] = None
    regex: Annotated[bool, Parameter(negative="")] = False
    ignore_case: Annotated[bool, Parameter(name=("--ignore-case", "-i"), negative="")] = False
    kind: Kind = "logs"
    agent: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    attribute: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    filter: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    histogram: Annotated[bool, Parameter(negative="")] = False
    by: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    top: str | None = None
    stats_only: Annotated[bool, Parameter(negative="")] = False
    limit: int = LIMIT_DEFAULT
    newest_first: Annotated[bool, Parameter(negative="")] = False
    metric: str | None = None
    of: str | None = None
    step: str | None = None
    agg: Aggregate = Aggregate.AVG
    raw: Annotated[bool, Parameter(negative="")] = False
    tail: Annotated[bool, Parameter(negative="")] = False
    reconciler: str | None = None
    reconciler_token: str = field(default="", repr=False)


SpoolUrl = Annotated[
    str | None,
    EXISTING_SPOOL,
    Parameter(
        name="--spool",
        help="The gateway's spool, file:///path; batches that are only there are searched too.",
    ),
]
"""The spool of a gateway in `local_spool` mode, the value of the gateway's `--spool`."""

_RENAMED = {"since": "from", "until": "to", "top": "field"}
_FLAGS = {"q": "-q", "field": "--top"}
_NOT_PARAMETERS = frozenset({"tail", "reconciler", "reconciler_token", "histogram"})
"""Options that are not parameters of a query."""

_NONE = {
    "metric": "no metric has this name",
    "agent": "no agent has this name",
    "field": "no record has this field",
}
"""The message about a name that no record of a range has."""
_DAYS_OF_1970 = re.compile(r"[1-9][0-9]{0,5}", re.ASCII)
"""Numbers that are Unix times only if their unit was forgotten; 0 means everything."""
_NAMES_MAX = 1_000
"""Names that are compared with one that no record has."""
_OPTIONS = QueryOptions()
_SETTINGS = QuerySettings()
_SERVING = ServeSettings()


def query_of(options: QueryOptions, now_ns: UnixNs) -> Query:
    """Return the query that the options describe."""
    given: dict[str, list[str]] = {}
    viewed = options.histogram or options.top is not None
    _refuse_bare_numbers(options)
    for field_ in fields(options):
        name = _RENAMED.get(field_.name, field_.name)
        value = getattr(options, field_.name)
        if name in _NOT_PARAMETERS or value is None or value is False or value == ():
            continue
        unused = viewed if name == "limit" else name == "agg"
        if unused and value == getattr(_OPTIONS, field_.name):
            continue
        values = value if isinstance(value, tuple) else (value,)
        given[name] = ["true" if one is True else str(one) for one in values]
    _refuse_unfit(options, frozenset(given))
    if options.until == "now":
        del given["to"]
    elif options.since is None and not viewed:
        _require_start(options.until, now_ns)
    given.setdefault("from", [_default_from(options)])
    if not viewed:
        return parse_query(given, now_ns, flag_of)
    from sluice_query.parameters import parse_histogram, parse_values  # noqa: PLC0415 - numpy

    return (parse_histogram if options.histogram else parse_values)(given, now_ns, flag_of)


_NOT_OF_VIEWS = ("stats_only", "newest_first", "metric", "of", "raw", "limit", "agg")
"""Options of records and series."""


def _refuse_unfit(options: QueryOptions, given: frozenset[str]) -> None:
    """Refuse options that do not fit together."""
    views = [
        name for name in ("histogram", "top", "tail") if getattr(options, name) not in (None, False)
    ]
    if len(views) > 1:
        raise BadUsage(f"choose one of {' and '.join(f'--{one}' for one in views)}")
    view = views[0] if views else ""
    if view == "tail" and options.until != "now":
        raise BadUsage("--tail has no end: omit --to")
    if view == "tail" and options.newest_first:
        raise BadUsage("--tail prints records as they are accepted: omit --newest-first")
    for option in ("by", "step"):
        if option in given and not (options.histogram or given & {"metric", "of"}):
            raise BadUsage(
                f"--{option} applies to --metric, --of and --histogram only: add one, or omit it"
            )
    unfit = given.intersection(_NOT_OF_VIEWS) if view in ("histogram", "top") else frozenset()
    for option in sorted(unfit - ({"limit"} if view == "top" else frozenset())):
        raise BadUsage(f"{flag_of(option)} does not apply to --{view}: omit one of them")


def _refuse_bare_numbers(options: QueryOptions) -> None:
    """Refuse a Unix time of a few days, which is a duration whose unit was forgotten."""
    for flag, text in (("--from", options.since), ("--to", options.until)):
        if text is not None and _DAYS_OF_1970.fullmatch(text):
            raise BadUsage(
                f"{flag} would be in January 1970: did you mean {text}m, {text}h or {text}d ago?"
                f" time=`{text}`"
            )


def _require_start(until: str, now_ns: UnixNs) -> None:
    """Refuse an `--until` before the default start, which the command line does not show."""
    try:
        to_ns = parse_instant(until, now_ns)
    except BadUsage:
        return  # the parser names the option
    if to_ns <= parse_instant(FROM_DEFAULT, now_ns):
        raise BadUsage(f"--from is {FROM_DEFAULT} ago by default: add an earlier one, to=`{until}`")


def flag_of(parameter: str) -> str:
    """Return the option of a query parameter."""
    return _FLAGS.get(parameter, f"--{parameter.replace('_', '-')}")


def _default_from(options: QueryOptions) -> str:
    if options.reconciler is not None:
        return "0"  # the reconciler has recently accepted records, however old they are
    return "1m" if options.tail else FROM_DEFAULT


@app.default
def query(
    *,
    store: StoreUrl = STORE_DEFAULT,
    spool: SpoolUrl = None,
    options: Annotated[QueryOptions, Parameter(name="*")] = _OPTIONS,
    settings: Annotated[QuerySettings, Parameter(name="*")] = _SETTINGS,
    json: Json = False,
) -> None:
    """Search the lake and the batches that are not in it yet.

    With `--json` each record is a line of JSON, and the last line is the summary.
    """
    question = query_of(options, SystemClock().now_ns())
    if options.reconciler is not None and not options.tail:
        raise BadUsage("--reconciler serves live records only: add --tail, or omit it")
    if options.reconciler is not None and "://" not in options.reconciler:
        raise BadUsage(
            f"--reconciler is a URL such as http://host:port, reconciler=`{options.reconciler}`"
        )
    if options.tail:
        asyncio.run(
            _with_searcher(
                (store, spool), settings, lambda one: _follow(one, question, options, json)
            )
        )
        return

    async def search(searcher: "Searcher") -> "tuple[QueryResult, tuple[str, ...]]":
        result = await searcher.search(question)
        empty = not (json or result.summary.results or result.summary.partial)
        return result, await _explain_empty(searcher, options) if empty else ()

    result, hints = asyncio.run(_with_searcher((store, spool), settings, search))
    if json:
        from sluice_query.result import result_lines  # noqa: PLC0415 - imports numpy

        for line in result_lines(result):
            sys.stdout.buffer.write(line)
        sys.stdout.flush()
    else:
        _print(result, question, hints)


async def _explain_empty(searcher: "Searcher", options: QueryOptions) -> tuple[str, ...]:
    """Return a line for each name of a query without results that no record of its range has."""
    from sluice_cli.shell.settings import near_names  # noqa: PLC0415 - only without results
    from sluice_query.parameters import parse_fields, parse_values  # noqa: PLC0415 - numpy
    from sluice_query.views import FieldListResult, TopValuesResult  # noqa: PLC0415

    kind = "metrics" if options.metric is not None else options.kind
    given = {"from": [options.since or _default_from(options)], "to": [options.until]}
    given["kind"] = [kind]
    now_ns = SystemClock().now_ns()

    async def values_of(field_name: str) -> list[str]:
        wanted = {**given, "field": [field_name], "limit": [str(_NAMES_MAX)]}
        found = (await searcher.search(parse_values(wanted, now_ns, flag_of))).view
        return (
            [str(one.value) for one in found.values] if isinstance(found, TopValuesResult) else []
        )

    async def fields() -> list[str]:
        found = (await searcher.search(parse_fields(given, now_ns, flag_of))).view
        return [one.field for one in found.fields] if isinstance(found, FieldListResult) else []

    query = parse_values({**given, "field": ["agent_id"]}, now_ns, flag_of)
    if kind != "entries" and not (await searcher.search(query)).summary.results:
        return (f"no {kind} at all in this time range: try an earlier --from, or another --kind",)
    checked: list[tuple[str, str, list[str]]] = []
    if options.metric is not None:
        checked.append(("metric", options.metric, await values_of("name")))
    checked += [("agent", one, await values_of("agent_id")) for one in options.agent]
    named = [parse_filter(one, kind).field.name for one in options.filter]
    named += [] if options.of is None else [parse_field(options.of, kind).name]
    if named:
        known = await fields()
        checked += [("field", one, known) for one in named]
    return tuple(
        f"{_NONE[what]} in the time range{near_names(name, known)}, {what}=`{name}`"
        for what, name, known in checked
        if name not in known
    )


@app.command
def serve(
    *,
    store: StoreUrl = STORE_DEFAULT,
    spool: SpoolUrl = None,
    serving: Annotated[ServeSettings, Parameter(name="*")] = _SERVING,
    settings: Annotated[QuerySettings, Parameter(name="*")] = _SETTINGS,
    json: Json = False,
) -> None:
    """Serve searches, histograms, fields and live tails over HTTP until SIGTERM.

    Without a token it listens on a loopback address only.

    Args:
        store: The store to search.
        spool: The spool of the gateway that transfers to this store.
        serving: The address and the token.
        settings: Limits of each query.
        json: Print the address as JSON.
    """
    from sluice_query.http.service import serve_queries  # noqa: PLC0415 - imports the web server

    def say(url: str) -> None:
        sys.stdout.write(f'{{"url":"{url}"}}\n' if json else f"listening on {url}\n")
        sys.stdout.flush()

    asyncio.run(
        _with_searcher((store, spool), settings, lambda one: serve_queries(one, serving, say))
    )


@app.command
def dead_letters(
    *,
    agent: Annotated[str | None, Parameter(help="Only this agent.")] = None,
    limit: Annotated[int, Parameter(help="Most dead letters, those accepted last.")] = 100,
    store: StoreUrl = STORE_DEFAULT,
    json: Json = False,
) -> int:
    """List accepted batches that could not be ingested, and why.

    Returns:
        0 if there are none, 1 if there are some.
    """
    from sluice_query.dead_letters import list_dead_letters  # noqa: PLC0415 - imports DuckDB

    found = asyncio.run(
        _with_searcher((store, None), _SETTINGS, lambda one: list_dead_letters(one, agent, limit))
    )
    emit(found, as_json=json, human=lambda console: _draw_dead_letters(console, found))
    return 1 if found.dead_letters else 0


async def _follow(searcher: "Searcher", question: Query, options: QueryOptions, json: bool) -> None:  # noqa: FBT001
    if question.series is not None or question.stats_only:
        raise BadUsage("--tail follows records: omit --metric, --of and --stats-only")
    from sluice_query.following import (  # noqa: PLC0415 - imports numpy
        TIMEOUT_S,
        LiveRecordsClient,
        follow,
        follow_live,
    )

    if options.reconciler is None:
        polled = replace(searcher, lists_accepted=False)
        await _tell(follow(polled.search, polled.clock, question), json)
        return
    if searcher.spool is not None:
        raise BadUsage("--reconciler does not cover a spool: omit one of them")
    import aiohttp  # noqa: PLC0415 - only for following a reconciler

    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        source = LiveRecordsClient(
            session=session, url=options.reconciler, token=options.reconciler_token
        )
        await _tell(follow_live(searcher, question, source), json)


async def _tell(results: AsyncIterator["QueryResult"], json: bool) -> None:  # noqa: FBT001
    told: tuple[str, ...] = ()
    async for result in results:
        for row in result.records:
            sys.stdout.write(_line_of(result.kind, row, json) + "\n")
        sys.stdout.flush()
        # Print each reason once, when it changes, not once a second.
        if result.summary.reasons != told:
            told = result.summary.reasons
            reasons = "".join(f"partial: {printable_text(reason)}\n" for reason in told)
            sys.stderr.write(f"{reasons}{result.summary.until_text}\n")


def _line_of(kind: Kind, row: dict[str, object], json: bool) -> str:  # noqa: FBT001
    from sluice_query.result import record_json  # noqa: PLC0415 - imports numpy

    return msgspec.json.encode(record_json(kind, row)).decode() if json else _line(kind, row)


async def _with_searcher(
    urls: tuple[str, str | None],
    settings: QuerySettings,
    work: Callable[["Searcher"], Awaitable[_Result]],
) -> _Result:
    from sluice_query.engine import keep_pandas_out  # noqa: PLC0415 - imports pyarrow and DuckDB
    from sluice_query.search import Searcher  # noqa: PLC0415 - imports numpy
    from sluice_query.unqueued import attach_spool  # noqa: PLC0415
    from sluice_store import StoreMode, open_store, read_authority  # noqa: PLC0415

    keep_pandas_out()
    store_url, spool_url = urls
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(store_url, StoreMode.READ))
        authority = await read_authority(store)
        spool = None
        if spool_url is not None:
            local = await stack.enter_async_context(open_store(spool_url, StoreMode.READ))
            spool = await attach_spool(local, authority)
        searcher = Searcher(
            store=store, store_url=store_url, settings=settings, clock=SystemClock(), spool=spool
        )
        return await work(searcher)


def _print(result: "QueryResult", question: Query, hints: tuple[str, ...]) -> None:
    if question.series is not None:
        from sluice_query.plot import draw_series  # noqa: PLC0415 - imports plotext

        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        sys.stdout.write(draw_series(question.series, result.points, width, result.summary))
    if result.view is not None:
        _print_view(result.view)
    for row in result.records:
        sys.stdout.write(_line(result.kind, row) + "\n")
    sys.stdout.flush()
    for line in (*describe_summary(result.summary).split("\n"), *hints):
        sys.stderr.write(printable_text(line) + "\n")  # names of fields are from senders
    if not hints and not result.summary.results and not result.summary.partial:
        sys.stderr.write(
            "no match; what was accepted in the last seconds may follow: repeat the query, or use"
            " --tail\n"
        )


def _print_view(view: "ViewResult") -> None:
    from sluice_query.plot import draw_histogram, draw_values  # noqa: PLC0415 - imports numpy
    from sluice_query.views import HistogramResult, TopValuesResult  # noqa: PLC0415 - the same

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    if isinstance(view, HistogramResult):
        sys.stdout.write(draw_histogram(view, width))
    elif isinstance(view, TopValuesResult):
        sys.stdout.write(draw_values(view, width))
        if view.sampled:
            sys.stderr.write(f"of the first {view.records} records: choose a shorter time range\n")


def _line(kind: Kind, row: dict[str, object]) -> str:
    ts_ns = row["ts_ns"]
    when = format_rfc3339(int(str(ts_ns))) if ts_ns is not None else "-"
    shown = [one for one in KINDS[kind].own_fields if one.is_shown]
    what = " ".join(_shown_value(one, row[one.name]) for one in shown)
    sender = (kind == "spans" and row["service"]) or row["agent_id"]
    line = f"{when} {sender} {what}"
    return _terminal_text(line) if sys.stdout.isatty() else line


def _shown_value(field: Field, value: object) -> str:
    if field.labels:
        return field.labels[int(str(value))]
    return format_duration(int(str(value))) if field.type is FieldType.LONG else str(value)


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


_UNIT_END = 1_000


def _terminal_text(text: str) -> str:
    """Return a record for a terminal: it executes nothing, and further lines are indented.

    Otherwise a sender of records could write to the terminal, or imitate another record.
    """
    return "\n    ".join(printable_text(one, kept="\t") for one in text.split("\n"))


def describe_summary(summary: "QuerySummary") -> str:
    """Format a summary as text."""
    span = f" from {summary.first_ts} to {summary.last_ts}" if summary.first_ts else ""
    more = " (more match: raise --limit)" if summary.more else ""
    facts = (
        f"{summary.results} results{more}{span}",
        f"read {summary.segments_read} segments, {format_size(summary.bytes_read)}",
        f"pruned {summary.segments_pruned}",
        f"{summary.waiting_batches} batches not in the lake yet",
        summary.until_text + (f", held back by {summary.held_by}" if summary.held_by else ""),
        f"{summary.elapsed_ms} ms",
    )
    lines = ["; ".join(facts)]
    if summary.rollups_only_before is not None:
        lines.append(f"from rollups only before {summary.rollups_only_before}")
    lines += [f"partial: {reason}" for reason in summary.reasons]
    return "\n".join(lines)


def _draw_dead_letters(console: "Console", found: "DeadLetterList") -> None:
    """Print dead letters, each with the command that shows its whole path."""
    for one in found.dead_letters:
        name = format_identity(one)
        console.print(f"{name}: {one.reason}, {one.record_count} records of kind {one.kind}")
        console.print(f"  accepted {one.accepted_at}, last tried {one.observed_at}")
        console.print(f"  {one.detail}")
    console.print(f"{'more than ' if found.more else ''}{len(found.dead_letters)} dead letters")
