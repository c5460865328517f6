"""`/v1/tail`: new records as server-sent events."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Final

import aiohttp
import msgspec
from aiohttp import web

from sluice_protocol.errors import BadUsage, SluiceError
from sluice_protocol.manifests import Kind
from sluice_query.errors import TooManyClients
from sluice_query.live import TIMEOUT_S, LiveRecordsClient
from sluice_query.parameters import TAILED, check_given, parse_query
from sluice_query.read_endpoints import given_parameters, read_endpoint
from sluice_query.request import Query, plain_name
from sluice_query.responses import LateResponse
from sluice_query.result import QueryResult, record_json
from sluice_query.runner import QueryRunner
from sluice_query.settings import ServeSettings
from sluice_query.tailing import (
    TailGroup,
    TailState,
    parse_position,
    tail_by_polling,
    tail_live,
)
from sluice_web.endpoints import Endpoint

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
            # A batch that is not enqueued yet is returned by a later poll: no listing for each.
            settings = replace(searcher.settings, accepted_list_max=0)
            polled = replace(searcher, settings=settings)

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
    """Return what a client has to know when it changes; the times change with each poll."""
    return state.partial, state.reasons, state.more
