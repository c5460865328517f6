"""One lane's desk: it knows what the lane was given, and takes the lane over when it must.

A desk reads the lane's state until there is work. It takes the lane over when nobody has it, or
when a batch has waited longer than another reconciler should leave it; a lane lost to a rival is
read again, and only what the rival did not enqueue is tried again.
"""

import asyncio
from collections.abc import Sequence
from enum import Enum

import structlog

from sluice_protocol.errors import OutcomeUnknown
from sluice_protocol.identity import Identity
from sluice_protocol.manifests import AcceptedManifest
from sluice_queue.errors import RegisterLost
from sluice_queue.lane import Lane, Runtime
from sluice_reconciler.lane_owner import LaneOwner, LaneTakenOver
from sluice_reconciler.lane_state import Ledger, is_register_lost, read_ledger
from sluice_reconciler.metrics import ReconcilerMetrics
from sluice_reconciler.new_batches import new_batches
from sluice_store.port import ObjectStore

log = structlog.get_logger()

RIVALS_MAX = 5
"""How often one enqueue may lose its lane before the pass leaves the batches to the next pass."""


class Takeover(Enum):
    """When a desk may take a lane that another reconciler holds."""

    AT_ONCE = "at_once"
    IF_FREE = "if_free"


class LaneWorker:
    """Reads, takes and feeds one lane."""

    def __init__(
        self, store: ObjectStore, lane: Lane, runtime: Runtime, metrics: ReconcilerMetrics
    ) -> None:
        """Binds a lane; nothing is read yet."""
        self._store = store
        self.lane = lane
        self._runtime = runtime
        self._metrics = metrics
        self._owner: LaneOwner | None = None
        self._lock = asyncio.Lock()
        self._held_by_other = False
        self.ledger = Ledger()

    async def refresh(self) -> None:
        """Reads the lane's state anew, unless this process holds the lane.

        Raises:
            StoreError: The store did not answer.
        """
        async with self._lock:
            if self._owner is None:
                await self._read()

    async def _read(self) -> None:
        self.ledger, self._held_by_other = await read_ledger(self._store, self.lane)

    async def enqueue(
        self, batches: Sequence[AcceptedManifest], *, takeover: Takeover
    ) -> int | None:
        """Gives the lane what it was not given; None when a rival holds it or its register is lost.

        Raises:
            OutcomeUnknown: The bounds are spent; the next pass settles it.
            StoreError: The store refused.
        """
        async with self._lock:
            if self._owner is None and takeover is Takeover.IF_FREE and self._held_by_other:
                return None
            for _ in range(RIVALS_MAX):
                try:
                    return await self._enqueue(batches)
                except LaneTakenOver:
                    log.warning("lane lost", queue=self.lane.queue, lane=self.lane.lane)
                    self._metrics.lanes_lost.labels(self.lane.queue).inc()
                    self._owner = None
                    await self._read()
                    if takeover is Takeover.IF_FREE:
                        return None
                except RegisterLost as error:
                    # Going on would leave behind what waited: the lane stands until a rebuild.
                    log.error("lane stands", reason=str(error))  # noqa: TRY400 - it says all
                    self._owner = None
                    return None
                except OutcomeUnknown:
                    # Taking the lane again settles what became of the last append.
                    self._owner = None
            return None

    async def _enqueue(self, batches: Sequence[AcceptedManifest]) -> int:
        if self._owner is None:
            self._owner = await LaneOwner.take(self._store, self.lane, self._runtime)
            self.ledger = self._owner.ledger
            if self._owner.forgotten:
                self._metrics.maybe_doubled.labels(self.lane.queue).inc()
        by_identity: dict[Identity, AcceptedManifest] = {one.identity: one for one in batches}
        todo, sure = await new_batches(self._store, self.ledger, by_identity)
        if not todo:
            return 0
        if not sure:
            self._metrics.maybe_doubled.labels(self.lane.queue).inc(len(todo))
        done = await self._owner.enqueue([by_identity[who] for who in todo])
        self._metrics.enqueued.labels(self.lane.queue).inc(done)
        return done

    async def is_register_lost(self) -> bool:
        """Tells whether the register that the lane's batches went to is gone, or another one.

        Raises:
            InvalidRecord: Its state or register is malformed.
            StoreError: The store did not answer.
        """
        return await is_register_lost(self._store, self.lane)

    async def close(self) -> None:
        """Stores the ledger, if this process holds the lane.

        Raises:
            OutcomeUnknown: The bounds are spent; the next life settles it.
            StoreError: The store refused.
        """
        async with self._lock:
            owner, self._owner = self._owner, None
            if owner is not None:
                try:
                    await owner.close()
                except LaneTakenOver:
                    return
