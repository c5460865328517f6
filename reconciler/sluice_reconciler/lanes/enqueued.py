"""The batches that one lane was given, in memory.

Most boots are in the parts that the lane state names, as compact bytes. Boots that changed since
the newest part are Python objects. Their changes are in the lane state too, as `recent` batches.
Pure: it neither reads nor writes the store.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from sluice_protocol.identity import Identity
from sluice_protocol.keys import lane_of
from sluice_reconciler.lanes.parts import (
    Boot,
    BootCounts,
    BootKey,
    LanePart,
    key_of_boot,
    make_part,
)
from sluice_reconciler.lanes.sequence_ranges import (
    BootRanges,
    EnqueueStatus,
    SequenceRange,
)


class IntendedBatch(msgspec.Struct, frozen=True, array_like=True):
    """One batch of an append intent, or of the recent ones."""

    agent_id: str
    boot_id: str
    seq_start: int
    seq_end: int

    @property
    def boot(self) -> Boot:
        """The agent and boot."""
        return self.agent_id, self.boot_id

    @property
    def identity(self) -> Identity:
        """The identity in the frame's envelope."""
        return Identity.of(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueuedDelta:
    """The boots that changed since the newest part, as they were when the delta was made.

    `recent` counts its recent batches, `unlogged` its other changes.
    """

    part: LanePart
    recent: int
    unlogged: int


def in_order(batches: Iterable[IntendedBatch]) -> tuple[IntendedBatch, ...]:
    """Return batches in the order of their identities."""
    return tuple(sorted(batches, key=lambda one: (*one.boot, one.seq_start, one.seq_end)))


class EnqueuedBatches:
    """The batches that one lane was given.

    The parts in `runs` are the oldest first, and those of one run have no boot in common. `recent`
    batches were enqueued after the newest part was written; the other arguments are as in the lane
    state.
    """

    def __init__(
        self,
        runs: Iterable[Sequence[LanePart]] = (),
        recent: Iterable[IntendedBatch] = (),
        *,
        settled_s: int = 0,
        settled_lanes: Iterable[tuple[int, int, int]] = (),
        unsettled: Iterable[IntendedBatch] = (),
    ) -> None:
        self._runs = [tuple(run) for run in runs]
        self._changed: dict[Boot, BootRanges] = {}
        self._touched: set[Boot] = set()
        # States that were looked up and did not change since; the parts contain the same.
        self._loaded: dict[Boot, BootRanges | None] = {}
        self._recent: list[IntendedBatch] = []
        self._unlogged = 0
        self._empty: set[Boot] = set()
        self._settled_s = settled_s
        self._settled_lanes = tuple(settled_lanes)
        self._unsettled = set(unsettled)
        for batch in recent:
            self.add(batch)

    @property
    def recent(self) -> tuple[IntendedBatch, ...]:
        """The batches enqueued since the newest part, oldest first."""
        return tuple(self._recent)

    @property
    def must_spill(self) -> bool:
        """Whether a boot changed in a way that the recent batches do not express."""
        return self._unlogged > 0

    @property
    def memory_bytes(self) -> int:
        """The memory of the parts."""
        return sum(part.memory_bytes for run in self._runs for part in run)

    def settled_s(self, agent_id: str) -> int:
        """Return the settled time of an agent's boots; 0 if none of its lane was ever retired.

        That of an earlier layout, which the lane state keeps, applies to the agents of its lane.
        """
        earlier = (
            settled_s
            for lanes, lane, settled_s in self._settled_lanes
            if lane_of(agent_id, lanes) == lane
        )
        return max(self._settled_s, *earlier, 0)

    @property
    def unsettled(self) -> tuple[IntendedBatch, ...]:
        """The batches from before the settled time that are not enqueued, in order."""
        return in_order(self._unsettled)

    def unsettled_of(self, boot: Boot) -> frozenset[tuple[int, int]]:
        """Return the sequence numbers of the unsettled batches of one boot."""
        return frozenset(
            (one.seq_start, one.seq_end) for one in self._unsettled if one.boot == boot
        )

    def count_boots(self, settled_s: int) -> BootCounts:
        """Count the boots in the parts, by their last enqueueing."""
        total = idle = 0
        for part in (part for run in self._runs for part in run):
            total += len(part)
            idle += int((part.seen < settled_s).sum())
        return BootCounts(total=total, idle=idle)

    def status(self, who: Identity) -> EnqueueStatus:
        """Return whether a batch was enqueued, without reading the store."""
        boot = self.boot(who.agent_id, who.boot_id)
        if boot is None:
            return EnqueueStatus.RETIRED if self.settled_s(who.agent_id) else EnqueueStatus.NEW
        return boot.status(who.seq_start, who.seq_end)

    def boot(self, agent_id: str, boot_id: str) -> BootRanges | None:
        """Return the enqueued batches of one boot, to be read only; None if there are none."""
        boot = agent_id, boot_id
        changed = self._changed.get(boot)
        if changed is not None:
            return changed
        return self._loaded[boot] if boot in self._loaded else self._find(key_of_boot(boot))

    def load(self, boots: Iterable[Boot]) -> None:
        """Load many boots together, which is cheaper than one by one.

        They stay in memory until the next call with other boots.
        """
        wanted = {boot for boot in boots if boot not in self._changed}
        if not wanted or wanted <= self._loaded.keys():
            return
        keys = {key_of_boot(boot): boot for boot in wanted}
        self._loaded = dict.fromkeys(wanted)
        for run in reversed(self._runs):
            for part in run:
                first, last = part.span
                inside = [key for key in keys if first <= key[0] <= last]
                for key, ranges in part.find_all(inside).items() if inside else ():
                    self._loaded[keys.pop(key)] = ranges
            if not keys:
                return

    def _find(self, key: BootKey) -> BootRanges | None:
        """Return the newest state that a part contains of a boot."""
        for run in reversed(self._runs):
            for part in run:
                first, last = part.span
                if first <= key[0] <= last:
                    found = part.find(key)
                    if found is not None:
                        return found
        return None

    def _change(self, boot: Boot) -> BootRanges:
        """Return the state of a boot, to be changed."""
        ranges = self._changed.get(boot)
        if ranges is None:
            is_loaded = boot in self._loaded
            known = self._loaded.pop(boot) if is_loaded else self._find(key_of_boot(boot))
            ranges = self._changed[boot] = known or BootRanges()
        self._touched.add(boot)
        self._empty.discard(boot)
        return ranges

    def add(self, batch: IntendedBatch) -> None:
        """Record a batch as enqueued."""
        self._change(batch.boot).add(batch.seq_start, batch.seq_end)
        self._recent.append(batch)
        self._unsettled.discard(batch)

    def restore(self, boot: Boot, ranges: BootRanges) -> None:
        """Add a boot that was retired, or that is new.

        The recent batches do not express what a retired boot contained, so it is written in a part
        before the next batch is appended. A new boot is only remembered until then.
        """
        if self.boot(*boot) is not None:
            return
        self._loaded.pop(boot, None)
        self._changed[boot] = ranges
        if ranges.ranges:
            self._touched.add(boot)
            self._unlogged += 1
        else:
            self._empty.add(boot)

    def settle_before(self, settled_s: int, unsettled: Iterable[IntendedBatch]) -> None:
        """Use a settled time, which the lane state contains now."""
        self._settled_s = settled_s
        self._unsettled.update(unsettled)

    def dissolve(self, boot: Boot, sealed: SequenceRange) -> None:
        """Remove a range, so that its batches count as new.

        The lane state contains this before it contains the intent to enqueue them again: a crash in
        between leaves batches that are new, and never a range that is not what was enqueued.
        """
        self._change(boot).dissolve(sealed)
        self._unlogged += 1

    def delta(self, now_s: int) -> EnqueuedDelta | None:
        """Return what changed since the newest part, or None if nothing did.

        `now_s` is the store's clock, at or after the last enqueueing.
        """
        changed = {boot: one for boot, one in self._changed.items() if boot not in self._empty}
        if not changed:
            return None
        self._touched = set()
        return EnqueuedDelta(
            part=make_part(changed, now_s), recent=len(self._recent), unlogged=self._unlogged
        )

    def settle(self, runs: Iterable[Sequence[LanePart]], delta: EnqueuedDelta | None) -> None:
        """Use these runs, which a lane state now names and which contain the delta."""
        self._runs = [tuple(run) for run in runs]
        if delta is not None:
            # What changed while the delta was being written stays.
            self._changed = {boot: self._changed[boot] for boot in self._touched}
            self._empty.clear()
            self._recent = self._recent[delta.recent :]
            self._unlogged -= delta.unlogged
