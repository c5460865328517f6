"""The behavior of a producer between `produce` and the queue, and its pauses."""

import asyncio
import random

import pytest
from support.builders import manifest
from support.queue_store import SimClock, SimIds, SimStore

from sluice_protocol.errors import OutcomeUnknown
from sluice_protocol.keys import WORK_LISTS
from sluice_protocol.outcomes import ReplaceOutcome, Unknown, UnknownReason
from sluice_protocol.units import NS_PER_S, ETag, ObjectKey
from sluice_queue.appender import GROUP_MAX, PAUSE_S_MAX, Pacer, ProducerSettings
from sluice_queue.inspection import read_lane
from sluice_queue.lane import Lane
from sluice_queue.producer import Producer
from sluice_queue.register_client import Runtime
from sluice_store.retry import RetrySettings


class Slow(SimStore):
    """A store that delays every swap until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def replace(self, key: ObjectKey, body: bytes, *, if_match: ETag) -> ReplaceOutcome:
        await self.gate.wait()
        return await super().replace(key, body, if_match=if_match)


def runtime(store: SimStore) -> Runtime:
    return Runtime(clock=store.clock, ids=SimIds(1), rng=random.Random(1))


async def test_produce_waits_while_too_many_bytes_are_not_durable() -> None:
    """Above `max_unflushed_bytes` the next call waits until a flush is durable."""
    store = Slow()
    size = manifest(0).frame_bytes
    settings = ProducerSettings(max_unflushed_bytes=3 * size)
    async with Producer.open(
        store, queue="spark", lane=0, runtime=runtime(store), settings=settings
    ) as producer:
        held = [await producer.produce([manifest(0)]) for _ in range(3)]
        late = asyncio.create_task(producer.produce([manifest(1)]))
        for _ in range(200):
            await asyncio.sleep(0)
        assert not late.done()
        store.gate.set()
        assert await (await late).result() == 2
        assert [await one.result() for one in held] == [1, 1, 1]


async def test_more_calls_with_different_metadata_than_one_swap_has_entries() -> None:
    """Each of them needs an entry; a swap with too many was refused, and every call failed."""
    store = SimStore()
    async with Producer.open(store, queue="spark", lane=0, runtime=runtime(store)) as producer:
        calls = GROUP_MAX + 1
        made = [
            await producer.produce([manifest(0)], metadata=number.to_bytes(4, "big"))
            for number in range(calls)
        ]
        sequences = [await one.result() for one in made]
        assert sorted(sequences) == list(range(1, calls + 1))


async def test_an_old_list_is_written_again_before_it_is_appended() -> None:
    """A list older than an hour is never named, because it may be collected."""
    store = SimStore()
    producer = Producer(store, Lane(queue="spark", lane=0), runtime=runtime(store))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(producer.run(tasks))
        await producer._appender.client.read_or_create(_tries(producer))
        original = store.create
        written: list[ObjectKey] = []

        async def create(key: ObjectKey, body: bytes, **more: object) -> object:
            if key.startswith(WORK_LISTS):
                written.append(key)
                if len(written) == 2:  # the second list of the flush takes an hour
                    store.clock.at_ns += 3601 * NS_PER_S
            return await original(key, body)

        store.create = create
        handles = [await producer.produce([manifest(seq)], bytes([seq])) for seq in (0, 1)]
        assert [await one.result() for one in handles] == [1, 2]
        producer.close()
    view = await read_lane(store, "spark", 0)
    named = [one.location for one in view.descriptors]
    assert written[0] not in named
    assert len(set(named)) == 2


def _tries(producer: Producer) -> object:
    from sluice_store.retry import RetryBudget  # noqa: PLC0415

    lane = producer._appender.client.lane
    return RetryBudget("test", lane.key, producer._runtime.backoff(RetrySettings()))


async def test_spent_bounds_are_unknown_and_stop_the_producer() -> None:
    """If no swap ever gets a response, every caller gets the unknown outcome."""

    class Deaf(SimStore):
        async def replace(self, key: ObjectKey, body: bytes, *, if_match: ETag) -> ReplaceOutcome:
            return Unknown(reason=UnknownReason.TIMEOUT)

    store = Deaf(clock=SimClock())
    settings = ProducerSettings(retry=RetrySettings(tries_max=3))
    async with Producer.open(
        store, queue="spark", lane=0, runtime=runtime(store), settings=settings
    ) as producer:
        first = await producer.produce([manifest(0)])
        with pytest.raises(OutcomeUnknown):
            await first.await_durable()
        second = await producer.produce([manifest(1)])
        with pytest.raises(OutcomeUnknown):
            await second.result()


def test_a_producer_without_rivals_never_waits() -> None:
    """Without conflicts there is no pause, however many swaps are committed."""
    pacer = Pacer()
    for at in range(100):
        assert pacer.wait_s(at, random.Random(1)) == 0
        pacer.committed(at, 0.005)


def test_conflicts_lengthen_the_pause_to_a_bound_and_commits_end_it() -> None:
    """Each conflict doubles the pause up to a bound; committed swaps reduce it to zero."""
    pacer = Pacer()
    pacer.committed(0, 0.01)
    pacer.conflicted()
    assert pacer.pause_s == 0.1
    for _ in range(10):
        pacer.conflicted()
    assert pacer.pause_s == PAUSE_S_MAX
    rng = random.Random(1)
    waits = [pacer.wait_s(0, rng) for _ in range(200)]
    assert 0.5 <= min(waits) / PAUSE_S_MAX < max(waits) / PAUSE_S_MAX <= 1.5
    for _ in range(700):
        pacer.committed(0, 0.01)
    assert pacer.pause_s == 0


def test_one_swap_in_forty_five_conflicts_in_balance() -> None:
    """If a longer pause means fewer conflicts, their share settles near 2.1 %."""
    pacer, rng, collided = Pacer(), random.Random(7), 0
    pacer.committed(0, 0.005)
    for number in range(20_000):
        if rng.random() < min(1.0, 3 * 0.005 / max(pacer.pause_s, 0.005)):
            pacer.conflicted()
            collided += number >= 10_000
        else:
            pacer.committed(0, 0.005)
    assert 0.015 < collided / 10_000 < 0.05
