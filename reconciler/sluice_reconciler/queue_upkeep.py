"""What the reconciler does for its queues at an interval: it checks, measures and collects."""

from collections.abc import Sequence

import structlog

from sluice_protocol.units import ObjectKey
from sluice_queue.collector import Collector
from sluice_queue.inspection import read_status
from sluice_reconciler.lanes.worker import LaneWorkers
from sluice_reconciler.metrics import ReconcilerMetrics
from sluice_store.port import ObjectStore

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
    ) -> None:
        self._store = store
        self._workers = workers
        self._collector = collector
        self._metrics = metrics
        self._queues = queues

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
        # Last, because it deletes nothing while a lane cannot be read.
        await self._collector.run()

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
