"""Deciding which batches are new: from the lane state, from `accepted/`, and from memory.

The lane state decides most batches without a request. A batch inside a sequence range needs one
listing of that part of `accepted/`. `RecentKeys` remembers in memory what was decided lately.
"""

import hashlib
from array import array
from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import structlog

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.identity import Identity
from sluice_protocol.keys import accepted_key, parse_accepted_key
from sluice_protocol.units import ObjectKey
from sluice_reconciler.lanes.enqueued import EnqueuedBatches
from sluice_reconciler.lanes.parts import Boot
from sluice_reconciler.lanes.sequence_ranges import (
    SEAL_MASK,
    EnqueueStatus,
    ListedBatch,
    RangeComparison,
    SequenceRange,
    compare_range,
)
from sluice_reconciler.lanes.state import restore_ranges
from sluice_store.port import ObjectStore

log = structlog.get_logger()


class UnsureRange(NamedTuple):
    """A range of a boot in which the seal does not identify the new batches."""

    boot: Boot
    sealed: SequenceRange


ComparedRanges = dict[tuple[str, str, int, int], RangeComparison]
"""Results of range comparisons, by agent, boot, first sequence number and seal."""


def boot_prefix(agent_id: str, boot_id: str) -> str:
    """Return the prefix under `accepted/` of every batch of one boot."""
    first = Identity(agent_id=agent_id, boot_id=boot_id, seq_start=0, seq_end=0)
    return accepted_key(first).rpartition("/")[0] + "/"


def identity_of_key(key: ObjectKey) -> Identity | None:
    """Return the identity that an accepted key names, or None for any other key."""
    try:
        return parse_accepted_key(key)
    except InvalidRecord:
        return None


async def new_batches(
    store: ObjectStore,
    enqueued: EnqueuedBatches,
    batches: Iterable[Identity],
    compared: ComparedRanges | None = None,
) -> tuple[list[Identity], list[UnsureRange]]:
    """Return the batches that a lane was not given yet.

    `enqueued` is only read. `compared` has comparisons made earlier, of keys that existed before
    the first of them; new comparisons are added. The new batches are in the order of `batches`.
    Batches inside a returned range, whose new ones the seal does not identify, may have been
    enqueued.
    """
    found: list[Identity] = []
    known: ComparedRanges = compared if compared is not None else {}
    unsure: list[UnsureRange] = []
    decided = list(batches)
    enqueued.load((who.agent_id, who.boot_id) for who in decided)
    for who in decided:
        match await _status_of(store, enqueued, who):
            case EnqueueStatus.DONE:
                continue
            case EnqueueStatus.NEW | EnqueueStatus.RETIRED:
                found.append(who)
            case EnqueueStatus.MAYBE:
                sealed = _range_of(enqueued, who)
                if sealed is None:
                    continue
                result = await _compare_range(store, enqueued, who, sealed, known)
                if any((one.start, one.end) == (who.seq_start, who.seq_end) for one in result.new):
                    found.append(who)
                    place = UnsureRange((who.agent_id, who.boot_id), sealed)
                    if not result.sure and place not in unsure:
                        unsure.append(place)
    return found, unsure


async def _status_of(store: ObjectStore, enqueued: EnqueuedBatches, who: Identity) -> EnqueueStatus:
    """Return whether a batch was enqueued; a boot that was retired is restored first."""
    status = enqueued.status(who)
    if status is EnqueueStatus.RETIRED:
        await _restore_boot(store, enqueued, (who.agent_id, who.boot_id))
        status = enqueued.status(who)
    return status


async def _restore_boot(store: ObjectStore, enqueued: EnqueuedBatches, boot: Boot) -> None:
    """List once a boot that the lane state does not contain, and add what was enqueued."""
    prefix = boot_prefix(*boot)
    listed = [
        ListedBatch(start=found.seq_start, end=found.seq_end, last_modified_ns=one.last_modified_ns)
        async for page in store.list(prefix)
        for one in page.objects
        if (found := identity_of_key(one.key)) is not None
    ]
    # The lane state decides what is settled after the listing: boots may be retired meanwhile.
    enqueued.restore(
        boot, restore_ranges(listed, enqueued.settled_s(boot[0]), enqueued.unsettled_of(boot))
    )


