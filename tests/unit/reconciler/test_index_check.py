"""A full pass notices that entries of the derived indexes are gone, and reports them until then."""

import random
from functools import partial

import pytest
import structlog
from support import reconciler_world
from support.queue_store import SimStore
from support.reconciler_seed import accept
from support.reconciler_world import ONE_LANE

from sluice_console.store_counts import find_missing_indexes
from sluice_protocol.keys import ACCEPTED_BY_BLOB, ACCEPTED_BY_TIME, RAW_BLOBS_BY_TIME
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_reconciler.discovery import read_discovery_status
from sluice_reconciler.passes.index_check import CHECK_S, SAMPLE, SETTLED_S, read_index_check

BATCHES = 300
INDEXES = (ACCEPTED_BY_TIME, ACCEPTED_BY_BLOB, RAW_BLOBS_BY_TIME)


make = partial(reconciler_world.make, authority=ONE_LANE, list_batches_max=1, pack_references=False)


async def indexed() -> SimStore:
    """Return a store whose batches were indexed long enough ago."""
    store = SimStore()
    for number in range(BATCHES):
        await accept(store, number * 10)
    assert (await make(store).once()).outcome.indexed
    store.clock.at_ns += int((SETTLED_S + 1) * NS_PER_S)
    return store


async def lose(store: SimStore, index: str, share: float) -> None:
    keys = [one.key async for page in store.list(index) for one in page.objects]
    for key in random.Random(5).sample(keys, max(1, int(len(keys) * share))):
        del store.held[key]


@pytest.mark.daily(3)
@pytest.mark.parametrize("share", [0.1, 1.0])
@pytest.mark.parametrize("index", INDEXES)
async def test_the_next_full_pass_names_the_index(index: str, share: float) -> None:
    store = await indexed()
    await lose(store, index, share)
    reconciler = make(store, 2)
    with structlog.testing.capture_logs() as lines:
        await reconciler.once()
    events = [one for one in lines if one["event"] == "derived_index_incomplete"]
    assert [one["index"] for one in events] == [index]
    assert events[0]["checked"] == SAMPLE
    labels = {"index": index}
    gauge = "sluice_reconciler_index_entries_missing"
    assert reconciler.metrics.registry.get_sample_value(gauge, labels) == events[0]["missing"]
    shown = await find_missing_indexes(store, await read_discovery_status(store))
    assert index in shown
    _ = [one async for one in make(store, 3).rebuild().repair()]
    await reconciler.once()
    assert await find_missing_indexes(store, await read_discovery_status(store)) == ()
    assert reconciler.metrics.registry.get_sample_value(gauge, labels) == 0


async def test_an_intact_store_is_checked_at_intervals_with_bounded_requests() -> None:
    store = await indexed()
    reconciler = make(store, 2)
    await reconciler.once()
    found = await read_index_check(store)
    assert (found.checked, found.missing) == (SAMPLE, {})
    before = store.counts["get"]
    await reconciler.once()
    spent = store.counts["get"] - before
    assert spent < SAMPLE
    store.clock.at_ns += int(CHECK_S * NS_PER_S)
    before = store.counts["get"]
    await reconciler.once()
    assert SAMPLE <= store.counts["get"] - before <= spent + 5 * SAMPLE


async def test_entries_of_new_batches_are_not_missed_yet(store: SimStore) -> None:
    await accept(store, 0)
    await make(store).once()
    held = [key for key in store.held if key.startswith(INDEXES)]
    for key in held:
        del store.held[ObjectKey(key)]
    with structlog.testing.capture_logs() as lines:
        await make(store, 2).once()
    assert not [one for one in lines if one["event"] == "derived_index_incomplete"]
