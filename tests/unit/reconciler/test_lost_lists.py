"""A lost work list is written again from the batches of its time, however many are older."""

import pytest
from support.builders import manifest
from support.queue_store import SimStore
from support.reconciler_seed import accept, enqueued, index_keys
from support.reconciler_world import make, runtime_of

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import ACCEPTED, ACCEPTED_BY_TIME, WORK_LISTS, accepted_key, lane_of
from sluice_protocol.manifests import encode_record
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_queue.inspection import read_lane
from sluice_queue.lane import Lane
from sluice_queue.worklists import read_work_list
from sluice_reconciler.concurrency import RequestLimit
from sluice_reconciler.lanes.rebuild import LaneRebuild, merge_time_spans

HOUR_NS = 3600 * NS_PER_S
BASE_NS = 1_699_999_200 * NS_PER_S
LANES = 2
AGENT = "host-1"
LANE = Lane(queue="spark", lane=lane_of(AGENT, LANES))
OTHER_LANE = next(a for a in map("other-{}".format, range(9)) if lane_of(a, LANES) != LANE.lane)


async def enqueue(store: SimStore) -> None:
    await make(store).once()


def lists(store: SimStore) -> list[ObjectKey]:
    return [ObjectKey(key) for key in sorted(store.held) if key.startswith(WORK_LISTS)]


async def repair(store: SimStore) -> dict[str, int]:
    """Write the lost lists again; return the requests by verb."""
    lanes = [Lane(queue="spark", lane=number) for number in range(LANES)]
    rebuild = LaneRebuild(store, RequestLimit(4), lanes, runtime_of(store), {})
    store.counts.clear()
    await rebuild.repair_lists()
    return dict(store.counts)


async def lose_one_list(older: int) -> tuple[dict[str, int], SimStore]:
    """Enqueue batches of three hours after older ones, lose their lists, and write them again."""
    store = SimStore()
    for number in range(older):
        await accept(store, 10 * number, at_ns=BASE_NS + number * NS_PER_S)
    await enqueue(store)
    before = set(lists(store))
    for number in range(6):
        at_ns = BASE_NS + 30 * HOUR_NS + number * HOUR_NS // 2
        await accept(store, 10 * (older + number), at_ns=at_ns)
        await accept(store, 10 * number, at_ns=at_ns, agent=OTHER_LANE)
    await enqueue(store)
    complete = await enqueued(store)
    [lost] = [key for key in set(lists(store)) - before if f".{LANE.lane:03d}-" in key]
    del store.held[lost]
    counts = await repair(store)
    assert await enqueued(store) == complete
    return counts, store


async def test_the_requests_for_a_lost_list_do_not_grow_with_older_batches() -> None:
    few, _ = await lose_one_list(1)
    many, _ = await lose_one_list(400)
    assert many == few


async def test_several_lost_lists_are_written_from_one_reading_of_the_index() -> None:
    """Batches of one span in two lists are in both: the ledger of the consumer drops repetitions.

    An object of the index is read once for all lists.
    """
    store = SimStore()
    for number in range(4):
        await accept(store, 10 * number, at_ns=BASE_NS + number * HOUR_NS // 2)
        await enqueue(store)
    complete = await enqueued(store)
    for key in lists(store):
        del store.held[key]
    called: list[tuple[str, str]] = []
    store.before = lambda verb, key: called.append((verb, key))
    await repair(store)
    indexed = [key for verb, key in called if verb == "get" and key.startswith(ACCEPTED_BY_TIME)]
    assert len(indexed) == len(set(indexed)) == 4
    assert await enqueued(store) == complete


async def test_a_list_whose_batches_are_not_indexed_is_written_from_one_list_of_all() -> None:
    store = SimStore()
    batches = []
    for number in range(4):
        batches.append(await accept(store, 10 * number, at_ns=BASE_NS + number * HOUR_NS))
        await enqueue(store)
    complete = await enqueued(store)
    for key in lists(store):
        del store.held[key]
    for one in batches[1:3]:
        del store.held[index_keys(one)[0]]
    called: list[tuple[str, str]] = []
    store.before = lambda verb, key: called.append((verb, key))
    await repair(store)
    assert called.count(("list", ACCEPTED)) == 1
    assert await enqueued(store) == complete


async def test_a_list_with_fewer_accepted_batches_than_before_is_refused_after_the_others() -> None:
    store = SimStore()
    batches = []
    for number in range(2):
        batches.append(await accept(store, 10 * number, at_ns=BASE_NS + number * HOUR_NS))
        await enqueue(store)
    first, second = (await read_lane(store, LANE.queue, LANE.lane)).descriptors
    for key in lists(store):
        del store.held[key]
    del store.held[accepted_key(batches[0].identity)]
    with pytest.raises(InvalidRecord, match="fewer batches are accepted") as raised:
        await repair(store)
    assert raised.value.key == first.location
    assert lists(store) == [second.location]


async def test_an_index_entry_without_a_manifest_is_not_in_a_list(store: SimStore) -> None:
    """The manifest under `accepted/` decides; the index only names where to look."""
    await accept(store, at_ns=BASE_NS)
    await enqueue(store)
    stray = manifest(10, at_ns=BASE_NS, frame=b"stray")
    await store.create(index_keys(stray)[0], encode_record(stray))
    await store.create(ObjectKey(f"{index_keys(stray)[0]}x"), b"{broken")
    complete = await enqueued(store)
    [lost] = lists(store)
    del store.held[lost]
    await repair(store)
    assert await enqueued(store) == complete


async def test_a_rebuild_repairs_the_index_before_the_lists(store: SimStore) -> None:
    """Another batch of the same span would hide the missing one: the list would be complete."""
    first = [await accept(store, 10 * n, at_ns=BASE_NS + n * HOUR_NS) for n in range(3)]
    await enqueue(store)
    other = await accept(store, 30, at_ns=BASE_NS + HOUR_NS + 1)
    await enqueue(store)
    [entry, _] = (await read_lane(store, LANE.queue, LANE.lane)).descriptors
    del store.held[entry.location]
    del store.held[index_keys(first[1])[0]]
    found = {one.key async for one in make(store).rebuild().repair()}
    assert found == {entry.location, index_keys(first[1])[0]}
    written = await read_work_list(store, LANE, entry)
    assert written.batches == (*first, other)


def test_spans_that_overlap_are_read_once() -> None:
    assert merge_time_spans([(5, 9), (1, 3), (3, 4), (6, 7), (12, 12)]) == [
        (1, 4),
        (5, 9),
        (12, 12),
    ]
