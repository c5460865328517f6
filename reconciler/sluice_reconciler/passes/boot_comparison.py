"""The comparison of one boot's listing with what a queue was given of it."""

from dataclasses import dataclass, field

from sluice_protocol.identity import Identity
from sluice_reconciler.lanes.retirement import is_settled
from sluice_reconciler.lanes.sequence_ranges import (
    SEAL_MASK,
    BootRanges,
    EnqueueStatus,
    ListedBatch,
    seal_of,
)
from sluice_reconciler.lanes.worker import LaneWorker


@dataclass(slots=True, kw_only=True)
class _ListedSum:
    """The number and the seal of the batches listed so far inside one sequence range."""

    batches: int = 0
    seal: int = 0


@dataclass(slots=True, kw_only=True)
class BootComparison:
    """One boot's listing compared with one queue's ledger, as it was before the boot was listed.

    Attributes:
        worker: The lane.
        before: What the ledger contained of the boot.
        retired_before_s: If the ledger did not contain the boot, the settled time of the lane.
        unsettled: Then the sequence numbers of the unsettled batches of the boot.
        sums: What was listed inside each range.
    """

    worker: LaneWorker
    before: BootRanges
    retired_before_s: int = 0
    unsettled: frozenset[tuple[int, int]] = frozenset()
    sums: dict[int, _ListedSum] = field(default_factory=dict)

    @classmethod
    def of(cls, worker: LaneWorker, agent_id: str, boot_id: str) -> "BootComparison":
        """Copy what a queue was given of a boot, before anything is added to it."""
        ledger, life = worker.ledger, (agent_id, boot_id)
        now = ledger.boot(*life)
        if now is None:
            return cls(
                worker=worker,
                before=BootRanges(),
                retired_before_s=ledger.settled_s,
                unsettled=ledger.unsettled_of(life),
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
