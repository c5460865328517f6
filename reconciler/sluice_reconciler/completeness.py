"""Missing sequence numbers: the gaps of each (agent, boot) in `accepted/`.

The report is computed from a listing of `accepted/`, so it is correct whatever the reconciler has
done so far. What is missing at the end of a boot is known only from the agent's high-water mark,
which gateways store (ADR 29).

A mark shows the records at the end of a boot that were never accepted. As soon as batches through
its number are accepted it shows nothing, and that stays so, because accepted manifests are
permanent. It is removed after the retry horizon. A mark above the last accepted number is kept: it
is the only evidence that records were lost.
"""

import heapq
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog

from sluice_protocol.errors import InvalidRecord, StoreError
from sluice_protocol.identity import Identity
from sluice_protocol.keys import (
    ACCEPTED,
    HIGH_WATER,
    agent_prefix,
    high_water_key,
    high_water_prefix,
    parse_accepted_key,
)
from sluice_protocol.manifests import HighWaterMark, decode_record
from sluice_protocol.outcomes import Deleted, Found, ObjectInfo
from sluice_protocol.units import NS_PER_S, NULL_VERSION, ETag, ObjectKey, UnixNs
from sluice_reconciler.concurrency import RequestLimit
from sluice_reconciler.settings import CONCURRENCY
from sluice_store.port import ListedObject, ObjectStore

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedHighWater:
    """What an agent reported about one boot.

    Attributes:
        seq_end: The highest sequence number that the agent assigned.
        reported_at_ns: When a gateway stored it.
    """

    seq_end: int
    reported_at_ns: UnixNs
    etag: ETag


HighWaterMarks = Mapping[tuple[str, str], ReportedHighWater]
"""By (agent, boot)."""


class HighWaterReader:
    """Reads high-water marks, and only those that changed since its last read."""

    def __init__(self, store: ObjectStore, requests: RequestLimit) -> None:
        self._store = store
        self._requests = requests
        self._known: dict[ObjectKey, tuple[ETag, HighWaterMark | None]] = {}

    async def read(self, agent_id: str | None = None) -> HighWaterMarks:
        """Return the marks of one agent or of all; an unreadable one is logged and omitted."""
        prefix = HIGH_WATER if agent_id is None else high_water_prefix(agent_id)
        found: dict[tuple[str, str], ReportedHighWater] = {}
        kept: dict[ObjectKey, tuple[ETag, HighWaterMark | None]] = {}
        async for page in self._store.list(prefix):
            changed = [one.key for one in page.objects if not self._is_known(one)]
            read = await self._requests.each(changed, self._read)
            marks = dict(zip(changed, read, strict=True))
            for one in page.objects:
                mark = marks[one.key] if one.key in marks else self._known[one.key][1]
                kept[one.key] = one.etag, mark
                if mark is not None:
                    found[mark.agent_id, mark.boot_id] = ReportedHighWater(
                        seq_end=mark.seq_end,
                        reported_at_ns=one.last_modified_ns,
                        etag=one.etag,
                    )
        self._known = kept
        return found

    def _is_known(self, listed: ListedObject) -> bool:
        return listed.key in self._known and self._known[listed.key][0] == listed.etag

    async def _read(self, key: ObjectKey) -> HighWaterMark | None:
        read = await self._store.get(key)
        if not isinstance(read, Found):
            return None
        try:
            mark = decode_record(key, read.body, HighWaterMark)
        except InvalidRecord as error:
            log.warning("high_water_unreadable", key=key, reason=error.reason)
            return None
        if high_water_key(mark.agent_id, mark.boot_id) != key:
            log.warning("high_water_unreadable", key=key, reason="names another boot than its key")
            return None
        return mark


