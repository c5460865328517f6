"""Following a query: by polling the store, or by a reconciler's live records.

A position is an acceptance time through which every record was returned, or a cursor of the live
records. A poll selects what was accepted after the position, so a record is found however old its
own time is. A reconciler returns lines, page by page, soon after they were accepted; which of them
a query needs is decided by the same SQL statement as for the lake. Source: ADR 29.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
import msgspec
import pyarrow as pa

from sluice_lake.records import payload_arrays
from sluice_lake.schemas import TEXT_MAP
from sluice_protocol.authority import SKEW_S_MAX, UPLOAD_TIME_S_MAX
from sluice_protocol.clock import Clock
from sluice_protocol.errors import (
    UNREADABLE_JSON,
    BadUsage,
    ErrorCode,
    ExitCode,
    SluiceError,
    StoreError,
    retryable,
)
from sluice_protocol.fields import Kind
from sluice_protocol.ndjson import columns_from_ndjson
from sluice_protocol.timestamps import parse_rfc3339
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_query.engine import PENDING, open_engine
from sluice_query.request import END_NS, FIRST_NS, LIMIT_MAX, Query
from sluice_query.result import QueryResult, QuerySummary, Row
from sluice_query.search import Searcher, add_highlights, applying_deletes
from sluice_query.statements import RecordSources, records_sql, result_columns
from sluice_store.stored_deletes import read_active_deletes

INTERVAL_S: Final = 1.0
OVERLAP_NS: Final = (UPLOAD_TIME_S_MAX + SKEW_S_MAX + 1) * NS_PER_S
"""How much earlier than it is acknowledged a batch may have been accepted: its time is fixed before
the first try of the manifest, and the store states whole seconds.
"""
UNKNOWN_NS: Final = 60 * NS_PER_S
"""Age of a position where the store does not report one."""

_RecordKey = tuple[object, ...]


async def follow(
    search: Callable[[Query], Awaitable[QueryResult]],
    clock: Clock,
    query: Query,
    after_ns: UnixNs | None = None,
) -> AsyncGenerator[QueryResult]:
    """Yield the latest records of a query, then new ones once a second, without an end.

    Records are oldest first. The first result has at most as many as the query's limit, and its
    summary states whether there are more. The query's time range applies to this result only,
    unless it resumes from `after_ns`: then it has what was accepted later. An error of the first
    query is raised unless there is a position; a later one that may succeed again is repeated, and
    the results state it.
    """
    position_ns, seen = after_ns, frozenset[_RecordKey]()
    # Records over the limit of the query are not shown, and must not appear in a later result.
    wide = replace(query, to_ns=END_NS, newest_first=True, limit=LIMIT_MAX)
    while True:
        wanted = wide
        if position_ns is not None:
            since_ns = UnixNs(max(position_ns - OVERLAP_NS, 0))
            wanted = replace(wide, from_ns=FIRST_NS, accepted_from_ns=since_ns)
        now_ns = clock.now_ns()
        try:
            found = await search(wanted)
        except SluiceError as error:
            if position_ns is None or not retryable(error.code):
                raise
            yield _result(query, [], (str(error),), position=str(position_ns))
            await clock.sleep(INTERVAL_S)
            continue
        first = position_ns is None
        new = [row for row in reversed(found.records) if _key(row) not in seen]
        seen = frozenset(map(_key, found.records))
        position_ns = _next_position(found, position_ns, now_ns)
        more = found.summary.more and bool(new)
        summary = replace(found.summary, results=len(new), more=more)
        found = replace(found, records=new, summary=summary, position=str(position_ns))
        yield newest_of(found, query.limit) if first else found
        await clock.sleep(INTERVAL_S)


def newest_of(found: QueryResult, limit: int) -> QueryResult:
    """Return a result with at most `limit` records, the last of them; it states if others match."""
    if len(found.records) <= limit:
        return found
    summary = replace(found.summary, results=limit, more=True)
    return replace(found, records=found.records[-limit:], summary=summary)


def _next_position(found: QueryResult, position_ns: UnixNs | None, now_ns: UnixNs) -> UnixNs:
    until = found.summary.accepted_until
    reached_ns = now_ns - UNKNOWN_NS if until is None else parse_rfc3339(until)
    return UnixNs(max(reached_ns, position_ns or 0))


def _key(row: Mapping[str, object]) -> _RecordKey:
    return row["agent_id"], row["boot_id"], row["seq"]


PAGE_LINES: Final = 10_000
WAIT_S: Final = 20
TIMEOUT_S: Final = 60
RETRY_S: Final = 2.0
SEEN_MAX: Final = 200_000
"""Number of records remembered, so that none is repeated after a restart of the reconciler."""
_NS_PER_US: Final = 1000
_ENVELOPE: Final = frozenset(
    {"agent_id", "boot_id", "seq", "kind", "accepted_at_unix_ns", "resource"}
)


class ReconcilerUnreachable(SluiceError):
    """The reconciler of a follower could not be reached; a retry may succeed."""

    code = ErrorCode.STORE_UNAVAILABLE
    exit_code = ExitCode.STORE_UNREACHABLE

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url = url
        self.reason = reason

    def __str__(self) -> str:
        return f"reconciler is unreachable: {self.reason}, url=`{self.url}`"


class _PageSummary(msgspec.Struct, frozen=True):
    next: str
    partial: bool = False
    reasons: tuple[str, ...] = ()
    enabled: bool = True
    accepted_until: str | None = None


class _LastLine(msgspec.Struct, frozen=True):
    summary: _PageSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePage:
    """One response of the reconciler.

    Attributes:
        next: The cursor for the records after them.
        enabled: Whether the reconciler keeps live records.
        accepted_until: Every batch that was acknowledged before this time is in the reconciler's
            records, except those that `reasons` name; None if no such time is known.
    """

    lines: tuple[dict[str, Any], ...]
    next: str
    reasons: tuple[str, ...]
    enabled: bool = True
    accepted_until: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRecordsClient:
    """Client of a reconciler's live records."""

    session: aiohttp.ClientSession
    url: str
    token: str = ""

    async def read(self, agents: Sequence[str], after: str | None) -> LivePage:
        """Return the newest records, or those after the cursor `after`; wait for them a while."""
        parameters = {"limit": str(PAGE_LINES)}
        if len(agents) == 1:
            parameters["agent"] = agents[0]
        if after is not None:
            parameters |= {"after": after, "wait": str(WAIT_S)}
        url = f"{self.url.rstrip('/')}/v1/live?{urlencode(parameters)}"
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            async with self.session.get(url, headers=headers) as response:
                return _decode_page(self.url, response.status, await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise ReconcilerUnreachable(self.url, reason) from error


def _decode_page(url: str, status: int, body: bytes) -> LivePage:
    if status == 401:  # noqa: PLR2004 - RFC 9110
        raise BadUsage(f"the reconciler requires its api_token: set reconciler_token, url=`{url}`")
    lines = body.splitlines()
    if status >= 500:  # noqa: PLR2004 - RFC 9110 section 15.6
        raise ReconcilerUnreachable(url, f"status {status}")
    try:
        if status != 200:  # noqa: PLR2004 - RFC 9110
            raise BadUsage(f"no live records at this URL, status=`{status}`, url=`{url}`")
        summary = msgspec.json.decode(lines[-1], type=_LastLine).summary
        found = tuple(map(_decode_line, lines[:-1]))
    except (*UNREADABLE_JSON, IndexError) as error:
        raise BadUsage(f"this is not the API of a reconciler, url=`{url}`") from error
    return LivePage(
        lines=found,
        next=summary.next,
        reasons=summary.reasons,
        enabled=summary.enabled,
        accepted_until=summary.accepted_until,
    )


def _decode_line(line: bytes) -> dict[str, Any]:
    """Return the members of a line; attributes remain JSON, which has all their digits."""
    members = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    return {
        name: one if name == "attributes" else msgspec.json.decode(one)
        for name, one in members.items()
    }


def live_table(kind: Kind, lines: Sequence[dict[str, Any]]) -> pa.Table:
    """Return lines of one kind as a table with the columns that a query returns."""
    payload = [
        msgspec.json.encode({name: value for name, value in line.items() if name not in _ENVELOPE})
        for line in lines
    ]
    columns = columns_from_ndjson(kind, payload)
    count = len(lines)
    accepted = [line["accepted_at_unix_ns"] // _NS_PER_US for line in lines]
    shared = {
        "agent_id": pa.array([line["agent_id"] for line in lines], pa.string()),
        "boot_id": pa.array([line["boot_id"] for line in lines], pa.string()),
        "seq": pa.array([line["seq"] for line in lines], pa.int64()),
        "ts_ns": pa.nulls(count, pa.int64()) if columns.ts is None else pa.array(columns.ts),
        "accepted_at": pa.array(accepted, pa.int64()).view(pa.timestamp("us", tz="UTC")),
        "resource": pa.array([list(line.get("resource", {}).items()) for line in lines], TEXT_MAP),
    }
    resources = [tuple(line.get("resource", {}).items()) for line in lines]
    return pa.table(shared | payload_arrays(columns, resources, [1] * count))


async def select_lines(
    searcher: Searcher, query: Query, lines: Sequence[dict[str, Any]]
) -> list[Row]:
    """Return the lines that match a query and that no delete hides, in time order."""
    if not lines:
        return []
    active = await read_active_deletes(searcher.store, searcher.deletes)
    deletes = applying_deletes(active, query)
    with open_engine(searcher.settings) as engine:
        if query.pipeline is not None:
            from sluice_query.logql.planning import check_pipelines  # noqa: PLC0415 - only for LogQL

            check_pipelines(engine, query)
        # Lines with a time and lines without one cannot be columns of one frame.
        groups = [[line for line in lines if ("ts" in line) is timed] for timed in (True, False)]
        tables = [live_table(query.kind, group) for group in groups if group]
        engine.register_table(PENDING, pa.concat_tables(tables))
        statement = records_sql(query, RecordSources(names=(PENDING,), deletes=deletes))
        found = await engine.bounded(
            lambda: engine.rows(statement), left_s=searcher.settings.time_s_max
        )
        records = [dict(zip(result_columns(query), row, strict=True)) for row in found]
        if query.highlight:
            await engine.bounded(
                lambda: add_highlights(engine, query, records), left_s=searcher.settings.time_s_max
            )
    return records


async def follow_live(
    searcher: Searcher, query: Query, client: LiveRecordsClient, after: str | None = None
) -> AsyncGenerator[QueryResult]:
    """Yield the latest records of a query, then each new one, without an end.

    The end of the query's time range is ignored. The records start after the cursor `after`; with
    None, at the latest ones, at most as many as the query's limit. An error at the first request is
    raised.
    """
    seen: dict[tuple[object, ...], None] = {}
    resumed, started = after is not None, False
    wide = replace(query, to_ns=END_NS, limit=PAGE_LINES)
    while True:
        try:
            page = await client.read(query.agents, after)
        except ReconcilerUnreachable as error:
            if not started:
                raise
            yield _result(query, [], (str(error),), position=after or "")
            await searcher.clock.sleep(RETRY_S)
            continue
        if not started and not page.enabled:
            raise BadUsage(
                f"the reconciler has no live records: set its live_bytes_max, url=`{client.url}`"
            )
        lines = [line for line in page.lines if line["kind"] == query.kind]
        new = [line for line in lines if _key(line) not in seen]
        try:
            rows = await select_lines(searcher, wide, new)
        except StoreError as error:  # the deletes cannot be read: the same page is read again
            if not started:
                raise
            yield _result(query, [], (str(error),), position=after or "")
            await searcher.clock.sleep(RETRY_S)
            continue
        seen |= dict.fromkeys(map(_key, new))
        for old in list(seen)[: max(len(seen) - SEEN_MAX, 0)]:
            del seen[old]
        found = _result(query, rows, page.reasons, page.accepted_until, page.next)
        yield found if started or resumed else newest_of(found, query.limit)
        started, after = True, page.next


def _result(
    query: Query,
    rows: list[Row],
    reasons: tuple[str, ...],
    accepted_until: str | None = None,
    position: str = "",
) -> QueryResult:
    summary = QuerySummary(
        results=len(rows),
        accepted_until=accepted_until,
        partial=bool(reasons),
        reasons=reasons,
    )
    return QueryResult(kind=query.kind, records=rows, summary=summary, position=position)
