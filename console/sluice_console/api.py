"""The JSON API of the console: one group of endpoints for each page."""

import asyncio
from typing import Final, cast

import msgspec
import structlog
from aiohttp import web

from sluice_console.access import conflict_access
from sluice_console.agents import AgentDetail, AgentOrder, AgentPage, AgentReports
from sluice_console.gateway_health import GatewayHealth
from sluice_console.overview import Overview
from sluice_console.reconcilers import ServiceClient, ServiceFailed
from sluice_console.sampler import Sampler
from sluice_protocol.authority import Authority
from sluice_protocol.clock import Clock
from sluice_protocol.conflicts import parse_conflict_id
from sluice_protocol.errors import BadUsage, ErrorCode, StoreError
from sluice_protocol.journals import HoldRecord
from sluice_protocol.keys import ACCEPTED
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_queue.inspection import LaneStatus
from sluice_reconciler.batch_lists import BatchPage, read_batches, read_newest_batches
from sluice_reconciler.discovery import DiscoveryStatus, read_discovery_status
from sluice_reconciler.explain import BatchPath, ReadLake, parse_subject, read_batch_paths
from sluice_reconciler.http_queue import ServedLane
from sluice_reconciler.lanes.defects import read_queue_status
from sluice_reconciler.lanes.membership import read_live_members
from sluice_reconciler.queue_api import ServedLanes
from sluice_reconciler.verify import list_hold_records
from sluice_store.authority import read_authority
from sluice_store.conflicts import ConflictRecords, StoredConflicts, read_conflict_records
from sluice_store.doctor import DoctorResult, read_doctor
from sluice_store.port import ObjectStore, run_together
from sluice_web.conflicts import ConflictsApi
from sluice_web.endpoints import Endpoint
from sluice_web.json_bodies import json_response
from sluice_web.parameters import (
    AgentParameter,
    ChoiceParameter,
    IntegerParameter,
    TextParameter,
)
from sluice_web.problems import HttpRefusal

HOLDS_MAX: Final = 500
SERVED_S_MAX: Final = 3.0
"""Longest wait for a reconciler; the rest of the page comes from the store."""


