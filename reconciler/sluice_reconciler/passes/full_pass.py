"""The full pass: it lists all of `accepted/` and `quarantine/` and completes what is not done.

Keys are listed in order, so the batches of one boot are adjacent. Each sequence range of the lane
state is compared as a whole: the seal of what is listed inside it with its stored seal. If they are
equal, nothing in the range costs a request; if not, the new batches in it are identified. Memory:
one chunk of new keys, the sequence ranges of one boot, and the bounded report of all boots.

Spans of `accepted/` are listed concurrently. Names of agents often share a prefix, so equal parts
of the alphabet are no equal parts of the work. Each pass therefore samples where its boots begin,
weighted by the number of keys, and the next pass cuts there. A cut is the prefix of a boot without
the last slash: it sorts before every key of the boot, so a boot is never in two spans. The first
pass cuts by the alphabet.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import msgspec
import structlog
from msgspec import structs

from sluice_protocol.errors import InvalidRecord, StoreError
from sluice_protocol.identity import Identity
from sluice_protocol.journals import HoldReason, HoldRecord
from sluice_protocol.keys import (
    ACCEPTED,
    AUTHORITY_SETTINGS,
    RECONCILER,
    accepted_key,
    parse_accepted_key,
)
from sluice_protocol.manifests import decode_record, encode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey, UnixNs
from sluice_reconciler.completeness import (
    BootTally,
    HighWaterReader,
    StoreReport,
    StoreTally,
    remove_marks,
)
from sluice_reconciler.context import ReconcilerContext
from sluice_reconciler.lanes.new_batches import boot_prefix, identity_of_key, new_batches
from sluice_reconciler.lanes.sequence_ranges import (
    SEAL_MASK,
    BootRanges,
    EnqueueStatus,
    ListedBatch,
    seal_of,
)
from sluice_reconciler.lanes.state import is_settled
from sluice_reconciler.lanes.worker import LaneWorker, Takeover
from sluice_reconciler.passes.held_batches import QuarantinePass
from sluice_reconciler.passes.index_check import IndexCheck
from sluice_reconciler.passes.progress import PassOptions, PassRecord, PassSpan
from sluice_reconciler.pipeline import BatchPipeline, PipelineResult
from sluice_store.port import ListPage, run_together

CUTS_MAX: Final = 63
"""Cuts that one pass stores for the next."""
MARKS_MAX: Final = 512
"""Beginnings of boots that one span remembers, at most."""


class BootSample:
    """Beginnings of boots in one span, at about equal distances by number of keys."""

    def __init__(self) -> None:
        self._marks: list[tuple[int, str]] = []
        self._keys = 0
        self._stride = 1

    def begin_boot(self, key: str) -> None:
        """Add the first key of a boot, in key order."""
        if not self._marks or self._keys >= self._marks[-1][0] + self._stride:
            self._marks.append((self._keys, key.rpartition("/")[0]))
        if len(self._marks) > MARKS_MAX:
            self._marks = self._marks[::2]
            self._stride *= 2

    def count(self) -> None:
        """Count one key."""
        self._keys += 1

    def weighted(self) -> list[tuple[str, int]]:
        """Return each mark with the number of keys from it to the next one."""
        ends = [*(at for at, _ in self._marks[1:]), self._keys]
        return [(mark, end - at) for (at, mark), end in zip(self._marks, ends, strict=False)]


def cuts_of(samples: Iterable[BootSample]) -> tuple[str, ...]:
    """Return at most `CUTS_MAX` cuts that divide what was listed into about equal parts."""
    weighted = sorted(one for sample in samples for one in sample.weighted())
    total = sum(weight for _, weight in weighted)
    cuts: list[str] = []
    before = part = 0
    for mark, weight in weighted:
        reached = before * (CUTS_MAX + 1) // max(total, 1)
        if reached > part:
            cuts.append(mark)
            part = reached
        before += weight
    return tuple(cuts)


def spans_of(shards: int, cuts: Sequence[str] = ()) -> tuple[PassSpan, ...]:
    """Return spans of `accepted/` that contain every key once, such that each boot is in one span.

    There are at most `shards` spans. Without cuts of an earlier pass, the spans divide the letters
    and digits that agent ids begin with evenly.
    """
    known = sorted(set(cuts))
    if known:
        wanted = min(shards, len(known) + 1)
        bounds = [known[len(known) * number // wanted] for number in range(1, wanted)]
    else:
        low, high = ord("0"), ord("z")
        letters = sorted({low + (high - low) * number // shards for number in range(1, shards)})
        bounds = [f"{ACCEPTED}agent={cut:02x}" for cut in letters]
    bounds = sorted(set(bounds))
    pairs = zip(["", *bounds], [*bounds, None], strict=True)
    return tuple(PassSpan(after=after, up_to=up_to) for after, up_to in pairs)


@dataclass(slots=True, kw_only=True)
class _ListedSum:
    """The number and the seal of the batches listed so far inside one sequence range."""

    batches: int = 0
    seal: int = 0


@dataclass(slots=True, kw_only=True)
class BootComparison:
    """One boot's listing compared with what a queue was given of it before the listing.

    Attributes:
        retired_before_s: If the lane state did not contain the boot, the settled time of the lane.
        unsettled: Then the sequence numbers of the unsettled batches of the boot.
    """

    worker: LaneWorker
    before: BootRanges
    retired_before_s: int = 0
    unsettled: frozenset[tuple[int, int]] = frozenset()
    sums: dict[int, _ListedSum] = field(default_factory=dict)

    @classmethod
    def of(cls, worker: LaneWorker, agent_id: str, boot_id: str) -> "BootComparison":
        """Copy what a queue was given of a boot, before anything is added to it."""
        enqueued, boot = worker.enqueued, (agent_id, boot_id)
        now = enqueued.boot(*boot)
        if now is None:
            return cls(
                worker=worker,
                before=BootRanges(),
                retired_before_s=enqueued.settled_s(agent_id),
                unsettled=enqueued.unsettled_of(boot),
            )
        before = BootRanges(ranges=[one.copy() for one in now.ranges], extras=list(now.extras))
        return cls(worker=worker, before=before)

    def is_new(self, who: Identity, appeared_ns: int) -> bool:
        """Return True if a batch is certainly new; otherwise add it to the sum of its range."""
        if self.retired_before_s:
            listed = ListedBatch(start=who.seq_start, end=who.seq_end, last_modified_ns=appeared_ns)
            return not is_settled(listed, self.retired_before_s, self.unsettled)
        match self.before.status(who.seq_start, who.seq_end):
            case EnqueueStatus.NEW | EnqueueStatus.RETIRED:
                return True
            case EnqueueStatus.DONE if (who.seq_start, who.seq_end) in self.before.extras:
                return False
            case EnqueueStatus.DONE | EnqueueStatus.MAYBE:
                sealed = self.before.range_of(who.seq_start, who.seq_end)
                if sealed is not None:
                    total = self.sums.setdefault(sealed.start, _ListedSum())
                    total.batches += 1
                    total.seal = (total.seal + seal_of(who.seq_start, who.seq_end)) & SEAL_MASK
                return False

    def mismatches(self) -> list[tuple[int, int]]:
        """Return the ranges whose listing differs from their seal."""
        return [
            (sealed.start, sealed.end)
            for sealed in self.before.ranges
            if self._sum(sealed.start) != (sealed.batches, sealed.seal)
        ]

    def _sum(self, start: int) -> tuple[int, int]:
        total = self.sums.get(start)
        return (0, 0) if total is None else (total.batches, total.seal)


log = structlog.get_logger()

_READS: Final = frozenset({"get", "head"})
"""Operations of the store that read one object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassReport:
    """What one full pass did.

    Attributes:
        began_ns: The store's clock before the first listing of `accepted/`.
        complete_through_ns: `began_ns`, if every batch that existed then is enqueued or has a hold
            record; otherwise None.
        boots: The accepted ranges and gaps of the boots, as of when each was listed.
        missed: Batches that journals should have named and did not.
        is_whole: Whether this process listed everything; otherwise it continued the pass of another
            one, and `boots` is only what was listed since.
    """

    listed: int
    began_ns: UnixNs
    complete_through_ns: UnixNs | None
    outcome: PipelineResult
    quarantined: int
    held_back: int
    boots: StoreReport = field(default_factory=StoreReport)
    registers_lost: tuple[ObjectKey, ...] = ()
    missed: int = 0
    is_whole: bool = True
    cuts: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()


