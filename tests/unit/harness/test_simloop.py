"""The simulated loop is seeded, fast and virtual."""

import asyncio
from random import Random

import pytest
from support.simloop import Deadlock, SimClock, SimLoop, simulate


def trace(seed: int) -> list[str]:
    async def main(loop: SimLoop, rng: Random) -> list[str]:
        clock = SimClock(loop)
        events: list[str] = []

        async def worker(name: str) -> None:
            for turn in range(3):
                await clock.sleep(rng.choice([0, 0, 1]))
                events.append(f"{name}{turn}@{clock.monotonic_ns()}")

        async with asyncio.TaskGroup() as group:
            for name in "abc":
                group.create_task(worker(name))
        return events

    return simulate(seed, main)


def test_one_seed_replays_one_run() -> None:
    assert trace(7) == trace(7)


def test_seeds_permute_the_order() -> None:
    assert len({tuple(trace(seed)) for seed in range(30)}) > 20


def test_time_is_virtual() -> None:
    """An hour of waiting takes no time, and a run without a pending timer is reported."""

    async def main(loop: SimLoop, _: Random) -> int:
        await SimClock(loop).sleep(3600)
        return SimClock(loop).monotonic_ns()

    assert simulate(1, main) >= 3600 * 10**9

    async def stuck(loop: SimLoop, _: Random) -> None:
        await loop.create_future()

    with pytest.raises(Deadlock):
        simulate(1, stuck)


def test_planted_race_is_found() -> None:
    """An update without a condition is lost under some seeds, and never with a lock."""

    def lost(seed: int, *, locked: bool) -> bool:
        async def main(loop: SimLoop, rng: Random) -> bool:
            clock, lock, box = SimClock(loop), asyncio.Lock(), [0]

            async def add() -> None:
                if locked:
                    await lock.acquire()
                seen = box[0]
                await clock.sleep(rng.choice([0, 0.1]))
                box[0] = seen + 1
                if locked:
                    lock.release()

            await asyncio.gather(*(add() for _ in range(3)))
            return box[0] != 3

        return simulate(seed, main)

    assert any(lost(seed, locked=False) for seed in range(20))
    assert not any(lost(seed, locked=True) for seed in range(20))
