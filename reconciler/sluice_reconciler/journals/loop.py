"""The work that journals add to the service: rounds, checks of held batches, and removal.

While journals decide the frontier, full passes are rare. What else only a pass did runs here at an
interval of minutes: held batches are checked again, and quarantined uploads get their reference.
"""

import asyncio
import itertools
from typing import Final

import structlog

from sluice_protocol.errors import SluiceError
from sluice_protocol.keys import ACCEPTED
from sluice_protocol.units import ObjectKey
from sluice_queue.lane import Runtime
from sluice_reconciler.journals.registry import GatewayRegistry
from sluice_reconciler.journals.removal import JournalRemoval
from sluice_reconciler.journals.route import JournalRoute
from sluice_reconciler.loop_health import RETRY_S, Loop, ReconcilerHealth
from sluice_reconciler.metrics import ReconcilerMetrics
from sluice_reconciler.passes.quarantine_walk import QuarantineWalk
from sluice_reconciler.pipeline import BatchPipeline, PipelineResult
from sluice_reconciler.settings import ReconcilerSettings
from sluice_reconciler.verify import HoldRecords, list_hold_records
from sluice_store.port import ObjectStore

log = structlog.get_logger()

UNREGISTERED_INTERVALS: Final = 5
"""Pause between two rounds while no gateway is registered, in intervals of listing."""
HELD_MAX: Final = 1_000
"""Held batches that one check processes again; the next check continues behind them."""

WALK_PAGES_MAX: Final = 20
"""Pages of conflicts and of their references that one check lists; the next check continues."""


class JournalLoop:
    """Runs the journal route and what belongs to it."""

    def __init__(
        self,
        route: JournalRoute,
        registry: GatewayRegistry,
        removal: JournalRemoval,
        *,
        health: ReconcilerHealth,
        settings: ReconcilerSettings,
        runtime: Runtime,
    ) -> None:
        self._route = route
        self._registry = registry
        self._removal = removal
        self._health = health
        self._settings = settings
        self._runtime = runtime
        self.tried = asyncio.Event()
        """Set when the first round has ended, with or without an error."""

    async def run(self) -> None:
        """Make rounds until cancelled; store errors are logged, and the round is repeated."""
        while True:
            try:
                await self._route.round()
            except SluiceError as error:
                self._health.fail(Loop.JOURNALS, error)
                pause_s = RETRY_S
            else:
                self._health.succeed(Loop.JOURNALS)
                self._health.rounds += self._registry.is_journaled
                pause_s = self._pause_s()
            self.tried.set()
            await self._runtime.clock.sleep(pause_s)

    def _pause_s(self) -> float:
        if self._route.is_behind:
            return 0.0  # the round stopped at a limit, so the next one has work
        if self._route.open_processes:
            return self._settings.round_interval_s
        if self._route.journals:
            return self._settings.listing_interval_s
        return UNREGISTERED_INTERVALS * self._settings.journal_interval_s

    async def remove(self) -> int:
        """Remove journals that are no longer needed; return how many objects were deleted."""
        return await self._removal.run(self._route.journals, self._route.ended)


class HeldBatches:
    """Checks held batches again; each full pass does so too."""

    def __init__(
        self,
        store: ObjectStore,
        holds: HoldRecords,
        pipeline: BatchPipeline,
        quarantine: QuarantineWalk,
        metrics: ReconcilerMetrics,
    ) -> None:
        self._store = store
        self._holds = holds
        self._pipeline = pipeline
        self._quarantine = quarantine
        self._metrics = metrics
        self._after = ""

    async def check(self) -> PipelineResult:
        """Process held batches again, and write missing references of quarantined uploads."""
        await self._holds.read()
        keys = sorted(
            [
                one.key
                async for one in list_hold_records(self._store, self._holds.damaged)
                if one.key.startswith(ACCEPTED)
            ]
        )
        behind = [key for key in keys if key > self._after]
        selected = list(itertools.islice(behind or keys, HELD_MAX))
        self._after = selected[-1] if len(behind) > HELD_MAX else ""
        result = PipelineResult()
        if selected:
            result = await self._pipeline.process([ObjectKey(key) for key in selected])
        self._metrics.unhealthy.set(len(self._holds))
        await self._quarantine.run(WALK_PAGES_MAX)
        return result
