"""The enqueued batches of one (agent, boot), in a few bytes per boot.

Adjacent batches are merged into one sequence range `start … end`. A sequence range does not store
where its batches began and ended. It stores how many batches it contains, and its seal: the sum,
mod 2**64, of a hash of each (start, end). Membership is still exact:

- Batch numbers that overlap no sequence range, or reach beyond the one they overlap, are new.
- Batch numbers inside a sequence range are "maybe". They are done if the seal of all batches listed
  there in `accepted/` equals the stored seal. If it does not, `compare_range` finds the new ones.

Batches that overlap an earlier one are stored individually in `extras`. Agents never produce them,
but bugs do. Pure. Source: `docs/reconciler.md`, State; ADR 24.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import msgspec

SEAL_MASK: Final = (1 << 64) - 1
PAIR_SEARCH_MAX: Final = 100_000
"""Listed batches among which a pair of new ones is searched for, at most."""


def seal_of(start: int, end: int) -> int:
    """Return the 64-bit hash of one batch's first and last sequence number."""
    raw = start.to_bytes(8, "big") + end.to_bytes(8, "big")
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "big")


class SequenceRange(msgspec.Struct, array_like=True):
    """Adjacent batches, both ends inclusive; the seal is the sum of their hashes mod 2**64."""

    start: int
    end: int
    batches: int
    seal: int

    def copy(self) -> "SequenceRange":
        """Return a copy that later additions do not change."""
        return SequenceRange(start=self.start, end=self.end, batches=self.batches, seal=self.seal)


class EnqueueStatus(Enum):
    """Whether a batch was enqueued, as far as the stored ranges show."""

    NEW = "new"
    DONE = "done"
    MAYBE = "maybe"
    RETIRED = "retired"
    """The lane state does not contain its boot, which may have been retired."""


class BootRanges(msgspec.Struct, array_like=True):
    """The enqueued batches of one (agent, boot).

    Ranges are ascending, and neither touch nor overlap. `extras` overlapped a range when they were
    added.
    """

    ranges: list[SequenceRange] = []
    extras: list[tuple[int, int]] = []

    def status(self, start: int, end: int) -> EnqueueStatus:
        """Return whether a batch was enqueued, without reading the store."""
        if (start, end) in self.extras:
            return EnqueueStatus.DONE
        touched = self._overlapping(start, end)
        if touched is None:
            return EnqueueStatus.NEW
        if touched.start <= start and end <= touched.end:
            whole = (touched.start, touched.end, touched.batches) == (start, end, 1)
            return EnqueueStatus.DONE if whole else EnqueueStatus.MAYBE
        return EnqueueStatus.NEW

    def range_of(self, start: int, end: int) -> SequenceRange | None:
        """Return the range that contains all of `start … end`, or None."""
        found = self._overlapping(start, end)
        inside = found is not None and found.start <= start and end <= found.end
        return found if inside else None

    def _overlapping(self, start: int, end: int) -> SequenceRange | None:
        at = bisect_right(self.ranges, end, key=lambda one: one.start) - 1
        if at >= 0 and self.ranges[at].end >= start:
            return self.ranges[at]
        return None

    def add(self, start: int, end: int) -> None:
        """Add a batch. The caller must not add the same batch twice."""
        if self._overlapping(start, end) is not None:
            self.extras.append((start, end))
            return
        at = bisect_right(self.ranges, start, key=lambda one: one.start)
        added = SequenceRange(start=start, end=end, batches=1, seal=seal_of(start, end))
        self.ranges.insert(at, added)
        self._merge_with_next(at)
        if at > 0:
            self._merge_with_next(at - 1)

    def _merge_with_next(self, at: int) -> None:
        """Merge the range at index `at` with the next one if they are adjacent."""
        if at + 1 < len(self.ranges) and self.ranges[at].end + 1 == self.ranges[at + 1].start:
            left, right = self.ranges[at], self.ranges.pop(at + 1)
            left.end = right.end
            left.batches += right.batches
            left.seal = (left.seal + right.seal) & SEAL_MASK

    def dissolve(self, sealed: SequenceRange) -> None:
        """Remove a range, so that its batches count as new; extras inside it stay enqueued."""
        self.ranges = [one for one in self.ranges if one != sealed]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedBatch:
    """One batch as a listing of `accepted/` shows it, with the creation of its manifest."""

    start: int
    end: int
    last_modified_ns: int

    @property
    def seal(self) -> int:
        """The hash of its sequence numbers."""
        return seal_of(self.start, self.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeComparison:
    """The new batches among those listed inside a sequence range.

    Attributes:
        sure: False if the seal did not identify them; `new` may then contain enqueued ones too. The
            range must be dissolved before they are enqueued.
        lost: Number of enqueued batches that are no longer listed; always 0 in an intact store.
    """

    new: tuple[ListedBatch, ...]
    sure: bool = True
    lost: int = 0


def compare_range(
    sealed: SequenceRange, extras: Sequence[tuple[int, int]], listed: Sequence[ListedBatch]
) -> RangeComparison:
    """Return which of all batches listed inside a sequence range are new.

    The seal of the enqueued ones is known. Usually all listed batches are enqueued. Otherwise the
    newest are tried first, because manifests are only ever added, then any one or two.
    """
    known = set(extras)
    inside = [one for one in listed if (one.start, one.end) not in known]
    surplus = len(inside) - sealed.batches
    over = (sum(one.seal for one in inside) - sealed.seal) & SEAL_MASK
    if surplus == 0 and over == 0:
        return RangeComparison(new=())
    if surplus <= 0:
        # Accepted manifests are never deleted, so the store lost some: report that.
        return RangeComparison(new=(), sure=False, lost=max(1, -surplus))
    by_age = sorted(inside, key=lambda one: (one.last_modified_ns, one.start, one.end))
    newest = by_age[-surplus:]
    if sum(one.seal for one in newest) & SEAL_MASK == over:
        return RangeComparison(new=tuple(newest))
    few = _one_or_two(inside, surplus, over)
    if few is not None:
        return RangeComparison(new=few)
    return RangeComparison(new=tuple(inside), sure=False)


def _one_or_two(
    inside: Sequence[ListedBatch], surplus: int, over: int
) -> tuple[ListedBatch, ...] | None:
    """Find one or two batches whose seals add up to `over`."""
    by_seal = {one.seal: one for one in inside}
    if surplus == 1:
        return (by_seal[over],) if over in by_seal else None
    if surplus == 2 and len(inside) <= PAIR_SEARCH_MAX:  # noqa: PLR2004 - a pair
        for one in inside:
            other = by_seal.get((over - one.seal) & SEAL_MASK)
            if other is not None and other is not one:
                return (one, other)
    return None
