"""A loss of power at any call of an agent's spool: each line is accepted once, none is lost.

The calls are recorded from a real process; `support.power_loss` states what may be on the disk.
"""

import itertools
import random
import shutil
import sys
from pathlib import Path

import pytest
from support.power_loss import STRACE, Machine, record
from support.spool_world import World, is_refused

from sluice_agent.spool.disk import RealDisk
from sluice_protocol.frame import decode_frame

pytestmark = pytest.mark.skipif(STRACE is None, reason="strace is missing: install it")
STATES = 20
LINES = [b"line %d" % number for number in range(24)]
WRITER = """
import os, random, sys
from pathlib import Path
from support.spool_world import World
from sluice_agent.spool.disk import RealDisk

def tell(frame):
    os.write(1, frame.hex().encode() + b"\\n")

world = World(RealDisk(), Path(sys.argv[1]), tell=tell)
for run in range(3):  # the file grows
    world.lines = [b"line %d" % number for number in range(8 * run + 8)]
    world.run(random.Random(run))
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """The calls of an agent with three boots; its spool is a new folder of the disk."""
    folder = tmp_path_factory.mktemp("power")
    (folder / "disk").mkdir()
    command = [sys.executable, "-c", WRITER, str(folder / "disk" / "spool")]
    paths = [str(Path(__file__).parents[2]), *filter(None, sys.path)]
    calls = record(command, folder / "trace", PYTHONPATH=":".join(paths))
    assert {call.name for call in calls} >= {"rename", "fsync", "unlink"}
    return Machine(folder / "disk", calls)


def lose_power(machine: Machine, folder: Path, seed: int) -> list[str]:
    """Lose power at a random call, let another agent finish, and return what is wrong."""
    rng = random.Random(seed)
    point = rng.randrange(len(machine) + 1)
    root = folder / f"{seed}"
    frames = [bytes.fromhex(line) for line in machine.replay(point, rng, root)]
    world = World(RealDisk(), root / "spool")
    world.boots, world.lines = itertools.count(1000), LINES
    try:
        for frame in frames:
            world.decide(frame)
        world.run(rng)
        world.check()
    except Exception as error:
        return [f"seed {seed}, call {point}: {type(error).__name__}: {error}"]
    finally:
        shutil.rmtree(root)
    return []


def problems(machine: Machine, folder: Path, seeds: range) -> list[str]:
    return [one for seed in seeds for one in lose_power(machine, folder, seed)]


def test_no_line_is_lost_or_sent_under_two_identities(recorded: Machine, tmp_path: Path) -> None:
    assert problems(recorded, tmp_path, range(STATES)) == []


@pytest.mark.long
def test_nothing_is_lost_in_many_states(recorded: Machine, tmp_path: Path) -> None:
    assert problems(recorded, tmp_path, range(STATES, STATES + 1_500)) == []


@pytest.mark.parametrize("sync", ["file", "folder"])
def test_a_sync_that_is_left_out_is_found(recorded: Machine, tmp_path: Path, sync: str) -> None:
    machine = recorded.without(sync)
    assert any(lose_power(machine, tmp_path, seed) for seed in range(20 * STATES))


def test_the_recorded_agent_sends_every_line(recorded: Machine, tmp_path: Path) -> None:
    """Without a loss of power nothing remains to be sent, and batches were accepted and refused."""
    frames = recorded.replay(len(recorded), random.Random(1), tmp_path / "end")
    found = {decode_frame(bytes.fromhex(line)).envelope.identity for line in frames}
    assert sum(one.count for one in found) == len(LINES)
    assert {is_refused(one) for one in found} == {True, False}
