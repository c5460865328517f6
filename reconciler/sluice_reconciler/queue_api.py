"""Queues over HTTP: claim entries under a lease, commit them, return them, extend the lease."""

from collections.abc import Mapping
from typing import Final

import msgspec
from aiohttp import web

from sluice_protocol.errors import BadUsage
from sluice_reconciler.http_queue import CLAIMS_MAX, ClaimedEntry, HttpQueue
from sluice_web.endpoints import Endpoint
from sluice_web.json_bodies import decode_body, json_response
from sluice_web.parameters import IntegerParameter, TextParameter

QUEUE: Final = TextParameter(name="queue")
_CONSUMER: Final = TextParameter(name="consumer")
_COUNT: Final = IntegerParameter(name="max", default=1, maximum=CLAIMS_MAX)


class LeaseIds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of commit, failed and heartbeat; `queue` is optional where there is one queue."""

    lease_ids: list[str]
    queue: str | None = None


class ClaimedEntries(msgspec.Struct, frozen=True):
    """Entries that were claimed."""

    queue: str
    entries: list[ClaimedEntry]


class CommittedCount(msgspec.Struct, frozen=True):
    """How many entries were committed."""

    committed: int


class ReturnedCount(msgspec.Struct, frozen=True):
    """How many entries were returned to the queue."""

    returned: int


class ExtendedCount(msgspec.Struct, frozen=True):
    """How many leases were extended."""

    extended: int


class QueueApi:
    """The endpoints over the queues that one reconciler serves."""

    def __init__(self, queues: Mapping[str, HttpQueue]) -> None:
        self._queues = queues

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints."""
        return (
            Endpoint(
                method="GET",
                path="/v1/queue/next",
                handler=self._next,
                summary="Claim entries under a lease",
                parameters=(QUEUE, _COUNT, _CONSUMER),
                result=ClaimedEntries,
            ),
            Endpoint(
                method="POST",
                path="/v1/queue/commit",
                handler=self._commit,
                summary="Commit claimed entries",
                body=LeaseIds,
                result=CommittedCount,
            ),
            Endpoint(
                method="POST",
                path="/v1/queue/failed",
                handler=self._failed,
                summary="Return claimed entries to the queue",
                body=LeaseIds,
                result=ReturnedCount,
            ),
            Endpoint(
                method="POST",
                path="/v1/queue/heartbeat",
                handler=self._heartbeat,
                summary="Extend the leases of claimed entries",
                body=LeaseIds,
                result=ExtendedCount,
            ),
        )

    def _queue(self, name: str | None) -> HttpQueue:
        """Return the queue of a request, which may leave the name out where there is one queue."""
        if name is None and len(self._queues) == 1:
            return next(iter(self._queues.values()))
        if name is None or name not in self._queues:
            known = ", ".join(self._queues) or "none; set http_queues"
            raise BadUsage(f"no such queue over HTTP, queue=`{name}`, known=`{known}`")
        return self._queues[name]

    async def _next(self, request: web.Request) -> web.Response:
        count = _COUNT.read(request.query)
        queue = self._queue(QUEUE.read(request.query))
        claims = await queue.claim(count, _CONSUMER.read(request.query) or "")
        return json_response(ClaimedEntries(queue.queue, claims))

    async def _leases(self, request: web.Request) -> tuple[HttpQueue, list[str]]:
        body = decode_body(await request.read(), LeaseIds)
        return self._queue(body.queue), body.lease_ids

    async def _commit(self, request: web.Request) -> web.Response:
        queue, lease_ids = await self._leases(request)
        return json_response(CommittedCount(await queue.commit(lease_ids)))

    async def _failed(self, request: web.Request) -> web.Response:
        queue, lease_ids = await self._leases(request)
        await queue.fail(lease_ids)
        return json_response(ReturnedCount(len(lease_ids)))

    async def _heartbeat(self, request: web.Request) -> web.Response:
        queue, lease_ids = await self._leases(request)
        await queue.extend(lease_ids)
        return json_response(ExtendedCount(len(lease_ids)))
