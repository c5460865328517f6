"""The comparison of one boot's listing with what a queue was given of it."""

from dataclasses import dataclass, field

from sluice_protocol.identity import Identity
from sluice_reconciler.lanes.sequence_ranges import SEAL_MASK, BootRanges, EnqueueStatus, seal_of
from sluice_reconciler.lanes.worker import LaneWorker


@dataclass(slots=True, kw_only=True)
class _ListedSum:
    """The number and the seal of the batches listed so far inside one sequence range."""

    batches: int = 0
    seal: int = 0


@dataclass(slots=True, kw_only=True)
class BootComparison:
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
