"""Reads one sample of the deployment at a time, for all visitors together."""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import structlog

from sluice_console.agents import AgentRates, AgentReports
from sluice_console.attention import (
    GapTotals,
    OverviewFacts,
    PolicyTotals,
    SourceProblem,
    may_lack_owner,
)
from sluice_console.attention_items import ServiceState
from sluice_console.costs import DailyCost, RequestRates, estimate_cost, rates_of_batches
from sluice_console.gateway_health import GatewayHealth
from sluice_console.gateways import GatewayCounters
from sluice_console.metrics import ConsoleMetrics
from sluice_console.overview import (
    ActivityTotals,
    Overview,
    SampleHistory,
    make_numbers,
    make_overview,
    sum_activity,
)
from sluice_console.policies import PolicyProofs
from sluice_console.reconcilers import ServiceClient, ServiceFailed
from sluice_console.store_counts import count_held, count_open_conflicts, find_missing_indexes
from sluice_maintain.lake_state import count_open_dead_letters, read_lake_problems
from sluice_maintain.status import MaintenanceStatus, read_stored_status
from sluice_protocol.clock import Clock
from sluice_protocol.errors import SluiceError
from sluice_protocol.keys import INGEST_QUEUE
from sluice_protocol.prices import PriceTable
from sluice_protocol.units import NS_PER_S
from sluice_queue.inspection import LaneStatus
from sluice_reconciler.audit_summaries import (
    AuditOverview,
    PlanOverview,
    UnreadableRecord,
    list_newest_audits,
    read_newest_plan,
)
from sluice_reconciler.batch_lists import read_span
from sluice_reconciler.discovery import DiscoveryStatus, read_discovery_status
from sluice_reconciler.lanes.defects import read_queue_status
from sluice_reconciler.lanes.membership import LiveMembers, read_live_members
from sluice_store.authority import read_authority
from sluice_store.conflicts import StoredConflicts
from sluice_store.doctor import DoctorResult, read_doctor
from sluice_store.port import ObjectStore, run_together
from sluice_store.stored_erasures import EndedErasures, count_late_erasures
from sluice_store.stored_expiry import RetentionState, read_retention_state
from sluice_store.url import is_local

READ_S_MAX: Final = 15.0
"""Longest time of one part of a sample."""
SLOW_S: Final = 60.0
"""Time between two reads of what changes seldom: the doctor, maintenance and gaps."""
IDLE_S: Final = 600.0
"""Without a visitor for this time, samples are taken once a minute."""
IDLE_SAMPLE_S: Final = 60.0
_IDLE_NS: Final = int(IDLE_SAMPLE_S * NS_PER_S)
VISIT_S: Final = 1.0
"""Time within which a new visitor ends the pause, so that the page is current soon."""
ACTIVITY_DELAY_S: Final = 30.0
"""Age of the accepted batches that are counted: older ones are indexed."""
ACTIVITY_BATCHES_MAX: Final = 50_000
ACTIVITY_OBJECTS_MAX: Final = 64
CONFLICTS_MAX: Final = 500
_WAITING: Final = "sluice_reconciler_oldest_waiting_seconds"

_Value = TypeVar("_Value")

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class _SlowFacts:
    """What is read once a minute."""

    read_ns: int | None = None
    problems: tuple[SourceProblem, ...] = ()
    gaps: GapTotals | None = None
    doctor: DoctorResult | None = None
    doctor_ran: bool | None = None
    maintenance: MaintenanceStatus | None = None
    audit: AuditOverview | UnreadableRecord | None = None
    plan: PlanOverview | None = None
    stored_bytes: float | None = None
    dead_letters: int | None = None
    erasures_late: int | None = None
    lake_problems: tuple[str, ...] = ()
    missing_indexes: tuple[str, ...] = ()
    retention: RetentionState | None = None