def _range_of(enqueued: EnqueuedBatches, who: Identity) -> SequenceRange | None:
    """Return a copy of the range that contains a batch: the range may grow during a listing."""
    boot = enqueued.boot(who.agent_id, who.boot_id)
    sealed = boot.range_of(who.seq_start, who.seq_end) if boot is not None else None
    return None if sealed is None else sealed.copy()


async def _compare_range(
    store: ObjectStore,
    enqueued: EnqueuedBatches,
    who: Identity,
    sealed: SequenceRange,
    known: ComparedRanges,
) -> RangeComparison:
    """Compare the range that contains a batch with its listing, once per range."""
    place = (who.agent_id, who.boot_id, sealed.start, sealed.seal)
    if place not in known:
        known[place] = await _compare_with_listing(
            store, enqueued, (who.agent_id, who.boot_id), sealed
        )
    return known[place]


async def _compare_with_listing(
    store: ObjectStore, enqueued: EnqueuedBatches, boot: Boot, sealed: SequenceRange
) -> RangeComparison:
    agent_id, boot_id = boot
    ranges = enqueued.boot(agent_id, boot_id)
    extras = list(ranges.extras) if ranges is not None else []
    inside = partial(_listed_inside, store, boot_prefix(agent_id, boot_id), sealed)
    # Usually every listed batch is enqueued; then no listing of a long range is kept in memory.
    if await _seal_matches(sealed, set(extras), inside()):
        return RangeComparison(new=())
    listed = [one async for one in inside()]
    result = compare_range(sealed, extras, listed)
    if result.lost:
        log.error(
            "accepted_manifests_missing",
            agent=agent_id,
            boot=boot_id,
            seq_start=sealed.start,
            seq_end=sealed.end,
            missing=result.lost,
        )
    return result


async def _listed_inside(
    store: ObjectStore, prefix: str, sealed: SequenceRange
) -> AsyncIterator[ListedBatch]:
    """List the batches of one boot that are inside a sequence range."""
    after = f"{prefix}{sealed.start:020d}"
    end_at = f"{prefix}{sealed.end:020d}-{sealed.end:020d}.json"
    async for page in store.list(prefix, start_after=after, end_at=end_at):
        for one in page.objects:
            who = identity_of_key(one.key)
            if who is not None and who.seq_end <= sealed.end:
                yield ListedBatch(
                    start=who.seq_start, end=who.seq_end, last_modified_ns=one.last_modified_ns
                )


async def _seal_matches(
    sealed: SequenceRange, extras: set[tuple[int, int]], inside: AsyncIterator[ListedBatch]
) -> bool:
    batches = seal = 0
    async for one in inside:
        if (one.start, one.end) not in extras:
            batches, seal = batches + 1, (seal + one.seal) & SEAL_MASK
    return (batches, seal) == (sealed.batches, sealed.seal)


class RecentKeys:
    """A bounded set of keys: at least half of and at most all of the last `keys_max` added.

    It stores a 128-bit hash of each key in two generations. When the younger generation is full,
    it becomes the older one, and the previous older one is dropped.
    """

    def __init__(self, keys_max: int) -> None:
        self._half = keys_max // 2
        self._young: set[bytes] = set()
        self._old: set[bytes] = set()

    def __contains__(self, key: str) -> bool:
        hashed = _hash(key)
        return hashed in self._young or hashed in self._old

    def add(self, keys: Iterable[str]) -> None:
        """Add keys; the ones added longest ago are dropped first."""
        for key in keys:
            self._young.add(_hash(key))
            if len(self._young) >= self._half:
                self._old, self._young = self._young, set()


class KeyHashSet:
    """A set of keys by a 64-bit hash, eight bytes each; add all keys before the first lookup.

    A lookup of a key that was not added returns True with probability (number of keys) / 2**64.
    """

    def __init__(self) -> None:
        self._added = array("Q")
        self._sorted: npt.NDArray[np.uint64] | None = None

    def add(self, keys: Iterable[str]) -> None:
        """Add keys."""
        self._added.extend(int.from_bytes(_hash(key)[:8], "little") for key in keys)
        self._sorted = None

    def __contains__(self, key: str) -> bool:
        if self._sorted is None:
            self._sorted = np.sort(np.frombuffer(self._added, dtype=np.uint64))
        wanted = np.uint64(int.from_bytes(_hash(key)[:8], "little"))
        at = int(np.searchsorted(self._sorted, wanted))
        return at < len(self._sorted) and bool(self._sorted[at] == wanted)


def _hash(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=16).digest()
