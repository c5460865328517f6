"""The full pass: it lists all of `accepted/` and `quarantine/` and completes what is not done.

Keys are listed in order, so the batches of one boot are adjacent. Each sequence range of the ledger
is compared as a whole: the seal of what is listed inside it with its stored seal. If they are
equal, nothing in the range costs a request; if not, the new batches in it are identified. Memory:
one chunk of new keys, and the sequence ranges of one boot.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from sluice_protocol.discovery import HoldReason, HoldRecord
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.identity import Identity
from sluice_protocol.keys import (
    ACCEPTED,
    QUARANTINE,
    QUARANTINE_BY_BLOB,
    accepted_key,
    parse_accepted_key,
    parse_quarantine_key,
)
from sluice_protocol.manifests import decode_conflict
from sluice_protocol.outcomes import Found, NotFound
from sluice_protocol.units import ObjectKey, UnixNs
from sluice_reconciler.completeness import BootReport, BootTally, HighWaterReader
from sluice_reconciler.concurrency import RequestLimit, run_all
from sluice_reconciler.indexes import put_derived, quarantine_entry
from sluice_reconciler.lane_worker import LaneWorker, LaneWorkers, Takeover
from sluice_reconciler.new_batches import KeyHashSet, boot_prefix, identity_of, new_batches
from sluice_reconciler.pipeline import BatchPipeline, PipelineResult
from sluice_reconciler.sequence_ranges import SEAL_MASK, BootRanges, EnqueueStatus, seal_of
from sluice_reconciler.verify import HoldRecords
from sluice_store.port import ListPage, ObjectStore
from sluice_store.retry import Backoff


@dataclass(frozen=True, slots=True, kw_only=True)
class PassReport:
    """What one full pass did.

    Attributes:
        listed: Keys under `accepted/`.
        complete_through_ns: The store's clock before the first listing of `accepted/`, if every
            batch that existed then is enqueued or has a hold record; otherwise None.
        outcome: What the pipeline did with those that were not done.
        quarantined: Reverse references of quarantine manifests that were written.
        held_back: Hold records that exist after the pass.
        boots: The accepted ranges and gaps of each boot.
        registers_lost: Registers that are missing, replaced or damaged; their lanes are halted.
    """

    listed: int
    complete_through_ns: UnixNs | None
    outcome: PipelineResult
    quarantined: int
    held_back: int
    boots: tuple[BootReport, ...] = ()
    registers_lost: tuple[ObjectKey, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FullPass:
    """Full passes over one store.

    Attributes:
        store: The acceptance authority.
        pipeline: Completes what is not done.
        workers: The lanes, with their ledgers.
        holds: The records of held objects.
        requests: The bound on requests in flight.
        backoff: How a write of unknown outcome is retried.
        high_water: Reads what agents reported as their highest sequence numbers.
        shards: Spans of agents that are listed concurrently.
        chunk: Keys that are passed to the pipeline together, at most.
        on_page: Called with each listed page of `accepted/`.
        on_boot: Called with the last accepted key of each boot.
    """

    store: ObjectStore
    pipeline: BatchPipeline
    workers: LaneWorkers
    holds: HoldRecords
    requests: RequestLimit
    backoff: Backoff
    high_water: HighWaterReader
    shards: int
    chunk: int
    on_page: Callable[[ListPage], None]
    on_boot: Callable[[ObjectKey], None]

    async def run(self, takeover: Takeover | None = None) -> PassReport:
        """Make one pass.

        Args:
            takeover: As in `BatchPipeline.process`.

        Raises:
            StoreError: The store is unreachable or refused a request; what was done so far is kept.
            OutcomeUnknown: The retries of a write are spent; what was done so far is kept.
        """
        began_ns = await self.holds.refresh()
        reported = await self.high_water.read()
        await self.workers.refresh()
        walks = [_SpanWalk(self, span, takeover) for span in spans_of(self.shards)]
        await run_all([walk.run() for walk in walks])
        quarantine = _QuarantineWalk(self)
        await quarantine.run()
        outcome = PipelineResult(held_back=quarantine.held)
        for walk in walks:
            outcome = outcome.plus(walk.outcome)
        date_ns = max(walk.date_ns for walk in walks)
        return PassReport(
            listed=sum(walk.listed for walk in walks),
            complete_through_ns=None if outcome.left or self.holds.unstored else began_ns,
            outcome=outcome,
            quarantined=quarantine.written,
            held_back=len(self.holds),
            boots=tuple(
                tally.report(date_ns, reported) for walk in walks for tally in walk.tallies
            ),
        )


def spans_of(shards: int) -> list[tuple[str, str | None]]:
    """Return spans of `accepted/`, each (after, up to), such that each agent is in one span.

    The spans divide the letters and digits that agent ids begin with evenly. Keys of any other form
    are in some span too.
    """
    low, high = ord("0"), ord("z")
    cuts = sorted({low + (high - low) * number // shards for number in range(1, shards)})
    bounds = [f"{ACCEPTED}agent={cut:02x}" for cut in cuts]
    return list(zip(["", *bounds], [*bounds, None], strict=True))


@dataclass(slots=True, kw_only=True)
class _ListedSum:
    """The number and the seal of the batches listed so far inside one sequence range."""

    batches: int = 0
    seal: int = 0


@dataclass(slots=True, kw_only=True)
class _BootComparison:
    """One boot's listing compared with one queue's ledger, as it was before the boot was listed."""

    worker: LaneWorker
    before: BootRanges
    sums: dict[int, _ListedSum] = field(default_factory=dict)

    def is_new(self, who: Identity) -> bool:
        """Return True if a batch is certainly new; otherwise add it to the sum of its range."""
        match self.before.status(who.seq_start, who.seq_end):
            case EnqueueStatus.NEW:
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


class _SpanWalk:
    """The walk over one span of `accepted/`, key by key; several run concurrently."""

    def __init__(
        self, full_pass: FullPass, span: tuple[str, str | None], takeover: Takeover | None
    ) -> None:
        self._pass = full_pass
        self._span = span
        self._takeover = takeover
        self._chunk: list[ObjectKey] = []
        self.outcome = PipelineResult()
        self.listed = 0
        self.date_ns = UnixNs(0)
        self.tallies: list[BootTally] = []

    async def run(self) -> None:
        boot: tuple[str, str] | None = None
        comparisons: list[_BootComparison] = []
        last: ObjectKey | None = None
        async for key, who, appeared_ns in self._keys():
            if boot != (who.agent_id, who.boot_id):
                await self._finish_boot(boot, comparisons, last)
                boot = (who.agent_id, who.boot_id)
                comparisons = self._comparisons(*boot)
                self.tallies.append(BootTally(*boot))
            self.tallies[-1].add(who, appeared_ns)
            last = key
            if any([one.is_new(who) for one in comparisons]):  # noqa: C419 - each adds to its sum
                await self._add(key)
        await self._finish_boot(boot, comparisons, last)
        await self._flush()

    async def _keys(self) -> AsyncIterator[tuple[ObjectKey, Identity, UnixNs]]:
        """List the span; a key of another form is held."""
        after, end_at = self._span
        async for page in self._pass.store.list(ACCEPTED, start_after=after, end_at=end_at):
            self.listed += len(page.objects)
            self.date_ns = page.date_ns
            self._pass.on_page(page)
            for one in page.objects:
                try:
                    yield one.key, parse_accepted_key(one.key), one.last_modified_ns
                except InvalidRecord as error:
                    record = HoldRecord(
                        key=one.key,
                        reason=HoldReason.FOREIGN_KEY,
                        detail=error.reason,
                        seen_at_unix_ns=page.date_ns,
                    )
                    await self._pass.holds.hold(record)
                    self.outcome = self.outcome.plus(PipelineResult(held_back=1))

    def _comparisons(self, agent_id: str, boot_id: str) -> list[_BootComparison]:
        """Copy what each queue was given of a boot, before anything is added to it."""
        found: list[_BootComparison] = []
        for worker in self._pass.workers.of_agent(agent_id):
            now = worker.ledger.boot(agent_id, boot_id) or BootRanges()
            before = BootRanges(ranges=[one.copy() for one in now.ranges], extras=list(now.extras))
            found.append(_BootComparison(worker=worker, before=before))
        return found

    async def _finish_boot(
        self,
        boot: tuple[str, str] | None,
        comparisons: list[_BootComparison],
        last: ObjectKey | None,
    ) -> None:
        """Find the new batches in every range whose listing differs from its seal."""
        if boot is None or last is None:
            return
        for comparison in comparisons:
            for start, end in comparison.mismatches():
                await self._add_new_inside(boot, comparison, start, end)
        self._pass.on_boot(last)

    async def _add_new_inside(
        self, boot: tuple[str, str], comparison: _BootComparison, start: int, end: int
    ) -> None:
        await self._flush()
        prefix, inside = boot_prefix(*boot), list[Identity]()
        async for page in self._pass.store.list(
            prefix,
            start_after=f"{prefix}{start:020d}",
            end_at=f"{prefix}{end:020d}-{end:020d}.json",
        ):
            inside += [who for one in page.objects if (who := identity_of(one.key)) is not None]
        todo, _ = await new_batches(self._pass.store, comparison.worker.ledger, inside)
        for who in todo:
            await self._add(accepted_key(who))

    async def _add(self, key: ObjectKey) -> None:
        self._chunk.append(key)
        if len(self._chunk) >= self._pass.chunk:
            await self._flush()

    async def _flush(self) -> None:
        # Another route may have completed some since this boot's ledger was copied.
        pipeline = self._pass.pipeline
        chunk, self._chunk = [key for key in self._chunk if not pipeline.is_completed(key)], []
        if chunk:
            done = await pipeline.process(chunk, takeover=self._takeover)
            self.outcome = self.outcome.plus(done)


class _QuarantineWalk:
    """The walk over `quarantine/`: it writes the reverse references that do not exist."""

    def __init__(self, full_pass: FullPass) -> None:
        self._pass = full_pass
        self._existing = KeyHashSet()
        self.written = 0
        self.held = 0

    async def run(self) -> None:
        async for page in self._pass.store.list(QUARANTINE_BY_BLOB):
            self._existing.add(one.key for one in page.objects)
        async for page in self._pass.store.list(QUARANTINE):
            items = [(one.key, page.date_ns) for one in page.objects]
            self.written += sum(await self._pass.requests.each(items, self._index))

    async def _index(self, listed: tuple[ObjectKey, UnixNs]) -> bool:
        key, date_ns = listed
        store = self._pass.store
        try:
            who, submitted = parse_quarantine_key(key)
            place, body = quarantine_entry(key, who, submitted)
            if place in self._existing:
                return False
            match await store.get(key):
                case NotFound():
                    return False
                case Found(body=found):
                    decode_conflict(key, found)
        except InvalidRecord as error:
            record = HoldRecord(
                key=key,
                reason=HoldReason.INVALID_MANIFEST,
                detail=error.reason,
                seen_at_unix_ns=date_ns,
            )
            await self._pass.holds.hold(record)
            self.held += 1
            return False
        return await put_derived(store, place, body, self._pass.backoff)
