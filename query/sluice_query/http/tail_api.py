"""`/v1/tail`: new records as server-sent events, with positions to resume after a pause.

A position is an acceptance time through which every record was returned, or a cursor of a
reconciler's live records. A poll selects what was accepted after the position, so a record is
found however old its own time is.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

import aiohttp
import msgspec
from aiohttp import web

from sluice_protocol.authority import SKEW_S_MAX, UPLOAD_TIME_S_MAX
from sluice_protocol.clock import Clock
from sluice_protocol.errors import BadUsage, SluiceError, retryable
from sluice_protocol.fields import Kind
from sluice_protocol.timestamps import parse_rfc3339
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_query.answer.following import unreadable
from sluice_query.answer.live import TIMEOUT_S, LiveRecordsClient, follow_live
from sluice_query.answer.result import QueryResult, QuerySummary, Row, record_json
from sluice_query.errors import TooManyClients
from sluice_query.http.responses import LateResponse, given_parameters, read_endpoint
from sluice_query.http.runner import QueryRunner
from sluice_query.question.parameters import TAILED, check_given, parse_query
from sluice_query.question.request import END_NS, FIRST_NS, LIMIT_MAX, Query, plain_name
from sluice_query.search import Searcher
from sluice_query.settings import ServeSettings
from sluice_web.endpoints import Endpoint

INTERVAL_S: Final = 1.0
OVERLAP_NS: Final = (UPLOAD_TIME_S_MAX + SKEW_S_MAX + 1) * NS_PER_S
"""How much earlier than it is acknowledged a batch may have been accepted: its time is fixed before
the first try of the manifest, and the store states whole seconds.
"""
UNKNOWN_NS: Final = 60 * NS_PER_S
"""Age of a position where the store does not report one."""
_POLLED: Final = "p."
_LIVE: Final = "r."
_CURSOR_CHARS_MAX: Final = 500


class TailState(msgspec.Struct, frozen=True, kw_only=True):
    """How complete a tail is, and where to resume it.

    Attributes:
        position: Every record that was accepted before it was sent; send it to resume.
        accepted_until: Every batch that was acknowledged before this time was sent; null if no
            such time is known.
        more: Whether older records were left out because there were more than the limit.
    """

    position: str
    accepted_until: str | None = None
    partial: bool = False
    reasons: tuple[str, ...] = ()
    more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TailGroup:
    """New records, oldest first, and the state after them."""

    records: tuple[Row, ...]
    state: TailState


def parse_position(text: str) -> UnixNs | str:
    """Return the acceptance time or the cursor of a position, or raise `BadUsage`."""
    rest = text[len(_POLLED) :]
    if text.startswith(_POLLED) and rest.isascii() and rest.isdecimal() and len(rest) <= 18 + 1:
        return UnixNs(min(int(rest), END_NS))
    if text.startswith(_LIVE) and rest and len(rest) <= _CURSOR_CHARS_MAX:
        return rest
    raise BadUsage(f"after is not a position of this service: omit it, after=`{text[:40]}`")


async def tail_by_polling(
    search: Callable[[Query], Awaitable[QueryResult]],
    clock: Clock,
    query: Query,
    after_ns: UnixNs | None,
) -> AsyncGenerator[TailGroup]:
    """Yield the latest records of a query, then new ones once a second, without an end.

    The query's time range applies to the first group only, unless it resumes from `after_ns`: then
    this group has what was accepted later. An error of the first query is raised unless there is a
    position; a later one that may succeed again is repeated, and the groups state it.
    """
    position_ns, seen = after_ns, frozenset[tuple[object, ...]]()
    # Records over the limit of the query are not shown, and must not appear in a later group.
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
            state = _state_of(unreadable(error), f"{_POLLED}{position_ns}", more=False)
            yield TailGroup(records=(), state=state)
            await clock.sleep(INTERVAL_S)
            continue
        new = [row for row in reversed(found.records) if _key(row) not in seen]
        seen = frozenset(map(_key, found.records))
        position_ns = _next_position(found, position_ns, now_ns)
        more = found.summary.more and bool(new)
        shown = new[-query.limit :]
        more = more or len(new) > len(shown)
        state = _state_of(found.summary, f"{_POLLED}{position_ns}", more=more)
        yield TailGroup(records=tuple(shown), state=state)
        await clock.sleep(INTERVAL_S)


async def tail_live(
    searcher: Searcher, query: Query, client: LiveRecordsClient, after: str | None
) -> AsyncGenerator[TailGroup]:
    """Yield the latest records of a query from a reconciler, then new ones, without an end.

    The end of the query's time range is ignored; `after` is the cursor to resume from.
    """
    async for found in follow_live(searcher, query, client, after):
        shown = found.records[-query.limit :]
        more = len(shown) < len(found.records)
        state = _state_of(found.summary, f"{_LIVE}{found.position}", more=more)
        yield TailGroup(records=tuple(shown), state=state)


def _next_position(found: QueryResult, position_ns: UnixNs | None, now_ns: UnixNs) -> UnixNs:
    until = found.summary.accepted_until
    reached_ns = now_ns - UNKNOWN_NS if until is None else parse_rfc3339(until)
    return UnixNs(max(reached_ns, position_ns or 0))


def _state_of(summary: QuerySummary, position: str, *, more: bool) -> TailState:
    return TailState(
        position=position,
        accepted_until=summary.accepted_until,
        partial=summary.partial,
        reasons=summary.reasons,
        more=more,
    )


def _key(row: Row) -> tuple[object, ...]:
    return row["agent_id"], row["boot_id"], row["seq"]


EVENT_STREAM: Final = "text/event-stream"
TAILS_MAX: Final = 32
HEARTBEAT_S: Final = 10.0
_AFTER: Final = "after"
_FROM_DEFAULT: Final = "1m"
_LAST_EVENT_ID: Final = "Last-Event-ID"


class TailApi:
    """The endpoint of the live tail."""

    def __init__(self, runner: QueryRunner, settings: ServeSettings) -> None:
        self._runner = runner
        self._settings = settings
        self._open = 0

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints."""
        return (
            read_endpoint(
                path="/v1/tail",
                handler=self._send_tail,
                summary="Return new records as server-sent events, without an end",
                parameters=TAILED,
                result_type=EVENT_STREAM,
            ),
        )

    async def _send_tail(self, request: web.Request) -> web.StreamResponse:
        given = given_parameters(request)
        check_given(given, TAILED, plain_name)
        # A browser that resumes repeats the URL, so the header is newer than the parameter.
        named = given.pop(_AFTER, ("",))[0]
        position = request.headers.get(_LAST_EVENT_ID, "") or named
        given.setdefault("from", (_FROM_DEFAULT,))
        searcher = self._runner.searcher
        query = parse_query(given, searcher.clock.now_ns(), known=TAILED)
        if self._open >= TAILS_MAX:
            raise TooManyClients("clients follow", TAILS_MAX)
        self._open += 1
        try:
            async with self._groups(query, position) as groups:
                limit_s = self._settings.tail_s_max
                return await _send_groups(request, query.kind, groups, limit_s)
        finally:
            self._open -= 1

    @asynccontextmanager
    async def _groups(
        self, query: Query, position: str
    ) -> AsyncIterator[AsyncGenerator[TailGroup]]:
        searcher, url = self._runner.searcher, self._settings.reconciler
        after = parse_position(position) if position else None
        if not url:
            if isinstance(after, str):
                raise BadUsage("after is a position of a reconciler: omit it")
            polled = replace(searcher, lists_accepted=False)

            async def poll(query: Query) -> QueryResult:
                async with self._runner.running:
                    return await polled.search(query)

            async with aclosing(tail_by_polling(poll, searcher.clock, query, after)) as groups:
                yield groups
            return
        if isinstance(after, int):
            raise BadUsage("after is a position without a reconciler: omit it")
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            token = self._settings.reconciler_token
            client = LiveRecordsClient(session=session, url=url, token=token)
            async with aclosing(tail_live(searcher, query, client, after)) as groups:
                yield groups


