"""The reconciler as a service: full passes for ever, and what it knows for the operator API."""

from dataclasses import dataclass

import structlog

from sluice_protocol.errors import OutcomeUnknown, StoreError
from sluice_protocol.units import NS_PER_S
from sluice_queue.lane import Tools
from sluice_reconciler.desk import Takeover
from sluice_reconciler.full_pass import FullPass, PassReport
from sluice_reconciler.intake import Intake
from sluice_reconciler.metrics import ReconcilerMetrics
from sluice_reconciler.settings import ReconcilerSettings
from sluice_store.authority import read_authority
from sluice_store.port import ObjectStore

log = structlog.get_logger()

FAILURES_READY_MAX = 3
"""Passes in a row that may fail before the service says that it is not ready."""


@dataclass(slots=True, kw_only=True)
class Health:
    """What `/readyz` tells.

    Attributes:
        passes: Full passes that ended well.
        failures: Passes in a row that did not.
        last: The last report.
    """

    passes: int = 0
    failures: int = 0
    last: PassReport | None = None

    @property
    def ready(self) -> bool:
        """Whether the service does its work."""
        return self.passes > 0 and self.failures < FAILURES_READY_MAX


class Reconciler:
    """Finds every accepted batch and takes it to its end."""

    def __init__(
        self,
        store: ObjectStore,
        lanes: int,
        *,
        settings: ReconcilerSettings | None = None,
        tools: Tools | None = None,
        metrics: ReconcilerMetrics | None = None,
    ) -> None:
        """Binds the parts; nothing is read yet."""
        self.settings = settings if settings is not None else ReconcilerSettings()
        self.metrics = metrics if metrics is not None else ReconcilerMetrics()
        self._tools = tools if tools is not None else Tools()
        self.intake = Intake(
            store, lanes, settings=self.settings, tools=self._tools, metrics=self.metrics
        )
        self.health = Health()

    @classmethod
    async def of(
        cls,
        store: ObjectStore,
        *,
        settings: ReconcilerSettings | None = None,
        tools: Tools | None = None,
        metrics: ReconcilerMetrics | None = None,
    ) -> "Reconciler":
        """Makes the reconciler of a store's authority.

        Raises:
            BadUsage: The store has no authority yet.
            StoreError: The store did not answer.
        """
        authority = await read_authority(store)
        return cls(store, authority.lanes, settings=settings, tools=tools, metrics=metrics)

    async def once(self, *, takeover: Takeover | None = Takeover.AT_ONCE) -> PassReport:
        """Makes one full pass and stores what the lanes were given.

        Raises:
            StoreError: The store did not answer or refused.
            OutcomeUnknown: The bounds of a write are spent; a further pass settles it.
        """
        report = await self._pass(takeover)
        await self.intake.close()
        return report

    async def _pass(self, takeover: Takeover | None) -> PassReport:
        started_ns = self._tools.clock.monotonic_ns()
        report = await FullPass(self.intake, takeover=takeover).run()
        took_ns = self._tools.clock.monotonic_ns() - started_ns
        self.metrics.pass_seconds.set(took_ns / NS_PER_S)
        done = report.outcome
        if done.sound or done.held_back:
            log.info(
                "full pass",
                listed=report.listed,
                enqueued=done.enqueued,
                indexed=done.indexed,
                left=done.left,
                held_back=report.held_back,
                took_ms=took_ns // 1_000_000,
            )
        return report

    async def run(self) -> None:
        """Makes passes until it is cancelled; trouble of the store is waited out."""
        try:
            while True:
                await self._guarded_pass()
                await self._tools.clock.sleep(self.settings.pass_interval_s)
        finally:
            await self.intake.close()

    async def _guarded_pass(self) -> None:
        try:
            self.health.last = await self._pass(None)
        except (StoreError, OutcomeUnknown) as error:
            self.health.failures += 1
            self.metrics.passes.labels("failed").inc()
            log.warning("full pass failed", reason=str(error))
        else:
            self.health.passes += 1
            self.health.failures = 0
            self.metrics.passes.labels("done").inc()
