"""`sluice query`: search records, draw metrics, serve the same over HTTP."""

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

import aiohttp
import msgspec
from cyclopts import App, Parameter

from sluice_cli.common import STORE_DEFAULT, Json, StoreUrl
from sluice_cli.output import format_size
from sluice_protocol.errors import BadUsage
from sluice_protocol.manifests import Kind
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.timestamps import format_rfc3339
from sluice_protocol.units import UnixNs
from sluice_query.answer import Answer, Summary, answer_lines, record_json
from sluice_query.following import follow
from sluice_query.live import TIMEOUT_S, Reconciler, follow_live
from sluice_query.plot import draw_series
from sluice_query.request import (
    LIMIT_DEFAULT,
    Aggregate,
    Query,
    Series,
    check_query,
    parse_duration,
    parse_instant,
    parse_pair,
)
from sluice_query.search import Searcher
from sluice_query.service import serve_queries
from sluice_query.settings import QuerySettings, ServeSettings
from sluice_query.spooled import attach_spool
from sluice_store import open_store, read_authority
from sluice_store.url import parse_local_path

app = App(name="query", help="Search records by time, text and agent.")

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a person asks.

    Attributes:
        since: First instant: RFC 3339, Unix ns, `now`, or a duration ago like `15m`; 1h ago
            without it, 1m ago with `--tail`; with a reconciler whatever it holds.
        until: End, not included; the same forms.
        q: Text that a log's body, or a metric's name, must contain.
        regex: Take the text as an RE2 pattern.
        ignore_case: Match letters in either case.
        kind: Kind of the records.
        agent: Only these agents.
        attribute: Only records with these attributes, each `KEY=VALUE`; the resource counts too.
        stats_only: Count, and print no records.
        limit: Most records to print.
        newest_first: Print the latest records first.
        metric: Make a series of this metric.
        step: Width of a step of the series, like `1m`.
        agg: How the points of one step become one value.
        by_agent: Give each agent a series of its own.
        tail: Go on and print what is new, until interrupted; `--to` is not looked at.
        reconciler: With `--tail`, take new records from this reconciler, `http://host:port`, as
            soon as it has read them, instead of asking the store every second.
        reconciler_token: Its `api_token`; better in the environment than in a command line.
    """

    since: Annotated[str | None, Parameter(name="--from")] = None
    until: Annotated[str, Parameter(name="--to")] = "now"
    q: Annotated[str | None, Parameter(name=("--text", "-q"))] = None
    regex: Annotated[bool, Parameter(negative="")] = False
    ignore_case: Annotated[bool, Parameter(name=("--ignore-case", "-i"), negative="")] = False
    kind: Kind = "logs"
    agent: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    attribute: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    stats_only: Annotated[bool, Parameter(negative="")] = False
    limit: int = LIMIT_DEFAULT
    newest_first: Annotated[bool, Parameter(negative="")] = False
    metric: str | None = None
    step: str = "1m"
    agg: Aggregate = Aggregate.AVG
    by_agent: Annotated[bool, Parameter(negative="")] = False
    tail: Annotated[bool, Parameter(negative="")] = False
    reconciler: str | None = None
    reconciler_token: str = field(default="", repr=False)


def _must_be_spool(kind: object, url: object) -> None:
    """Refuses what is no directory: opening it would make an empty one."""
    del kind
    if isinstance(url, str) and not parse_local_path(url).is_dir():
        raise ValueError("no spool stands there: give the gateway's --spool")


SpoolUrl = Annotated[
    str | None,
    Parameter(
        name="--spool",
        validator=_must_be_spool,
        help="The gateway's spool directory, file:///path: what waits there is searched too.",
    ),
]
"""The spool of a gateway that accepts by `local_spool`, as the gateway's own `--spool`."""

_ASKED = Asked()
_SETTINGS = QuerySettings()
_SERVING = ServeSettings()


def query_of(asked: Asked, now_ns: UnixNs) -> Query:
    """Gives the query that a person's words mean.

    Raises:
        BadUsage: A time, duration or attribute has another form.
    """
    series = None
    if asked.metric is not None:
        series = Series(
            metric=asked.metric,
            step_ns=parse_duration(asked.step),
            aggregate=asked.agg,
            by_agent=asked.by_agent,
        )
    return Query(
        from_ns=parse_instant(asked.since or _since(asked), now_ns),
        to_ns=parse_instant(asked.until, now_ns),
        kind="metrics" if series else asked.kind,
        text=asked.q,
        regex=asked.regex,
        ignore_case=asked.ignore_case,
        agents=asked.agent,
        attributes=tuple(parse_pair(text) for text in asked.attribute),
        stats_only=asked.stats_only,
        limit=asked.limit,
        newest_first=asked.newest_first,
        series=series,
    )


def _since(asked: Asked) -> str:
    if asked.reconciler is not None:
        return "0"  # it holds what was accepted lately, however old the records are
    return "1m" if asked.tail else "1h"


