"""References of refused uploads are written, by a bounded number of pages in each check."""

import pytest
from support.queue_store import SimStore
from support.reconciler_seed import refuse
from support.reconciler_world import make, runtime_of

from sluice_protocol.keys import QUARANTINE_BY_BLOB, parse_quarantine_key
from sluice_protocol.units import ObjectKey
from sluice_reconciler.concurrency import RequestLimit
from sluice_reconciler.indexes import quarantine_entry
from sluice_reconciler.passes.held_batches import PAGES_MAX, QuarantinePass
from sluice_reconciler.verify import HoldRecords
from sluice_store.retry import WRITE_RETRY

PAGE = 1000


async def refuse_many(store: SimStore, count: int, *, referenced: bool) -> list[ObjectKey]:
    """Write conflicts; return the keys of their references."""
    references = []
    for number in range(count):
        key = await refuse(store, 10 * number)
        reference, body = quarantine_entry(key, *parse_quarantine_key(key))
        if referenced:
            await store.create(reference, body)
        references.append(reference)
    return references


def walk_over(store: SimStore) -> QuarantinePass:
    backoff = runtime_of(store).backoff(WRITE_RETRY)
    return QuarantinePass(store, HoldRecords(store), RequestLimit(8), backoff)


def references_in(store: SimStore) -> set[str]:
    return {key for key in store.held if key.startswith(QUARANTINE_BY_BLOB)}


async def test_a_walk_in_several_calls_writes_every_missing_reference(store: SimStore) -> None:
    """Of each call, at most the given number of pages; a reference is lost in between."""
    wanted = set(await refuse_many(store, 2 * PAGE + 10, referenced=True))
    for key in sorted(wanted)[::100]:
        del store.held[key]
    walk = walk_over(store)
    calls = 0
    while True:
        store.counts.clear()
        ended = await walk.run(2)
        assert store.counts["list"] <= 2
        calls += 1
        if ended:
            break
    assert calls == 3
    assert references_in(store) == wanted
    assert walk.written == 21
    del store.held[min(wanted)]
    assert await walk.run()
    assert references_in(store) == wanted


async def test_a_check_of_few_conflicts_sees_all_of_them(store: SimStore) -> None:
    wanted = await refuse_many(store, 3, referenced=False)
    walk = walk_over(store)
    for key in wanted:
        assert await walk.run(2)
        assert references_in(store) == set(wanted)
        del store.held[key]


@pytest.mark.long
async def test_the_pages_of_a_check_do_not_grow_with_the_conflicts(store: SimStore) -> None:
    """A check finds a new conflict after at most as many checks as one walk needs, twice."""
    await refuse_many(store, 12 * PAGE, referenced=True)
    held = make(store)._held
    await held.check()
    new = await refuse(store, 5)
    reference, _ = quarantine_entry(new, *parse_quarantine_key(new))
    for _ in range(4):
        store.counts.clear()
        await held.check()
        assert store.counts["list"] <= PAGES_MAX + 2
    assert reference in store.held
