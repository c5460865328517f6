"""Which sequence numbers are missing: the gaps of each (agent, boot) in `accepted/`.

The report is computed from a listing of `accepted/`, so it is correct whatever the reconciler has
done so far. What is missing at the end of a boot is known only from the agent's high-water mark,
which gateways store (ADR 0046).
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from sluice_protocol.errors import InvalidRecord
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
from sluice_protocol.outcomes import Found
from sluice_protocol.units import NS_PER_S, ETag, ObjectKey, UnixNs
from sluice_store.port import ListedObject, ObjectStore

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedHighWater:
    """What an agent reported about one boot.

    Attributes:
        seq_end: The highest sequence number that the agent assigned.
        reported_at_ns: When a gateway stored it, by the store's clock.
        etag: The ETag of the record.
    """

    seq_end: int
    reported_at_ns: UnixNs
    etag: ETag


HighWaterMarks = Mapping[tuple[str, str], ReportedHighWater]
"""By (agent, boot)."""


class HighWaterReader:
    """Reads high-water marks, and only those that changed since its last read."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._known: dict[ObjectKey, tuple[ETag, HighWaterMark | None]] = {}

    async def read(self, agent_id: str | None = None) -> HighWaterMarks:
        """Return the marks of one agent or of all; an unreadable one is logged and omitted.

        Raises:
            StoreError: The store is unreachable or refused the request.
        """
        prefix = HIGH_WATER if agent_id is None else high_water_prefix(agent_id)
        found: dict[tuple[str, str], ReportedHighWater] = {}
        kept: dict[ObjectKey, tuple[ETag, HighWaterMark | None]] = {}
        async for page in self._store.list(prefix):
            for one in page.objects:
                mark = await self._mark(one)
                kept[one.key] = one.etag, mark
                if mark is not None:
                    found[mark.agent_id, mark.boot_id] = ReportedHighWater(
                        seq_end=mark.seq_end,
                        reported_at_ns=one.last_modified_ns,
                        etag=one.etag,
                    )
        self._known = kept
        return found

    async def _mark(self, listed: ListedObject) -> HighWaterMark | None:
        etag, mark = self._known.get(listed.key, (None, None))
        return mark if etag == listed.etag else await self._read(listed.key)

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
        seq_start: First missing number.
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
        agent_id: The agent.
        boot_id: The boot.
        batches: Number of accepted batches.
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


async def read_completeness(
    store: ObjectStore, agent_id: str | None = None
) -> AsyncIterator[BootReport]:
    """Return a report of every boot, agent by agent, from a listing and the high-water marks.

    Raises:
        StoreError: The store is unreachable or refused the request.
    """
    prefix = ACCEPTED if agent_id is None else agent_prefix(agent_id)
    # Before the batches, so that a batch accepted in between is not reported as a gap.
    marks = await HighWaterReader(store).read(agent_id)
    tally: BootTally | None = None
    boot: tuple[str, str] | None = None
    date_ns = 0
    async for page in store.list(prefix):
        date_ns = page.date_ns
        for listed in page.objects:
            one = _dated(listed)
            if one is None:
                continue
            if tally is None or boot != _boot(one[0]):
                if tally is not None:
                    yield tally.report(date_ns, marks)
                boot = _boot(one[0])
                tally = BootTally(*boot)
            tally.add(*one)
    if tally is not None:
        yield tally.report(date_ns, marks)


def _boot(who: Identity) -> tuple[str, str]:
    return who.agent_id, who.boot_id


def _dated(listed: ListedObject) -> tuple[Identity, int] | None:
    try:
        return parse_accepted_key(listed.key), listed.last_modified_ns
    except InvalidRecord:
        return None


class BootTally:
    """The ranges and gaps of one boot, computed from its batches in key order."""

    def __init__(self, agent_id: str, boot_id: str) -> None:
        self._agent_id = agent_id
        self._boot_id = boot_id
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
        mark = marks.get((self._agent_id, self._boot_id))
        if mark is not None and mark.seq_end > end:
            age_s = _age_s(mark.reported_at_ns, now_ns)
            gaps += (SequenceGap(seq_start=end + 1, seq_end=mark.seq_end, age_s=age_s, tail=True),)
            oldest_s = max(oldest_s, age_s)
        return BootReport(
            agent_id=self._agent_id,
            boot_id=self._boot_id,
            batches=self._batches,
            ranges=tuple(self._ranges),
            overlaps=self._overlaps,
            gaps=gaps,
            last_accepted_s=_age_s(self._latest_ns, now_ns),
            high_water=end if mark is None else max(end, mark.seq_end),
            gaps_more=self._gaps_more,
            oldest_gap_s=oldest_s,
        )


def _age_s(since_ns: int, now_ns: int) -> float:
    return max(0, now_ns - since_ns) / NS_PER_S
