"""Lane workers: each knows what its lane was given, and takes the lane over when it must.

A worker reads the lane's state until there is work. It takes the lane over if no process owns it,
or if a batch has waited longer than another reconciler may leave it. After it lost the lane to a
rival, it reads the state again and retries only what the rival did not enqueue.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from enum import Enum
from typing import Final

import structlog

from sluice_protocol.authority import Authority
from sluice_protocol.errors import OutcomeUnknown, SluiceError
from sluice_protocol.identity import Identity
from sluice_protocol.keys import lane_of, parse_accepted_key
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.units import ObjectKey
from sluice_queue.errors import LaneDamaged, LayoutChanged, RegisterLost
from sluice_queue.lane import Lane
from sluice_queue.register_client import Runtime
from sluice_reconciler.lanes.enqueued import EnqueuedBatches
from sluice_reconciler.lanes.new_batches import ComparedRanges, identity_of_key, new_batches
from sluice_reconciler.lanes.owner import LaneClosed, LaneOwner, LaneTakenOver
from sluice_reconciler.lanes.part_log import PartCache, read_enqueued
from sluice_reconciler.lanes.sequence_ranges import EnqueueStatus
from sluice_reconciler.lanes.state import UNSETTLED_MAX, LaneStateDamaged, OwnerClaim, ShownPass
from sluice_reconciler.metrics import ReconcilerMetrics
from sluice_store.port import ObjectStore

log = structlog.get_logger()

HeldReader = Callable[[], Awaitable[Sequence[Identity] | None]]
"""Returns every batch that is held back, or None if some cannot be read."""

ClaimMaker = Callable[[], OwnerClaim | None]

_HALTING: Final = (RegisterLost, LaneDamaged, LaneStateDamaged)
_CLOSED: Final = (LaneClosed, LayoutChanged)
"""The number of lanes is being changed, or was changed since this process started."""

RIVALS_MAX: Final = 5
"""How often one enqueue may lose its lane before its batches are left to the next pass."""


class Takeover(Enum):
    """When a worker may take a lane that another reconciler owns."""

    ALWAYS = "always"
    IF_UNOWNED = "if_unowned"


class LaneWorker:
    """The worker of one lane."""

    def __init__(
        self,
        store: ObjectStore,
        lane: Lane,
        runtime: Runtime,
        metrics: ReconcilerMetrics,
        lanes: int,
    ) -> None:
        self._store = store
        self.lane = lane
        self._lanes = lanes
        self._runtime = runtime
        self._metrics = metrics
        self._owner: LaneOwner | None = None
        self._lock = asyncio.Lock()
        self._owned_by_rival = False
        self.is_closed = False
        """Whether a change of the number of lanes was seen to have closed this lane."""
        self.is_allowed = True
        """Whether this process may take or use the lane; False if another member works on it."""
        self.enqueued = EnqueuedBatches()
        """What the lane was given, as last read or written."""
        self._parts = PartCache()
        self._forgets_before_s = 0
        self.claim: ClaimMaker = lambda: None
        """Names this process in the lane's state when it takes the lane."""

    @property
    def is_of_rival(self) -> bool:
        """Whether another process owned the lane, and had not released it, at the last read."""
        return self._owner is None and self._owned_by_rival

    async def refresh(self) -> None:
        """Read the lane's state again, unless this process owns the lane."""
        async with self._lock:
            if self._owner is None:
                await self._read()

    async def _read(self) -> None:
        try:
            self.enqueued, self._owned_by_rival = await read_enqueued(
                self._store, self.lane, self._parts
            )
        except LaneStateDamaged as error:
            # Nothing is enqueued either: an owner reads the same state first.
            self._log_halted(error)

    def _log_halted(self, error: SluiceError) -> None:
        if isinstance(error, _CLOSED):  # the process opens the next layout once it is recorded
            if not self.is_closed:
                lane = self.lane
                log.info("lane_closed", queue=lane.queue, lane=lane.lane, reason=str(error))
            self.is_closed = True
            return
        log.error("lane_halted", queue=self.lane.queue, lane=self.lane.lane, reason=str(error))

    async def enqueue(
        self, batches: Sequence[AcceptedManifest], *, takeover: Takeover
    ) -> int | None:
        """Enqueue the batches that the lane was not given yet.

        Return the number of enqueued batches; None if a rival owns the lane or works on it, or the
        lane is halted.
        """
        async with self._lock:
            if not self.is_allowed:
                return None
            if self._owner is None and takeover is Takeover.IF_UNOWNED and self._owned_by_rival:
                return None
            for _ in range(RIVALS_MAX):
                try:
                    return await self._enqueue(batches)
                except LaneTakenOver:
                    log.warning("lane_taken_over", queue=self.lane.queue, lane=self.lane.lane)
                    self._metrics.lanes_lost.labels(self.lane.queue).inc()
                    self._owner = None
                    await self._read()
                    if takeover is Takeover.IF_UNOWNED:
                        return None
                except (*_HALTING, *_CLOSED) as error:
                    # An append to a new register would skip the pending entries of the lost one,
                    # so this lane is halted until a rebuild; the others continue.
                    self._log_halted(error)
                    self._owner = None
                    return None
                except OutcomeUnknown:
                    # Taking the lane again resolves what became of the last append.
                    self._owner = None
            return None

    async def _enqueue(self, batches: Sequence[AcceptedManifest]) -> int:
        if self._owner is None or self._owner.in_doubt:
            self._owner = await LaneOwner.take(
                self._store, self.lane, self._runtime, self._parts, self.claim()
            )
            self.enqueued = self._owner.enqueued
            self._owner.forget_requests(self._forgets_before_s)
            if self._owner.forgotten:
                self._metrics.maybe_doubled.labels(self.lane.queue).inc()
        by_identity: dict[Identity, AcceptedManifest] = {one.identity: one for one in batches}
        todo, unsure = await new_batches(self._store, self.enqueued, by_identity)
        if not todo:
            return 0
        if unsure:
            self._metrics.maybe_doubled.labels(self.lane.queue).inc(len(todo))
        for boot, sealed in unsure:
            log.warning("sequence_range_enqueued_again", agent=boot[0], boot=boot[1])
            self.enqueued.dissolve(boot, sealed)
        repeated = self._owner.repeated_parts
        done = await self._owner.enqueue([by_identity[who] for who in todo])
        self._metrics.enqueued.labels(self.lane.queue).inc(done)
        repeated = self._owner.repeated_parts - repeated
        self._metrics.repeated_parts.labels(self.lane.queue).inc(repeated)
        return done

    def forget_requests(self, before_s: int) -> None:
        """Forget requests of combined batches that were accepted before a time, in seconds."""
        self._forgets_before_s = before_s
        if self._owner is not None:
            self._owner.forget_requests(before_s)

    @property
    def requests(self) -> int:
        """How many requests of combined batches this process remembers for the lane."""
        return self._owner.requests if self._owner is not None else 0

    async def retire(self, shown: ShownPass, quiet_s: int, held: HeldReader) -> int:
        """Retire idle boots, if this process owns the lane and that is worth a rewrite.

        Return their number. A boot is kept for `quiet_s` after its last batch; `held` is called
        after the pass ended.
        """
        async with self._lock:
            owner = self._owner
            settled_s = owner.settled_time_s(shown, quiet_s) if owner is not None else None
            if owner is None or owner.in_doubt or settled_s is None or not self.is_allowed:
                return 0
            held_back = await held()
            if held_back is None:
                return 0
            number = self.lane.lane
            mine = [one for one in held_back if lane_of(one.agent_id, self._lanes) == number]
            try:
                unsettled, unsure = await new_batches(self._store, self.enqueued, mine)
                known = len(self.enqueued.unsettled)
                if unsure or len(unsettled) + known > UNSETTLED_MAX:
                    return 0
                return await owner.retire(settled_s, unsettled)
            except LaneTakenOver:
                self._owner = None
                await self._read()
                return 0
            except OutcomeUnknown:
                self._owner = None
                raise

    async def close(self) -> None:
        """Store what the lane was given, if this process owns it and every append has ended."""
        async with self._lock:
            owner, self._owner = self._owner, None
            if owner is not None and not owner.in_doubt:
                try:
                    await owner.close()
                except LaneTakenOver:
                    return