@app.default
def query(
    *,
    store: StoreUrl = STORE_DEFAULT,
    spool: SpoolUrl = None,
    asked: Annotated[Asked, Parameter(name="*")] = _ASKED,
    settings: Annotated[QuerySettings, Parameter(name="*")] = _SETTINGS,
    json: Json = False,
) -> None:
    """Searches the lake and what is not in it yet.

    With `--json` each record is a line of JSON, and the last line is the summary.
    """
    question = query_of(asked, SystemClock().now_ns())
    if asked.reconciler is not None and not asked.tail:
        raise BadUsage("a reconciler has live records only: give --tail, or leave it out")
    if asked.tail:
        asyncio.run(
            _with_searcher(
                (store, spool), settings, lambda one: _follow(one, question, asked, json)
            )
        )
        return
    answer = asyncio.run(_with_searcher((store, spool), settings, lambda one: one.answer(question)))
    if json:
        for line in answer_lines(answer):
            sys.stdout.buffer.write(line)
        sys.stdout.flush()
    else:
        _print(answer, question)


@app.command
def serve(
    *,
    store: StoreUrl = STORE_DEFAULT,
    spool: SpoolUrl = None,
    serving: Annotated[ServeSettings, Parameter(name="*")] = _SERVING,
    settings: Annotated[QuerySettings, Parameter(name="*")] = _SETTINGS,
    json: Json = False,
) -> None:
    """Serves `GET /v1/query` as streamed NDJSON until SIGTERM, to those who hold its token.

    Without a token it listens on a loopback address only.

    Args:
        store: The store to search.
        spool: The spool of the gateway that lands on it.
        serving: Where it listens, and to whom.
        settings: Bounds of each query.
        json: Print where it listens as JSON.
    """

    def say(url: str) -> None:
        sys.stdout.write(f'{{"url":"{url}"}}\n' if json else f"listening on {url}\n")
        sys.stdout.flush()

    asyncio.run(
        _with_searcher((store, spool), settings, lambda one: serve_queries(one, serving, say))
    )


async def _follow(searcher: Searcher, question: Query, asked: Asked, json: bool) -> None:  # noqa: FBT001
    if question.series is not None or question.stats_only:
        raise BadUsage("--tail follows records: leave out --metric and --stats-only")
    check_query(question)
    if asked.reconciler is None:
        await _tell(follow(searcher, question), json)
        return
    if searcher.spool is not None:
        raise BadUsage("a reconciler knows nothing of a spool: leave one of them out")
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        source = Reconciler(session=session, url=asked.reconciler, token=asked.reconciler_token)
        await _tell(follow_live(searcher, question, source), json)


async def _tell(answers: AsyncIterator[Answer], json: bool) -> None:  # noqa: FBT001
    told: tuple[str, ...] = ()
    async for answer in answers:
        for row in answer.records:
            sys.stdout.write(_line_of(answer.kind, row, json) + "\n")
        sys.stdout.flush()
        # What is wrong is said when it changes, not once a second.
        if answer.summary.reasons != told:
            told = answer.summary.reasons
            sys.stderr.write("".join(f"partial: {reason}\n" for reason in told))


def _line_of(kind: Kind, row: dict[str, object], json: bool) -> str:  # noqa: FBT001
    return msgspec.json.encode(record_json(kind, row)).decode() if json else _line(kind, row)


async def _with_searcher(
    urls: tuple[str, str | None],
    settings: QuerySettings,
    work: Callable[[Searcher], Awaitable[_Result]],
) -> _Result:
    store_url, spool_url = urls
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(store_url))
        authority = await read_authority(store)
        spool = None
        if spool_url is not None:
            local = await stack.enter_async_context(open_store(spool_url))
            spool = await attach_spool(local, authority)
        searcher = Searcher(
            store=store, store_url=store_url, settings=settings, clock=SystemClock(), spool=spool
        )
        return await work(searcher)


def _print(answer: Answer, question: Query) -> None:
    if question.series is not None:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        sys.stdout.write(draw_series(question.series, answer.points, width))
    for row in answer.records:
        sys.stdout.write(_line(answer.kind, row) + "\n")
    sys.stdout.flush()
    sys.stderr.write(describe(answer.summary) + "\n")


def _line(kind: Kind, row: dict[str, object]) -> str:
    ts_ns = row["ts_ns"]
    when = format_rfc3339(int(str(ts_ns))) if ts_ns is not None else "-"
    match kind:
        case "logs":
            what = str(row["body"])
        case "metrics":
            what = f"{row['name']} {row['value']}"
        case "entries":
            what = f"{row['key']!r} {row['value']!r}"
    return f"{when} {row['agent_id']} {what}"


def describe(summary: Summary) -> str:
    """Gives a summary in one paragraph for people."""
    span = f" from {summary.first_ts} to {summary.last_ts}" if summary.first_ts else ""
    more = " (more match: raise --limit)" if summary.more else ""
    facts = (
        f"{summary.results} results{more}{span}",
        f"read {summary.segments_read} segments, {format_size(summary.bytes_read)}",
        f"pruned {summary.segments_pruned}",
        f"{summary.waiting_batches} batches not in the lake yet",
        f"{summary.elapsed_ms} ms",
    )
    lines = ["; ".join(facts)]
    lines += [f"partial: {reason}" for reason in summary.reasons]
    return "\n".join(lines)
