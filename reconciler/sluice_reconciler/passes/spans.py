"""The spans of `accepted/` that a full pass lists concurrently. Pure: no I/O, clock or randomness.

Names of agents often share a prefix, so equal parts of the alphabet are no equal parts of the work.
Each pass therefore samples where its boots begin, weighted by the number of keys, and the next pass
cuts there. A cut is the prefix of a boot without the last slash: it sorts before every key of the
boot, so a boot is never in two spans. The first pass cuts by the alphabet.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from sluice_protocol.keys import ACCEPTED
from sluice_reconciler.passes.progress import PassSpan

CUTS_MAX: Final = 63
"""Cuts that one pass stores for the next."""
MARKS_MAX: Final = 512
"""Beginnings of boots that one walk remembers, at most."""


class BootSample:
    """Beginnings of boots in one walk, at about equal distances by number of keys."""

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

    Args:
        shards: Number of spans, at most.
        cuts: The cuts that an earlier pass stored; with none, the spans divide the letters and
            digits that agent ids begin with evenly.
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