async def _send_groups(
    request: web.Request, kind: Kind, groups: AsyncGenerator[TailGroup], limit_s: float
) -> web.StreamResponse:
    """Send groups as events, and a heartbeat while there are none, for a limited time."""
    response = LateResponse(request, {"Content-Type": EVENT_STREAM, "Cache-Control": "no-store"})
    sent: TailState | None = None
    loop = asyncio.get_running_loop()
    sent_at, end = loop.time(), loop.time() + limit_s
    following = asyncio.ensure_future(anext(groups))
    try:
        while loop.time() < end or sent is None:
            wait_s = HEARTBEAT_S if sent is None else min(HEARTBEAT_S, end - loop.time())
            await asyncio.wait({following}, timeout=wait_s)
            if not following.done():
                if sent is not None:
                    await response.write(b": heartbeat\n\n")
                    await response.flush()
                continue
            group = following.result()
            following = asyncio.ensure_future(anext(groups))
            changed = sent is None or _shown(group.state) != _shown(sent)
            if group.records or changed or loop.time() - sent_at >= HEARTBEAT_S:
                await response.write(b"".join(_events(kind, group)))
                await response.flush()
                sent, sent_at = group.state, loop.time()
    except SluiceError as error:
        if not response.started:
            raise
        await response.write(_event("problem", response.problem(error)))
    finally:
        following.cancel()
        await asyncio.wait({following})
    return await response.finish()


def _events(kind: Kind, group: TailGroup) -> list[bytes]:
    events = [_event("record", record_json(kind, row)) for row in group.records]
    state = _event("state", group.state)
    return [*events, b"id: " + group.state.position.encode() + b"\n" + state]


def _event(name: str, value: object) -> bytes:
    # JSON has no line breaks outside of strings, and those inside are escaped.
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(value))


def _shown(state: TailState) -> tuple[object, ...]:
    """Return what a client must learn when it changes; the times change with each poll."""
    return state.partial, state.reasons, state.more
