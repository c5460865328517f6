"""Which boots leave a lane's state, and what is known about boots that it no longer contains.

The settled time of a lane is a fact about `accepted/`: every batch of the lane whose manifest was
created before it is enqueued, except the unsettled ones, which the lane state names. It comes from
a full pass that compared the lane and left no batch behind. A boot whose batches were all enqueued
before that time can therefore be retired, that is, removed from the lane state. When a batch of it
appears again, the listing of its boot restores exactly what the lane state contained.

    in the state --(idle, rewrite of all runs)--> retired --(any batch of it)--> restored

Pure. Source: `docs/reconciler.md`, State; ADR 24.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from sluice_protocol.units import NS_PER_S
from sluice_reconciler.lanes.parts import BootCounts
from sluice_reconciler.lanes.sequence_ranges import BootRanges, ListedBatch
from sluice_reconciler.lanes.state import LaneRecord

CLOCK_MARGIN_S: Final = 60
"""More than the clocks of gateways and store differ, and than a timestamp precedes its object."""

RETIRED_SHARE: Final = 4
"""All runs are rewritten when at least one in this many boots is idle."""

RETIRED_MIN: Final = 1024
"""Idle boots below which they are not worth a rewrite."""

UNSETTLED_MAX: Final = 1000
"""Batches that are held back in one lane above which no boot is retired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPass:
    """A full pass that left no batch behind: when it began, and the queues that it compared."""

    began_ns: int
    queues: Collection[str]


def settled_time_s(record: LaneRecord, shown: ShownPass, quiet_s: int) -> int | None:
    """Return the settled time that a pass shows for a lane, or None if it shows none.

    A pass counts only if it compared the lane, and only if it began after the present ledger of the
    lane: a rebuild empties the ledger, and an earlier pass compared the one before it. A boot is
    kept for `quiet_s` after its last batch.
    """
    if record.queue not in shown.queues or not record.ledger_since_unix_ns:
        return None
    if shown.began_ns <= record.ledger_since_unix_ns:
        return None
    settled_s = shown.began_ns // NS_PER_S - quiet_s - CLOCK_MARGIN_S
    return settled_s if settled_s > record.settled_s else None


def is_rewrite_due(counts: BootCounts) -> bool:
    """Return True if enough boots are idle."""
    return counts.idle >= RETIRED_MIN and counts.idle * RETIRED_SHARE >= counts.total


def is_settled(listed: ListedBatch, settled_s: int, unsettled: Collection[tuple[int, int]]) -> bool:
    """Return True if a listed batch of a retired boot was enqueued.

    `unsettled` has the sequence numbers of the unsettled batches of its boot.
    """
    is_before = listed.last_modified_ns < settled_s * NS_PER_S
    return is_before and (listed.start, listed.end) not in unsettled


def restore_ranges(
    listed: Iterable[ListedBatch], settled_s: int, unsettled: Collection[tuple[int, int]]
) -> BootRanges:
    """Return what a lane was given of a retired boot, from the whole listing of its boot."""
    ranges = BootRanges()
    for one in listed:
        if is_settled(one, settled_s, unsettled):
            ranges.add(one.start, one.end)
    return ranges
