"""The operator API, and the composition of the reconciler's process.

The API serves agents, gaps, conflicts, audits and deletion plans, events, and live records.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog
from aiohttp import web

from sluice_protocol.errors import BadUsage, ErrorCode
from sluice_protocol.journals import HoldRecord
from sluice_protocol.keys import AUDIT, GC_PLANS, INGEST_QUEUE
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.timestamps import format_rfc3339
from sluice_protocol.units import ObjectKey
from sluice_queue.inspection import LaneStatus
from sluice_queue.lane import list_lanes
from sluice_reconciler.audit_summaries import (
    PAGE_DEFAULT,
    PAGE_MAX,
    AuditOverview,
    PlanOverview,
    list_audits,
    list_plans,
)
from sluice_reconciler.completeness import BootList
from sluice_reconciler.discovery import DiscoveryStatus, read_discovery_status
from sluice_reconciler.events import parse_counted_events
from sluice_reconciler.lanes.defects import has_ledger, read_queue_status
from sluice_reconciler.lanes.membership import read_live_members
from sluice_reconciler.loop_health import Loop, StalledLoop
from sluice_reconciler.passes.full_pass import PassReport
from sluice_reconciler.passes.scanners import InventoryScanResult
from sluice_reconciler.queue_api import QUEUE, QueueApi
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerOptions, ReconcilerSettings
from sluice_reconciler.verify import list_hold_records
from sluice_store.conflicts import DecisionsReader, StoredConflicts
from sluice_store.port import ObjectStore
from sluice_store.url import StoreMode, open_store
from sluice_web.addresses import parse_allowed_hosts, parse_listen
from sluice_web.application import guarded_middlewares, make_application
from sluice_web.conflicts import ConflictAccess, ConflictsApi
from sluice_web.connection_guard import listening
from sluice_web.endpoints import Endpoint
from sluice_web.health import live_endpoint, metrics_endpoint, ready_endpoint
from sluice_web.json_bodies import json_response
from sluice_web.listening import ServerOptions, stop_event
from sluice_web.parameters import AFTER, AgentParameter, IntegerParameter, Page, read_cursor
from sluice_web.problems import Problem, problem_of
from sluice_web.tokens import check_token_or_loopback

if TYPE_CHECKING:
    from sluice_reconciler.sns_webhook import Fetch


BODY_BYTES_MAX: Final = 4 * 1024 * 1024
HOLD_RECORDS_MAX: Final = 1000
NDJSON: Final = "application/x-ndjson"
_AGENT: Final = AgentParameter()
_LIMIT: Final = IntegerParameter(name="limit", default=PAGE_DEFAULT, maximum=PAGE_MAX)
_LIVE_LIMIT: Final = IntegerParameter(name="limit", default=1000, maximum=10_000)
_LIVE_WAIT: Final = IntegerParameter(name="wait", default=0, maximum=30)
_UNREADABLE: Final = "A page; a record that cannot be read has only `key` and `unreadable`"
_OPERATOR: Final = ConflictAccess(
    principal="operator:reconciler-api", agents=None, may_resolve=True
)
"""The token identifies no person, so decisions record this name."""


class HoldList(msgspec.Struct, frozen=True):
    """The hold records; `partial` is true if there are more."""

    marks: tuple[HoldRecord, ...]
    partial: bool


class EventCount(msgspec.Struct, frozen=True):
    """How many keys were queued, and how many events were not about an accepted batch."""

    taken: int
    foreign: int


class LaneList(msgspec.Struct, frozen=True):
    """The status of each lane."""

    lanes: tuple[LaneStatus, ...]


class ReadyState(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `/readyz`: full passes that succeeded, and tries that failed since.

    `rounds` and `round_failures` are the same for passes over journals. `stalled` contains every
    loop that has failed for some seconds.
    """

    ready: bool
    passes: int
    failures: int
    rounds: int = 0
    round_failures: int = 0
    stalled: tuple[StalledLoop, ...] = ()


