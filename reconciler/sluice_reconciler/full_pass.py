"""The full pass: lists all of `accepted/` and `quarantine/` and takes what is not done to its end.

Keys come in order, so the batches of one boot come together. A run of the ledger is compared as a
whole: the seal of what is listed inside it against its own. When they agree, nothing of it needs a
request; when they do not, the run is sorted out. Memory: one chunk of new keys, and the runs of one
boot.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import structlog

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.identity import Identity
from sluice_protocol.keys import (
    ACCEPTED,
    QUARANTINE,
    QUARANTINE_BY_BLOB,
    accepted_key,
    lane_of,
    parse_accepted_key,
    parse_quarantine_key,
)
from sluice_protocol.manifests import decode_conflict
from sluice_protocol.outcomes import Found, NotFound
from sluice_protocol.units import ObjectKey, UnixNs
from sluice_reconciler.completeness import BootReport, BootTally
from sluice_reconciler.indexes import put_derived, quarantine_entry
from sluice_reconciler.lane_worker import LaneWorker, Takeover
from sluice_reconciler.new_batches import KeyHashSet, new_batches
from sluice_reconciler.pipeline import BatchPipeline, PipelineResult
from sluice_reconciler.sequence_ranges import (
    SEAL_MASK,
    BootRanges,
    EnqueueStatus,
    SequenceRange,
    seal_of,
)
from sluice_reconciler.verify import UNHEALTHY, HoldReason, HoldRecord

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class PassReport:
    """What one full pass did.

    Attributes:
        listed: Keys under `accepted/`.
        outcome: What became of those that were not done.
        quarantined: Reverse references of quarantine manifests written.
        held_back: Marks that stand after the pass.
        boots: What each boot holds and lacks.
        registers_lost: Registers that batches went to and that are gone: their lanes stand.
    """

    listed: int
    outcome: PipelineResult
    quarantined: int
    held_back: int
    boots: tuple[BootReport, ...] = ()
    registers_lost: tuple[ObjectKey, ...] = ()


@dataclass(slots=True, kw_only=True)
class _RunSum:
    """What was listed so far inside one run."""

    batches: int = 0
    seal: int = 0


@dataclass(slots=True, kw_only=True)
class _BootScan:
    """The comparison of one boot's listing with one queue's ledger, as it stood before the boot."""

    desk: LaneWorker
    before: BootRanges
    sums: dict[int, _RunSum] = field(default_factory=dict)

    def is_new(self, who: Identity) -> bool:
        """Tells whether a batch is surely new; what may be done is only added up."""
        match self.before.standing(who.seq_start, who.seq_end):
            case EnqueueStatus.NEW:
                return True
            case EnqueueStatus.DONE if (who.seq_start, who.seq_end) in self.before.extras:
                return False
            case EnqueueStatus.DONE | EnqueueStatus.MAYBE:
                run = self.before.run_of(who.seq_start, who.seq_end)
                if run is not None:
                    held = self.sums.setdefault(run.start, _RunSum())
                    held.batches += 1
                    held.seal = (held.seal + seal_of(who.seq_start, who.seq_end)) & SEAL_MASK
                return False

    def suspects(self) -> list[tuple[int, int]]:
        """Gives the runs whose listing does not agree with their seal."""
        return [
            (run.start, run.end)
            for run in self.before.runs
            if (self._sum(run.start).batches, self._sum(run.start).seal) != (run.batches, run.seal)
        ]

    def _sum(self, start: int) -> _RunSum:
        return self.sums.get(start, _RunSum())


class FullPass:
    """One pass over everything; make a new one for each pass."""

    def __init__(
        self,
        intake: BatchPipeline,
        *,
        takeover: Takeover | None = None,
        saw: Callable[[ObjectKey], None] | None = None,
    ) -> None:
        """Binds the pass to an intake; `saw` is told the last key of each boot."""
        self._saw = saw
        self._intake = intake
        self._store = intake.store
        self._takeover = takeover

    async def run(self) -> PassReport:
        """Makes the pass.

        Raises:
            StoreError: The store did not answer; what was done so far stands.
            OutcomeUnknown: The bounds of a write are spent; so for that.
        """
        await self._read_marks()
        told = await self._intake.high_water.read()
        for desk in self._intake.desks.values():
            await desk.refresh()
        spans = spans_of(self._intake.settings.shards)
        walks = [_Walk(self._intake, span, self._takeover, self._saw) for span in spans]
        await self._intake.all_of([walk.run() for walk in walks])
        quarantine = _Walk(self._intake, spans[0], self._takeover, None)
        quarantined = await quarantine.quarantine()
        outcome = quarantine.outcome
        for walk in walks:
            outcome = outcome.plus(walk.outcome)
        date_ns = max(walk.date_ns for walk in walks)
        return PassReport(
            listed=sum(walk.listed for walk in walks),
            outcome=outcome,
            quarantined=quarantined,
            held_back=len(self._intake.marked),
            boots=tuple(tally.report(date_ns, told) for walk in walks for tally in walk.tallies),
        )

    async def _read_marks(self) -> None:
        self._intake.marked = {
            listed.key async for page in self._store.list(UNHEALTHY) for listed in page.objects
        }


def spans_of(shards: int) -> list[tuple[str, str | None]]:
    """Cuts `accepted/` into spans of keys, each (after, up to), that no agent straddles.

    The cuts are even over the letters and digits that agent ids begin with; keys of any other form
    fall into some span too.
    """
    low, high = ord("0"), ord("z")
    cuts = sorted({low + (high - low) * number // shards for number in range(1, shards)})
    marks = [f"{ACCEPTED}agent={cut:02x}" for cut in cuts]
    return list(zip(["", *marks], [*marks, None], strict=True))


class _Walk:
    """One span of `accepted/`, key by key; several walk at once."""

    def __init__(
        self,
        intake: BatchPipeline,
        span: tuple[str, str | None],
        takeover: Takeover | None,
        saw: Callable[[ObjectKey], None] | None,
    ) -> None:
        self._saw = saw
        self._span = span
        self._intake = intake
        self._store = intake.store
        self._takeover = takeover
        self._chunk: list[ObjectKey] = []
        self.outcome = PipelineResult()
        self.listed = 0
        self.date_ns = UnixNs(0)
        self.tallies: list[BootTally] = []

    async def run(self) -> None:
        """Walks the span to its end."""
        boot: tuple[str, str] | None = None
        scans: list[_BootScan] = []
        last: ObjectKey | None = None
        async for key, who, appeared_ns in self._keys():
            if boot != (who.agent_id, who.boot_id):
                await self._finish_boot(boot, scans)
                self._tell(last)
                boot = (who.agent_id, who.boot_id)
                scans = self._scans(*boot)
                self.tallies.append(BootTally(*boot))
            self.tallies[-1].add(who, appeared_ns)
            last = key
            if any([scan.is_new(who) for scan in scans]):  # noqa: C419 - each must add up
                await self._take(key)
        await self._finish_boot(boot, scans)
        self._tell(last)
        await self._flush()

    def _tell(self, last: ObjectKey | None) -> None:
        if last is not None and self._saw is not None:
            self._saw(last)

    async def _keys(self) -> AsyncIterator[tuple[ObjectKey, Identity, UnixNs]]:
        """Lists the span; a key of another form is marked and passed over."""
        after, end_at = self._span
        async for page in self._store.list(ACCEPTED, start_after=after, end_at=end_at):
            self.listed += len(page.objects)
            self.date_ns = page.date_ns
            self._intake.waiting.dated(page.date_ns)
            self._intake.live.watch(page.date_ns)
            self._intake.metrics.listed.inc(len(page.objects))
            for one in page.objects:
                try:
                    yield one.key, parse_accepted_key(one.key), one.last_modified_ns
                except InvalidRecord as error:
                    await self._hold_back(
                        one.key, HoldReason.FOREIGN_KEY, error.reason, page.date_ns
                    )

    async def _hold_back(
        self, key: ObjectKey, reason: HoldReason, detail: str, at_ns: UnixNs
    ) -> None:
        mark = HoldRecord(key=key, reason=reason, detail=detail, seen_at_unix_ns=at_ns)
        await self._intake.mark(mark)
        self.outcome = self.outcome.plus(PipelineResult(held_back=1))

    def _scans(self, agent_id: str, boot_id: str) -> list[_BootScan]:
        """Freezes what each queue was given of a boot, before anything is added to it."""
        lane = lane_of(agent_id, self._intake.lanes)
        found: list[_BootScan] = []
        for queue in self._intake.settings.queue_names:
            desk = self._intake.desks[queue, lane]
            now = desk.ledger.boot(agent_id, boot_id) or BootRanges()
            frozen = BootRanges(runs=[_copy(run) for run in now.runs], extras=list(now.extras))
            found.append(_BootScan(desk=desk, before=frozen))
        return found

    async def _finish_boot(self, boot: tuple[str, str] | None, scans: list[_BootScan]) -> None:
        """Sorts out the runs that do not agree with what was listed."""
        if boot is None:
            return
        for scan in scans:
            for start, end in scan.suspects():
                await self._sort_out(boot, scan, start, end)

    async def _sort_out(self, boot: tuple[str, str], scan: _BootScan, start: int, end: int) -> None:
        await self._flush()
        prefix = accepted_key(
            Identity(agent_id=boot[0], boot_id=boot[1], seq_start=start, seq_end=end)
        ).rpartition("/")[0]
        inside: list[Identity] = []
        last = f"{prefix}/{end:020d}-{end:020d}.json"
        async for page in self._store.list(
            f"{prefix}/", start_after=f"{prefix}/{start:020d}", end_at=last
        ):
            inside += [who for one in page.objects if (who := _parsed(one.key)) is not None]
        todo, _ = await new_batches(self._store, scan.desk.ledger, inside)
        for who in todo:
            await self._take(accepted_key(who))

    async def _take(self, key: ObjectKey) -> None:
        self._chunk.append(key)
        if len(self._chunk) >= self._intake.settings.list_batches_max:
            await self._flush()

    async def _flush(self) -> None:
        # Another route may have taken some since this boot's ledger was frozen.
        chunk, self._chunk = [key for key in self._chunk if not self._intake.is_done(key)], []
        if chunk:
            done = await self._intake.take(chunk, takeover=self._takeover)
            self.outcome = self.outcome.plus(done)

    async def quarantine(self) -> int:
        """Writes the reverse reference of every quarantine manifest that has none."""
        standing = KeyHashSet()
        async for page in self._store.list(QUARANTINE_BY_BLOB):
            standing.add(one.key for one in page.objects)
        written = 0
        async for page in self._store.list(QUARANTINE):
            found = await self._intake.each(
                [(one.key, page.date_ns) for one in page.objects],
                lambda item: self._quarantine_one(*item, standing=standing),
            )
            written += sum(found)
        return written

    async def _quarantine_one(
        self, key: ObjectKey, date_ns: UnixNs, *, standing: KeyHashSet
    ) -> bool:
        try:
            who, submitted = parse_quarantine_key(key)
            place, body = quarantine_entry(key, who, submitted)
            if place in standing:
                return False
            match await self._store.get(key):
                case NotFound():
                    return False
                case Found(body=found):
                    decode_conflict(key, found)
        except InvalidRecord as error:
            await self._hold_back(key, HoldReason.INVALID_MANIFEST, error.reason, date_ns)
            return False
        return await put_derived(self._store, place, body, self._intake.backoff)


def _copy(run: SequenceRange) -> SequenceRange:
    """Gives a copy of a run."""
    return SequenceRange(start=run.start, end=run.end, batches=run.batches, seal=run.seal)


def _parsed(key: ObjectKey) -> Identity | None:
    try:
        return parse_accepted_key(key)
    except InvalidRecord:
        return None
