"""Which batches of one (agent, boot) are done, in a few bytes: runs of adjacent ranges.

Batches that touch melt into a run `start … end`. A run forgets where its batches began and ended,
but keeps how many there were and the sum, mod 2**64, of a hash of each (start, end): its seal. So
membership is exact without keeping the batches:

- a range that touches no run, or reaches beyond the run it touches, is new;
- a range inside a run is "maybe": it is done if the seal of all ranges that `accepted/` lists
  there equals the run's seal; if not, `sort_out` tells which of them are new.

Ranges that overlap others (two batches of different cuts; agents never make them, bugs do) are kept
one by one in `extras`. Pure. Source: `docs/reconciler.md`, State; ADR 0043.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import msgspec

SEAL_MASK: Final = (1 << 64) - 1
PAIR_SEARCH_MAX: Final = 100_000


def seal_of(start: int, end: int) -> int:
    """Gives the 64-bit hash of one range."""
    raw = start.to_bytes(8, "big") + end.to_bytes(8, "big")
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "big")


class SequenceRange(msgspec.Struct, array_like=True):
    """Adjacent batches, both ends inclusive.

    Attributes:
        start: First sequence number.
        end: Last sequence number.
        batches: How many batches make it up.
        seal: Sum of their hashes mod 2**64.
    """

    start: int
    end: int
    batches: int
    seal: int


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Range:
    """One batch's sequence numbers, both inclusive."""

    start: int
    end: int


class EnqueueStatus(Enum):
    """What is known of one range."""

    NEW = "new"
    DONE = "done"
    MAYBE = "maybe"


class BootRanges(msgspec.Struct, array_like=True):
    """The done batches of one (agent, boot).

    Attributes:
        runs: In order, neither touching nor overlapping.
        extras: Ranges that overlapped a run when they came.
    """

    runs: list[SequenceRange] = []
    extras: list[tuple[int, int]] = []

    @property
    def batches(self) -> int:
        """How many batches are done."""
        return sum(run.batches for run in self.runs) + len(self.extras)

    @property
    def end(self) -> int:
        """The highest sequence number done, -1 for none."""
        last = self.runs[-1].end if self.runs else -1
        return max([last, *(end for _, end in self.extras)])

    def standing(self, start: int, end: int) -> EnqueueStatus:
        """Tells whether a range is done, as far as the runs know."""
        if (start, end) in self.extras:
            return EnqueueStatus.DONE
        touched = self._overlapping(start, end)
        if touched is None:
            return EnqueueStatus.NEW
        if touched.start <= start and end <= touched.end:
            whole = (touched.start, touched.end, touched.batches) == (start, end, 1)
            return EnqueueStatus.DONE if whole else EnqueueStatus.MAYBE
        return EnqueueStatus.NEW

    def run_of(self, start: int, end: int) -> SequenceRange | None:
        """Gives the run that holds the range wholly, or None."""
        run = self._overlapping(start, end)
        inside = run is not None and run.start <= start and end <= run.end
        return run if inside else None

    def _overlapping(self, start: int, end: int) -> SequenceRange | None:
        at = bisect_right(self.runs, end, key=lambda run: run.start) - 1
        if at >= 0 and self.runs[at].end >= start:
            return self.runs[at]
        return None

    def add(self, start: int, end: int) -> None:
        """Marks a range as done; adding it twice is the caller's mistake."""
        if self._overlapping(start, end) is not None:
            self.extras.append((start, end))
            return
        at = bisect_right(self.runs, start, key=lambda run: run.start)
        one = SequenceRange(start=start, end=end, batches=1, seal=seal_of(start, end))
        self.runs.insert(at, one)
        self._melt(at)
        if at > 0:
            self._melt(at - 1)

    def _melt(self, at: int) -> None:
        """Joins the run at `at` with the next one where they touch."""
        if at + 1 < len(self.runs) and self.runs[at].end + 1 == self.runs[at + 1].start:
            left, right = self.runs[at], self.runs.pop(at + 1)
            left.end = right.end
            left.batches += right.batches
            left.seal = (left.seal + right.seal) & SEAL_MASK

    def reseal(self, run: SequenceRange, listed: Sequence["ListedBatch"]) -> None:
        """Takes everything listed inside a run as done, after all of it was enqueued again."""
        held = next((one for one in self.runs if one.start == run.start), run)
        known = {(one.start, one.end) for one in listed}
        self.extras = [one for one in self.extras if one not in known]
        held.batches, held.seal = len(listed), sum(one.seal for one in listed) & SEAL_MASK

    def gaps(self) -> list[Range]:
        """Gives what is missing between the first and the last number that is done.

        A boot starts at 0, so a first run that starts later leaves a gap before it.
        """
        found: list[Range] = []
        expected = 0
        for start, end in merged([*((run.start, run.end) for run in self.runs), *self.extras]):
            if start > expected:
                found.append(Range(start=expected, end=start - 1))
            expected = end + 1
        return found


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Gives the union of ranges as disjoint ones in order."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedBatch:
    """One range as `accepted/` lists it, with when its manifest appeared."""

    start: int
    end: int
    last_modified_ns: int

    @property
    def seal(self) -> int:
        """The hash of the range."""
        return seal_of(self.start, self.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeComparison:
    """Which of the listed ranges of a run are new.

    Attributes:
        new: They were not done.
        sure: False when the seal could not be taken apart: then `new` may hold done ones too.
        lost: How many ranges that are done are no longer listed; never above 0 in a sound store.
    """

    new: tuple[ListedBatch, ...]
    sure: bool = True
    lost: int = 0


def compare_range(
    run: SequenceRange, extras: Sequence[tuple[int, int]], listed: Sequence[ListedBatch]
) -> RangeComparison:
    """Tells which ranges inside a run are new, from all that are listed there.

    The seal of the done ones is known. All listed done is the common case; else the newest ones
    are tried first, because manifests are only ever added; then any one or two.
    """
    known = set(extras)
    inside = [one for one in listed if (one.start, one.end) not in known]
    surplus = len(inside) - run.batches
    over = (sum(one.seal for one in inside) - run.seal) & SEAL_MASK
    if surplus == 0 and over == 0:
        return RangeComparison(new=())
    if surplus <= 0:
        # Accepted manifests are never deleted: something else is wrong, and it is told.
        return RangeComparison(new=(), sure=False, lost=max(1, -surplus))
    by_age = sorted(inside, key=lambda one: (one.last_modified_ns, one.start, one.end))
    newest = by_age[-surplus:]
    if sum(one.seal for one in newest) & SEAL_MASK == over:
        return RangeComparison(new=tuple(newest))
    few = _few(inside, surplus, over)
    return (
        RangeComparison(new=few)
        if few is not None
        else RangeComparison(new=tuple(inside), sure=False)
    )


def _few(inside: Sequence[ListedBatch], surplus: int, over: int) -> tuple[ListedBatch, ...] | None:
    """Finds one or two ranges whose seals make up the difference."""
    by_seal = {one.seal: one for one in inside}
    if surplus == 1:
        return (by_seal[over],) if over in by_seal else None
    if surplus == 2 and len(inside) <= PAIR_SEARCH_MAX:  # noqa: PLR2004 - a pair
        for one in inside:
            other = by_seal.get((over - one.seal) & SEAL_MASK)
            if other is not None and other is not one:
                return (one, other)
    return None
