"""What a reconciler does for its queues and lanes at an interval: check, measure, collect, retire.

A request is forgotten `door_window_s` after its batch was accepted, counted up to the time through
which discovery is complete. Every batch that repeats it within the window is enqueued by then,
however late it was found.
"""

from collections.abc import Sequence
from typing import Final

import structlog

from sluice_protocol.identity import Identity
from sluice_protocol.journals import DiscoveryRecord
from sluice_protocol.keys import DEAD_LETTER_FILES, GATEWAY_JOURNALS, QUEUE
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_queue.collector import Collector
from sluice_queue.inspection import read_lane_status
from sluice_queue.lane import Lane
from sluice_reconciler.context import ReconcilerContext
from sluice_reconciler.lanes.defects import find_defect
from sluice_reconciler.lanes.new_batches import identity_of_key
from sluice_reconciler.lanes.state import CLOCK_MARGIN_S, ShownPass
from sluice_reconciler.verify import list_hold_records

log = structlog.get_logger()

MEASURE_S: Final = 3600.0
"""Time between two measurements of the stored size, which lists these objects: one LIST for each
1 000 of them. A journal has an object for each 5 s until it is removed."""
MEASURED: Final = {
    "queue": QUEUE,
    "journals": GATEWAY_JOURNALS,
    "dead_letters": DEAD_LETTER_FILES,
}
"""The prefix of each part that is measured."""
RETIRE_INTERVAL_S: Final = 600.0
"""Time between two decisions whether boots are retired, seconds."""


def forget_before_s(record: DiscoveryRecord, lane: Lane, window_s: float) -> int:
    """Return the time of acceptance, in seconds, before which requests are forgotten.

    A request may be repeated for `window_s`; `record` shows how far discovery is complete.
    """
    through_ns = record.lane_time(lane.lane, lane.layout)
    return max(0, through_ns // NS_PER_S - int(window_s) - CLOCK_MARGIN_S)


class LaneUpkeep:
    """Retires boots after each full pass that left no batch behind, and forgets old requests."""

    def __init__(self, context: ReconcilerContext) -> None:
        self._context = context

    async def run(self) -> int:
        """Retire the idle boots of each owned lane in which they are many; return their number."""
        context, total = self._context, 0
        await context.discovery.read()
        record = context.discovery.record
        for worker in context.workers:
            window_s = context.settings.door_window_s
            worker.forget_requests(forget_before_s(record, worker.lane, window_s))
        if record.pass_began_unix_ns is None:
            return 0
        shown = ShownPass(began_ns=record.pass_began_unix_ns, queues=record.pass_queues)
        quiet_s = context.authority.retry_horizon_s + context.authority.margin_s
        for worker in context.workers:
            retired = await worker.retire(shown, quiet_s, self._held)
            if retired:
                lane = worker.lane
                log.info("boots_retired", queue=lane.queue, lane=lane.lane, boots=retired)
            total += retired
        return total

    async def _held(self) -> Sequence[Identity] | None:
        """Return every batch that is held back; None if a record of them cannot be read."""
        damaged: set[ObjectKey] = set()
        keys = [one.key async for one in list_hold_records(self._context.store, damaged)]
        if damaged:
            self._context.holds.damaged |= damaged
            log.warning("hold_record_unreadable", key=min(damaged), records=len(damaged))
            return None
        return [who for key in keys if (who := identity_of_key(ObjectKey(key))) is not None]


class QueueUpkeep:
    """Checks the registers, sets the gauges of pending entries, and runs the collector."""

    def __init__(self, context: ReconcilerContext) -> None:
        self._context = context
        self._collector = Collector(
            context.store,
            retry_horizon_ns=context.authority.retry_horizon_ns,
            grace_s=context.settings.collect_grace_s,
            runtime=context.runtime,
        )
        self._measured_at_ns: int | None = None

    async def run(self) -> None:
        """Do all of it once."""
        await self.check_registers()
        lanes = await read_lane_status(self._context.store)
        self._context.metrics.oldest_pending.labels("ack").set(
            max((one.oldest_waiting_s or 0 for one in lanes), default=0)
        )
        for queue in self._context.settings.queue_names:
            pending = sum(one.waiting for one in lanes if one.queue == queue)
            self._context.metrics.pending.labels(queue).set(pending)
        await self._measure_if_due()
        # Last, because it deletes nothing while a lane cannot be read.
        await self._collector.run()

    async def _measure_if_due(self) -> None:
        now_ns, last_ns = self._context.runtime.clock.monotonic_ns(), self._measured_at_ns
        if last_ns is not None and now_ns - last_ns < MEASURE_S * NS_PER_S:
            return
        for part, prefix in MEASURED.items():
            objects = size_bytes = 0
            async for page in self._context.store.list(prefix):
                objects += len(page.objects)
                size_bytes += sum(one.size_bytes for one in page.objects)
            self._context.metrics.queue_objects.labels(part).set(objects)
            self._context.metrics.queue_bytes.labels(part).set(size_bytes)
        self._measured_at_ns = now_ns  # a measurement that failed is due the next time

    async def check_registers(self) -> tuple[ObjectKey, ...]:
        """Return the registers and lane states that are lost or damaged; log each."""
        context = self._context
        found = [await find_defect(context.store, worker.lane) for worker in context.workers]
        defects = [one for one in found if one is not None]
        self._context.metrics.registers_lost.set(len(defects))
        for one in defects:
            log.error("register_lost", register=one.key, defect=one.kind, reason=one.detail)
        return tuple(one.key for one in defects)
