"""The batches that one lane was given, in memory.

Most lives are in the parts that the lane state names, as compact bytes. Lives that changed since
the newest part are Python objects. Their changes are in the lane state too, as `recent` batches.
Pure: it neither reads nor writes the store.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from sluice_protocol.identity import Identity
from sluice_reconciler.lanes.parts import LanePart, Life, LifeKey, key_of_life, make_part
from sluice_reconciler.lanes.sequence_ranges import (
    BootRanges,
    EnqueueStatus,
    SequenceRange,
)


class StoredBoot(msgspec.Struct, frozen=True, array_like=True):
    """The enqueued batches of one (agent, boot) in a record of the first version."""

    agent_id: str
    boot_id: str
    ranges: BootRanges


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerDelta:
    """The lives that changed since the newest part, as they were when the delta was made.

    Attributes:
        part: Their states.
        recent: Number of recent batches that it contains.
        unlogged: Number of other changes that it contains.
    """

    part: LanePart
    recent: int
    unlogged: int


class Ledger:
    """The batches that one lane was given.

    Args:
        runs: The parts, oldest run first; the parts of one run have no life in common.
        boots: States that no part contains.
        recent: Batches that were enqueued after the newest part was written.
    """

    def __init__(
        self,
        runs: Iterable[Sequence[LanePart]] = (),
        boots: Iterable[StoredBoot] = (),
        recent: Iterable[IntendedBatch] = (),
    ) -> None:
        self._runs = [tuple(run) for run in runs]
        self._changed = {(one.agent_id, one.boot_id): one.ranges for one in boots}
        self._touched: set[Life] = set(self._changed)
        self._recent: list[IntendedBatch] = []
        self._unlogged = len(self._changed)
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

    def status(self, who: Identity) -> EnqueueStatus:
        """Return whether a batch was enqueued, without reading the store."""
        boot = self.boot(who.agent_id, who.boot_id)
        return boot.status(who.seq_start, who.seq_end) if boot is not None else EnqueueStatus.NEW

    def boot(self, agent_id: str, boot_id: str) -> BootRanges | None:
        """Return the enqueued batches of one boot, to be read only; None if there are none."""
        life = agent_id, boot_id
        changed = self._changed.get(life)
        return changed if changed is not None else self._find(key_of_life(life))

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
            boot = self._changed[life] = self._find(key_of_life(life)) or BootRanges()
        self._touched.add(life)
        return boot

    def add(self, batch: IntendedBatch) -> None:
        """Record a batch as enqueued."""
        self._change(batch.life).add(batch.seq_start, batch.seq_end)
        self._recent.append(batch)

    def dissolve(self, life: Life, sealed: SequenceRange) -> None:
        """Remove a range, so that its batches count as new.

        The lane state contains this before it contains the intent to enqueue them again: a crash in
        between leaves batches that are new, and never a range that is not what was enqueued.
        """
        self._change(life).dissolve(sealed)
        self._unlogged += 1

    def delta(self) -> LedgerDelta | None:
        """Return what changed since the newest part, or None if nothing did."""
        if not self._changed:
            return None
        self._touched = set()
        return LedgerDelta(
            part=make_part(self._changed), recent=len(self._recent), unlogged=self._unlogged
        )

    def settle(self, runs: Iterable[Sequence[LanePart]], delta: LedgerDelta | None) -> None:
        """Use these runs, which a lane state now names and which contain the delta."""
        self._runs = [tuple(run) for run in runs]
        if delta is not None:
            # What changed while the delta was being written stays.
            self._changed = {life: self._changed[life] for life in self._touched}
            self._recent = self._recent[delta.recent :]
            self._unlogged -= delta.unlogged
