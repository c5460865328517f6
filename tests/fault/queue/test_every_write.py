"""Each write of an operation in turn has an unknown outcome; the operation still ends correctly.

The n-th write fails, applied or not, with n counting up until the operation has fewer writes.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.builders import manifest
from support.queue_store import OneByOne, SimClock, SimIds, SimStore

from sluice_protocol.outcomes import Unknown, UnknownReason
from sluice_queue.appender import Appender, ProducerSettings
from sluice_queue.consumer import Consumer
from sluice_queue.inspection import read_lane
from sluice_queue.lane import Lane
from sluice_queue.register_client import Runtime
from sluice_queue.takeover import take_over
from sluice_queue.worklists import write_work_list

LANE = Lane(queue="spark", lane=0)
FATES = ["lost", "applied", "late"]


class OneFault(OneByOne):
    """A store whose n-th write has an unknown outcome, in one of three ways."""

    def __init__(self, store: SimStore, number: int, fate: str) -> None:
        self.store = store
        self.left = number
        self.fate = fate
        self.met = False
        self._late: tuple[Any, tuple[Any, ...], dict[str, Any]] | None = None

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self.store, name)
        if name not in ("create", "replace"):
            return verb

        async def faulty(*args: Any, **kwargs: Any) -> Any:
            late, self._late = self._late, None
            if late is not None:  # the lost write is applied just before the next one
                await late[0](*late[1], **late[2])
            self.left -= 1
            if self.left != 0:
                return await verb(*args, **kwargs)
            self.met = True
            if self.fate == "applied":
                await verb(*args, **kwargs)
            if self.fate == "late":
                self._late = (verb, args, kwargs)
            return Unknown(reason=UnknownReason.TIMEOUT)

        return faulty


def runtime(store: SimStore, seed: int) -> Runtime:
    return Runtime(clock=store.clock, ids=SimIds(seed), rng=random.Random(seed))


async def add(store: Any, sim: SimStore, seqs: range, seed: int) -> None:
    settings = ProducerSettings(held_entries_max=4)
    appender = Appender(store, LANE, runtime=runtime(sim, seed), settings=settings)
    for seq in seqs:
        draft = await write_work_list(appender.client, [manifest(seq)], retry=settings.retry)
        await appender.append([draft])


async def produce(store: Any, sim: SimStore) -> list[int]:
    """Append six entries, across a spill."""
    await add(store, sim, range(6), 2)
    return list(range(1, 7))


async def consume(store: Any, sim: SimStore) -> list[int]:
    """Open the lane and acknowledge it in two steps."""
    await add(sim, sim, range(6), 2)
    consumer = await Consumer.open(store, queue="spark", lane=0, runtime=runtime(sim, 3))
    assert consumer.epoch >= 1
    await consumer.next_descriptors(6)
    await consumer.ack_through(1)
    await consumer.ack_through(3)
    assert consumer.acked_through == 3
    return [4, 5, 6]


async def take(store: Any, sim: SimStore) -> list[int]:
    """Continue as a producer of an earlier term; its number of applied writes is exact."""
    first = await take_over(sim, LANE, producer_id=bytes(16), term=1, runtime=runtime(sim, 4))
    draft = await write_work_list(
        first.appender.client, [manifest(0)], retry=ProducerSettings().retry
    )
    await first.appender.append([draft])
    second = await take_over(store, LANE, producer_id=bytes(16), term=2, runtime=runtime(sim, 5))
    assert (second.writes, second.forgotten) == (1, False)
    await second.appender.append([draft])
    third = await take_over(sim, LANE, producer_id=bytes(16), term=3, runtime=runtime(sim, 6))
    assert third.writes == 2
    return [1, 2]


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("operation", [produce, consume, take], ids=lambda one: one.__name__)
def test_every_write_may_have_an_unknown_outcome(
    operation: Callable[[Any, SimStore], Awaitable[list[int]]], fate: str
) -> None:
    """The pending entries are correct whichever write fails and whether or not it was applied."""

    async def run(number: int) -> bool:
        sim = SimStore(clock=SimClock())
        store = OneFault(sim, number, fate)
        expected = await operation(store, sim)
        view = await read_lane(sim, "spark", 0)
        assert [one.sequence for one in view.descriptors] == expected, number
        assert view.latest == max(expected), number
        return store.met

    number = 1
    while asyncio.run(run(number)):
        number += 1
    assert number > 2
