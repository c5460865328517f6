"""Tells which batches were not enqueued yet, exactly, asking `accepted/` only where runs cannot.

Remembers keys in a few bytes each, by hashes of them.
"""

import hashlib
from array import array
from collections.abc import AsyncIterator, Iterable
from functools import partial

import numpy as np
import numpy.typing as npt
import structlog

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.identity import Identity
from sluice_protocol.keys import accepted_key, parse_accepted_key
from sluice_protocol.units import ObjectKey
from sluice_reconciler.lane_state import Ledger
from sluice_reconciler.sequence_ranges import (
    SEAL_MASK,
    BootRanges,
    EnqueueStatus,
    ListedBatch,
    RangeComparison,
    SequenceRange,
    compare_range,
)
from sluice_store.port import ObjectStore

log = structlog.get_logger()


def boot_prefix(agent_id: str, boot_id: str) -> str:
    """Gives the prefix under `accepted/` of every batch of one boot."""
    first = Identity(agent_id=agent_id, boot_id=boot_id, seq_start=0, seq_end=0)
    return accepted_key(first).rpartition("/")[0] + "/"


ComparedRanges = dict[tuple[str, str, int, int], RangeComparison]
"""What was found of runs that were sorted out: agent, boot, first number, seal."""


async def new_batches(
    store: ObjectStore,
    ledger: Ledger,
    batches: Iterable[Identity],
    known: ComparedRanges | None = None,
) -> tuple[list[Identity], bool]:
    """Gives the batches that a lane was not given yet.

    Args:
        store: Where `accepted/` lies.
        ledger: What the lane was given.
        batches: What to ask of.
        known: Runs sorted out earlier in the same walk over keys that existed before it began.

    Returns:
        They, in the order asked, and whether that is sure; where it is not, some may be done.

    Raises:
        StoreError: The store did not answer.
    """
    found: list[Identity] = []
    sorted_runs: ComparedRanges = known if known is not None else {}
    sure = True
    for who in batches:
        match ledger.standing(who):
            case EnqueueStatus.DONE:
                continue
            case EnqueueStatus.NEW:
                found.append(who)
            case EnqueueStatus.MAYBE:
                verdict = await _of_run(store, ledger, who, sorted_runs)
                sure = sure and verdict.sure
                if any((one.start, one.end) == (who.seq_start, who.seq_end) for one in verdict.new):
                    found.append(who)
    return found, sure


async def _of_run(
    store: ObjectStore,
    ledger: Ledger,
    who: Identity,
    sorted_runs: ComparedRanges,
) -> RangeComparison:
    """Sorts out the run around a batch, once per run."""
    boot = ledger.boot(who.agent_id, who.boot_id)
    run = boot.run_of(who.seq_start, who.seq_end) if boot is not None else None
    if boot is None or run is None:
        return RangeComparison(new=())
    place = (who.agent_id, who.boot_id, run.start, run.seal)
    if place not in sorted_runs:
        sorted_runs[place] = await compare_stored_range(store, who.agent_id, who.boot_id, boot, run)
    return sorted_runs[place]


async def compare_stored_range(
    store: ObjectStore, agent_id: str, boot_id: str, boot: BootRanges, run: SequenceRange
) -> RangeComparison:
    """Lists what `accepted/` holds inside a run and tells which of it is new.

    Raises:
        StoreError: The store did not answer.
    """
    # The run may grow while the listing runs; what is judged is the run as it stood before.
    before = SequenceRange(start=run.start, end=run.end, batches=run.batches, seal=run.seal)
    extras = list(boot.extras)
    inside = partial(_inside, store, boot_prefix(agent_id, boot_id), before)
    # Almost always all is done: then nothing of a long run is held in memory.
    if await _agrees(before, set(extras), inside()):
        return RangeComparison(new=())
    listed = [one async for one in inside()]
    verdict = compare_range(before, extras, listed)
    if verdict.lost:
        log.error(
            "accepted manifests vanished", agent=agent_id, boot=boot_id, seq_start=run.start,
            seq_end=run.end, lost=verdict.lost,
        )  # fmt: skip
    elif not verdict.sure:
        log.warning("run cannot be told apart, it is enqueued again", agent=agent_id, boot=boot_id)
        boot.reseal(run, [one for one in listed if (one.start, one.end) not in extras])
    return verdict


async def _inside(
    store: ObjectStore, prefix: str, run: SequenceRange
) -> AsyncIterator[ListedBatch]:
    """Lists the ranges of one boot that lie inside a run."""
    after = f"{prefix}{run.start:020d}"
    end_at = f"{prefix}{run.end:020d}-{run.end:020d}.json"
    async for page in store.list(prefix, start_after=after, end_at=end_at):
        for one in page.objects:
            who = _identity(one.key)
            if who is not None and who.seq_end <= run.end:
                yield ListedBatch(
                    start=who.seq_start, end=who.seq_end, last_modified_ns=one.last_modified_ns
                )


async def _agrees(
    run: SequenceRange, extras: set[tuple[int, int]], inside: AsyncIterator[ListedBatch]
) -> bool:
    """Tells whether what is listed inside a run is what it was sealed with."""
    batches = seal = 0
    async for one in inside:
        if (one.start, one.end) not in extras:
            batches, seal = batches + 1, (seal + one.seal) & SEAL_MASK
    return (batches, seal) == (run.batches, run.seal)


def _identity(key: ObjectKey) -> Identity | None:
    try:
        return parse_accepted_key(key)
    except InvalidRecord:
        return None


class RecentKeys:
    """Between half of and all of the `keys_max` keys added last, by a 128-bit hash.

    Two generations: when the younger is full it becomes the older, and the older is forgotten.
    """

    def __init__(self, keys_max: int) -> None:
        """Starts empty."""
        self._half = keys_max // 2
        self._young: set[bytes] = set()
        self._old: set[bytes] = set()

    def __contains__(self, key: str) -> bool:
        """Tells whether a key was added lately."""
        one = _short(key)
        return one in self._young or one in self._old

    def add(self, keys: Iterable[str]) -> None:
        """Remembers keys; the ones added longest ago are forgotten first."""
        for key in keys:
            self._young.add(_short(key))
            if len(self._young) >= self._half:
                self._old, self._young = self._young, set()


class KeyHashSet:
    """A set of keys by a 64-bit hash, eight bytes each; add all, then ask.

    It may take a foreign key for one of its own once in 2^64 divided by their number.
    """

    def __init__(self) -> None:
        """Starts empty."""
        self._added = array("Q")
        self._sorted: npt.NDArray[np.uint64] | None = None

    def add(self, keys: Iterable[str]) -> None:
        """Takes keys in."""
        self._added.extend(int.from_bytes(_short(key)[:8], "little") for key in keys)
        self._sorted = None

    def __contains__(self, key: str) -> bool:
        """Tells whether a key was added."""
        if self._sorted is None:
            self._sorted = np.sort(np.frombuffer(self._added, dtype=np.uint64))
        wanted = np.uint64(int.from_bytes(_short(key)[:8], "little"))
        at = int(np.searchsorted(self._sorted, wanted))
        return at < len(self._sorted) and bool(self._sorted[at] == wanted)


def _short(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=16).digest()