LEFT: Final = ObjectKey(f"{RECONCILER}full-pass-left.json")
LEFT_MAX: Final = 10_000
"""Keys of one hand-over, and keys that one span collects before it hands them over."""
LEFT_TRIES: Final = 5
LEFT_PAUSE_S: Final = 2.0


class LeftBatches(msgspec.Struct, frozen=True, kw_only=True):
    """Accepted keys that a full pass found in lanes of other reconcilers: a hint, overwritten."""

    schema: Literal["sluice.reconciler_pass_left.v1"] = "sluice.reconciler_pass_left.v1"
    keys: tuple[str, ...]


class HandOver:
    """The hand-over of batches in lanes of other reconcilers, as both sides see it.

    A pass enqueues the batches of the lanes that its process works on. What it finds in other lanes
    is named in `reconciler/v1/full-pass-left.json`, and the progress of the pass shows that the
    object has changed. The owners process what it names, and the pass reads their lanes until all
    of it is done. So one pass is enough, however many reconcilers share the lanes.

    The object is a hint, replaced with each hand-over. If it is lost, the pass leaves these batches
    behind and is repeated.
    """

    def __init__(self, context: ReconcilerContext, pipeline: BatchPipeline) -> None:
        self._context = context
        self._pipeline = pipeline

    async def give(
        self, keys: Sequence[ObjectKey], announce: Callable[[], Awaitable[None]]
    ) -> PipelineResult:
        """Name batches for their owners, and wait a bounded time until these have enqueued them.

        At most `LEFT_MAX` keys; `announce` stores that the object has changed. Return what this
        process enqueued itself, with `left_keys` that no process enqueued.
        """
        context = self._context
        if context.workers.shared is not None:
            await context.store.overwrite(LEFT, encode_record(LeftBatches(keys=tuple(keys))))
            await announce()
        total, rest = PipelineResult(), list(keys)
        for _ in range(LEFT_TRIES):
            await context.runtime.clock.sleep(LEFT_PAUSE_S)
            await context.workers.refresh()
            try:
                done = await self._pipeline.process_new_in_steps(rest)
            except StoreError:
                # None of them can be read, but the lanes could: the batches are left.
                done = PipelineResult(left_keys=frozenset(rest))
            rest = sorted(done.left_keys)
            total = PipelineResult(
                enqueued=total.enqueued + done.enqueued,
                left=len(rest),
                left_keys=done.left_keys,
            )
            if not rest:
                break
        return total

    async def take(self) -> PipelineResult:
        """Process what another reconciler named, in the lanes of this process."""
        read = await self._context.store.get(LEFT)
        if not isinstance(read, Found):
            return PipelineResult()
        try:
            named = decode_record(LEFT, read.body, LeftBatches)
        except InvalidRecord as error:
            log.warning("pass_record_unreadable", key=LEFT, reason=error.reason)
            return PipelineResult()
        keys = [ObjectKey(key) for key in named.keys]
        mine = [key for key in keys if self._context.workers.works_on(key)]
        return await self._pipeline.process_new_in_steps(mine)


