"""The spool with a crash at every operation: no line is lost or doubled, no identity reused."""

import random

import pytest
from support.agent_disk import SimDisk
from support.agent_sim import (
    DRAWS,
    SEEDS,
    crash_at,
    crash_in_a_row,
    cut_power_at_every_operation,
    fail_at_every_operation,
    finish,
    kill_at_every_operation,
)
from support.repetitions import times
from support.spool_world import World


class SimWorld(World):
    """A world on a simulated disk."""

    disk: SimDisk

    def __init__(self, *, sync: bool = True) -> None:
        super().__init__(SimDisk(), sync=sync)

    @classmethod
    def without_sync(cls) -> "SimWorld":
        return cls(sync=False)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_kill_at_every_operation(seed: int) -> None:
    """A kill at any single operation breaks no guarantee."""
    kill_at_every_operation(SimWorld, seed)


@pytest.mark.parametrize(("seed", "draws"), DRAWS)
def test_a_power_cut_at_every_operation(seed: int, draws: int) -> None:
    cut_power_at_every_operation(SimWorld, seed, draws)


@pytest.mark.long
@pytest.mark.parametrize("count", [60, pytest.param(times(300), marks=pytest.mark.long)])
def test_many_crashes_in_a_row(count: int) -> None:
    """Repeated crashes, also during recovery, lose and duplicate nothing."""
    for seed in range(count):
        crash_in_a_row(SimWorld, seed, crashes_max=7)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_error_at_every_operation(seed: int) -> None:
    """A full or failing disk is retried, or ends this run only."""
    fail_at_every_operation(SimWorld, seed)


def test_without_sync_a_kill_is_harmless() -> None:
    """`fast` guarantees safety against a kill."""
    kill_at_every_operation(SimWorld.without_sync, 0)


def test_the_model_detects_a_spool_that_does_not_sync() -> None:
    """Power cuts with `fast` lose or duplicate lines, and the check detects it."""
    caught = 0
    operations = crash_at(SimWorld.without_sync(), None, 0)
    for at in range(1, operations + 1):
        world = SimWorld.without_sync()
        crash_at(world, at, 0)
        world.disk.power_cut(random.Random(at))
        try:
            finish(world, 100)
        except AssertionError:
            caught += 1
    assert caught > operations // 4