LISTED_MAX: Final = 1000
"""Ranges and gaps of one boot that are listed individually; further ones are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceGap:
    """Sequence numbers that were not accepted although later ones exist.

    Attributes:
        seq_end: Last missing number.
        age_s: Time since the first batch behind the gap was accepted, or, without such a batch,
            since the high-water mark was stored, seconds.
        tail: Whether only the high-water mark shows the gap: no later batch was accepted yet.
    """

    seq_start: int
    seq_end: int
    age_s: float
    tail: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BootReport:
    """One boot of one agent.

    Attributes:
        ranges: The union of their sequence numbers, disjoint and in order; the first 1 000.
        overlaps: Number of batches that share a sequence number with an earlier one.
        gaps: What is missing from 0 to the highest accepted number or the high-water mark; the
            first 1 000 gaps, and the one at the end.
        gaps_more: Number of gaps that are not listed.
        oldest_gap_s: Age of the oldest gap, listed or not, 0 for none, seconds.
        last_accepted_s: Time since the latest batch was accepted, seconds.
        high_water: The highest number that the agent is known to have assigned.
    """

    agent_id: str
    boot_id: str
    batches: int
    ranges: tuple[tuple[int, int], ...]
    overlaps: int
    gaps: tuple[SequenceGap, ...]
    last_accepted_s: float
    high_water: int
    gaps_more: int = 0
    oldest_gap_s: float = 0.0

    @property
    def tail_missing(self) -> int:
        """Number of records that are missing behind the last accepted one."""
        return sum(gap.seq_end - gap.seq_start + 1 for gap in self.gaps if gap.tail)


class BootList(msgspec.Struct, frozen=True):
    """The boots of the last full pass that this process made from its beginning.

    Attributes:
        complete_through: Every batch that was accepted before this time is counted, RFC 3339; null
            if this process has made no such pass.
        more: Number of boots that the report of the pass left out, of any agent: those without gaps
            and with the oldest batches.
    """

    boots: tuple[BootReport, ...]
    complete_through: str | None = None
    more: int = 0


async def read_completeness(
    store: ObjectStore, agent_id: str | None = None
) -> AsyncIterator[BootReport]:
    """Return a report of every boot, agent by agent, from a listing and the high-water marks."""
    prefix = ACCEPTED if agent_id is None else agent_prefix(agent_id)
    # Before the batches, so that a batch accepted in between is not reported as a gap.
    marks = await HighWaterReader(store, RequestLimit(CONCURRENCY)).read(agent_id)
    tally: BootTally | None = None
    date_ns = 0
    async for page in store.list(prefix):
        date_ns = page.date_ns
        for listed in page.objects:
            one = _dated(listed)
            if one is None:
                continue
            who, appeared_ns = one
            if tally is None or tally.boot != (who.agent_id, who.boot_id):
                if tally is not None:
                    yield tally.report(date_ns, marks)
                tally = BootTally(who.agent_id, who.boot_id)
            tally.add(who, appeared_ns)
    if tally is not None:
        yield tally.report(date_ns, marks)


def _dated(listed: ListedObject) -> tuple[Identity, int] | None:
    try:
        return parse_accepted_key(listed.key), listed.last_modified_ns
    except InvalidRecord:
        return None


class BootTally:
    """The ranges and gaps of one boot, computed from its batches in key order."""

    def __init__(self, agent_id: str, boot_id: str) -> None:
        self.boot = agent_id, boot_id
        self._batches = 0
        self._overlaps = 0
        self._end = -1
        self._ranges: list[tuple[int, int]] = []
        self._gaps: list[tuple[int, int, int]] = []
        self._gaps_more = 0
        self._oldest_ns: int | None = None
        self._last_listed = True
        self._latest_ns = 0

    def add(self, who: Identity, appeared_ns: int) -> None:
        """Add the next batch of the listing."""
        expected = self._end + 1
        self._batches += 1
        self._latest_ns = max(self._latest_ns, appeared_ns)
        self._overlaps += who.seq_start < expected
        if who.seq_start > expected:
            self._gap(expected, who.seq_start - 1, appeared_ns)
        if who.seq_start > expected or not self._ranges:
            self._last_listed = len(self._ranges) < LISTED_MAX
            if self._last_listed:
                self._ranges.append((who.seq_start, who.seq_end))
        elif self._last_listed:
            self._ranges[-1] = (self._ranges[-1][0], max(self._end, who.seq_end))
        self._end = max(self._end, who.seq_end)

    def _gap(self, start: int, end: int, since_ns: int) -> None:
        if len(self._gaps) < LISTED_MAX:
            self._gaps.append((start, end, since_ns))
        else:
            self._gaps_more += 1
        oldest_ns = since_ns if self._oldest_ns is None else self._oldest_ns
        self._oldest_ns = min(oldest_ns, since_ns)

    def report(self, now_ns: int, marks: HighWaterMarks) -> BootReport:
        """Return the accepted ranges and the gaps of the boot, up to its high-water mark."""
        gaps = tuple(
            SequenceGap(seq_start=start, seq_end=end, age_s=_age_s(since, now_ns))
            for start, end, since in self._gaps
        )
        end, oldest_ns = self._end, self._oldest_ns
        oldest_s = 0.0 if oldest_ns is None else _age_s(oldest_ns, now_ns)
        mark = marks.get(self.boot)
        if mark is not None and mark.seq_end > end:
            age_s = _age_s(mark.reported_at_ns, now_ns)
            gaps += (SequenceGap(seq_start=end + 1, seq_end=mark.seq_end, age_s=age_s, tail=True),)
            oldest_s = max(oldest_s, age_s)
        agent_id, boot_id = self.boot
        return BootReport(
            agent_id=agent_id,
            boot_id=boot_id,
            batches=self._batches,
            ranges=tuple(self._ranges),
            overlaps=self._overlaps,
            gaps=gaps,
            last_accepted_s=_age_s(self._latest_ns, now_ns),
            high_water=end if mark is None else max(end, mark.seq_end),
            gaps_more=self._gaps_more,
            oldest_gap_s=oldest_s,
        )


REMOVED_MARKS_MAX: Final = 10_000
"""Marks that one full pass removes, at most; the next pass removes further ones."""
BOOTS_WEIGHT_MAX: Final = 1_000_000
"""Boots in the report of a store, with their gaps and further ranges; about 600 MB of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReport:
    """What a listing of `accepted/` showed of all boots, in bounded memory.

    Attributes:
        boots: The boots in the order of their keys. Of too many, those with gaps or overlaps are
            kept first, then those whose latest batch is the youngest.
        oldest_gap_s: Seconds; 0 for none.
    """

    boots: tuple[BootReport, ...] = ()
    more: int = 0
    oldest_gap_s: float = 0.0
    tail_missing: int = 0


