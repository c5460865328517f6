"""An event loop for simulations: virtual time, no sockets, and a seeded choice of what runs next.

Every ready callback may run next, so a run explores one interleaving, and the same seed explores
it again. Time moves only when nothing is ready.
"""

import asyncio
import heapq
import os
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any, TypeVar

import pytest
from support.repetitions import times

from sluice_protocol.clock import Clock
from sluice_protocol.units import UnixNs

T = TypeVar("T")
START_NS = 1_760_000_000_000_000_000
IDLE_CALLBACKS_MAX = 2_000_000


class Deadlock(Exception):
    """Nothing is ready and no timer is set, but the simulation has not ended."""


class SimLoop(asyncio.BaseEventLoop):
    """A loop whose order is drawn from a seed and whose clock is virtual."""

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self._rng = rng
        self._now_s = 0.0
        self._ran = 0

    def time(self) -> float:
        return self._now_s

    def _run_once(self) -> None:
        self._wake()
        if not self._ready:
            self._jump()
        self._ran += 1
        if self._ran > IDLE_CALLBACKS_MAX:
            raise Deadlock(f"{self._ran} callbacks ran without an end")
        self._ready.rotate(-self._rng.randrange(len(self._ready)))
        handle = self._ready.popleft()
        if not handle.cancelled():
            handle._run()

    def _wake(self) -> None:
        while self._scheduled and (
            self._scheduled[0].cancelled() or self._scheduled[0].when() <= self._now_s
        ):
            handle = heapq.heappop(self._scheduled)
            handle._scheduled = False
            if not handle.cancelled():
                self._ready.append(handle)

    def _jump(self) -> None:
        if not self._scheduled:
            raise Deadlock("nothing is ready and no timer is set")
        self._now_s = max(self._now_s, self._scheduled[0].when())
        self._wake()

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., T], *args: object
    ) -> asyncio.Future[T]:
        """Do the work of a thread immediately; its result is awaited as usual."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def _process_events(self, event_list: object) -> None: ...

    def _write_to_self(self) -> None: ...


class SimClock:
    """The clock port over a simulated loop; `skew_ns` is the error of this machine's clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop, skew_ns: int = 0) -> None:
        self._loop = loop
        self._skew_ns = skew_ns

    def now_ns(self) -> UnixNs:
        return UnixNs(START_NS + self._skew_ns + int(self._loop.time() * 1e9))

    def monotonic_ns(self) -> int:
        return int(self._loop.time() * 1e9)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SimIds:
    """ULID-shaped ids drawn from the seed."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def ulid(self) -> str:
        alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
        return "0" + "".join(self._rng.choice(alphabet) for _ in range(25))


def simulate(seed: int, main: Callable[[SimLoop, Random], Coroutine[Any, Any, T]]) -> T:
    """Run `main` to its end in one seeded interleaving."""
    rng = Random(seed)
    loop = SimLoop(rng)
    try:
        return loop.run_until_complete(main(loop, rng))
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop._ready.clear()
        loop._scheduled.clear()
        loop.close()


def seeds(count: int) -> list[int]:
    """Return the seeds to run: those in `SLUICE_SIM_SEEDS`, else 0 to count - 1."""
    named = os.environ.get("SLUICE_SIM_SEEDS")
    return [int(seed) for seed in named.split(",")] if named else list(range(count))


LONG_SEEDS = 6
"""How many further seeds the long run has; `SLUICE_SIM_SEEDS` selects others."""


def daily_seeds(count: int, daily: Sequence[int]) -> list[Any]:
    """Return the same seeds as parameters of a test, of which `make test` runs only `daily`.

    The others are marked `long`. Choose seeds that find the planted bugs of the simulation.
    """
    if os.environ.get("SLUICE_SIM_SEEDS"):
        return list(seeds(count))
    others = [seed for seed in range(count) if seed not in daily][: times(LONG_SEEDS)]
    return [*daily, *(pytest.param(seed, marks=pytest.mark.long) for seed in others)]


async def until(done: Callable[[], bool], clock: Clock, limit_s: float = 3600) -> None:
    """Wait in virtual time until `done`."""
    end_ns = clock.monotonic_ns() + int(limit_s * 1e9)
    while not done():
        if clock.monotonic_ns() > end_ns:
            raise Deadlock("not done in time")
        await clock.sleep(0.1)
