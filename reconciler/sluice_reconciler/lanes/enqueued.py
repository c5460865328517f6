"""The batches that one lane was given, in memory.

Most lives are in the parts that the lane state names, as compact bytes. Lives that changed since
the newest part are Python objects. Their changes are in the lane state too, as `recent` batches.
Pure: it neither reads nor writes the store.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from sluice_protocol.identity import Identity
from sluice_reconciler.lanes.parts import (
    LanePart,
    Life,
    LifeCounts,
    LifeKey,
    key_of_life,
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
    def life(self) -> Life:
        """Its agent and boot."""
        return self.agent_id, self.boot_id

    @property
    def identity(self) -> Identity:
        """Its identity."""
        return Identity.of(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueuedDelta:
    """The lives that changed since the newest part, as they were when the delta was made.

    Attributes:
        part: Their states.
        recent: Number of recent batches that it contains.
        unlogged: Number of other changes that it contains.
    """

    part: LanePart
    recent: int
    unlogged: int


def in_order(batches: Iterable[IntendedBatch]) -> tuple[IntendedBatch, ...]:
    """Return batches in the order of their identities."""
    return tuple(sorted(batches, key=lambda one: (*one.life, one.seq_start, one.seq_end)))


class EnqueuedBatches:
    """The batches that one lane was given.

    Args:
        runs: The parts, oldest run first; the parts of one run have no life in common.
        recent: Batches that were enqueued after the newest part was written.
        settled_s: As in the lane state.
        unsettled: As in the lane state.
    """

    def __init__(
        self,
        runs: Iterable[Sequence[LanePart]] = (),
        recent: Iterable[IntendedBatch] = (),
        *,
        settled_s: int = 0,
        unsettled: Iterable[IntendedBatch] = (),
    ) -> None:
        self._runs = [tuple(run) for run in runs]
        self._changed: dict[Life, BootRanges] = {}
        self._touched: set[Life] = set()
        # States that were looked up and did not change since; the parts contain the same.
        self._loaded: dict[Life, BootRanges | None] = {}
        self._recent: list[IntendedBatch] = []
        self._unlogged = 0
        self._empty: set[Life] = set()
        self._settled_s = settled_s
        self._unsettled = set(unsettled)
        for batch in recent:
            self.add(batch)

    @property
    def recent(self) -> tuple[IntendedBatch, ...]:
        """The batches enqueued since the newest part, oldest first."""
        return tuple(self._recent)

    @property
    def must_spill(self) -> bool:
        """Whether a life changed in a way that the recent batches do not express."""
        return self._unlogged > 0

    @property
    def memory_bytes(self) -> int:
        """The memory of the parts."""
        return sum(part.memory_bytes for run in self._runs for part in run)

    @property
    def settled_s(self) -> int:
        """The settled time; 0 if no life was ever retired."""
        return self._settled_s

    @property
    def unsettled(self) -> tuple[IntendedBatch, ...]:
        """The batches from before the settled time that are not enqueued, in order."""
        return in_order(self._unsettled)

    def unsettled_of(self, life: Life) -> frozenset[tuple[int, int]]:
        """Return the sequence numbers of the unsettled batches of one life."""
        return frozenset(
            (one.seq_start, one.seq_end) for one in self._unsettled if one.life == life
        )

    def count_lives(self, settled_s: int) -> LifeCounts:
        """Count the lives in the parts, by their last enqueueing."""
        total = idle = 0
        for part in (part for run in self._runs for part in run):
            total += len(part)
            idle += int((part.seen < settled_s).sum())
        return LifeCounts(total=total, idle=idle)

    def status(self, who: Identity) -> EnqueueStatus:
        """Return whether a batch was enqueued, without reading the store."""
        boot = self.boot(who.agent_id, who.boot_id)
        if boot is None:
            return EnqueueStatus.RETIRED if self._settled_s else EnqueueStatus.NEW
        return boot.status(who.seq_start, who.seq_end)

    def boot(self, agent_id: str, boot_id: str) -> BootRanges | None:
        """Return the enqueued batches of one boot, to be read only; None if there are none."""
        life = agent_id, boot_id
        changed = self._changed.get(life)
        if changed is not None:
            return changed
        return self._loaded[life] if life in self._loaded else self._find(key_of_life(life))

    def load(self, lives: Iterable[Life]) -> None:
        """Look many lives up together, which costs less than one by one as their parts are many.

        They stay in memory until the next call with other lives.
        """
        wanted = {life for life in lives if life not in self._changed}
        if not wanted or wanted <= self._loaded.keys():
            return
        keys = {key_of_life(life): life for life in wanted}
        self._loaded = dict.fromkeys(wanted)
        for run in reversed(self._runs):
            for part in run:
                first, last = part.span
                inside = [key for key in keys if first <= key[0] <= last]
                for key, ranges in part.find_all(inside).items() if inside else ():
                    self._loaded[keys.pop(key)] = ranges
            if not keys:
                return

    def _find(self, key: LifeKey) -> BootRanges | None:
        """Return the newest state that a part contains of a life."""
        for run in reversed(self._runs):
            for part in run:
                first, last = part.span
                if first <= key[0] <= last:
                    found = part.find(key)
                    if found is not None:
                        return found
        return None

    def _change(self, life: Life) -> BootRanges:
        """Return the state of a life, to be changed."""
        boot = self._changed.get(life)
        if boot is None:
            is_loaded = life in self._loaded
            known = self._loaded.pop(life) if is_loaded else self._find(key_of_life(life))
            boot = self._changed[life] = known or BootRanges()
        self._touched.add(life)
        self._empty.discard(life)
        return boot

    def add(self, batch: IntendedBatch) -> None:
        """Record a batch as enqueued."""
        self._change(batch.life).add(batch.seq_start, batch.seq_end)
        self._recent.append(batch)
        self._unsettled.discard(batch)

    def restore(self, life: Life, ranges: BootRanges) -> None:
        """Add a life that was retired, or that is new.

        The recent batches do not express what a retired life contained, so it is written in a part
        before the next batch is appended. A new life is only remembered until then.
        """
        if self.boot(*life) is not None:
            return
        self._loaded.pop(life, None)
        self._changed[life] = ranges
        if ranges.ranges:
            self._touched.add(life)
            self._unlogged += 1
        else:
            self._empty.add(life)

    def settle_before(self, settled_s: int, unsettled: Iterable[IntendedBatch]) -> None:
        """Use a settled time, which the lane state contains now."""
        self._settled_s = settled_s
        self._unsettled.update(unsettled)

    def dissolve(self, life: Life, sealed: SequenceRange) -> None:
        """Remove a range, so that its batches count as new.

        The lane state contains this before it contains the intent to enqueue them again: a crash in
        between leaves batches that are new, and never a range that is not what was enqueued.
        """
        self._change(life).dissolve(sealed)
        self._unlogged += 1

    def delta(self, now_s: int) -> EnqueuedDelta | None:
        """Return what changed since the newest part, or None if nothing did.

        Args:
            now_s: The store's clock, at or after the last enqueueing.
        """
        changed = {life: one for life, one in self._changed.items() if life not in self._empty}
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
            self._changed = {life: self._changed[life] for life in self._touched}
            self._empty.clear()
            self._recent = self._recent[delta.recent :]
            self._unlogged -= delta.unlogged
