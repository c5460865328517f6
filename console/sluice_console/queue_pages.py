"""The queue page: lanes with owners and consumers, what is held back, and what feeds them."""

import asyncio
from typing import Final

import msgspec
from aiohttp import web

from sluice_console.gateway_health import GatewayHealth
from sluice_console.reconcilers import ServiceClient, ServiceFailed
from sluice_console.sampler import Sampler
from sluice_protocol.journals import HoldRecord
from sluice_protocol.units import ObjectKey
from sluice_queue.inspection import LaneStatus
from sluice_reconciler.discovery import DiscoveryStatus, read_discovery_status
from sluice_reconciler.http_queue import ServedLane
from sluice_reconciler.lanes.defects import read_queue_status
from sluice_reconciler.lanes.membership import read_live_members
from sluice_reconciler.queue_api import ServedLanes
from sluice_reconciler.verify import list_hold_records
from sluice_store.authority import read_authority
from sluice_store.port import ObjectStore
from sluice_web.endpoints import Endpoint
from sluice_web.json_bodies import json_response

HOLDS_MAX: Final = 500
SERVED_S_MAX: Final = 3.0
"""Longest wait for a reconciler; the rest of the page comes from the store."""


class ReconcilerLeases(msgspec.Struct, frozen=True, kw_only=True):
    """The lanes that one reconciler serves to consumers over HTTP.

    Attributes:
        lanes: The lanes, with who holds leases.
        problem: Why they are not known and what to do; empty if they are.
    """

    url: str
    lanes: tuple[ServedLane, ...] = ()
    problem: str = ""


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """The queues, what is held back before them, and the gateways that feed them.

    Attributes:
        lanes: Every lane of every queue, with its owner.
        leases: The leases of consumers over HTTP, by reconciler of the console's settings.
        discovery: How far discovery is.
        held: The held batches; at most 500.
        held_more: Whether there are more.
        held_unreadable: Keys of hold records that cannot be read.
        gateways: The health of each gateway whose metrics are read, in the newest sample.
    """

    lanes: tuple[LaneStatus, ...]
    leases: tuple[ReconcilerLeases, ...]
    discovery: DiscoveryStatus
    held: tuple[HoldRecord, ...]
    held_more: bool
    held_unreadable: tuple[str, ...]
    gateways: tuple[GatewayHealth, ...]


class QueuePages:
    """The endpoint of the queue page."""

    def __init__(
        self, store: ObjectStore, reconcilers: tuple[ServiceClient, ...], sampler: Sampler
    ) -> None:
        self._store = store
        self._reconcilers = reconcilers
        self._sampler = sampler

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoint."""
        return (
            Endpoint(
                method="GET",
                path="/v1/queue",
                handler=self._queue,
                summary="Return the lanes with owners, held batches and gateway processes",
                result=QueueView,
            ),
        )

    async def _queue(self, request: web.Request) -> web.Response:
        del request
        requested = [asyncio.create_task(_read_leases(one)) for one in self._reconcilers]
        try:
            view = await self._read(requested)
        finally:
            for one in requested:
                one.cancel()
        return json_response(view)

    async def _read(self, requested: list[asyncio.Task[ReconcilerLeases]]) -> QueueView:
        lanes = await _read_lanes(self._store)
        held: list[HoldRecord] = []
        damaged: set[ObjectKey] = set()
        async for record in list_hold_records(self._store, damaged):
            if len(held) == HOLDS_MAX:
                break
            held.append(record)
        return QueueView(
            lanes=lanes,
            leases=tuple(await asyncio.gather(*requested)),
            discovery=await read_discovery_status(self._store),
            held=tuple(held),
            held_more=len(held) == HOLDS_MAX,
            held_unreadable=tuple(sorted(damaged)),
            gateways=self._sampler.gateways,
        )


async def _read_lanes(store: ObjectStore) -> tuple[LaneStatus, ...]:
    authority = await read_authority(store)
    members = await read_live_members(store)
    return tuple(await read_queue_status(store, authority.lanes, members=members))


async def _read_leases(client: ServiceClient) -> ReconcilerLeases:
    try:
        async with asyncio.timeout(SERVED_S_MAX):
            found = await client.get("/v1/queue/consumers", ServedLanes)
    except ServiceFailed as error:
        return ReconcilerLeases(url=client.url, problem=str(error))
    except TimeoutError:
        problem = f"no response within {SERVED_S_MAX:g} s: is it overloaded?"
        return ReconcilerLeases(url=client.url, problem=problem)
    return ReconcilerLeases(url=client.url, lanes=tuple(found.lanes))
