"""Producer, consumer and inspection on one store, without faults."""

import asyncio
import random
from pathlib import Path

import pytest
from support.builders import manifest
from support.queue_store import SimClock, SimIds, SimStore

from sluice_protocol.errors import Fenced
from sluice_queue.appender import Appender, ProducerSettings
from sluice_queue.consumer import Consumer
from sluice_queue.errors import AckRefused, RegisterLost, ResumeRefused, WorkListMissing
from sluice_queue.inspection import read_lane
from sluice_queue.lane import Lane, list_lanes
from sluice_queue.producer import Producer
from sluice_queue.register_client import Runtime
from sluice_queue.worklists import write_work_list
from sluice_store.local import open_local_store
from sluice_store.port import ObjectStore


def sim() -> tuple[SimStore, Runtime]:
    clock = SimClock()
    return SimStore(clock=clock), Runtime(clock=clock, ids=SimIds(1), rng=random.Random(1))


async def put(store: ObjectStore, runtime: Runtime, *seqs: int, held: int = 4096) -> Appender:
    settings = ProducerSettings(held_entries_max=held)
    appender = Appender(store, Lane(queue="spark", lane=0), runtime=runtime, settings=settings)
    for seq in seqs:
        draft = await write_work_list(appender.client, [manifest(seq)], retry=settings.retry)
        await appender.append([draft])
    return appender


async def drain(consumer: Consumer) -> list[tuple[int, int]]:
    found = []
    while (batch := await consumer.next_batch()) is not None:
        found.append((batch.descriptor.sequence, batch.work_list.batches[0].seq_start))
    return found


async def test_batches_are_consumed_in_order_on_the_local_store(tmp_path: Path) -> None:
    async with open_local_store(tmp_path) as store:
        settings = ProducerSettings(flush_interval_s=0.001)
        async with Producer.open(store, queue="spark", lane=0, settings=settings) as producer:
            handles = [await producer.produce([manifest(seq)]) for seq in range(0, 50, 10)]
            other = await producer.produce([manifest(50)], b"meta")
            assert {await one.result() for one in handles} == {1}
            assert await other.result() == 2
        consumer = await Consumer.open(store, queue="spark", lane=0)
        first = await consumer.next_batch()
        second = await consumer.next_batch()
        assert [one.seq_start for one in first.work_list.batches] == [0, 10, 20, 30, 40]
        assert second.descriptor.metadata == b"meta"
        assert await consumer.next_batch() is None
        await consumer.ack_through(2)
        view = await read_lane(store, "spark", 0)
        assert (view.latest, view.state.acked_through, view.descriptors) == (2, 2, ())


async def test_segments_are_read_like_the_register() -> None:
    store, runtime = sim()
    await put(store, runtime, *range(0, 300, 10), held=8)
    view = await read_lane(store, "spark", 0)
    assert len(view.state.segments) > 2
    assert [one.sequence for one in view.descriptors] == list(range(1, 31))
    tail = await read_lane(store, "spark", 0, after=17, entries_max=4)
    assert [one.sequence for one in tail.descriptors] == [18, 19, 20, 21]
    consumer = await Consumer.open(store, queue="spark", lane=0, runtime=runtime)
    assert [one.sequence for one in await consumer.next_descriptors(7)] == list(range(1, 8))
    await consumer.ack_through(5)
    assert [one.sequence for one in await consumer.next_descriptors(3)] == [8, 9, 10]
    again = await Consumer.open(store, queue="spark", lane=0, resume_after=9, runtime=runtime)
    assert await drain(again) == [(seq, (seq - 1) * 10) for seq in range(10, 31)]


async def test_fenced_consumer_changes_nothing() -> None:
    """The second opening claims the epoch; the first consumer can neither read nor acknowledge."""
    store, runtime = sim()
    await put(store, runtime, 0, 10)
    old = await Consumer.open(store, queue="spark", lane=0, runtime=runtime)
    assert await old.next_batch() is not None
    new = await Consumer.open(store, queue="spark", lane=0, runtime=runtime)
    assert new.epoch == old.epoch + 1
    before = dict(store.held)
    with pytest.raises(Fenced):
        await old.next_descriptors(1)
    with pytest.raises(Fenced):
        await old.ack_through(1)
    assert store.held == before
    assert old.acked_through == 0
    await new.ack_through(1)


