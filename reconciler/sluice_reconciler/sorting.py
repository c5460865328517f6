"""Tells which batches were not enqueued yet, exactly, asking `accepted/` only where runs cannot."""

from collections.abc import AsyncIterator, Iterable
from functools import partial

import structlog

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.identity import Identity
from sluice_protocol.keys import accepted_key, parse_accepted_key
from sluice_protocol.units import ObjectKey
from sluice_reconciler.lane_state import Ledger
from sluice_reconciler.runs import SEAL_MASK, BootRuns, Listed, Run, Sorted, Standing, sort_out
from sluice_store.port import ObjectStore

log = structlog.get_logger()


def boot_prefix(agent_id: str, boot_id: str) -> str:
    """Gives the prefix under `accepted/` of every batch of one boot."""
    first = Identity(agent_id=agent_id, boot_id=boot_id, seq_start=0, seq_end=0)
    return accepted_key(first).rpartition("/")[0] + "/"


SortedRuns = dict[tuple[str, str, int, int], Sorted]
"""What was found of runs that were sorted out: agent, boot, first number, seal."""


async def fresh(
    store: ObjectStore,
    ledger: Ledger,
    batches: Iterable[Identity],
    known: SortedRuns | None = None,
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
    sorted_runs: SortedRuns = known if known is not None else {}
    sure = True
    for who in batches:
        match ledger.standing(who):
            case Standing.DONE:
                continue
            case Standing.NEW:
                found.append(who)
            case Standing.MAYBE:
                verdict = await _of_run(store, ledger, who, sorted_runs)
                sure = sure and verdict.sure
                if any((one.start, one.end) == (who.seq_start, who.seq_end) for one in verdict.new):
                    found.append(who)
    return found, sure


async def _of_run(
    store: ObjectStore,
    ledger: Ledger,
    who: Identity,
    sorted_runs: SortedRuns,
) -> Sorted:
    """Sorts out the run around a batch, once per run."""
    boot = ledger.boot(who.agent_id, who.boot_id)
    run = boot.run_of(who.seq_start, who.seq_end) if boot is not None else None
    if boot is None or run is None:
        return Sorted(new=())
    place = (who.agent_id, who.boot_id, run.start, run.seal)
    if place not in sorted_runs:
        sorted_runs[place] = await sort_out_run(store, who.agent_id, who.boot_id, boot, run)
    return sorted_runs[place]


async def sort_out_run(
    store: ObjectStore, agent_id: str, boot_id: str, boot: BootRuns, run: Run
) -> Sorted:
    """Lists what `accepted/` holds inside a run and tells which of it is new.

    Raises:
        StoreError: The store did not answer.
    """
    # The run may grow while the listing runs; what is judged is the run as it stood before.
    before = Run(start=run.start, end=run.end, batches=run.batches, seal=run.seal)
    extras = list(boot.extras)
    inside = partial(_inside, store, boot_prefix(agent_id, boot_id), before)
    # Almost always all is done: then nothing of a long run is held in memory.
    if await _agrees(before, set(extras), inside()):
        return Sorted(new=())
    listed = [one async for one in inside()]
    verdict = sort_out(before, extras, listed)
    if verdict.lost:
        log.error(
            "accepted manifests vanished", agent=agent_id, boot=boot_id, seq_start=run.start,
            seq_end=run.end, lost=verdict.lost,
        )  # fmt: skip
    elif not verdict.sure:
        log.warning("run cannot be told apart, it is enqueued again", agent=agent_id, boot=boot_id)
        boot.reseal(run, [one for one in listed if (one.start, one.end) not in extras])
    return verdict


async def _inside(store: ObjectStore, prefix: str, run: Run) -> AsyncIterator[Listed]:
    """Lists the ranges of one boot that lie inside a run."""
    after = f"{prefix}{run.start:020d}"
    end_at = f"{prefix}{run.end:020d}-{run.end:020d}.json"
    async for page in store.list(prefix, start_after=after, end_at=end_at):
        for one in page.objects:
            who = _identity(one.key)
            if who is not None and who.seq_end <= run.end:
                yield Listed(
                    start=who.seq_start, end=who.seq_end, last_modified_ns=one.last_modified_ns
                )


async def _agrees(run: Run, extras: set[tuple[int, int]], inside: AsyncIterator[Listed]) -> bool:
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
