"""Takes accepted keys from any route to the end: verified, indexed, enqueued, or marked.

Every route (full pass, scanner, events) hands keys in here and ends in the same state, in any
order and any number of times.
"""

import asyncio
import random  # noqa: TID251 - as a type
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import structlog

from sluice_protocol.identity import Identity
from sluice_protocol.keys import accepted_key, lane_of, parse_accepted_key
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_queue.lane import Lane, Runtime
from sluice_reconciler.completeness import HighWaterReader
from sluice_reconciler.indexes import by_blob_of, by_time_of, pack, put_derived
from sluice_reconciler.lane_worker import LaneWorker, Takeover
from sluice_reconciler.live_reader import LiveReader
from sluice_reconciler.live_window import LiveWindow
from sluice_reconciler.metrics import ReconcilerMetrics, Stage, StageBacklog
from sluice_reconciler.new_batches import ComparedRanges, RecentKeys, new_batches
from sluice_reconciler.sequence_ranges import EnqueueStatus
from sluice_reconciler.settings import CONCURRENCY, ReconcilerSettings
from sluice_reconciler.verify import (
    HoldRecord,
    VerifiedBatch,
    delete_hold_record,
    hold_record_key,
    put_hold_record,
    verify_batch,
)
from sluice_store.port import ObjectStore
from sluice_store.retry import WRITE_RETRY

log = structlog.get_logger()

RECENT_MAX = 100_000
"""Keys taken to their end that a process remembers."""

_In = TypeVar("_In")
_Out = TypeVar("_Out")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineResult:
    """What became of some keys.

    Attributes:
        sound: Batches whose blob was proved and whose indexes stand.
        enqueued: Batches appended, counted once per queue.
        indexed: Index entries that were not there before.
        left: Batches that another reconciler holds the lane of, or whose append was not written;
            the next pass looks at them again.
        held_back: Objects that were marked.
    """

    sound: int = 0
    enqueued: int = 0
    indexed: int = 0
    left: int = 0
    held_back: int = 0

    def plus(self, other: "PipelineResult") -> "PipelineResult":
        """Gives the sum of both."""
        return PipelineResult(
            sound=self.sound + other.sound,
            enqueued=self.enqueued + other.enqueued,
            indexed=self.indexed + other.indexed,
            left=self.left + other.left,
            held_back=self.held_back + other.held_back,
        )