async def test_acks_are_in_order_and_durable_every_hundred() -> None:
    """`ack` rejects gaps; one write covers a hundred calls."""
    store, runtime = sim()
    await put(store, runtime, *range(0, 1200, 10))
    consumer = await Consumer.open(store, queue="spark", lane=0, runtime=runtime)
    await consumer.next_descriptors(120)
    with pytest.raises(AckRefused):
        await consumer.ack(2)
    writes = store.counts["replace"]
    for sequence in range(1, 121):
        await consumer.ack(sequence)
    assert store.counts["replace"] == writes + 1
    assert consumer.acked_through == 100
    await consumer.flush_acks()
    assert (await read_lane(store, "spark", 0)).state.acked_through == 120
    for sequence, reason in ((120, "already"), (121, "not assigned")):
        with pytest.raises(AckRefused, match=reason):
            await consumer.ack_through(sequence)


async def test_resume_rejects_a_lane_that_does_not_match() -> None:
    """A stored sequence below the acknowledged one, or beyond the lane, stops the consumer."""
    store, runtime = sim()
    await put(store, runtime, 0, 10, 20)
    consumer = await Consumer.open(store, queue="spark", lane=0, runtime=runtime)
    await consumer.ack_through(2)
    for persisted in (1, 4):
        with pytest.raises(ResumeRefused):
            await Consumer.open(
                store, queue="spark", lane=0, resume_after=persisted, runtime=runtime
            )
    again = await Consumer.open(store, queue="spark", lane=0, resume_after=2, runtime=runtime)
    assert await drain(again) == [(3, 20)]


async def test_missing_work_list_stops_the_lane() -> None:
    """A missing list raises each time; the cursor stays before it."""
    store, runtime = sim()
    await put(store, runtime, 0, 10)
    view = await read_lane(store, "spark", 0)
    lost = store.held.pop(view.descriptors[0].location)
    consumer = await Consumer.open(store, queue="spark", lane=0, runtime=runtime)
    for _ in range(2):
        with pytest.raises(WorkListMissing):
            await consumer.next_batch()
    store.held[view.descriptors[0].location] = lost
    assert await drain(consumer) == [(1, 0), (2, 10)]


async def test_existing_lanes_are_listed() -> None:
    """Each register is listed once, however many objects its lane has."""
    store, runtime = sim()
    await put(store, runtime, *range(0, 200, 10), held=4)
    for queue, lane in (("spark", 3), ("other", 0)):
        await Appender(store, Lane(queue=queue, lane=lane), runtime=runtime).client.read()
        await Consumer.open(store, queue=queue, lane=lane, runtime=runtime)
    assert await list_lanes(store, "spark") == (
        Lane(queue="spark", lane=0),
        Lane(queue="spark", lane=3),
    )
    assert len(await list_lanes(store)) == 3


async def test_callers_during_a_swap_share_the_next_one() -> None:
    store, runtime = sim()
    appender = await put(store, runtime, 0)
    draft = await write_work_list(appender.client, [manifest(1)], retry=ProducerSettings().retry)
    before = store.counts["replace"]
    firsts = await asyncio.gather(*(appender.append([draft]) for _ in range(100)))
    assert sorted(firsts) == list(range(2, 102))
    assert store.counts["replace"] - before <= 2


async def test_producer_stops_if_its_register_is_missing_new_or_an_old_copy() -> None:
    key = Lane(queue="spark", lane=0).key
    for replaced in ("gone", "begun again", "old copy"):
        store, runtime = sim()
        appender = await put(store, runtime, 0)
        old = store.held[key].body
        draft = await write_work_list(
            appender.client, [manifest(10)], retry=ProducerSettings().retry
        )
        await appender.append([draft])
        del store.held[key]
        if replaced == "begun again":
            await Consumer.open(store, queue="spark", lane=0, runtime=runtime)
        if replaced == "old copy":
            await store.create(key, old)
        for _ in range(2):
            draft = await write_work_list(
                appender.client, [manifest(20)], retry=ProducerSettings().retry
            )
            with pytest.raises(RegisterLost, match="sluice rebuild"):
                await appender.append([draft])