@dataclass(slots=True, kw_only=True)
class _SampleRun:
    """One sample while it is read: its problems and the slowest request."""

    clock: Clock
    problems: list[SourceProblem] = field(default_factory=list)
    slowest_ns: int = 0

    async def read(self, source: str, reading: Awaitable[_Value]) -> _Value | None:
        """Return what was read, or None after a problem, which is kept."""
        began_ns = self.clock.monotonic_ns()
        try:
            async with asyncio.timeout(READ_S_MAX):
                return await reading
        except TimeoutError:
            self._add(source, f"no response within {READ_S_MAX:g} s: is the store overloaded?")
        except SluiceError as error:
            self._add(source, str(error))
        except Exception as error:  # one broken part must not hide the others
            log.warning("console_sample_failed", source=source, exc_info=error)
            self._add(
                source, f"internal error: see the log of the console ({type(error).__name__})"
            )
        finally:
            self.slowest_ns = max(self.slowest_ns, self.clock.monotonic_ns() - began_ns)
        return None

    def _add(self, source: str, reason: str) -> None:
        self.problems.append(SourceProblem(source=source, reason=reason))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledSources:
    """Where samples are read from."""

    url: str
    store: ObjectStore
    conflicts: StoredConflicts
    agents: AgentReports
    clients: tuple[ServiceClient, ...]
    counters: GatewayCounters
    policies: PolicyProofs
    prices: PriceTable


