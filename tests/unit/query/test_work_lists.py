import random
from typing import Any

import pytest
from support.builders import manifest
from support.queue_store import OneByOne, SimClock, SimIds, SimStore

from sluice_protocol.manifests import WorkList, encode_record
from sluice_query.settings import QuerySettings
from sluice_query.sources.pending import PendingSnapshot, WorkListCache, read_pending
from sluice_queue.appender import Appender
from sluice_queue.consumer import Consumer
from sluice_queue.inspection import read_lane
from sluice_queue.lane import Lane, Runtime
from sluice_queue.settings import SWAP_RETRY
from sluice_queue.worklists import write_work_list

LANE = Lane(queue="spark", lane=0)


class CountingReads(OneByOne):
    """A store that notes the keys of its reads."""

    def __init__(self, store: SimStore) -> None:
        self._store = store
        self.keys: list[str] = []

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)
        if name == "get":
            return lambda key, **kwargs: (self.keys.append(key), verb(key, **kwargs))[1]
        return verb

    def lists_read(self) -> int:
        found, self.keys = [one for one in self.keys if one.startswith("manifests/")], []
        return len(found)


async def enqueue(store: Any, *sequences: range) -> None:
    clock = SimClock()
    runtime = Runtime(clock=clock, ids=SimIds(sequences[0].start), rng=random.Random(1))
    appender = Appender(store, LANE, runtime=runtime)
    for numbers in sequences:
        batches = [manifest(number) for number in numbers]
        await appender.append([await write_work_list(appender.client, batches, retry=SWAP_RETRY)])


def numbers_of(found: PendingSnapshot) -> list[int]:
    assert not found.problems
    return [one.manifest.seq_start for one in found.batches]


async def test_a_work_list_is_read_once() -> None:
    store, lists = CountingReads(SimStore()), WorkListCache()
    await enqueue(store, range(3), range(3, 5))

    async def read() -> list[int]:
        return numbers_of(await read_pending(store, QuerySettings(), lists))

    assert await read() == [0, 1, 2, 3, 4]
    assert store.lists_read() == 2
    assert await read() == [0, 1, 2, 3, 4]
    assert store.lists_read() == 0
    await enqueue(store, range(5, 6))
    assert await read() == [0, 1, 2, 3, 4, 5]
    assert store.lists_read() == 1
    consumer = await Consumer.open(store, queue="spark", lane=0)
    await consumer.next_descriptors(10)
    await consumer.ack_through(2)
    assert await read() == [5]


@pytest.mark.parametrize(("batches_max", "read_again"), [(6, 0), (5, 1), (1, 3)])
async def test_the_memory_of_work_lists_is_bounded(batches_max: int, read_again: int) -> None:
    store, lists = CountingReads(SimStore()), WorkListCache(batches_max)
    await enqueue(store, range(2), range(2, 4), range(4, 6))
    view = await read_lane(store, "spark", 0)
    for one in view.descriptors:
        await lists.read(store, LANE, one)
    store.lists_read()
    await read_pending(store, QuerySettings(), lists)
    assert store.lists_read() == read_again


async def test_a_work_list_of_another_lane_is_a_problem() -> None:
    store, lists = SimStore(), WorkListCache()
    await enqueue(store, range(1))
    place = (await read_lane(store, "spark", 0)).descriptors[0].location
    other = WorkList(queue="spark", lane=1, batches=(manifest(0),))
    await store.overwrite(place, encode_record(other))
    for _ in range(2):
        found = await read_pending(store, QuerySettings(), lists)
        assert "belongs to spark.1" in found.problems[0]
