"""What the reconciler does for its queues at an interval: it checks, measures and collects."""

from collections.abc import Sequence
from typing import Final

import structlog

from sluice_protocol.clock import Clock
from sluice_protocol.keys import DEAD_LETTER_FILES, GATEWAY_JOURNALS, QUEUE
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_queue.collector import Collector
from sluice_queue.inspection import read_status
from sluice_reconciler.lanes.worker import LaneWorkers
from sluice_reconciler.metrics import ReconcilerMetrics
from sluice_store.port import ObjectStore

MEASURE_S: Final = 3600.0
"""Time between two measurements of the stored size, which lists these objects: one LIST for each
1 000 of them. A journal has an object for each 5 s until it is removed."""
MEASURED: Final = {
    "queue": QUEUE,
    "journals": GATEWAY_JOURNALS,
    "dead_letters": DEAD_LETTER_FILES,
}
"""The prefix of each part that is measured."""

log = structlog.get_logger()


class QueueUpkeep:
    """Checks the registers, sets the gauges of the backlog, and runs the collector."""

    def __init__(
        self,
        store: ObjectStore,
        workers: LaneWorkers,
        collector: Collector,
        metrics: ReconcilerMetrics,
        queues: Sequence[str],
        clock: Clock,
    ) -> None:
        self._store = store
        self._workers = workers
        self._collector = collector
        self._metrics = metrics
        self._queues = queues
        self._clock = clock
        self._measured_at_ns: int | None = None

    async def run(self) -> None:
        """Make one round.

        Raises:
            StoreError: The store is unreachable or refused a request; the next round repeats it.
        """
        await self.check_registers()
        lanes = await read_status(self._store)
        self._metrics.oldest_waiting.labels("ack").set(
            max((one.oldest_waiting_s or 0 for one in lanes), default=0)
        )
        for queue in self._queues:
            pending = sum(one.waiting for one in lanes if one.queue == queue)
            self._metrics.waiting.labels(queue).set(pending)
        await self._measure_if_due()
        # Last, because it deletes nothing while a lane cannot be read.
        await self._collector.run()

    async def _measure_if_due(self) -> None:
        now_ns, last_ns = self._clock.monotonic_ns(), self._measured_at_ns
        if last_ns is not None and now_ns - last_ns < MEASURE_S * NS_PER_S:
            return
        for part, prefix in MEASURED.items():
            objects = size_bytes = 0
            async for page in self._store.list(prefix):
                objects += len(page.objects)
                size_bytes += sum(one.size_bytes for one in page.objects)
            self._metrics.queue_objects.labels(part).set(objects)
            self._metrics.queue_bytes.labels(part).set(size_bytes)
        self._measured_at_ns = now_ns  # a measurement that failed is due in the next round

    async def check_registers(self) -> tuple[ObjectKey, ...]:
        """Return the registers and lane states that are lost or damaged; log each.

        Raises:
            StoreError: The store is unreachable or refused a request.
        """
        found = [await worker.find_defect() for worker in self._workers]
        defects = [one for one in found if one is not None]
        self._metrics.registers_lost.set(len(defects))
        for one in defects:
            log.error("register_lost", register=one.key, defect=one.kind, reason=one.detail)
        return tuple(one.key for one in defects)