class StoreTally:
    """The reports of the boots that were listed so far.

    A store has more boots with each start of an agent, so not all of them can be remembered.
    `covered_marks` has the key and the ETag of each high-water mark that shows nothing any more, at
    most `REMOVED_MARKS_MAX`.
    """

    def __init__(
        self, marks: HighWaterMarks, quiet_ns: int, weight_max: int = BOOTS_WEIGHT_MAX
    ) -> None:
        """Begin a listing; `marks` are what agents reported, read before.

        A mark is kept for `quiet_ns` after it was written, so that it is not written again.
        `weight_max` limits the boots that are remembered, with their gaps and further ranges.
        """
        self._marks = marks
        self._quiet_ns = quiet_ns
        self.covered_marks: list[tuple[ObjectKey, ETag]] = []
        self._weight_max = weight_max
        self._weight = 0
        self._count = 0
        self._kept: list[tuple[bool, float, int, BootReport]] = []
        self._oldest_gap_s = 0.0
        self._tail_missing = 0

    def add(self, tally: BootTally, now_ns: UnixNs) -> None:
        """Add a boot that was listed; drop the least important ones if there are too many."""
        boot = tally.report(now_ns, self._marks)
        self._observe_mark(boot, now_ns)
        self._count += 1
        self._oldest_gap_s = max(self._oldest_gap_s, boot.oldest_gap_s)
        self._tail_missing += boot.tail_missing
        is_faulty = bool(boot.gaps or boot.overlaps)
        heapq.heappush(self._kept, (is_faulty, -boot.last_accepted_s, self._count, boot))
        self._weight += _weight_of(boot)
        while self._weight > self._weight_max:
            self._weight -= _weight_of(heapq.heappop(self._kept)[-1])

    def _observe_mark(self, boot: BootReport, now_ns: UnixNs) -> None:
        mark = self._marks.get((boot.agent_id, boot.boot_id))
        if mark is None or boot.tail_missing or mark.reported_at_ns + self._quiet_ns > now_ns:
            return
        if len(self.covered_marks) < REMOVED_MARKS_MAX:
            key = high_water_key(boot.agent_id, boot.boot_id)
            self.covered_marks.append((key, mark.etag))

    def report(self) -> StoreReport:
        """Return what was kept, and the totals."""
        boots = (boot for *_, boot in self._kept)
        return StoreReport(
            boots=tuple(sorted(boots, key=lambda one: (one.agent_id, one.boot_id))),
            more=self._count - len(self._kept),
            oldest_gap_s=self._oldest_gap_s,
            tail_missing=self._tail_missing,
        )


def _weight_of(boot: BootReport) -> int:
    return max(1, len(boot.ranges)) + len(boot.gaps)


def _age_s(since_ns: int, now_ns: int) -> float:
    return max(0, now_ns - since_ns) / NS_PER_S


async def remove_marks(
    store: ObjectStore, requests: RequestLimit, marks: Iterable[tuple[ObjectKey, ETag]]
) -> int:
    """Delete marks, each by the ETag that was compared; return how many were deleted.

    A gateway may raise a mark at any moment. Only a version id excludes that the raised one is
    deleted, so a bucket without versioning keeps its marks. An error is logged, because no work
    depends on the removal; the next pass tries again.
    """

    async def remove(mark: tuple[ObjectKey, ETag]) -> bool:
        key, etag = mark
        found = await store.head(key)
        if not isinstance(found, ObjectInfo) or found.etag != etag:
            return False
        if found.incarnation in {None, NULL_VERSION}:
            return False
        return isinstance(await store.delete(key, found.incarnation), Deleted)

    try:
        return sum(await requests.each(list(marks), remove))
    except StoreError as error:
        log.warning("high_water_not_removed", reason=str(error))
        return 0
