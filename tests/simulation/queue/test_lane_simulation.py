"""Producers and consumers of one lane under lost, late and repeated writes; seeded, replayable.

`SLUICE_SIM_SEEDS=7,8` replays seeds 7 and 8.
"""

import asyncio
import os
import random
from dataclasses import dataclass, field

import pytest
from support.builders import manifest
from support.queue_store import Faults, SimClock, SimIds, SimStore

from sluice_protocol.errors import Fenced, OutcomeUnknown, StoreUnavailable
from sluice_queue.appender import Appender, ProducerSettings
from sluice_queue.consumer import Consumer
from sluice_queue.inspection import read_lane
from sluice_queue.lane import Lane
from sluice_queue.register_client import Runtime
from sluice_queue.worklists import write_work_list
from sluice_store.retry import RetrySettings

LANE = Lane(queue="spark", lane=0)
SEEDS = [int(one) for one in os.environ.get("SLUICE_SIM_SEEDS", "").split(",") if one] or range(40)
RETRY = RetrySettings(tries_max=200, total_s=1e6)


@dataclass
class History:
    """The events of a run: results of each caller, and the entries that were consumed."""

    told: dict[int, int] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)
    took: list[tuple[int, int]] = field(default_factory=list)
    refused: set[int] = field(default_factory=set)
    fenced: int = 0


@dataclass
class World:
    seed: int
    store: SimStore
    clock: SimClock
    history: History = field(default_factory=History)

    def runtime(self, who: int) -> Runtime:
        ids = SimIds(self.seed * 1000 + who)
        return Runtime(clock=self.clock, ids=ids, rng=random.Random(self.seed * 1000 + who))


async def produce(world: World, who: int, batches: int, tries_max: int) -> None:
    """Append batches one after another, two callers at a time, until an unknown outcome."""
    retry = RetrySettings(tries_max=tries_max, total_s=1e6)
    settings = ProducerSettings(held_entries_max=6, retry=retry)
    runtime = world.runtime(who)
    appender = Appender(world.store, LANE, runtime=runtime, settings=settings)

    async def one(seq: int) -> None:
        draft = await write_work_list(appender.client, [manifest(seq)], retry=RETRY)
        try:
            world.history.told[seq] = await appender.append([draft])
        except OutcomeUnknown:
            world.history.unknown.add(seq)
        except StoreUnavailable:
            world.history.refused.add(seq)

    for at in range(0, batches, 2):
        await asyncio.gather(one(who * 1000 + at), one(who * 1000 + at + 1))
        if world.history.unknown & set(range(who * 1000, who * 1000 + 1000)):
            return


async def consume(world: World, who: int, stop: asyncio.Event) -> None:
    """Take over the lane at random moments; acknowledged entries count as processed."""
    rng = random.Random(world.seed * 77 + who)
    runtime = world.runtime(100 + who)
    while not stop.is_set():
        try:
            consumer = await Consumer.open(
                world.store, queue="spark", lane=0, resume_after=None, runtime=runtime
            )
            while not stop.is_set():
                await _round(world, consumer, rng)
        except Fenced:
            world.history.fenced += 1


async def _round(world: World, consumer: Consumer, rng: random.Random) -> None:
    for _ in range(rng.randrange(1, 40)):
        await asyncio.sleep(0)
    found = await consumer.next_descriptors(rng.randrange(1, 6))
    if not found:
        return
    lists = [await consumer.fetch_handle().fetch(one) for one in found]
    # The table: results and sequence are stored together, and before the acknowledgement.
    through = world.history.took[-1][0] if world.history.took else 0
    world.history.took += [
        (one.sequence, got.batches[0].seq_start)
        for one, got in zip(found, lists, strict=True)
        if one.sequence > through
    ]
    await consumer.ack_through(found[-1].sequence)


def simulate(seed: int, *, tries_max: int = 200) -> tuple[History, list[tuple[int, int]]]:
    """Run one seed to its end; return the history and the entries that are still pending."""
    clock = SimClock()
    faults = Faults(rng=random.Random(seed), unknown=0.25)
    world = World(seed=seed, store=SimStore(clock=clock, faults=faults), clock=clock)

    async def run() -> list[tuple[int, int]]:
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            consumers = [tasks.create_task(consume(world, who, stop)) for who in range(2)]
            async with asyncio.TaskGroup() as producers:
                for who in range(3):
                    producers.create_task(produce(world, who, 12, tries_max))
            for _ in range(400):
                await asyncio.sleep(0)
            stop.set()
            await asyncio.gather(*consumers)
        faults.unknown = 0.0
        view = await read_lane(world.store, "spark", 0)
        handle = (await Consumer.open(world.store, queue="spark", lane=0)).fetch_handle()
        through = world.history.took[-1][0] if world.history.took else 0
        return [
            (one.sequence, (await handle.fetch(one)).batches[0].seq_start)
            for one in view.descriptors
            if one.sequence > through
        ]

    return world.history, asyncio.run(run())


@pytest.mark.daily(15)
@pytest.mark.parametrize("seed", SEEDS)
def test_no_entry_is_lost_doubled_or_out_of_sequence(seed: int) -> None:
    """Every confirmed append is in the lane once, under the confirmed sequence, without gaps."""
    history, rest = simulate(seed)
    everything = history.took + rest
    assert [sequence for sequence, _ in everything] == list(range(1, len(everything) + 1)), seed
    batches = [batch for _, batch in everything]
    assert len(set(batches)) == len(batches), seed
    assert {batch: sequence for sequence, batch in everything} == history.told, seed
    assert not history.unknown


@pytest.mark.daily(15)
@pytest.mark.parametrize("seed", SEEDS)
def test_outcome_unknown_means_at_most_once(seed: int) -> None:
    """With few tries some appends end unknown: those occur once or never, the others once."""
    history, rest = simulate(seed, tries_max=3)
    everything = history.took + rest
    batches = [batch for _, batch in everything]
    assert len(set(batches)) == len(batches), seed
    found = {batch: sequence for sequence, batch in everything}
    assert {batch: found.get(batch) for batch in history.told} == history.told, seed
    assert set(found) <= set(history.told) | history.unknown, seed


def test_a_seed_replays() -> None:
    """The same seed results in the same history, event by event."""
    assert simulate(5) == simulate(5)