class BatchPipeline:
    """Verifies, indexes and enqueues accepted batches."""

    def __init__(
        self,
        store: ObjectStore,
        lanes: int,
        *,
        settings: ReconcilerSettings,
        runtime: Runtime,
        metrics: ReconcilerMetrics,
    ) -> None:
        """Binds a desk for every lane of every queue.

        Args:
            store: The acceptance authority.
            lanes: Lane count of the authority.
            settings: How the reconciler works.
            runtime: Time, ids and chance.
            metrics: Where it counts.
        """
        self.store = store
        self.lanes = lanes
        self.settings = settings
        self.metrics = metrics
        self._rng: random.Random = runtime.rng
        self.backoff = runtime.backoff(WRITE_RETRY)
        self._gate = asyncio.Semaphore(settings.concurrency or CONCURRENCY)
        self.marked: set[ObjectKey] = set()
        self._taking: dict[ObjectKey, asyncio.Future[None]] = {}
        # What was taken to its end, and its by-time objects: repeated hints of it cost nothing.
        self._recent = RecentKeys(RECENT_MAX)
        self.indexed = RecentKeys(RECENT_MAX)
        self.live = LiveWindow(
            process=runtime.ids.ulid(),
            bytes_max=settings.live_bytes_max,
            agent_bytes_max=settings.live_agent_bytes_max,
        )
        self.live_reader = LiveReader(store, self.live)
        self.high_water = HighWaterReader(store)
        self.waiting = StageBacklog(runtime.clock)
        for stage in Stage:
            gauge = metrics.oldest_waiting.labels(stage.value)
            gauge.set_function(partial(self.waiting.oldest_s, stage))
        self.date_ns = UnixNs(0)
        self.desks = {
            (queue, lane): LaneWorker(store, Lane(queue=queue, lane=lane), runtime, metrics)
            for queue in settings.queue_names
            for lane in range(lanes)
        }

    async def take(
        self, keys: Sequence[ObjectKey], *, takeover: Takeover | None = None
    ) -> PipelineResult:
        """Takes accepted keys to their end.

        Args:
            keys: Keys under `accepted/`, in the order in which they are to be enqueued.
            takeover: When a lane of another reconciler may be taken; by age of the batch when None.

        Raises:
            StoreError: The store did not answer or refused; the same keys may be taken again.
            OutcomeUnknown: The bounds of a write are spent; the same keys may be taken again.
        """
        busy = {under for key in keys if (under := self._taking.get(key)) is not None}
        mine = {key: None for key in keys if key not in self._taking}
        outcome = await self._take(list(mine), takeover) if mine else PipelineResult()
        if not busy:
            return outcome
        await asyncio.wait(busy)
        rest = [key for key in keys if key not in mine and not self.is_done(key)]
        return outcome.plus(await self._take(rest, takeover)) if rest else outcome

    async def _take(self, keys: Sequence[ObjectKey], takeover: Takeover | None) -> PipelineResult:
        """Takes keys while other routes that meet them wait for it instead of doing the same."""
        under: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._taking.update(dict.fromkeys(keys, under))
        try:
            return await self._take_now(keys, takeover)
        finally:
            under.set_result(None)
            for key in keys:
                if self._taking.get(key) is under:
                    del self._taking[key]

    async def _take_now(
        self, keys: Sequence[ObjectKey], takeover: Takeover | None
    ) -> PipelineResult:
        looked = await self.each(keys, self._look)
        sound = [one for one in looked if isinstance(one, VerifiedBatch)]
        marks = [one for one in looked if isinstance(one, HoldRecord)]
        await self.each(marks, self.mark)
        # Before the append: what was enqueued is never indexed again.
        indexed, entries = await self._index(sound)
        self._saw(sound)
        enqueued, left = await self._enqueue(sound, takeover)
        await self.each([one for one in sound if self._is_marked(one.key)], self._heal)
        if not left:
            self.waiting.end(Stage.ENQUEUE, [one.key for one in sound])
            self._lagged("enqueued", sound)
            self._recent.add(one.key for one in sound)
            self.indexed.add(entries)
        return PipelineResult(
            sound=len(sound),
            enqueued=enqueued,
            indexed=indexed,
            left=left,
            held_back=len(marks),
        )

    def is_done(self, key: ObjectKey) -> bool:
        """Tells whether this process took a key to its end since a listing of it began.

        A ledger that was made again has forgotten it, and then it is not done.
        """
        return key in self._recent and all(
            desk.ledger.standing(parse_accepted_key(key)) is not EnqueueStatus.NEW
            for desk in self._desks_of(key)
        )

    def _desks_of(self, key: ObjectKey) -> list[LaneWorker]:
        lane = lane_of(parse_accepted_key(key).agent_id, self.lanes)
        return [self.desks[queue, lane] for queue in self.settings.queue_names]

    async def take_new(
        self,
        keys: Sequence[ObjectKey],
        *,
        takeover: Takeover | None = None,
        known: ComparedRanges | None = None,
    ) -> PipelineResult:
        """Takes those of the keys to their end that some queue was not given yet.

        For routes that repeat themselves: what this process took lately costs no request.

        Raises:
            StoreError: As `take`.
            OutcomeUnknown: As `take`.
        """
        asked = [key for key in dict.fromkeys(keys) if key not in self._recent]
        by_lane: dict[int, list[Identity]] = {}
        for who in map(parse_accepted_key, asked):
            by_lane.setdefault(lane_of(who.agent_id, self.lanes), []).append(who)
        wanted: set[ObjectKey] = set()
        for (_, lane), desk in self.desks.items():
            todo, _ = await new_batches(self.store, desk.ledger, by_lane.get(lane, ()), known)
            wanted.update(map(accepted_key, todo))
        self._recent.add(key for key in asked if key not in wanted)
        new = [key for key in asked if key in wanted]
        return await self.take(new, takeover=takeover) if new else PipelineResult()

    async def each(self, items: Iterable[_In], do: Callable[[_In], Awaitable[_Out]]) -> list[_Out]:
        """Does one thing to many, as many at once as settings allow, results in order."""

        async def gated(item: _In) -> _Out:
            async with self._gate:
                return await do(item)

        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(gated(item)) for item in items]
        except BaseExceptionGroup as group:
            raise _first(group) from group
        return [task.result() for task in running]

    async def all_of(self, works: Iterable[Coroutine[object, object, None]]) -> None:
        """Runs several walks at once; the first error of any of them ends all.

        Raises:
            StoreError: As what it runs.
            OutcomeUnknown: As what it runs.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                for work in works:
                    tasks.create_task(work)
        except BaseExceptionGroup as group:
            raise _first(group) from group

    async def _look(self, key: ObjectKey) -> VerifiedBatch | HoldRecord | None:
        full = self._rng.random() < self.settings.full_read_share
        found = await verify_batch(self.store, key, full=full)
        if isinstance(found, VerifiedBatch):
            self.waiting.dated(found.date_ns)
            self.waiting.begin(Stage.INDEX, key, found.manifest.accepted_at_ns)
        return found

    async def _index(self, sound: Sequence[VerifiedBatch]) -> tuple[int, list[ObjectKey]]:
        """Writes index entries; gives how many were not there, and the by-time objects."""
        by_time = [entry for one in sound for entry in by_time_of(one)]
        if self.settings.pack_by_time:
            objects = pack(by_time)
        else:
            objects = [(one.key, one.body, 1) for one in by_time]
        by_blob = [(*by_blob_of(one), 1) for one in sound]
        written = sum(await self.each([*objects, *by_blob], self._put))
        self.waiting.end(Stage.INDEX, [one.key for one in sound])
        for one in sound:
            self.waiting.begin(Stage.ENQUEUE, one.key, one.manifest.accepted_at_ns)
        return written, [key for key, _, _ in objects]

    async def _put(self, made: tuple[ObjectKey, bytes, int]) -> int:
        key, body, entries = made
        return entries if await put_derived(self.store, key, body, self.backoff) else 0

    def _saw(self, sound: Sequence[VerifiedBatch]) -> None:
        """Feeds the live state and the lag; the store's clock is that of the latest answer."""
        self.date_ns = max([self.date_ns, *(one.date_ns for one in sound)])
        self.live_reader.saw([one.manifest for one in sound], self.date_ns)
        self._lagged("indexed", sound)

    def _lagged(self, stage: str, sound: Sequence[VerifiedBatch]) -> None:
        oldest = min((one.manifest.accepted_at_ns for one in sound), default=None)
        age_s = 0.0 if oldest is None else self.waiting.age_s(oldest)
        self.metrics.lag.labels(stage).set(age_s)

    async def mark(self, mark: HoldRecord) -> None:
        """Marks an object as held back."""
        if hold_record_key(mark.key) not in self.marked:
            log.error("batch held back", key=mark.key, reason=mark.reason, detail=mark.detail)
            await put_hold_record(self.store, mark)
            self.marked.add(hold_record_key(mark.key))

    def _is_marked(self, key: ObjectKey) -> bool:
        return hold_record_key(key) in self.marked

    async def _heal(self, sound: VerifiedBatch) -> None:
        log.warning("batch has healed", key=sound.key)
        await delete_hold_record(self.store, sound.key)
        self.marked.discard(hold_record_key(sound.key))

    async def _enqueue(
        self, sound: Sequence[VerifiedBatch], takeover: Takeover | None
    ) -> tuple[int, int]:
        """Appends batches to every queue, lanes at once; gives how many went and stayed."""
        by_lane: dict[int, list[VerifiedBatch]] = {}
        for one in sound:
            by_lane.setdefault(lane_of(one.manifest.agent_id, self.lanes), []).append(one)

        async def append(place: tuple[str, int]) -> int | None:
            batches = by_lane[place[1]]
            rule = takeover if takeover is not None else self._rule(batches)
            manifests = [one.manifest for one in batches]
            return await self.desks[place].enqueue(manifests, takeover=rule)

        places = [(queue, lane) for queue in self.settings.queue_names for lane in sorted(by_lane)]
        done = await self.each(places, append)
        left = [
            len(by_lane[lane]) for (_, lane), went in zip(places, done, strict=True) if went is None
        ]
        return sum(went for went in done if went is not None), sum(left)

    def _rule(self, batches: Sequence[VerifiedBatch]) -> Takeover:
        oldest = min(one.manifest.accepted_at_ns for one in batches)
        waited_ns = max(one.date_ns for one in batches) - oldest
        patience_ns = int(self.settings.takeover_after_s * NS_PER_S)
        return Takeover.AT_ONCE if waited_ns > patience_ns else Takeover.IF_FREE

    async def close(self) -> None:
        """Stores what each held lane was given."""
        for desk in self.desks.values():
            await desk.close()


def _first(group: BaseExceptionGroup) -> BaseException:
    """Gives one error of a group: they all say the same of the store."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