class FullPass:
    """Full passes over one store; `on_boot` is called with the last key of each listed boot."""

    def __init__(
        self,
        context: ReconcilerContext,
        pipeline: BatchPipeline,
        on_boot: Callable[[ObjectKey], None],
    ) -> None:
        self.context = context
        self.pipeline = pipeline
        self.on_boot = on_boot
        self.hand_over = HandOver(context, pipeline)
        self.index_check = IndexCheck(context)
        self._high_water = HighWaterReader(context.store, context.requests)

    async def run(
        self, takeover: Takeover | None = None, options: PassOptions | None = None
    ) -> PassReport:
        """Make one pass, or continue one; what was done before an error is kept."""
        how = options if options is not None else PassOptions()
        context = self.context
        began_ns = await context.holds.refresh()
        if how.resume is not None:
            began_ns = UnixNs(how.resume.began_unix_ns)
        marks = await self._high_water.read()
        boots = StoreTally(marks, context.authority.retry_horizon_ns)
        self.index_check.begin(began_ns)
        run = PassRun(self, began_ns, how, takeover, boots)
        await context.workers.refresh()
        await run_together(*(span.run() for span in run.spans))
        if how.retry_left:
            for span in run.spans:
                await run.hand_over(span)
        quarantine = QuarantinePass(context.store, context.holds, context.requests, context.backoff)
        await quarantine.run()
        outcome = run.outcome().plus(PipelineResult(held_back=quarantine.held))
        await remove_marks(context.store, context.requests, boots.covered_marks)
        await self.index_check.run(began_ns)
        return PassReport(
            listed=run.listed(),
            began_ns=began_ns,
            complete_through_ns=None if run.has_left() else began_ns,
            outcome=outcome,
            quarantined=quarantine.written,
            held_back=len(context.holds),
            boots=run.boots.report(),
            missed=run.missed(),
            is_whole=how.resume is None,
            cuts=run.cuts(),
            queues=run.queues,
        )