class Sampler:
    """Takes samples, keeps the last hour, and wakes the waiters for the next one."""

    def __init__(
        self, sources: SampledSources, clock: Clock, metrics: ConsoleMetrics, sample_s: float
    ) -> None:
        self._sources = sources
        self._metrics = metrics
        self._clock = clock
        self._sample_s = sample_s
        self._history = SampleHistory()
        self._slow = _SlowFacts()
        self._ended = EndedErasures()
        self._activity_ns: int | None = None
        self._taken = asyncio.Condition()
        self._visited_ns = clock.monotonic_ns()
        self._number = 0
        self.current: Overview | None = None
        self.gateways: tuple[GatewayHealth, ...] = ()
        self.rates = AgentRates()

    async def run(self) -> None:
        """Take samples until the task is cancelled: rarely without a visitor, soon for the next."""
        while True:
            taken_ns = self._clock.monotonic_ns()
            await self.take()
            await self._clock.sleep(self._sample_s)
            while self._is_idle() and self._clock.monotonic_ns() - taken_ns < _IDLE_NS:
                await self._clock.sleep(VISIT_S)

    def _is_idle(self) -> bool:
        return self._clock.monotonic_ns() - self._visited_ns > IDLE_S * NS_PER_S

    async def wait(self, after: int, wait_s: float) -> tuple[int, Overview] | None:
        """Wait for a sample behind `after`; return it and its number, or None after `wait_s`."""
        self._visited_ns = self._clock.monotonic_ns()
        try:
            async with asyncio.timeout(wait_s), self._taken:
                await self._taken.wait_for(lambda: self._number > after)
        except TimeoutError:
            return None
        return None if self.current is None else (self._number, self.current)

    async def take(self) -> Overview:
        """Take one sample."""
        run = _SampleRun(clock=self._clock)
        now_ns = self._clock.now_ns()
        sources = self._sources
        async with asyncio.TaskGroup() as group:
            discovering = group.create_task(run.read("discovery", self._discovery()))
            counted = group.create_task(run.read("reconcilers", read_live_members(sources.store)))
            queueing = group.create_task(run.read("the queue", self._lanes(discovering, counted)))
            conflicting = group.create_task(
                run.read("conflicts", count_open_conflicts(sources.conflicts, CONFLICTS_MAX))
            )
            holding = group.create_task(run.read("held batches", count_held(sources.store)))
            accepting = group.create_task(self._activity(run, now_ns, discovering))
            checking = group.create_task(self._services())
            indexing = group.create_task(self._index_lag())
            counting = group.create_task(run.read("gateways", sources.counters.read()))
            group.create_task(self._refresh_slow())
        conflicts, held, activity = conflicting.result(), holding.result(), accepting.result()
        gateways = counting.result()
        self.gateways = () if gateways is None else gateways.health
        acceptance, lanes = queueing.result() or (None, None)
        slow = self._slow
        facts = OverviewFacts(
            problems=(*run.problems, *slow.problems),
            services=checking.result(),
            discovery=discovering.result(),
            members=counted.result(),
            acceptance=acceptance,
            lanes=lanes,
            conflicts_open=None if conflicts is None else conflicts.count,
            conflicts_more=conflicts is not None and conflicts.more,
            held=None if held is None else held.count,
            held_more=held is not None and held.more,
            held_reasons=() if held is None else held.reasons,
            dead_letters=slow.dead_letters,
            erasures_late=slow.erasures_late,
            lake_problems=slow.lake_problems,
            missing_indexes=slow.missing_indexes,
            gaps=slow.gaps,
            doctor=slow.doctor,
            doctor_ran=slow.doctor_ran,
            maintenance=slow.maintenance,
            audit=slow.audit,
            plan=slow.plan,
            gateways=self.gateways,
            policies=self._policies(),
            retention=slow.retention,
        )
        self._metrics.show_lanes(facts.lanes, facts.discovery)
        cost = self._cost(activity, None if gateways is None else gateways.rates)
        numbers = make_numbers(
            facts,
            activity,
            index_lag_s=indexing.result(),
            store_ms=run.slowest_ns / 1e6,
            cost=cost,
            queue=INGEST_QUEUE,
        )
        self._history.add(now_ns, numbers)
        overview = make_overview(
            facts,
            numbers,
            at_ns=now_ns,
            store=sources.url,
            activity=activity,
            history=self._history.view(),
            cost=cost,
        )
        await self._publish(overview)
        return overview

    async def _publish(self, overview: Overview) -> None:
        async with self._taken:
            self.current = overview
            self._number += 1
            self._taken.notify_all()

    def _cost(
        self, activity: ActivityTotals | None, counted: RequestRates | None
    ) -> DailyCost | None:
        if is_local(self._sources.url):
            return None  # a directory has no list price
        rates = counted
        if rates is None and activity is not None:
            rates = rates_of_batches(activity.batches_per_s, at_least=activity.at_least)
        return estimate_cost(rates, self._slow.stored_bytes, self._sources.prices)

    def _policies(self) -> PolicyTotals | None:
        """Return the totals of the newest proof, and begin another one if it is due."""
        proofs = self._sources.policies
        proofs.refresh()
        return None if proofs.newest is None else proofs.newest.totals()

    async def _discovery(self) -> DiscoveryStatus:
        return await read_discovery_status(self._sources.store)

    async def _lanes(
        self,
        discovering: asyncio.Task[DiscoveryStatus | None],
        counted: asyncio.Task[LiveMembers | None],
    ) -> tuple[str, tuple[LaneStatus, ...]]:
        """Return the acceptance mode, and every lane; its owner if a lane is late."""
        store = self._sources.store
        authority = await read_authority(store)
        late = may_lack_owner(await discovering)
        members = await counted if late else None
        lanes = await read_queue_status(
            store, authority.lanes, members=members, layout=authority.layout
        )
        return authority.acceptance, tuple(lanes)

    async def _activity(
        self, run: _SampleRun, now_ns: int, discovering: asyncio.Task[DiscoveryStatus | None]
    ) -> ActivityTotals | None:
        """Count what was accepted lately, after it is known how far the index is."""
        found = await discovering
        indexed_ns = None if found is None else found.complete_through_unix_ns
        return await run.read("accepted batches", self._read_activity(now_ns, indexed_ns))

    async def _read_activity(self, now_ns: int, indexed_ns: int | None) -> ActivityTotals:
        """Count what was accepted since the last sample, half a minute ago."""
        end_ns = now_ns - int(ACTIVITY_DELAY_S * NS_PER_S)
        span_ns = int(max(self._sample_s, IDLE_SAMPLE_S) * NS_PER_S)
        since_ns = max(self._activity_ns or 0, end_ns - span_ns)
        span = await read_span(
            self._sources.store,
            since_ns,
            end_ns,
            ACTIVITY_BATCHES_MAX,
            opened_max=ACTIVITY_OBJECTS_MAX,
        )
        self._activity_ns = end_ns
        self.rates.add(span, indexed_ns)
        span_s = max(1e-3, (end_ns - since_ns) / NS_PER_S)
        return sum_activity(span.batches, span_s, at_least=span.is_cut)

    async def _services(self) -> tuple[ServiceState, ...]:
        return await run_together(*(one.check() for one in self._sources.clients))

    async def _index_lag(self) -> float | None:
        clients = [one for one in self._sources.clients if one.service == "reconciler"]
        found: list[float] = []
        for client in clients:
            try:
                found += await client.gauge(_WAITING, "stage", "index")
            except ServiceFailed:
                continue  # `check` reports it
        return max(found, default=None)

    async def _refresh_slow(self) -> None:
        now_ns = self._clock.monotonic_ns()
        slow = self._slow
        if slow.read_ns is not None and now_ns - slow.read_ns < SLOW_S * NS_PER_S:
            return
        run = _SampleRun(clock=self._clock)
        known = "" if slow.plan is None else slow.plan.plan_id
        store, url = self._sources.store, self._sources.url
        report, doctor, maintenance, audits, plan = await run_together(
            run.read("agents", self._sources.agents.read()),
            run.read("the doctor's result", self._doctor()),
            run.read("maintenance", read_stored_status(self._sources.store)),
            run.read(
                "audits",
                list_newest_audits(self._sources.store, 1, known=_chain_index(slow.audit)),
            ),
            run.read("deletion plans", read_newest_plan(self._sources.store, known=known)),
        )
        # One after the other: these reads are slow, and a console that ends starts none of them.
        letters = await run.read("dead letters", count_open_dead_letters(url, store))
        lake = await run.read("the tables of the lake", read_lake_problems(url, store))
        missing = await run.read("indexes", self._missing_indexes())
        retention = await run.read("retention and holds", read_retention_state(store))
        self._metrics.show_holds(retention)
        late = await run.read("erasures", count_late_erasures(store, self._ended))
        self._slow = _SlowFacts(
            read_ns=None if run.problems else now_ns,
            problems=tuple(run.problems),
            gaps=None
            if report is None
            else GapTotals(agents=report.with_gaps, oldest_s=report.oldest_gap_s),
            doctor=doctor[0] if doctor else None,
            doctor_ran=None if doctor is None else doctor[0] is not None,
            maintenance=maintenance,
            audit=audits[0] if audits else None,
            plan=plan,
            stored_bytes=_blob_bytes(audits or ()),
            dead_letters=letters,
            erasures_late=late,
            lake_problems=lake or (),
            missing_indexes=missing or (),
            retention=retention,
        )

    async def _missing_indexes(self) -> tuple[str, ...]:
        store = self._sources.store
        return await find_missing_indexes(store, await read_discovery_status(store))

    async def _doctor(self) -> tuple[DoctorResult | None]:
        return (await read_doctor(self._sources.store),)


def _chain_index(audit: AuditOverview | UnreadableRecord | None) -> int:
    """Return the position of a certificate, where the search for the newest one begins."""
    return audit.chain_index if isinstance(audit, AuditOverview) else -1


def _blob_bytes(audits: Sequence[AuditOverview | UnreadableRecord]) -> float | None:
    """Return the bytes of all versions of blobs in the newest audit, if it listed them."""
    for one in audits:
        if isinstance(one, AuditOverview):
            return one.counts.get("incarnations_bytes")
    return None
