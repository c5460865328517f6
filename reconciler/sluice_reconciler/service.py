"""The reconciler as a service: every route that finds batches, and the state of its health."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import structlog

from sluice_protocol.authority import Authority, lane_change_key
from sluice_protocol.errors import SluiceError
from sluice_protocol.keys import accepted_key
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.outcomes import ObjectInfo
from sluice_protocol.units import ObjectKey
from sluice_queue.lane import Lane
from sluice_queue.register_client import QueueMetrics, Runtime
from sluice_reconciler.context import ReconcilerContext
from sluice_reconciler.events import EventReceiver, HintQueue
from sluice_reconciler.http_queue import HttpQueue
from sluice_reconciler.journals.removal import REMOVAL_INTERVAL_S, JournalRemoval
from sluice_reconciler.journals.route import JournalRoute
from sluice_reconciler.lanes.rebuild import Fence
from sluice_reconciler.lanes.share import LaneShare
from sluice_reconciler.lanes.upkeep import RETIRE_INTERVAL_S, LaneUpkeep, QueueUpkeep
from sluice_reconciler.lanes.worker import Takeover
from sluice_reconciler.loop_health import LATER_S, Loop
from sluice_reconciler.metrics import ReconcilerMetrics
from sluice_reconciler.passes.expired_entries import REMOVAL_S, ExpiredEntries
from sluice_reconciler.passes.full_pass import FullPass, PassReport
from sluice_reconciler.passes.held_batches import HeldBatches
from sluice_reconciler.passes.loop import PassLoop
from sluice_reconciler.passes.progress import PassProgress
from sluice_reconciler.passes.scanners import (
    BootTailScanner,
    InventoryScanResult,
    TimeIndexScanner,
    scan_inventory,
)
from sluice_reconciler.pipeline import BatchPipeline, PipelineResult
from sluice_reconciler.rebuild import Rebuild
from sluice_reconciler.settings import ReconcilerSettings
from sluice_store.authority import read_authority
from sluice_store.port import ObjectStore

log = structlog.get_logger()

LATE_CHECK_S: Final = 1.0
"""Time between two checks whether a gateway process has become late."""
EVENTS_REOPEN_S: Final = 5.0
"""Pause before an event queue that failed is opened again, seconds."""

LAYOUT_S: Final = 30.0
"""Time between two checks whether the number of lanes was changed."""
LAYOUT_CLOSED_S: Final = 1.0
"""The same, once a lane was closed."""

_Scan = tuple[float, Loop, Callable[[], Awaitable[object]]]


class Reconciler:
    """Finds every accepted batch and passes it to the pipeline."""

    def __init__(
        self,
        store: ObjectStore,
        authority: Authority,
        *,
        settings: ReconcilerSettings | None = None,
        runtime: Runtime | None = None,
        metrics: ReconcilerMetrics | None = None,
    ) -> None:
        self.metrics = metrics if metrics is not None else ReconcilerMetrics()
        self.settings = settings if settings is not None else ReconcilerSettings()
        runtime = runtime or Runtime(metrics=QueueMetrics(self.metrics.registry))
        context = ReconcilerContext.of(store, authority, self.settings, runtime, self.metrics)
        self._context = context
        self._runtime = runtime
        self.store = context.store
        self.authority = authority
        self.health = context.health
        self.discovery = context.discovery
        self.live = context.live
        self._workers = context.workers
        self._registry = context.registry
        self._clock = context.clock
        self._requests = context.requests
        context.pending.export(self.metrics.oldest_pending)
        self.metrics.frontier_age.set_function(self._frontier_age_s)
        self.share = LaneShare(self.store, authority.lanes, self._workers, runtime, self.metrics)
        self.pipeline = BatchPipeline(context, self._observe_verified)
        self._time_index = TimeIndexScanner(self.store, self.pipeline, self._requests)
        self._boot_tails = BootTailScanner(self.store, self.pipeline)
        self._scanned_after: frozenset[str] = frozenset()
        self.journals = JournalRoute(context, self.pipeline)
        self._removal = JournalRemoval(context)
        self._expired_entries = ExpiredEntries(context)
        self._held = HeldBatches(context, self.pipeline)
        self.progress = PassProgress(self.store, runtime)
        full_pass = FullPass(context, self.pipeline, self._boot_tails.observe)
        self._pass_loop = PassLoop(context, full_pass, self.progress, self.journals)
        self.lane_upkeep = LaneUpkeep(context)
        self._queue_upkeep = QueueUpkeep(context)
        self._hints = HintQueue(
            self.pipeline, self.metrics, runtime.clock, self.settings.list_batches_max
        )
        self.http_queues = {
            name: HttpQueue(
                self.store,
                name,
                authority,
                runtime,
                lease_s=self.settings.lease_s,
                owner_url=self.share.owner_url,
            )
            for name in self.settings.http_queue_names
        }

    def _frontier_age_s(self) -> float:
        through_ns = self.discovery.record.complete_through_unix_ns
        return self._clock.age_s(through_ns) if through_ns else 0.0

    @classmethod
    async def of(
        cls,
        store: ObjectStore,
        *,
        settings: ReconcilerSettings | None = None,
        runtime: Runtime | None = None,
        metrics: ReconcilerMetrics | None = None,
    ) -> "Reconciler":
        """Create the reconciler of a store's authority."""
        authority = await read_authority(store)
        return cls(store, authority, settings=settings, runtime=runtime, metrics=metrics)

    @property
    def whole_pass(self) -> PassReport | None:
        """The last report of a pass that this process made from its beginning."""
        return self._pass_loop.whole

    # --- single runs -----------------------------------------------------------------------------

    async def once(self, *, takeover: Takeover | None = Takeover.ALWAYS) -> PassReport:
        """Make one full pass and store what the lanes were given."""
        report = await self._pass_loop.run_once(takeover)
        lost = await self._queue_upkeep.check_registers()
        await self.lane_upkeep.run()
        await self._workers.close()
        return replace(report, registers_lost=lost)

    async def scan_inventory(
        self, reports: ObjectStore, manifest_key: ObjectKey
    ) -> InventoryScanResult:
        """Process what an inventory report names, and store what the lanes were given."""
        await self._workers.refresh()
        found = await scan_inventory(self.pipeline, reports, manifest_key)
        await self._workers.close()
        return found

    async def scan_boot_tails(self) -> PipelineResult:
        """Process the batches behind the last known key of each recently active boot."""
        return await self._boot_tails.scan()

    async def scan_after_late_gateways(self) -> None:
        """Scan the active boots once for each gateway process that has become late.

        A killed gateway has not reported its newest batches. Most of them continue a boot of which
        earlier ones are known, so they are found without a full pass.
        """
        late = self.journals.late_processes
        if late - self._scanned_after:
            await self.scan_boot_tails()
        self._scanned_after = late

    async def remove_journals(self) -> int:
        """Remove journals that are no longer needed; return how many objects were deleted."""
        return await self._removal.run(self.journals.journals, self.journals.ended)

    async def remove_expired_entries(self) -> int:
        """Remove the by-time entries of expired batches; return how many objects were deleted."""
        return await self._expired_entries.run()

    async def scan_time_index(self) -> PipelineResult:
        """Process the new entries of the by-time index."""
        return await self._time_index.scan()

    def rebuild(
        self, persisted: Mapping[Lane, int] | None = None, fence: Fence | None = None
    ) -> Rebuild:
        """Return a rebuild of this store.

        The arguments are as for `Rebuild`.
        """
        lanes = [one.lane for one in self._workers]
        return Rebuild(self.store, self._requests, lanes, self._runtime, persisted, fence)

    async def wait_for_next_layout(self) -> None:
        """Return when another number of lanes is in effect: this object is of no use then."""
        key, seconds = lane_change_key(self.authority.layout + 1), 0.0
        while True:
            await self._runtime.clock.sleep(LAYOUT_CLOSED_S)
            seconds += LAYOUT_CLOSED_S
            if seconds < LAYOUT_S and not self._workers.is_closed:
                continue
            seconds = 0.0
            try:
                if isinstance(await self.store.head(key), ObjectInfo):
                    return
            except SluiceError as error:
                log.warning("lane_change_not_read", reason=str(error))

    # --- the service -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Work on every route until cancelled; store errors are logged and retried."""
        settings = self.settings
        try:
            async with asyncio.TaskGroup() as tasks:
                if settings.share_lanes:
                    tasks.create_task(self.share.run(self.health))
                tasks.create_task(self.journals.run())
                tasks.create_task(self._pass_loop.run())
                self._create_scan_tasks(tasks)
                tasks.create_task(
                    self._every(settings.collect_interval_s, Loop.COLLECTOR, self._queue_upkeep.run)
                )
                tasks.create_task(self._hints.run())
                if self.live.on:
                    tasks.create_task(self.live.run())
                if settings.event_queue_url:
                    tasks.create_task(
                        self._every(EVENTS_REOPEN_S, Loop.EVENT_QUEUE, self._receive_events)
                    )
        finally:
            try:
                await self._workers.close()
            finally:
                await self.share.leave()

    def _create_scan_tasks(self, tasks: asyncio.TaskGroup) -> None:
        """Start the scans that only a store without journals needs, and what replaces them."""
        settings = self.settings
        without: list[_Scan] = [
            (settings.tail_interval_s or 0, Loop.BOOT_TAILS, self.scan_boot_tails),
            (settings.scan_interval_s, Loop.TIME_INDEX, self.scan_time_index),
        ]
        with_journals: list[_Scan] = [
            (LATE_CHECK_S, Loop.BOOT_TAILS, self.scan_after_late_gateways),
            (settings.hold_interval_s, Loop.HELD_BATCHES, self._held.check),
            (REMOVAL_INTERVAL_S, Loop.JOURNAL_REMOVAL, self.remove_journals),
        ]
        expired = self._every(REMOVAL_S, Loop.EXPIRED_ENTRIES, self.remove_expired_entries)
        tasks.create_task(expired)
        retire = self.lane_upkeep.run
        tasks.create_task(self._every(RETIRE_INTERVAL_S, Loop.RETIRED_BOOTS, retire))
        for scans, journaled in ((without, False), (with_journals, True)):
            for seconds, loop, do in scans:
                if seconds:
                    tasks.create_task(self._every(seconds, loop, do, journaled=journaled))

    def _observe_verified(self, manifests: Sequence[AcceptedManifest]) -> None:
        self._registry.observe_batches(manifests)
        for one in manifests:
            self._boot_tails.observe(accepted_key(one.identity))

    async def _every(
        self,
        seconds: float,
        loop: Loop,
        do: Callable[[], Awaitable[object]],
        *,
        journaled: bool | None = None,
    ) -> None:
        """Call `do` repeatedly; with `journaled`, only while journals do, or do not, decide.

        After a failure it is called again soon, so that an outage costs seconds, not an interval.
        """
        while True:
            pause_s = seconds
            try:
                if journaled in (None, self._registry.is_journaled):
                    await do()
            except SluiceError as error:
                self.health.fail(loop, error)
                pause_s = min(seconds, LATER_S)
            else:
                self.health.succeed(loop)
            await self._runtime.clock.sleep(pause_s)

    async def _receive_events(self) -> None:
        """Process events; if the queue cannot be opened, `_every` tries again."""
        from sluice_store.s3.events import open_event_queue  # noqa: PLC0415 - the SDK is an extra

        settings = self.settings
        async with open_event_queue(
            settings.event_queue_url, polls=settings.event_queue_polls
        ) as source:
            process, clock = self.pipeline.process_new_in_steps, self._runtime.clock
            polls = settings.event_queue_polls
            await EventReceiver(source, process, self.metrics, clock, polls).run()

    def hint(self, keys: Sequence[ObjectKey]) -> int:
        """Queue accepted keys that an event named; return how many there was space for.

        The next full pass finds the others.
        """
        return self._hints.add(keys)
