"""Removing what the lanes that this process owns no longer need: idle lives, and old requests.

A request is forgotten `door_window_s` after its batch was accepted, counted up to the time through
which discovery is complete. Every batch that repeats it within the window is enqueued by then,
however late it was found.
"""

from collections.abc import Sequence
from typing import Final

import structlog

from sluice_protocol.authority import Authority
from sluice_protocol.identity import Identity
from sluice_protocol.journals import DiscoveryRecord
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_reconciler.discovery import DiscoveryStore
from sluice_reconciler.lanes.new_batches import identity_of
from sluice_reconciler.lanes.retirement import CLOCK_MARGIN_S, ShownPass
from sluice_reconciler.lanes.worker import LaneWorkers
from sluice_reconciler.verify import HoldRecords, list_hold_records
from sluice_store.port import ObjectStore

log = structlog.get_logger()

RETIRE_INTERVAL_S: Final = 600.0
"""Time between two decisions whether lives are retired, seconds."""


def forget_before_s(record: DiscoveryRecord, lane: int, window_s: float) -> int:
    """Return the time of acceptance, in seconds, before which requests are forgotten.

    Args:
        record: How far discovery is complete.
        lane: The lane.
        window_s: How long a request may be repeated.
    """
    through_ns = record.lanes.get(f"{lane:03d}", record.complete_through_unix_ns)
    return max(0, through_ns // NS_PER_S - int(window_s) - CLOCK_MARGIN_S)


class LaneUpkeep:
    """Retires lives after each full pass that left no batch behind, and forgets old requests."""

    def __init__(
        self,
        store: ObjectStore,
        workers: LaneWorkers,
        holds: HoldRecords,
        discovery: DiscoveryStore,
        authority: Authority,
        door_window_s: float = 3600.0,
    ) -> None:
        self._store = store
        self._holds = holds
        self._workers = workers
        self._discovery = discovery
        self._door_window_s = door_window_s
        self._quiet_s = authority.retry_horizon_s + authority.margin_s

    async def run(self) -> int:
        """Retire the idle lives of each owned lane in which they are many; return their number.

        Raises:
            OutcomeUnknown: The retries of a write are spent; the next owner resolves it.
            StoreError: The store is unreachable or refused a request.
        """
        await self._discovery.read()
        record, total = self._discovery.record, 0
        for worker in self._workers:
            worker.forget_requests(forget_before_s(record, worker.lane.lane, self._door_window_s))
        if record.pass_began_unix_ns is None:
            return 0
        shown = ShownPass(began_ns=record.pass_began_unix_ns, queues=record.pass_queues)
        for worker in self._workers:
            retired = await worker.retire(shown, self._quiet_s, self._held)
            if retired:
                lane = worker.lane
                log.info("lives_retired", queue=lane.queue, lane=lane.lane, lives=retired)
            total += retired
        return total

    async def _held(self) -> Sequence[Identity] | None:
        """Return every batch that is held back; None if a record of them cannot be read."""
        damaged: set[ObjectKey] = set()
        keys = [one.key async for one in list_hold_records(self._store, damaged)]
        if damaged:
            self._holds.damaged |= damaged
            log.warning("hold_record_unreadable", key=min(damaged), records=len(damaged))
            return None
        return [who for key in keys if (who := identity_of(ObjectKey(key))) is not None]
