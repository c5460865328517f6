"""`/v1/tail`: new records as server-sent events, with positions to resume after a pause."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Final

import aiohttp
import msgspec
from aiohttp import web

from sluice_protocol.errors import BadUsage, SluiceError
from sluice_protocol.units import UnixNs
from sluice_query.following import TIMEOUT_S, LiveRecordsClient, follow, follow_live, newest_of
from sluice_query.http.responses import LateResponse, given_parameters, read_endpoint
from sluice_query.http.runner import QueryRunner, TooManyClients
from sluice_query.parameters import TAILED, check_given, parse_query
from sluice_query.request import END_NS, Query, plain_name
from sluice_query.result import QueryResult, record_json
from sluice_query.settings import ServeSettings
from sluice_web.endpoints import Endpoint

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


def parse_position(text: str) -> UnixNs | str:
    """Return the acceptance time or the cursor of a position, or raise `BadUsage`."""
    rest = text[len(_POLLED) :]
    if text.startswith(_POLLED) and rest.isascii() and rest.isdecimal() and len(rest) <= 18 + 1:
        return UnixNs(min(int(rest), END_NS))
    if text.startswith(_LIVE) and rest and len(rest) <= _CURSOR_CHARS_MAX:
        return rest
    raise BadUsage(f"after is not a position of this service: omit it, after=`{text[:40]}`")


def tail_state_of(found: QueryResult, prefix: str) -> TailState:
    """Return the state after a group; `prefix` names the kind of its position."""
    summary = found.summary
    return TailState(
        position=f"{prefix}{found.position}",
        accepted_until=summary.accepted_until,
        partial=summary.partial,
        reasons=summary.reasons,
        more=summary.more,
    )


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
        prefix = _LIVE if self._settings.reconciler else _POLLED
        async with self.following(query, position) as groups:
            return await _send_groups(request, query, groups, prefix, self._settings.tail_s_max)

    @asynccontextmanager
    async def following(
        self, query: Query, position: str = ""
    ) -> AsyncIterator[AsyncGenerator[QueryResult]]:
        """Follow a query, by polling or from a reconciler; refuse it if too many others do."""
        if self._open >= TAILS_MAX:
            raise TooManyClients("clients follow", TAILS_MAX)
        self._open += 1
        try:
            async with self._groups(query, position) as groups:
                yield groups
        finally:
            self._open -= 1

    @asynccontextmanager
    async def _groups(
        self, query: Query, position: str
    ) -> AsyncIterator[AsyncGenerator[QueryResult]]:
        searcher, url = self._runner.searcher, self._settings.reconciler
        after = parse_position(position) if position else None
        if not url:
            if isinstance(after, str):
                raise BadUsage("after is a position of a reconciler: omit it")
            polled = replace(searcher, lists_accepted=False)

            async def poll(query: Query) -> QueryResult:
                async with self._runner.running:
                    return await polled.search(query)

            async with aclosing(follow(poll, searcher.clock, query, after)) as groups:
                yield groups
            return
        if isinstance(after, int):
            raise BadUsage("after is a position without a reconciler: omit it")
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            token = self._settings.reconciler_token
            client = LiveRecordsClient(session=session, url=url, token=token)
            async with aclosing(follow_live(searcher, query, client, after)) as groups:
                yield groups


async def _send_groups(
    request: web.Request,
    query: Query,
    groups: AsyncGenerator[QueryResult],
    prefix: str,
    limit_s: float,
) -> web.StreamResponse:
    """Send groups as events, and a heartbeat while there are none, for a limited time.

    Each group has at most as many records as the query's limit.
    """
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
            group = newest_of(following.result(), query.limit)
            following = asyncio.ensure_future(anext(groups))
            state = tail_state_of(group, prefix)
            changed = sent is None or _shown(state) != _shown(sent)
            if group.records or changed or loop.time() - sent_at >= HEARTBEAT_S:
                await response.write(b"".join(_events(group, state)))
                await response.flush()
                sent, sent_at = state, loop.time()
    except SluiceError as error:
        if not response.started:
            raise
        await response.write(_event("problem", response.problem(error)))
    finally:
        following.cancel()
        await asyncio.wait({following})
    return await response.finish()


def _events(group: QueryResult, state: TailState) -> list[bytes]:
    events = [_event("record", record_json(group.kind, row)) for row in group.records]
    return [*events, b"id: " + state.position.encode() + b"\n" + _event("state", state)]


def _event(name: str, value: object) -> bytes:
    # JSON has no line breaks outside of strings, and those inside are escaped.
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(value))


def _shown(state: TailState) -> tuple[object, ...]:
    """Return what a client must learn when it changes; the times change with each poll."""
    return state.partial, state.reasons, state.more