class ReconcilerLeases(msgspec.Struct, frozen=True, kw_only=True):
    """The lanes that one reconciler serves to consumers over HTTP.

    Attributes:
        problem: Why they are not known and what to do; empty if they are.
    """

    url: str
    lanes: tuple[ServedLane, ...] = ()
    problem: str = ""


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """The queues, what is held back before them, and the gateways that feed them.

    Attributes:
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
        leases = run_together(*map(_read_leases, self._reconcilers))
        found, view = await run_together(leases, self._read())
        return json_response(msgspec.structs.replace(view, leases=found))

    async def _read(self) -> QueueView:
        lanes = await _read_lanes(self._store)
        held: list[HoldRecord] = []
        damaged: set[ObjectKey] = set()
        async for record in list_hold_records(self._store, damaged):
            if len(held) == HOLDS_MAX:
                break
            held.append(record)
        return QueueView(
            lanes=lanes,
            leases=(),
            discovery=await read_discovery_status(self._store),
            held=tuple(held),
            held_more=len(held) == HOLDS_MAX,
            held_unreadable=tuple(sorted(damaged)),
            gateways=self._sampler.gateways,
        )


async def _read_lanes(store: ObjectStore) -> tuple[LaneStatus, ...]:
    authority = await read_authority(store)
    members = await read_live_members(store)
    return tuple(
        await read_queue_status(store, authority.lanes, members=members, layout=authority.layout)
    )


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
        return json_response(await read_batch_paths(self._store, subject, self._read_lake))


FIRST_SAMPLE_S: Final = 20.0
STREAMS_MAX: Final = 100
"""Pages that follow the overview concurrently."""
_HEARTBEAT_S: Final = 15.0
_TEXT: Final = TextParameter(name="text", chars_max=200)
_ORDER: Final = ChoiceParameter(name="order", choices=("gaps", "seen", "name"), default="gaps")
_PLACE: Final = IntegerParameter(name="after", default=0, minimum=0, maximum=100_000_000)

log = structlog.get_logger()


class StoreView(msgspec.Struct, frozen=True, kw_only=True):
    """The store: its settings and the newest result of the doctor.

    Attributes:
        authority: The settings of the authority; None if they cannot be read.
        authority_problem: Why they cannot be read.
        doctor: The newest result; None if the doctor never ran, or its result cannot be read.
        doctor_problem: Why it cannot be read.
    """

    url: str
    authority: Authority | None
    authority_problem: str
    doctor: DoctorResult | None
    doctor_problem: str


class ConsoleApi:
    """The endpoints that read the store and the reconcilers."""

    def __init__(
        self,
        store: ObjectStore,
        url: str,
        sampler: Sampler,
        agents: AgentReports,
        conflicts: StoredConflicts,
    ) -> None:
        self._store = store
        self._url = url
        self._sampler = sampler
        self._agents = agents
        self._conflicts = conflicts
        self._streams = 0
        self._closing = asyncio.Event()

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints."""
        conflicts = ConflictsApi(
            self._conflicts, access=conflict_access, read_body=lambda request: request.read()
        )
        return (
            *self._overview_endpoints(),
            *self._agent_endpoints(),
            *conflicts.endpoints(),
            Endpoint(
                method="GET",
                path="/v1/conflicts/{id}/records",
                handler=self._conflict_records,
                summary="Return the records at which both sides of a conflict differ",
                parameters=(_LIMIT,),
                result=ConflictRecords,
            ),
            Endpoint(
                method="GET",
                path="/v1/store",
                handler=self._store_view,
                summary="Return the settings of the store and the newest result of the doctor",
                result=StoreView,
            ),
        )

    def _overview_endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint(
                method="GET",
                path="/v1/overview",
                handler=self._overview,
                summary="Return the newest sample of the deployment and the last hour",
                result=Overview,
            ),
            Endpoint(
                method="GET",
                path="/v1/overview/stream",
                handler=self._follow,
                summary="Send each new sample as a server-sent event",
                result_type="text/event-stream",
            ),
        )

    def _agent_endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint(
                method="GET",
                path="/v1/agents",
                handler=self._list_agents,
                summary="List agents with their gaps and rates",
                parameters=(_TEXT, _ORDER, _PLACE, _LIMIT),
                result=AgentPage,
            ),
            Endpoint(
                method="GET",
                path="/v1/agents/boots",
                handler=self._show_agent,
                summary="Return the boots of one agent with their rates",
                parameters=(_AGENT,),
                result=AgentDetail,
            ),
        )

    async def close(self, app: web.Application) -> None:
        """End the streams, so that the server can stop."""
        del app
        self._closing.set()

    async def _overview(self, request: web.Request) -> web.Response:
        del request
        found = await self._sampler.wait(0, FIRST_SAMPLE_S)
        if found is None:
            raise HttpRefusal(ErrorCode.OVERLOADED, "no sample yet: reload the page")
        return json_response(found[1])

    async def _follow(self, request: web.Request) -> web.StreamResponse:
        if self._streams >= STREAMS_MAX:
            raise HttpRefusal(ErrorCode.OVERLOADED, "too many open pages: close some of them")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self._streams += 1
        number = 0
        try:
            while not self._closing.is_set():
                found = await self._next_sample(number)
                if found is None:
                    await response.write(b": no new sample\n\n")
                    continue
                number, overview = found
                await response.write(b"data: " + msgspec.json.encode(overview) + b"\n\n")
        except ConnectionError:
            pass  # the page was closed
        finally:
            self._streams -= 1
        return response

    async def _next_sample(self, after: int) -> tuple[int, Overview] | None:
        """Return the next sample; None after the heartbeat, or when the server stops."""
        waiting = asyncio.create_task(self._sampler.wait(after, _HEARTBEAT_S))
        closing = asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait((waiting, closing), return_when=asyncio.FIRST_COMPLETED)
            return waiting.result() if waiting.done() else None
        finally:
            waiting.cancel()
            closing.cancel()

    async def _list_agents(self, request: web.Request) -> web.Response:
        report = await self._agents.read()
        page = report.page(
            self._sampler.rates,
            order=cast(AgentOrder, _ORDER.read(request.query)),
            text=_TEXT.read(request.query) or "",
            after=_PLACE.read(request.query),
            limit=_LIMIT.read(request.query),
        )
        return json_response(page)

    async def _show_agent(self, request: web.Request) -> web.Response:
        agent = _AGENT.read(request.query)
        if agent is None:
            raise BadUsage("agent is required")
        detail = (await self._agents.read()).detail(agent, self._sampler.rates)
        if detail is None:
            raise HttpRefusal(
                ErrorCode.NOT_FOUND, f"no batch of this agent in the report, agent=`{agent}`"
            )
        return json_response(detail)

    async def _conflict_records(self, request: web.Request) -> web.Response:
        name = parse_conflict_id(request.match_info["id"])
        found = await read_conflict_records(self._store, name, _LIMIT.read(request.query))
        if found is None:
            raise HttpRefusal(ErrorCode.NOT_FOUND, f"no such conflict, id=`{name.id}`")
        return json_response(found)

    async def _store_view(self, request: web.Request) -> web.Response:
        del request
        authority, authority_problem = None, ""
        doctor, doctor_problem = None, ""
        try:
            authority = await read_authority(self._store)
        except StoreError as error:
            authority_problem = str(error)
        try:
            doctor = await read_doctor(self._store)
        except StoreError as error:
            doctor_problem = str(error)
        view = StoreView(
            url=self._url,
            authority=authority,
            authority_problem=authority_problem,
            doctor=doctor,
            doctor_problem=doctor_problem,
        )
        return json_response(view)
