"""Runs of a spool on a simulated disk that end in a kill, a power cut or an error.

Each loop stops one run of a new world at a chosen operation, lets the next run finish, and checks
the world.
"""

import contextlib
import errno
import random
from collections.abc import Callable
from typing import Protocol, TypeVar

import pytest
from support.agent_disk import Crash, SimDisk, Tripwire

from sluice_agent.errors import SpoolBroken, SpoolUnwritable

Result = TypeVar("Result")

SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))]
"""Seeds of the loops over every operation; `make test-long` runs two more."""
DRAWS = [(0, 2), *(pytest.param(seed, 4, marks=pytest.mark.long) for seed in range(3))]
"""Seeds, each with how many states of the disk are tried after a power cut."""


class SpoolWorld(Protocol):
    """What outlives a run of the agent, with its disk."""

    disk: SimDisk

    def run(self, rng: random.Random) -> None:
        """Run one agent from start to end, unless the disk crashes."""

    def check(self) -> None:
        """Check what was accepted, after a run that ended."""


def retrying(act: Callable[[], Result]) -> Result:
    """Retry as the agent does, as long as the spool allows it."""
    for _ in range(5):
        with contextlib.suppress(SpoolUnwritable):
            return act()
    raise AssertionError("the spool never accepted it")


def crash_at(world: SpoolWorld, at: int | None, seed: int) -> int:
    """Run one agent that crashes at its n-th operation; return the number of operations."""
    wire = world.disk.tripwire = Tripwire(at)
    with contextlib.suppress(Crash):
        world.run(random.Random(seed))
    world.disk.tripwire = lambda _: None
    return wire.count


def finish(world: SpoolWorld, seed: int) -> None:
    """Run one agent to its end and check the world."""
    crash_at(world, None, seed)
    world.check()


def kill_at_every_operation(begin: Callable[[], SpoolWorld], seed: int) -> None:
    for at in range(1, crash_at(begin(), None, seed) + 1):
        world = begin()
        crash_at(world, at, seed)
        world.disk.kill()
        finish(world, seed + 100)


def cut_power_at_every_operation(begin: Callable[[], SpoolWorld], seed: int, draws: int) -> None:
    """Cut the power `draws` times at each operation; each time other unsynced writes remain."""
    for at in range(1, crash_at(begin(), None, seed) + 1):
        for draw in range(draws):
            world = begin()
            crash_at(world, at, seed)
            world.disk.power_cut(random.Random(draw))
            finish(world, seed + 100)


def crash_in_a_row(begin: Callable[[], SpoolWorld], seed: int, crashes_max: int) -> None:
    """Crash some runs, also during recovery, and let the last one finish."""
    rng, world = random.Random(seed), begin()
    for _ in range(rng.randrange(1, crashes_max + 1)):
        crash_at(world, rng.randrange(1, 60), rng.randrange(1000))
        world.disk.power_cut(rng) if rng.random() < 0.5 else world.disk.kill()
    finish(world, seed)


def fail_at_every_operation(begin: Callable[[], SpoolWorld], seed: int) -> None:
    """Return "no space left" at each operation; a run that it ends is followed by a power cut."""
    for at in range(1, crash_at(begin(), None, seed) + 1):
        world = begin()
        world.disk.tripwire = Tripwire(at, lambda: OSError(errno.ENOSPC, "No space left on device"))
        try:
            world.run(random.Random(seed))
        except (SpoolBroken, SpoolUnwritable):
            world.disk.power_cut(random.Random(at))
        world.disk.tripwire = lambda _: None
        if world.disk.locked:
            world.disk.kill()
        finish(world, seed + 100)