class PassRun:
    """One pass while it runs: its spans, and its progress as it is stored."""

    def __init__(
        self,
        full_pass: FullPass,
        began_ns: UnixNs,
        how: PassOptions,
        takeover: Takeover | None,
        boots: StoreTally,
    ) -> None:
        self._pass = full_pass
        self._context = full_pass.context
        self._began_ns = began_ns
        self.how = how
        self.takeover = takeover
        self.boots = boots
        self._before = how.resume.missed if how.resume is not None else 0
        known = full_pass.context.workers.queues
        if how.resume is not None:
            # Another process, which may have other queues, compared the first part.
            known &= set(how.resume.queues)
        self.queues = tuple(sorted(known))
        stored = how.progress.record if how.progress is not None else None
        self._cuts = stored.cuts if stored is not None else ()
        parts = (
            how.resume.spans
            if how.resume is not None
            else spans_of(full_pass.context.settings.shards, self._cuts)
        )
        self._handed_over = 0
        self._handing = asyncio.Lock()
        self.spans = [_SpanPass(full_pass, self, part) for part in parts]

    def outcome(self) -> PipelineResult:
        """Return the sum of the spans' results."""
        total = PipelineResult()
        for span in self.spans:
            total = total.plus(span.outcome)
        left = sum(len(span.left) + span.overflow for span in self.spans)
        return replace(total, left=left)

    def listed(self) -> int:
        """Return the number of listed keys, with those before an interruption."""
        return sum(span.listed for span in self.spans)

    def missed(self) -> int:
        """Return the number of batches that journals missed."""
        return self._before + sum(span.missed for span in self.spans)

    def cuts(self) -> tuple[str, ...]:
        """Return where the next pass cuts `accepted/`."""
        if self.how.resume is not None and self._cuts:
            return self._cuts  # another process listed the first part
        return cuts_of(span.sample for span in self.spans)

    def has_left(self) -> bool:
        """Return True if a batch is neither enqueued nor held."""
        return self.outcome().left > 0 or self._context.holds.unstored > 0

    async def hand_over(self, span: "_SpanPass") -> None:
        """Hand what a span left over to the owners of its lanes."""
        async with self._handing:
            keys = list(span.left)  # they stay left: the progress stored meanwhile must show that
            if not keys:
                return
            self._handed_over += 1
            done = await self._pass.hand_over.give(keys, self._announce)
            span.left = sorted(done.left_keys)
            span.outcome = span.outcome.plus(PipelineResult(enqueued=done.enqueued))

    async def _announce(self) -> None:
        if self.how.progress is not None:
            await self.how.progress.save(self.record())

    def record(self) -> PassRecord:
        """Return the progress as it is stored."""
        return PassRecord(
            began_unix_ns=self._began_ns,
            spans=tuple(span.progress for span in self.spans),
            left=self.has_left(),
            missed=self.missed(),
            handed_over=self._handed_over,
            cuts=self._cuts,
            queues=self.queues,
        )


