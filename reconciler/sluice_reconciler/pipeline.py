"""The batch pipeline: verify, index, enqueue.

Every route (full pass, scanners, events) passes accepted keys to the pipeline. The result is the
same for any order and any number of repetitions: a batch is enqueued once, or held.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import structlog

from sluice_protocol.errors import OutcomeUnknown, SluiceError, StoreError
from sluice_protocol.journals import HoldReason, HoldRecord
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_reconciler.context import ReconcilerContext
from sluice_reconciler.indexes import (
    by_time_of,
    pack,
    put_all_derived,
    put_derived,
    references_of,
)
from sluice_reconciler.lanes.new_batches import ComparedRanges, RecentKeys
from sluice_reconciler.lanes.worker import LaneWorker, Takeover
from sluice_reconciler.loop_health import LOG_AGAIN_S
from sluice_reconciler.metrics import Stage
from sluice_reconciler.verify import CheckedBatch, VerifiedBatch, verify_batches
from sluice_store.port import NewObject

NamedManifests = Mapping[ObjectKey, AcceptedManifest]
NONE_NAMED: NamedManifests = MappingProxyType({})

RECENT_MAX: Final = 100_000
"""Completed keys that a process remembers."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineResult:
    """Counts of what a route did.

    Attributes:
        enqueued: Batches appended, counted once per queue.
        left: Batches that were not appended, because another reconciler owns the lane or the append
            failed; the next pass retries them.
        left_keys: The keys that are neither in every queue nor held.
        unread_keys: Keys of `left_keys` whose objects could not be read, while others could.
        batches: The verified batches of one call; a sum of results does not contain them.
    """

    sound: int = 0
    enqueued: int = 0
    indexed: int = 0
    left: int = 0
    held_back: int = 0
    absent: int = 0
    left_keys: frozenset[ObjectKey] = frozenset()
    unread_keys: frozenset[ObjectKey] = frozenset()
    batches: tuple[AcceptedManifest, ...] = ()

    def plus(self, other: "PipelineResult") -> "PipelineResult":
        """Return the sum of both."""
        return PipelineResult(
            sound=self.sound + other.sound,
            enqueued=self.enqueued + other.enqueued,
            indexed=self.indexed + other.indexed,
            left=self.left + other.left,
            held_back=self.held_back + other.held_back,
            absent=self.absent + other.absent,
            left_keys=self.left_keys | other.left_keys,
            unread_keys=self.unread_keys | other.unread_keys,
        )


