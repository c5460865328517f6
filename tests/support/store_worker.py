"""One process of a race over a store URL: `python -m support.store_worker create|add URL KEY N ID`.

It prints one number: the creates that were applied, or the swaps that were lost.
"""

import asyncio
import subprocess
import sys
from pathlib import Path

from support.store_conformance import increment, read_counter

from sluice_protocol.outcomes import Applied, Exists, Unknown
from sluice_protocol.units import ObjectKey
from sluice_store import StoreMode, open_store

TESTS = Path(__file__).parents[1]


def race_processes(work: str, url: str, key: ObjectKey, times: int, processes: int) -> list[int]:
    """Run `work` in processes that share only the store."""
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "support.store_worker", work, url, key, str(times), f"p{i}"],
            cwd=TESTS,
            stdout=subprocess.PIPE,
        )
        for i in range(processes)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in started]
    assert [process.returncode for process in started] == [0] * processes
    return [int(output.splitlines()[-1]) for output in outputs]  # warnings come first


def assert_exact_races(url: str) -> None:
    """Race 64 creates and 60 increments from 4 processes: one winner, and no increment is lost."""
    key, counter = ObjectKey("key"), ObjectKey("counter")

    async def start() -> None:
        async with open_store(url) as store:
            await store.create(counter, b"0")

    async def end() -> int:
        async with open_store(url) as store:
            return await read_counter(store, counter)

    asyncio.run(start())
    assert sum(race_processes("create", url, key, 16, 4)) == 1
    race_processes("add", url, counter, 15, 4)
    assert asyncio.run(end()) == 60


async def _create(url: str, key: ObjectKey, times: int, name: str) -> int:
    async with open_store(url, StoreMode.CREATE) as store:
        outcomes = await asyncio.gather(
            *(store.create(key, f"{name}.{i}".encode()) for i in range(times))
        )
    assert all(isinstance(outcome, Applied | Exists | Unknown) for outcome in outcomes)
    return sum(isinstance(outcome, Applied) for outcome in outcomes)


async def _add(url: str, key: ObjectKey, times: int, name: str) -> int:
    async with open_store(url, StoreMode.CREATE) as store:
        return await increment(store, key, times, name)


def main(work: str, url: str, key: str, times: str, name: str) -> None:
    run = {"create": _create, "add": _add}[work]
    sys.stdout.write(str(asyncio.run(run(url, ObjectKey(key), int(times), name))))


if __name__ == "__main__":
    main(*sys.argv[1:])
