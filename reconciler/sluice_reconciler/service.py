"""The reconciler as a service: full passes for ever, and what it knows for the operator API."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from sluice_protocol.authority import Authority
from sluice_protocol.errors import SluiceError
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_queue.collector import Collector
from sluice_queue.inspection import read_status
from sluice_queue.lane import Runtime
from sluice_queue.metrics import QueueMetrics
from sluice_reconciler.events import process_events
from sluice_reconciler.full_pass import FullPass, PassReport
from sluice_reconciler.http_queue import HttpQueue
from sluice_reconciler.lane_worker import Takeover
from sluice_reconciler.metrics import ReconcilerMetrics
from sluice_reconciler.pipeline import BatchPipeline
from sluice_reconciler.scanners import BootTailScanner, TimeIndexScanner
from sluice_reconciler.settings import ReconcilerSettings
from sluice_store.authority import read_authority
from sluice_store.port import ObjectStore

log = structlog.get_logger()

HINTS_MAX = 100_000
"""Keys named by events that wait to be taken; more are left to the full pass."""

REST_TO_WORK = 4
"""Rest after a full pass, in its own durations."""

EVENTS_AGAIN_S = 5.0
"""Wait before an event queue that failed is opened again."""

FAILURES_READY_MAX = 3
"""Passes in a row that may fail before the service says that it is not ready."""


@dataclass(slots=True, kw_only=True)
class ReconcilerHealth:
    """What `/readyz` tells.

    Attributes:
        passes: Full passes that ended well.
        failures: Passes in a row that did not.
        last: The last report.
        ended: Whether the work ended on its own, by an error that nobody foresaw.
    """

    passes: int = 0
    failures: int = 0
    last: PassReport | None = None
    ended: bool = False

    @property
    def ready(self) -> bool:
        """Whether the service does its work."""
        return not self.ended and self.passes > 0 and self.failures < FAILURES_READY_MAX


class Reconciler:
    """Finds every accepted batch and takes it to its end."""

    def __init__(
        self,
        store: ObjectStore,
        authority: Authority,
        *,
        settings: ReconcilerSettings | None = None,
        runtime: Runtime | None = None,
        metrics: ReconcilerMetrics | None = None,
    ) -> None:
        """Binds the parts; nothing is read yet."""
        self.settings = settings if settings is not None else ReconcilerSettings()
        self.metrics = metrics if metrics is not None else ReconcilerMetrics()
        if runtime is None:
            runtime = Runtime(metrics=QueueMetrics(self.metrics.registry))
        self._runtime = runtime
        self.intake = BatchPipeline(
            store,
            authority.lanes,
            settings=self.settings,
            runtime=self._runtime,
            metrics=self.metrics,
        )
        self.health = ReconcilerHealth()
        self._scanner = TimeIndexScanner(self.intake)
        self.tail = BootTailScanner(self.intake)
        self._collector = Collector(
            store,
            retry_horizon_ns=authority.retry_horizon_ns,
            grace_s=self.settings.collect_grace_s,
            runtime=self._runtime,
        )
        self._hints: asyncio.Queue[ObjectKey] = asyncio.Queue(HINTS_MAX)
        self.http_queues = {
            name: HttpQueue(store, name, self._runtime, lease_s=self.settings.lease_s)
            for name in self.settings.http_queue_names
        }

    @classmethod
    async def of(
        cls,
        store: ObjectStore,
        *,
        settings: ReconcilerSettings | None = None,
        runtime: Runtime | None = None,
        metrics: ReconcilerMetrics | None = None,
    ) -> "Reconciler":
        """Makes the reconciler of a store's authority.

        Raises:
            BadUsage: The store has no authority yet.
            StoreError: The store did not answer.
        """
        authority = await read_authority(store)
        return cls(store, authority, settings=settings, runtime=runtime, metrics=metrics)

    async def once(self, *, takeover: Takeover | None = Takeover.AT_ONCE) -> PassReport:
        """Makes one full pass and stores what the lanes were given.

        Raises:
            StoreError: The store did not answer or refused.
            OutcomeUnknown: The bounds of a write are spent; a further pass settles it.
        """
        report = await self._pass(takeover)
        lost = await self._lost_registers()
        await self.intake.close()
        return replace(report, registers_lost=lost)

    async def _lost_registers(self) -> tuple[ObjectKey, ...]:
        """Looks whether every register that batches went to is there, and says which is not."""
        desks = self.intake.desks.values()
        lost = tuple([desk.lane.key for desk in desks if await desk.is_register_lost()])
        self.metrics.registers_lost.set(len(lost))
        for key in lost:
            log.error("register lost, run `sluice rebuild`", register=key)
        return lost

    async def _pass(self, takeover: Takeover | None) -> PassReport:
        started_ns = self._runtime.clock.monotonic_ns()
        waited = self.intake.waiting.known()
        report = await FullPass(self.intake, takeover=takeover, saw=self.tail.saw).run()
        for stage, keys in waited.items() if not report.outcome.left else ():
            self.intake.waiting.end(stage, keys)
        took_ns = self._runtime.clock.monotonic_ns() - started_ns
        self.metrics.pass_seconds.set(took_ns / NS_PER_S)
        self.metrics.oldest_gap.set(max((boot.oldest_gap_s for boot in report.boots), default=0))
        self.metrics.tail_missing.set(sum(boot.tail_missing for boot in report.boots))
        self.metrics.unhealthy.set(report.held_back)
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
        """Works on every route until it is cancelled; trouble of the store is waited out."""
        settings = self.settings
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._passes())
                if settings.tail_interval_s:
                    tasks.create_task(self._every(settings.tail_interval_s, self._look_behind))
                tasks.create_task(self._every(settings.scan_interval_s, self._scan))
                tasks.create_task(self._every(settings.collect_interval_s, self._collect))
                tasks.create_task(self._take_hints())
                if self.intake.live.on:
                    tasks.create_task(self.intake.live_reader.run())
                if settings.event_queue_url:
                    tasks.create_task(self._every(EVENTS_AGAIN_S, self._listen))
        finally:
            await self.intake.close()

    async def _passes(self) -> None:
        """Makes passes for ever; they take a fifth of the time at most, however long one takes."""
        clock = self._runtime.clock
        while True:
            started_ns = clock.monotonic_ns()
            await self._guarded_pass()
            took_s = (clock.monotonic_ns() - started_ns) / NS_PER_S
            await clock.sleep(max(self.settings.pass_interval_s, REST_TO_WORK * took_s))

    async def _look_behind(self) -> None:
        await self.tail.scan()

    async def _every(self, seconds: float, do: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await do()
            except SluiceError as error:
                log.warning("route failed", route=do.__name__, reason=str(error))
            await self._runtime.clock.sleep(seconds)

    async def _listen(self) -> None:
        """Takes events for ever; an error ends it, and `_every` begins again."""
        from sluice_store.s3.events import open_event_queue  # noqa: PLC0415 - the SDK is an extra

        settings = self.settings
        async with open_event_queue(
            settings.event_queue_url, endpoint=settings.event_queue_endpoint or None
        ) as source:
            while True:
                await process_events(source, self.intake)

    async def _scan(self) -> None:
        await self._scanner.scan()

    async def _collect(self) -> None:
        await self._lost_registers()
        await self._collector.run()
        lanes = await read_status(self.intake.store)
        self.metrics.oldest_waiting.labels("ack").set(
            max((one.oldest_waiting_s or 0 for one in lanes), default=0)
        )
        for queue in self.settings.queue_names:
            waiting = sum(one.waiting for one in lanes if one.queue == queue)
            self.metrics.waiting.labels(queue).set(waiting)

    def hint(self, keys: Sequence[ObjectKey]) -> int:
        """Takes accepted keys that an event named; gives how many there was room for.

        What is dropped here is found by the next full pass.
        """
        taken = 0
        for key in keys:
            try:
                self._hints.put_nowait(key)
            except asyncio.QueueFull:
                self.metrics.hints_dropped.inc(len(keys) - taken)
                break
            taken += 1
        return taken

    async def _take_hints(self) -> None:
        while True:
            keys = [await self._hints.get()]
            while not self._hints.empty() and len(keys) < self.settings.list_batches_max:
                keys.append(self._hints.get_nowait())
            try:
                await self.intake.take_new(keys)
            except SluiceError as error:
                log.warning("route failed", route="events", reason=str(error))
                await self._runtime.clock.sleep(1.0)

    async def _guarded_pass(self) -> None:
        try:
            self.health.last = await self._pass(None)
        except SluiceError as error:
            self.health.failures += 1
            self.metrics.passes.labels("failed").inc()
            log.warning("full pass failed", reason=str(error))
        else:
            self.health.passes += 1
            self.health.failures = 0
            self.metrics.passes.labels("done").inc()