class BatchPipeline:
    """Verifies, indexes and enqueues accepted batches."""

    def __init__(
        self,
        context: ReconcilerContext,
        on_verified: Callable[[Sequence[AcceptedManifest]], None],
    ) -> None:
        self._context = context
        self._on_verified = on_verified
        self._in_progress: dict[ObjectKey, asyncio.Future[None]] = {}
        # Completed keys and their by-time objects: repeated hints of them cost no request.
        self._completed = RecentKeys(RECENT_MAX)
        self._indexed = RecentKeys(RECENT_MAX)
        self._unread_logged_ns: int | None = None

    async def process(
        self,
        keys: Sequence[ObjectKey],
        *,
        takeover: Takeover | None = None,
        named: NamedManifests = NONE_NAMED,
    ) -> PipelineResult:
        """Verify, index and enqueue accepted batches.

        An object that cannot be read, or a lane that cannot be written, stops no other batch: its
        batches are left. Keys are enqueued in the given order. Without a `takeover`, the age of the
        batches decides whether a lane of another reconciler may be taken. Manifests that journals
        name save reading what the store's checksum shows to be equal. An error is raised only if
        every key failed; the keys may be retried.
        """
        if takeover is None:
            elsewhere = frozenset(key for key in keys if not self._context.workers.works_on(key))
            if elsewhere:
                here = [key for key in keys if key not in elsewhere]
                left = PipelineResult(left=len(elsewhere), left_keys=elsewhere)
                return left.plus(await self.process(here, named=named)) if here else left
        busy = {done for key in keys if (done := self._in_progress.get(key)) is not None}
        mine = {key: None for key in keys if key not in self._in_progress}
        result = PipelineResult()
        if mine:
            result = await self._process(list(mine), takeover, named)
        if not busy:
            return result
        await asyncio.wait(busy)
        rest = [key for key in keys if key not in mine and not self.is_completed(key)]
        return result.plus(await self._process(rest, takeover, named)) if rest else result

    async def process_new(
        self,
        keys: Sequence[ObjectKey],
        *,
        compared: ComparedRanges | None = None,
        named: NamedManifests = NONE_NAMED,
    ) -> PipelineResult:
        """Process those of the keys whose batch some queue was not given yet.

        For routes that meet the same keys repeatedly: a key completed lately costs no request.
        `compared` is as in `new_batches`, the rest as in `process`.
        """
        unknown = [key for key in dict.fromkeys(keys) if key not in self._completed]
        wanted = await self._context.workers.new_keys(unknown, compared)
        done = [key for key in unknown if key not in wanted]
        self._completed.add(done)
        for stage in Stage:
            self._context.pending.end(stage, done)
        new = [key for key in unknown if key in wanted]
        return await self.process(new, named=named) if new else PipelineResult()

    async def process_new_in_steps(self, keys: Sequence[ObjectKey]) -> PipelineResult:
        """Call `process_new` with at most `list_batches_max` keys at a time."""
        result, step = PipelineResult(), self._context.settings.list_batches_max
        for first in range(0, len(keys), step):
            result = result.plus(await self.process_new(keys[first : first + step]))
        return result

    def is_completed(self, key: ObjectKey) -> bool:
        """Return True if this process completed a batch and the lane states still contain it."""
        return key in self._completed and self._context.workers.has_batch(key)

    def has_indexed(self, entry: ObjectKey) -> bool:
        """Return True if this process wrote a by-time object lately and completed its batches."""
        return entry in self._indexed

    async def _process(
        self, keys: Sequence[ObjectKey], takeover: Takeover | None, named: NamedManifests
    ) -> PipelineResult:
        """Process keys, while other routes that meet them wait instead of repeating the work."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._in_progress.update(dict.fromkeys(keys, done))
        try:
            return await self._run_stages(keys, takeover, named)
        finally:
            done.set_result(None)
            for key in keys:
                if self._in_progress.get(key) is done:
                    del self._in_progress[key]

    async def _run_stages(
        self, keys: Sequence[ObjectKey], takeover: Takeover | None, named: NamedManifests
    ) -> PipelineResult:
        context = self._context
        checked = await self._verify_all(keys, named)
        verified = [one for one in checked if isinstance(one, VerifiedBatch)]
        held = [one for one in checked if isinstance(one, HoldRecord)]
        unread = self._unread_keys(keys, checked)
        lost = sum(one.reason is HoldReason.MANIFEST_MISSING for one in held)
        stored = await context.requests.each(held, context.holds.hold)
        left_keys = {
            ObjectKey(one.key) for one, is_stored in zip(held, stored, strict=True) if not is_stored
        }
        # Before the append: an enqueued batch is never indexed again.
        indexed, entries = await self._index(verified)
        manifests = tuple(one.manifest for one in verified)
        context.live.offer(manifests)
        self._on_verified(manifests)
        enqueued, left, not_appended = await self._enqueue(verified, takeover)
        batch_keys = [one.key for one in verified]
        # A batch that is not enqueued keeps its hold record: it must be in one or the other.
        appended = [key for key in batch_keys if key not in not_appended]
        await context.requests.each(context.holds.held(appended), context.holds.release)
        if not left:
            context.pending.end(Stage.ENQUEUE, batch_keys)
            self._set_lag("enqueued", verified)
            self._completed.add(batch_keys)
            self._indexed.add(entries)
        return PipelineResult(
            sound=len(verified),
            enqueued=enqueued,
            indexed=indexed,
            left=left + len(unread),
            held_back=len(held),
            absent=len(keys) - len(verified) - len(held) - len(unread) + lost,
            left_keys=frozenset(left_keys | not_appended | unread),
            unread_keys=unread,
            batches=manifests,
        )

    def _unread_keys(
        self, keys: Sequence[ObjectKey], checked: Sequence[CheckedBatch]
    ) -> frozenset[ObjectKey]:
        """Return the keys that could not be read; raise an error if that is all of them."""
        unread = {
            key: one for key, one in zip(keys, checked, strict=True) if isinstance(one, StoreError)
        }
        if unread and len(unread) == len(keys):
            raise next(iter(unread.values()))
        now_ns, last_ns = self._context.runtime.clock.monotonic_ns(), self._unread_logged_ns
        if unread and (last_ns is None or now_ns - last_ns >= LOG_AGAIN_S * NS_PER_S):
            self._unread_logged_ns = now_ns
            key, error = next(iter(unread.items()))
            log.warning("batch_unreadable", key=key, batches=len(unread), reason=str(error))
        return frozenset(unread)

    async def _verify_all(
        self, keys: Sequence[ObjectKey], named: NamedManifests
    ) -> list[CheckedBatch]:
        context = self._context
        checked = await verify_batches(context.store, keys, context.requests, named=named)
        for one in checked:
            if isinstance(one, VerifiedBatch):
                context.clock.observe(one.date_ns)
                context.pending.begin(Stage.INDEX, one.key, one.manifest.accepted_at_ns)
        return checked

    async def _index(self, verified: Sequence[VerifiedBatch]) -> tuple[int, list[ObjectKey]]:
        """Write index entries; return how many did not exist, and the by-time objects."""
        objects = pack(entry for one in verified for entry in by_time_of(one))
        by_blob = references_of(verified, objects if self._context.settings.pack_references else ())
        written = await self._put_all([*objects, *by_blob])
        self._context.pending.end(Stage.INDEX, [one.key for one in verified])
        for one in verified:
            self._context.pending.begin(Stage.ENQUEUE, one.key, one.manifest.accepted_at_ns)
        self._set_lag("indexed", verified)
        return written, [key for key, _, _ in objects]

    async def _put_all(self, made: Sequence[tuple[ObjectKey, bytes, int]]) -> int:
        """Write derived objects; return how many entries did not exist."""
        context = self._context
        new = [NewObject(key=key, body=body) for key, body, _ in made]
        created = await put_all_derived(context.store, new)
        known = zip(made, created, strict=True)
        written = sum(entries for (_, _, entries), is_new in known if is_new)
        rest = [one for one, is_new in zip(made, created, strict=True) if is_new is None]
        return written + sum(await context.requests.each(rest, self._put))

    async def _put(self, made: tuple[ObjectKey, bytes, int]) -> int:
        key, body, entries = made
        created = await put_derived(self._context.store, key, body, self._context.backoff)
        return entries if created else 0

    def _set_lag(self, stage: str, verified: Sequence[VerifiedBatch]) -> None:
        oldest_ns = min((one.manifest.accepted_at_ns for one in verified), default=None)
        age_s = 0.0 if oldest_ns is None else self._context.clock.age_s(oldest_ns)
        self._context.metrics.lag.labels(stage).set(age_s)

    async def _enqueue(
        self, verified: Sequence[VerifiedBatch], takeover: Takeover | None
    ) -> tuple[int, int, set[ObjectKey]]:
        """Append batches to every queue; return how many were and were not, and the latter."""
        by_worker: dict[LaneWorker, list[VerifiedBatch]] = {}
        for one in verified:
            for worker in self._context.workers.of_agent(one.manifest.agent_id):
                by_worker.setdefault(worker, []).append(one)

        failed: dict[LaneWorker, SluiceError] = {}

        async def append(worker: LaneWorker) -> int | None:
            batches = by_worker[worker]
            rule = takeover if takeover is not None else self._takeover_by_age(batches)
            try:
                return await worker.enqueue([one.manifest for one in batches], takeover=rule)
            except (StoreError, OutcomeUnknown) as error:
                failed[worker] = error
                log.warning("lane_not_written", lane=worker.lane.key, reason=str(error))
                return None

        workers = [worker for worker in self._context.workers if worker in by_worker]
        done = await self._context.requests.each(workers, append)
        if failed and len(failed) == len(workers):
            raise next(iter(failed.values()))
        refused = [worker for worker, count in zip(workers, done, strict=True) if count is None]
        left = sum(len(by_worker[worker]) for worker in refused)
        left_keys = {one.key for worker in refused for one in by_worker[worker]}
        return sum(count for count in done if count is not None), left, left_keys

    def _takeover_by_age(self, batches: Sequence[VerifiedBatch]) -> Takeover:
        if self._context.workers.shared is not None:
            return Takeover.ALWAYS  # the members have agreed on the lane
        oldest_ns = min(one.manifest.accepted_at_ns for one in batches)
        waited_ns = max(one.date_ns for one in batches) - oldest_ns
        patience_ns = int(self._context.settings.takeover_after_s * NS_PER_S)
        return Takeover.ALWAYS if waited_ns > patience_ns else Takeover.IF_UNOWNED