class NotReadyProblem(Problem, frozen=True, kw_only=True):
    """The 503 of `/readyz`, with the members of `ReadyState`."""

    ready: bool
    passes: int
    failures: int
    rounds: int = 0
    round_failures: int = 0
    stalled: tuple[StalledLoop, ...] = ()


def make_operator_app(reconciler: Reconciler, sns_fetch: "Fetch | None" = None) -> web.Application:
    """Return the operator API of a reconciler that runs as long as the application.

    Without `sns_fetch`, certificates of SNS and confirmations are fetched over HTTPS.
    """
    app = make_application(
        OperatorApi(reconciler, sns_fetch).endpoints(),
        middlewares=guarded_middlewares(reconciler.settings.api_token),
        title="sluice reconciler",
        allowed_hosts=parse_allowed_hosts(reconciler.settings.allowed_hosts),
        body_bytes_max=BODY_BYTES_MAX,
    )

    async def run_reconciler(app: web.Application) -> AsyncIterator[None]:
        del app
        task = asyncio.create_task(_run(reconciler))
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    app.cleanup_ctx.append(run_reconciler)
    return app


async def _run(reconciler: Reconciler) -> None:
    """Run the work; when it ends, `/livez` reports it, and a supervisor restarts the process."""
    try:
        await reconciler.run()
    except Exception:
        reconciler.health.ended = True
        log.exception("reconciler_work_ended")


def _sns_endpoints(reconciler: Reconciler, fetch: "Fetch | None") -> tuple[Endpoint, ...]:
    if not reconciler.settings.sns_topics:
        return ()
    # Few stores have topics, and the parser of their certificates needs 0.03 s to import.
    from sluice_reconciler.sns_webhook import SnsWebhook, fetch_page  # noqa: PLC0415

    webhook = SnsWebhook(
        reconciler.settings.sns_topics,
        reconciler.hint,
        reconciler.metrics,
        SystemClock(),
        fetch or fetch_page,
    )
    return webhook.endpoints()


