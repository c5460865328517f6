"""Some order explains the register's recorded histories, in seeded interleavings."""

import asyncio
from random import Random

from support.builders import manifest
from support.history import Operation, linearizable
from support.queue_store import Faults, SimStore
from support.queue_store import SimClock as StoreClock
from support.simloop import SimClock, SimIds, SimLoop, seeds, simulate

from sluice_protocol.errors import OutcomeUnknown, StoreUnavailable
from sluice_queue.appender import Appender, ProducerSettings
from sluice_queue.consumer import Consumer
from sluice_queue.lane import Lane
from sluice_queue.register_client import Runtime
from sluice_queue.worklists import write_work_list
from sluice_store.retry import RetrySettings

LANE = Lane(queue="spark", lane=0)
PATIENT = RetrySettings(tries_max=200, total_s=1e6)
HASTY = ProducerSettings(retry=RetrySettings(tries_max=4, total_s=1e6))
State = tuple[int, int]
"""(next sequence, acknowledged through)."""


def appended(first: int | None) -> "Operation[State]":
    """An append of one entry: `first` is its result, or None if the outcome is unknown."""

    def apply(state: State) -> State | None:
        fits = first is None or state[0] == first
        return (state[0] + 1, state[1]) if fits else None

    return Operation(name=f"append -> {first}", start=0, end=0, apply=apply)


def acked(through: int) -> "Operation[State]":
    def apply(state: State) -> State | None:
        return (state[0], through) if state[1] < through < state[0] else None

    return Operation(name=f"ack {through}", start=0, end=0, apply=apply)


def timed(operation: "Operation[State]", start: float, end: float | None) -> "Operation[State]":
    return Operation(name=operation.name, start=start, end=end, apply=operation.apply)


def record(seed: int) -> list["Operation[State]"]:
    """Run three producers and a consumer and return every call with its result."""

    async def main(loop: SimLoop, rng: Random) -> list["Operation[State]"]:
        store = SimStore(clock=StoreClock(), faults=Faults(rng=rng, unknown=0.3))
        history: list[Operation[State]] = []
        ticks = iter(range(10**9))

        def runtime() -> Runtime:
            return Runtime(clock=SimClock(loop), ids=SimIds(rng), rng=rng)

        async def produce(who: int) -> None:
            appender = Appender(store, LANE, runtime=runtime(), settings=HASTY)
            for number in range(3):
                drafted = manifest(who * 10 + number)
                draft = await write_work_list(appender.client, [drafted], retry=PATIENT)
                start = next(ticks)
                try:
                    first = await appender.append([draft])
                except OutcomeUnknown:
                    history.append(timed(appended(None), start, None))
                    return
                except StoreUnavailable:
                    continue
                history.append(timed(appended(first), start, next(ticks)))

        async def consume() -> None:
            consumer = await Consumer.open(store, queue="spark", lane=0, runtime=runtime())
            for _ in range(20):
                found = await consumer.next_descriptors(2)
                if found:
                    start = next(ticks)
                    await consumer.ack_through(found[-1].sequence)
                    history.append(timed(acked(found[-1].sequence), start, next(ticks)))
                await asyncio.sleep(rng.random())

        await asyncio.gather(consume(), *(produce(who) for who in range(3)))
        return history

    return simulate(seed, main)


def test_histories_are_linearizable() -> None:
    """Every result fits one order, even with lost responses and late writes."""
    for seed in seeds(60):
        history = record(seed)
        assert linearizable((1, 0), history), f"replay with SLUICE_SIM_SEEDS={seed}"


def test_a_wrong_result_is_detected() -> None:
    """The check is not empty: a sequence that is returned twice has no explanation."""
    history = [one for one in record(1) if one.end is not None]
    told = next(one for one in history if one.name.startswith("append"))
    assert not linearizable((1, 0), [*history, told])
