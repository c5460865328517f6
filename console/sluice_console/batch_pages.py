"""The endpoints of the page about batches: their list, and the path of one."""

from typing import Final

from aiohttp import web

from sluice_protocol.clock import Clock
from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import ACCEPTED
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_reconciler.batch_lists import BatchPage, read_batches, read_newest_batches
from sluice_reconciler.explain import BatchPath, ReadLake, explain, parse_subject
from sluice_store.port import ObjectStore
from sluice_web.endpoints import Endpoint
from sluice_web.json_bodies import json_response
from sluice_web.parameters import AgentParameter, IntegerParameter, TextParameter

AHEAD_S: Final = 60
"""How far the clock of the store may be ahead of this machine's, seconds."""
_AGENT: Final = AgentParameter()
_AFTER: Final = TextParameter(name="after", chars_max=2000)
_BEFORE: Final = TextParameter(name="before", chars_max=19)
_LIMIT: Final = IntegerParameter(name="limit", default=100, maximum=500)
_SUBJECT: Final = TextParameter(name="subject", chars_max=2000)


class BatchPages:
    """The endpoints about batches, which read the store and the lake."""

    def __init__(self, store: ObjectStore, clock: Clock, read_lake: ReadLake) -> None:
        self._store = store
        self._clock = clock
        self._read_lake = read_lake

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints."""
        return (
            Endpoint(
                method="GET",
                path="/v1/batches",
                handler=self._list_batches,
                summary="List the newest accepted batches, or those of one agent",
                parameters=(_AGENT, _AFTER, _BEFORE, _LIMIT),
                result=BatchPage,
            ),
            Endpoint(
                method="GET",
                path="/v1/batches/path",
                handler=self._explain,
                summary="Return the path of a batch, named by identity, record, key or sha256",
                parameters=(_SUBJECT,),
                result=list[BatchPath],
            ),
        )

    async def _list_batches(self, request: web.Request) -> web.Response:
        agent, limit = _AGENT.read(request.query), _LIMIT.read(request.query)
        if agent is not None:
            after = _AFTER.read(request.query) or ""
            if after and not after.startswith(ACCEPTED):
                raise BadUsage(f"after must be the `next` of an earlier page, after=`{after[:80]}`")
            return json_response(await read_batches(self._store, agent, limit, after))
        # Entries may be dated slightly ahead of this machine's clock.
        before_ns, ahead_s = self._clock.now_ns() + AHEAD_S * NS_PER_S, AHEAD_S
        before = _BEFORE.read(request.query)
        if before is not None:
            if not (before.isascii() and before.isdecimal()):
                raise BadUsage(f"before must be a time in Unix ns, before=`{before}`")
            before_ns, ahead_s = UnixNs(int(before)), 0
        page = await read_newest_batches(self._store, before_ns, limit, ahead_s=ahead_s)
        return json_response(page)

    async def _explain(self, request: web.Request) -> web.Response:
        subject = parse_subject((_SUBJECT.read(request.query) or "").strip())
        return json_response(await explain(self._store, subject, self._read_lake))