class OperatorApi:
    """The endpoints of one reconciler."""

    def __init__(self, reconciler: Reconciler, sns_fetch: "Fetch | None" = None) -> None:
        self._reconciler = reconciler
        self._store = reconciler.store
        self._webhook = _sns_endpoints(reconciler, sns_fetch)

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return all endpoints."""
        conflicts = StoredConflicts(
            self._store, DecisionsReader(self._store), clock=SystemClock(), ids=SystemIds()
        )
        api = ConflictsApi(
            conflicts, access=lambda _: _OPERATOR, read_body=lambda request: request.read()
        )
        return (
            live_endpoint(self._why_not_alive),
            ready_endpoint(self._why_not_ready, self._readiness),
            metrics_endpoint(self._reconciler.metrics.registry),
            *self._reports(),
            *api.endpoints(),
            *self._streams(),
            *self._webhook,
            *QueueApi(self._reconciler.http_queues, self._store).endpoints(),
        )

    def _reports(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint(
                method="GET",
                path="/v1/agents",
                handler=self._agents,
                summary="Return the accepted ranges of each boot of each agent",
                parameters=(_AGENT,),
                result=BootList,
            ),
            Endpoint(
                method="GET",
                path="/v1/gaps",
                handler=self._gaps,
                summary="Return the boots with gaps or overlaps",
                parameters=(_AGENT,),
                result=BootList,
            ),
            Endpoint(
                method="GET",
                path="/v1/held",
                handler=self._held,
                summary="List the held batches, with reasons",
                result=HoldList,
            ),
            Endpoint(
                method="GET",
                path="/v1/discovery",
                handler=self._discovery,
                summary="Return how far discovery is, with each gateway process",
                result=DiscoveryStatus,
            ),
            Endpoint(
                method="GET",
                path="/v1/audits",
                handler=self._audits,
                summary="List complete audits as their certificates describe them",
                parameters=(AFTER, _LIMIT),
                result=Page[AuditOverview],
                result_summary=_UNREADABLE,
            ),
            Endpoint(
                method="GET",
                path="/v1/gc/plans",
                handler=self._plans,
                summary="List deletion plans with their state",
                parameters=(AFTER, _LIMIT),
                result=Page[PlanOverview],
                result_summary=_UNREADABLE,
            ),
        )

    def _streams(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint(
                method="GET",
                path="/v1/live",
                handler=self._live,
                summary="Return recent records as NDJSON; the last line is a summary with `next`",
                parameters=(_AGENT, AFTER, _LIVE_LIMIT, _LIVE_WAIT),
                result_type=NDJSON,
            ),
            Endpoint(
                method="POST",
                path="/v1/events",
                handler=self._events,
                summary="Accept object events as hints",
                body=dict[str, Any],
                result=EventCount,
            ),
            Endpoint(
                method="GET",
                path="/v1/queue",
                handler=self._queue,
                summary="Return the pending entries and the owner of each lane",
                parameters=(QUEUE,),
                result=LaneList,
            ),
        )

    def _why_not_alive(self) -> Problem | None:
        if not self._reconciler.health.ended:
            return None
        problem = problem_of(ErrorCode.INTERNAL, "the work has ended: restart the process")
        return msgspec.structs.replace(problem, status=503)

    def _why_not_ready(self) -> Problem | None:
        reason, state = self._reconciler.health.why_not_ready(), self._readiness()
        if not reason:
            return None
        problem = problem_of(ErrorCode.STORE_UNAVAILABLE, reason)
        return NotReadyProblem(**msgspec.structs.asdict(problem), **msgspec.structs.asdict(state))

    def _readiness(self) -> ReadyState:
        health = self._reconciler.health
        return ReadyState(
            ready=not health.why_not_ready(),
            passes=health.passes,
            failures=health.failures(Loop.PASSES),
            rounds=health.journal_passes,
            round_failures=health.failures(Loop.JOURNALS),
            stalled=health.stalled,
        )

    def _boot_list(self, request: web.Request, *, faulty: bool) -> BootList:
        """Return the boots of the last whole pass, of one agent or of all, with its time."""
        last, agent = self._reconciler.whole_pass, _AGENT.read(request.query)
        if last is None:
            return BootList(())
        boots = (boot for boot in last.boots.boots if agent in (None, boot.agent_id))
        return BootList(
            tuple(boot for boot in boots if not faulty or boot.gaps or boot.overlaps),
            complete_through=format_rfc3339(last.began_ns),
            more=last.boots.more,
        )

    async def _agents(self, request: web.Request) -> web.Response:
        return json_response(self._boot_list(request, faulty=False))

    async def _gaps(self, request: web.Request) -> web.Response:
        return json_response(self._boot_list(request, faulty=True))

    async def _held(self, request: web.Request) -> web.Response:
        del request
        found: list[HoldRecord] = []
        async for record in list_hold_records(self._store):
            found.append(record)
            if len(found) >= HOLD_RECORDS_MAX:
                break
        return json_response(HoldList(tuple(found), partial=len(found) >= HOLD_RECORDS_MAX))

    async def _discovery(self, request: web.Request) -> web.Response:
        del request
        return json_response(await read_discovery_status(self._store))

    async def _audits(self, request: web.Request) -> web.Response:
        after, limit = read_cursor(request.query, AUDIT), _LIMIT.read(request.query)
        return json_response(await list_audits(self._store, after, limit))

    async def _plans(self, request: web.Request) -> web.Response:
        after, limit = read_cursor(request.query, GC_PLANS), _LIMIT.read(request.query)
        return json_response(await list_plans(self._store, after, limit))

    async def _live(self, request: web.Request) -> web.Response:
        """Return recent records; with `wait`, wait for a new record if there are none."""
        query = request.query
        seen = await self._reconciler.live.view(
            agent_id=_AGENT.read(query),
            after=AFTER.read(query),
            limit=_LIVE_LIMIT.read(query),
            wait_s=_LIVE_WAIT.read(query),
        )
        summary: dict[str, object] = {
            "partial": seen.partial,
            "reasons": seen.reasons,
            "next": seen.next,
            "accepted_until": None
            if seen.accepted_until_ns is None
            else format_rfc3339(seen.accepted_until_ns),
        }
        summary |= {"more": seen.more, "enabled": seen.enabled}
        last = msgspec.json.encode({"summary": summary})
        body = b"".join(line + b"\n" for line in (*seen.lines, last))
        return web.Response(body=body, content_type=NDJSON)

    async def _events(self, request: web.Request) -> web.Response:
        """Accept an object event as a hint: the store is read for the keys that it names."""
        hints = parse_counted_events(await request.read(), self._reconciler.metrics)
        taken = self._reconciler.hint(hints.keys)
        return json_response(EventCount(taken=taken, foreign=hints.foreign))

    async def _queue(self, request: web.Request) -> web.Response:
        count, queue = self._reconciler.authority.lanes, QUEUE.read(request.query)
        members = await read_live_members(self._store)
        lanes = await read_queue_status(
            self._store, count, queue, members=members, layout=self._reconciler.authority.layout
        )
        return json_response(LaneList(tuple(lanes)))


log = structlog.get_logger()


async def refuse_lost_queue(store: ObjectStore, settings: ReconcilerOptions) -> None:
    """Refuse to start Spark's queue at sequence 1 if the lake was filled from it before.

    The ingest would treat the first entries as those that it has already persisted. Refuse if the
    queue has no lane and the lake has its ledger.
    """
    if INGEST_QUEUE not in settings.queue_names or await list_lanes(store, INGEST_QUEUE):
        return
    if await has_ledger(store):
        raise BadUsage(
            "queue is lost, but the lake was filled from it: run `sluice rebuild`, which"
            f" continues behind the last sequence in the lake, queue=`{INGEST_QUEUE}`"
        )


async def run_once(url: str, settings: ReconcilerOptions) -> PassReport:
    """Open a store, make one full pass, and close the store."""
    async with open_store(url) as store:
        await refuse_lost_queue(store, settings)
        reconciler = await Reconciler.of(store, settings=settings.on(url))
        return await reconciler.once()


async def run_inventory(url: str, settings: ReconcilerOptions, report: str) -> InventoryScanResult:
    """Process what an inventory report names, and store what the lanes were given.

    `report` is the store URL of the bucket, `#`, and the key of its `manifest.json`.
    """
    place, _, key = report.partition("#")
    if not place or not key:
        raise BadUsage(f"name a report as <store URL>#<key of manifest.json>, report=`{report}`")
    async with open_store(url) as store, open_store(place, StoreMode.READ) as reports:
        await refuse_lost_queue(store, settings)
        reconciler = await Reconciler.of(store, settings=settings.on(url))
        return await reconciler.scan_inventory(reports, ObjectKey(key))


async def serve_reconciler(url: str, settings: ReconcilerOptions) -> None:
    """Run service and operator API until SIGTERM or SIGINT."""
    async with open_store(url) as store:
        await _serve(store, settings.on(url))


async def _serve(store: ObjectStore, settings: ReconcilerSettings) -> None:
    host, _ = parse_listen(settings.listen)
    check_token_or_loopback(host, settings.api_token)
    await refuse_lost_queue(store, settings)
    stop = stop_event()
    while not stop.is_set():
        await _serve_layout(store, settings, stop)


async def _serve_layout(
    store: ObjectStore, settings: ReconcilerSettings, stop: asyncio.Event
) -> None:
    """Run until `stop` is set, or another number of lanes is in effect."""
    reconciler = await Reconciler.of(store, settings=settings)
    async with listening(
        make_operator_app(reconciler), settings.listen, ServerOptions(decompress=True)
    ) as urls:
        reconciler.share.url = settings.advertise_url or urls[0]
        log.info("reconciler_listening", urls=urls)
        ends = [
            asyncio.create_task(one) for one in (stop.wait(), reconciler.wait_for_next_layout())
        ]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in ends:
            task.cancel()
    if not stop.is_set():
        log.info("lanes_changed", lanes_before=reconciler.authority.lanes)