class _SpanPass:
    """The pass over one span of `accepted/`, key by key; several run concurrently."""

    def __init__(self, full_pass: FullPass, run: PassRun, progress: PassSpan) -> None:
        self._pass = full_pass
        self._context = full_pass.context
        self._run = run
        self.progress = progress
        self._chunk: list[ObjectKey] = []
        self._new_listed = 0
        self.outcome = PipelineResult()
        self.left: list[ObjectKey] = []
        self.overflow = 0
        self.missed = 0
        self.date_ns = UnixNs(0)
        self.sample = BootSample()

    @property
    def listed(self) -> int:
        """Number of listed keys, with those before an interruption."""
        return self.progress.listed + self._new_listed

    async def run(self) -> None:
        if self.progress.done:
            return
        tally: BootTally | None = None
        comparisons: list[BootComparison] = []
        last: ObjectKey | None = None
        async for key, who, appeared_ns in self._keys():
            if tally is None or tally.boot != (who.agent_id, who.boot_id):
                await self._finish_boot(tally, comparisons, last)
                await self._save(last)
                tally = BootTally(who.agent_id, who.boot_id)
                workers = self._context.workers.of_agent(who.agent_id)
                comparisons = [BootComparison.of(worker, *tally.boot) for worker in workers]
                self.sample.begin_boot(key)
            self.sample.count()
            tally.add(who, appeared_ns)
            last = key
            self._new_listed += 1
            # Each comparison adds the batch to its sum.
            if any([one.is_new(who, appeared_ns) for one in comparisons]):  # noqa: C419
                await self._add(key)
            else:
                self._pass.index_check.offer(key, appeared_ns)
        await self._finish_boot(tally, comparisons, last)
        await self._flush()
        self._finish_span(last, done=True)

    async def _save(self, last: ObjectKey | None) -> None:
        """Store the progress after a boot, if that is due.

        What is done before is then complete, so the chunk is processed although it is not full.
        """
        progress = self._run.how.progress
        if last is None or progress is None or not progress.is_due():
            return
        await self._flush()
        self._finish_span(last, done=False)
        if progress.is_due():  # Another span may have stored it meanwhile.
            await progress.save(self._run.record())

    def _finish_span(self, last: ObjectKey | None, *, done: bool) -> None:
        self.progress = structs.replace(
            self.progress, at=last or self.progress.at, listed=self.listed, done=done
        )
        self._new_listed = 0

    async def _keys(self) -> AsyncIterator[tuple[ObjectKey, Identity, UnixNs]]:
        """List the span; a key of another form is held."""
        after = self.progress.at or self.progress.after
        async for page in self._context.store.list(
            ACCEPTED, start_after=after, end_at=self.progress.up_to
        ):
            self.date_ns = page.date_ns
            self._observe_page(page)
            for one in page.objects:
                try:
                    yield one.key, parse_accepted_key(one.key), one.last_modified_ns
                except InvalidRecord as error:
                    self._new_listed += 1
                    record = HoldRecord(
                        key=one.key,
                        reason=HoldReason.FOREIGN_KEY,
                        detail=error.reason,
                        seen_at_unix_ns=page.date_ns,
                    )
                    await self._context.holds.hold(record)
                    self.outcome = self.outcome.plus(PipelineResult(held_back=1))
            if self._run.how.pace_s and not page.last:
                await self._context.runtime.clock.sleep(self._run.how.pace_s)

    def _observe_page(self, page: ListPage) -> None:
        context = self._context
        context.clock.observe(page.date_ns)
        context.live.watch()
        context.live.observe_listing(page.objects)
        context.metrics.listed.inc(len(page.objects))

    async def _finish_boot(
        self,
        tally: BootTally | None,
        comparisons: list[BootComparison],
        last: ObjectKey | None,
    ) -> None:
        """Add the new batches of ranges whose listing differs from the seal; report the boot."""
        if tally is None or last is None:
            return
        for comparison in comparisons:
            for start, end in comparison.mismatches():
                await self._add_new_inside(tally.boot, comparison, start, end)
        self._run.boots.add(tally, self.date_ns)
        self._pass.on_boot(last)

    async def _add_new_inside(
        self, boot: tuple[str, str], comparison: BootComparison, start: int, end: int
    ) -> None:
        await self._flush()
        prefix, inside = boot_prefix(*boot), list[Identity]()
        async for page in self._context.store.list(
            prefix,
            start_after=f"{prefix}{start:020d}",
            end_at=f"{prefix}{end:020d}-{end:020d}.json",
        ):
            inside += [who for one in page.objects if (who := identity_of_key(one.key)) is not None]
        todo, _ = await new_batches(self._context.store, comparison.worker.enqueued, inside)
        for who in todo:
            await self._add(accepted_key(who))

    async def _add(self, key: ObjectKey) -> None:
        self._chunk.append(key)
        if len(self._chunk) >= self._context.settings.list_batches_max:
            await self._flush()

    async def _flush(self) -> None:
        # Another route may have completed some since this boot's ranges were copied.
        pipeline = self._pass.pipeline
        chunk, self._chunk = [key for key in self._chunk if not pipeline.is_completed(key)], []
        if chunk:
            unnamed = self._run.how.unnamed
            new = {key for key in chunk if unnamed and not self._context.workers.has_batch(key)}
            try:
                done = await pipeline.process(chunk, takeover=self._run.takeover)
            except StoreError as error:
                if error.operation not in _READS:
                    raise
                # If another object can be read, these are the fault; else the pass fails here.
                await self._context.store.head(AUTHORITY_SETTINGS)
                log.warning("batch_unreadable", key=chunk[0], batches=len(chunk), reason=str(error))
                await self._leave(chunk)
                return
            if unnamed and new:
                found = [one for one in done.batches if accepted_key(one.identity) in new]
                self.missed += unnamed(found)
            self.outcome = self.outcome.plus(replace(done, left=0, left_keys=frozenset()))
            await self._leave(sorted(done.left_keys))

    async def _leave(self, keys: Sequence[ObjectKey]) -> None:
        """Keep what is to be handed over, and hand it over when there is too much of it."""
        self.left += keys
        if len(self.left) >= LEFT_MAX and self._run.how.retry_left:
            await self._run.hand_over(self)
        self.overflow += max(0, len(self.left) - LEFT_MAX)
        del self.left[LEFT_MAX:]
