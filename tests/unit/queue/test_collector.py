"""What the collector deletes and what it keeps."""

import random

from support.builders import manifest
from support.queue_store import SimClock, SimIds, SimStore, UnversionedStore

from sluice_protocol.keys import WORK_LISTS
from sluice_protocol.outcomes import HeadOutcome
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_queue.appender import Appender, ProducerSettings
from sluice_queue.collector import CONCURRENT_DELETES, Collector
from sluice_queue.consumer import Consumer
from sluice_queue.lane import Lane
from sluice_queue.register_client import Runtime
from sluice_queue.worklists import write_work_list

DAY_NS = 86_400 * NS_PER_S


def world() -> tuple[SimStore, SimClock, Runtime]:
    clock = SimClock()
    return SimStore(clock=clock), clock, Runtime(clock=clock, ids=SimIds(1), rng=random.Random(1))


async def fill(store: SimStore, runtime: Runtime, entries: int, *, held: int = 4096) -> Appender:
    settings = ProducerSettings(held_entries_max=held)
    appender = Appender(store, Lane(queue="spark", lane=0), runtime=runtime, settings=settings)
    for seq in range(entries):
        draft = await write_work_list(appender.client, [manifest(seq * 10)], retry=settings.retry)
        await appender.append([draft])
    return appender


def lists(store: SimStore) -> int:
    return sum(key.startswith(WORK_LISTS) for key in store.held)


def segments(store: SimStore) -> int:
    return sum("/segments/" in key for key in store.held)


async def test_acknowledged_lists_are_deleted_after_the_grace_period() -> None:
    store, clock, runtime = world()
    await fill(store, runtime, 10)
    collector = Collector(store, retry_horizon_ns=7 * DAY_NS, grace_s=60, runtime=runtime)
    assert (await collector.run()).acked_lists == 0
    consumer = await Consumer.open(store, queue="spark", lane=0, runtime=runtime)
    await consumer.ack_through(6)
    assert (await collector.run()).acked_lists == 0
    clock.at_ns += 61 * NS_PER_S
    assert (await collector.run()).acked_lists == 6
    assert lists(store) == 4
    assert len(await consumer.next_descriptors(9)) == 4


async def test_unnamed_lists_are_deleted_after_the_horizon() -> None:
    """Lists that were never appended, or acknowledged unseen, are deleted once they are old."""
    store, clock, runtime = world()
    appender = await fill(store, runtime, 3)
    await write_work_list(appender.client, [manifest(900)], retry=ProducerSettings().retry)
    consumer = await Consumer.open(store, queue="spark", lane=0, runtime=runtime)
    await consumer.ack_through(1)
    collector = Collector(store, retry_horizon_ns=7 * DAY_NS, runtime=runtime)
    assert (await collector.run()).unnamed_lists == 0
    clock.at_ns += 8 * DAY_NS
    assert (await collector.run()).unnamed_lists == 2
    assert lists(store) == 2


async def test_acknowledged_segments_are_deleted() -> None:
    store, clock, runtime = world()
    await fill(store, runtime, 40, held=8)
    before = segments(store)
    consumer = await Consumer.open(store, queue="spark", lane=0, runtime=runtime)
    await consumer.ack_through(20)
    collector = Collector(store, retry_horizon_ns=7 * DAY_NS, grace_s=60, runtime=runtime)
    clock.at_ns += 61 * NS_PER_S
    found = await collector.run()
    assert 0 < found.segments < before
    assert segments(store) == before - found.segments
    assert [one.sequence for one in await consumer.next_descriptors(99)] == list(range(21, 41))


async def test_lists_are_deleted_concurrently() -> None:
    """One request at a time would take longer than many lanes take to write the next lists."""
    store, _, runtime = world()
    await fill(store, runtime, 3 * CONCURRENT_DELETES)
    collector = Collector(store, retry_horizon_ns=7 * DAY_NS, grace_s=0, runtime=runtime)
    await collector.run()
    consumer = await Consumer.open(store, queue="spark", lane=0, runtime=runtime)
    await consumer.ack_through(3 * CONCURRENT_DELETES)
    running = most = 0
    head = store.head

    async def counted(key: ObjectKey) -> HeadOutcome:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        found = await head(key)
        running -= 1
        return found

    store.head = counted
    assert (await collector.run()).acked_lists == 3 * CONCURRENT_DELETES
    assert lists(store) == 0
    assert most == CONCURRENT_DELETES


async def test_lists_in_a_store_without_versions_are_not_read_one_by_one() -> None:
    """They cannot be deleted: neither requests nor memory may grow with what was acknowledged."""
    clock = SimClock()
    store = UnversionedStore(clock=clock)
    runtime = Runtime(clock=clock, ids=SimIds(1), rng=random.Random(1))
    await fill(store, runtime, 50)
    collector = Collector(store, retry_horizon_ns=7 * DAY_NS, grace_s=60, runtime=runtime)
    await collector.run()
    consumer = await Consumer.open(store, queue="spark", lane=0, runtime=runtime)
    await consumer.ack_through(50)
    await collector.run()
    clock.at_ns += 8 * DAY_NS
    before = store.counts.get("head", 0)
    for _ in range(3):
        found = await collector.run()
        assert (found.acked_lists, found.unnamed_lists) == (0, 0)
    assert lists(store) == 50
    # One for the acknowledged lists, and one in each run for those that no register names.
    assert store.counts["head"] - before == 4