class LaneWorkers:
    """The workers of every lane of every queue that batches are appended to."""

    def __init__(
        self,
        store: ObjectStore,
        authority: Authority,
        queues: Sequence[str],
        runtime: Runtime,
        metrics: ReconcilerMetrics,
    ) -> None:
        self._store = store
        self._lanes = lanes = authority.lanes
        layout, after = authority.layout, authority.after_sequence
        places = [
            Lane(queue=queue, lane=lane, layout=layout, after=after)
            for queue in queues
            for lane in range(lanes)
        ]
        self._workers = tuple(LaneWorker(store, place, runtime, metrics, lanes) for place in places)
        self._by_lane = tuple(self._workers[lane::lanes] for lane in range(lanes))
        self._shared: frozenset[int] | None = None
        metrics.known_requests.set_function(lambda: sum(one.requests for one in self))

    @property
    def queues(self) -> frozenset[str]:
        """The queues that batches are appended to."""
        return frozenset(one.lane.queue for one in self)

    @property
    def is_closed(self) -> bool:
        """Whether a change of the number of lanes was seen to have closed a lane."""
        return any(one.is_closed for one in self)

    def __iter__(self) -> Iterator[LaneWorker]:
        return iter(self._workers)

    def of_agent(self, agent_id: str) -> tuple[LaneWorker, ...]:
        """Return the worker of an agent's lane in every queue."""
        return self._by_lane[lane_of(agent_id, self._lanes)]

    @property
    def shared(self) -> frozenset[int] | None:
        """The lanes that this process works on; None if it shares them with no other process."""
        return self._shared

    @property
    def elsewhere(self) -> frozenset[int]:
        """The lanes that other reconcilers work on."""
        if self._shared is not None:
            return frozenset(range(self._lanes)) - self._shared
        return frozenset(one.lane.lane for one in self if one.is_of_rival)

    @property
    def of_members(self) -> frozenset[int]:
        """The lanes that other reconcilers work on, if lanes are shared; none otherwise."""
        return self.elsewhere if self._shared is not None else frozenset()

    def claim_as(self, claim: ClaimMaker) -> None:
        """Name this process in the state of each lane that it takes from now on."""
        for worker in self:
            worker.claim = claim

    def works_on(self, key: ObjectKey) -> bool:
        """Return True if this process works on the lane of an accepted key, or shares no lanes."""
        if self._shared is None:
            return True
        who = identity_of_key(key)
        return who is None or lane_of(who.agent_id, self._lanes) in self._shared

    def share(self, lanes: frozenset[int]) -> None:
        """Work on these lanes only."""
        self._shared = lanes
        for worker in self:
            worker.is_allowed = worker.lane.lane in lanes

    async def share_with_refresh(self, lanes: frozenset[int]) -> None:
        """Read the state of the lanes that are added, then work on these lanes only.

        After an error for some lane, the others are shared.
        """
        added = lanes - (self._shared or frozenset())
        workers = [worker for worker in self if worker.lane.lane in added]
        done = await asyncio.gather(*(one.refresh() for one in workers), return_exceptions=True)
        failed = {
            worker.lane.lane: error
            for worker, error in zip(workers, done, strict=True)
            if error is not None
        }
        self.share(lanes - failed.keys())  # a lane that cannot be read stops no other
        for error in failed.values():
            raise error

    async def release(self, lanes: frozenset[int]) -> None:
        """Store what lanes were given, so that their next owner has nothing to resolve.

        After an error, the other lanes are closed.
        """
        await self._close([worker for worker in self if worker.lane.lane in lanes])

    async def refresh(self) -> None:
        """Read the state of every lane that this process does not own.

        After an error for some lane, the others are read.
        """
        failed: SluiceError | None = None
        for worker in self:
            try:
                await worker.refresh()
            except SluiceError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    async def close(self) -> None:
        """Store what every lane of this process was given, and release the lanes.

        After an error, the other lanes are closed.
        """
        await self._close(self._workers)

    async def _close(self, workers: Sequence[LaneWorker]) -> None:
        closed = await asyncio.gather(*(one.close() for one in workers), return_exceptions=True)
        for outcome in closed:
            if outcome is not None:
                raise outcome

    def has_batch(self, key: ObjectKey) -> bool:
        """Return True if, by what is in memory, every queue was given a batch.

        A lane whose state was emptied by a rebuild no longer contains it.
        """
        who = parse_accepted_key(key)
        return all(
            worker.enqueued.status(who) in (EnqueueStatus.DONE, EnqueueStatus.MAYBE)
            for worker in self.of_agent(who.agent_id)
        )

    async def new_keys(
        self, keys: Sequence[ObjectKey], compared: ComparedRanges | None
    ) -> set[ObjectKey]:
        """Return the accepted keys whose batch some queue was not given yet."""
        by_lane: dict[int, dict[Identity, ObjectKey]] = {}
        for key in keys:
            who = parse_accepted_key(key)
            by_lane.setdefault(lane_of(who.agent_id, self._lanes), {})[who] = key
        found: set[ObjectKey] = set()
        for worker in self:
            batches = by_lane.get(worker.lane.lane, {})
            todo, _ = await new_batches(self._store, worker.enqueued, batches, compared)
            found.update(batches[who] for who in todo)
        return found
