"""The spool with a crash at every operation: no line is lost or duplicated, no identity is reused.

The environment is a model: a file of lines, an agent that reads from the spool's checkpoints,
seals, sends, forgets or parks, and gateways that keep the first bytes of each identity. After a
crash a new run starts with what the disk kept.
"""

import itertools
import random
from collections import Counter
from pathlib import Path

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
    retrying,
)
from support.repetitions import times

from sluice_agent.inputs.columns import logs_from_block
from sluice_agent.settings import SpoolSettings
from sluice_agent.spool.format import FileCheckpoint, ParkedReason
from sluice_agent.spool.spool import Spool, SpooledBatch
from sluice_protocol.frame import decode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.units import UnixNs

SETTINGS = SpoolSettings(directory=Path("/spool"), agent_id="host-1")
LINES = [f"line {n}".encode() for n in range(12)]
NOW = UnixNs(1)
REASON = ParkedReason(reason="identity_conflict", gateway="g", status=409, parked_at_unix_ns=1)


class World:
    """What outlives a run of the agent: the disk, the file and the gateways."""

    def __init__(self, *, sync: bool = True) -> None:
        self.disk = SimDisk()
        self.settings = SpoolSettings(directory=SETTINGS.directory, agent_id="host-1", sync=sync)
        self.accepted: dict[Identity, bytes] = {}
        self.refused: set[Identity] = set()
        self.boots = itertools.count()

    @classmethod
    def without_sync(cls) -> "World":
        return cls(sync=False)

    def run(self, rng: random.Random) -> None:
        """Run one agent from start to the end of the file, unless the disk crashes."""
        spool = Spool(self.settings, self.disk, boot_id=f"boot-{next(self.boots)}")
        assert spool.corrupt_files == ()
        todo = spool.ready()
        while batches := self._seal(spool, rng):
            todo += batches
            while todo and rng.random() < 0.6:
                (self._send_list if rng.random() < 0.3 else self._send)(spool, todo, rng)
            if rng.random() < 0.3:
                retrying(spool.sweep)
        while todo:
            self._send(spool, todo, rng)
        retrying(spool.sweep)
        spool.close()

    def _seal(self, spool: Spool, rng: random.Random) -> list[SpooledBatch]:
        """Seal up to two batches before the first is committed, as the batcher does."""
        checkpoint = spool.checkpoints().get("1:1")
        start = checkpoint.offset if checkpoint else 0
        sealed = []
        for _ in range(rng.randrange(1, 3)):
            lines = LINES[start : start + rng.randrange(1, 4)]
            if not lines:
                break
            end = start + len(lines)
            after = FileCheckpoint(source="1:1", path="/log", start=start, offset=end)
            columns = logs_from_block(b"\n".join(lines) + b"\n", arrived_ns=NOW, zone=None)
            sealed.append(spool.seal(columns, [after], now_ns=NOW))
            start = end
        return [retrying(lambda one=one: spool.commit(one)) for one in sealed]

    def _send(self, spool: Spool, todo: list[SpooledBatch], rng: random.Random) -> None:
        batch = todo.pop(rng.randrange(len(todo)))
        frame = retrying(lambda: spool.read(batch))
        identity = decode_frame(frame).envelope.identity
        assert self.accepted.setdefault(identity, frame) == frame, "an identity had other bytes"
        if identity.seq_start % 5 == 4:  # rejected; the model still sees what was sent
            self.refused.add(identity)
            retrying(lambda: spool.park(batch, REASON))
        elif rng.random() < 0.8:
            retrying(lambda: spool.forget(batch))
        else:  # the response was lost: the same bytes are sent again
            todo.append(batch)

    def _send_list(self, spool: Spool, todo: list[SpooledBatch], rng: random.Random) -> None:
        """Send several batches in one request; a crash may come between any two results of it."""
        batches = [todo.pop(rng.randrange(len(todo))) for _ in range(min(len(todo), 3))]
        frames = [retrying(lambda one=one: spool.read(one)) for one in batches]
        for frame in frames:  # the gateway has accepted all of them before the first result
            identity = decode_frame(frame).envelope.identity
            assert self.accepted.setdefault(identity, frame) == frame, "an identity had other bytes"
        lost = rng.random() < 0.2
        for batch, frame in zip(batches, frames, strict=True):
            identity = decode_frame(frame).envelope.identity
            if lost:
                todo.append(batch)
            elif identity.seq_start % 5 == 4:
                self.refused.add(identity)
                retrying(lambda one=batch: spool.park(one, REASON))
            else:
                retrying(lambda one=batch: spool.forget(one))

    def check(self) -> None:
        """Check that every line was accepted once and that `parked/` contains the rejected ones."""
        got = Counter(
            body
            for frame in self.accepted.values()
            for body in decode_frame(frame).columns.body.slices()
        )
        assert got == Counter(LINES)
        parked = {name for name, _ in self.disk.list(Path("/spool/parked"))}
        assert len([name for name in parked if name.endswith(".batch")]) == len(self.refused)
        assert self.disk.list(Path("/spool/corrupt")) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_kill_at_every_operation(seed: int) -> None:
    """A kill at any single operation breaks no guarantee."""
    kill_at_every_operation(World, seed)


@pytest.mark.parametrize(("seed", "draws"), DRAWS)
def test_a_power_cut_at_every_operation(seed: int, draws: int) -> None:
    cut_power_at_every_operation(World, seed, draws)


@pytest.mark.long
@pytest.mark.parametrize("count", [60, pytest.param(times(300), marks=pytest.mark.long)])
def test_many_crashes_in_a_row(count: int) -> None:
    """Repeated crashes, also during recovery, lose and duplicate nothing."""
    for seed in range(count):
        crash_in_a_row(World, seed, crashes_max=7)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_error_at_every_operation(seed: int) -> None:
    """A full or failing disk is retried, or ends this run only."""
    fail_at_every_operation(World, seed)


def test_without_sync_a_kill_is_harmless() -> None:
    """`fast` guarantees safety against a kill."""
    kill_at_every_operation(World.without_sync, 0)


def test_the_model_detects_a_spool_that_does_not_sync() -> None:
    """Power cuts with `fast` lose or duplicate lines, and the check detects it."""
    caught = 0
    operations = crash_at(World.without_sync(), None, 0)
    for at in range(1, operations + 1):
        world = World.without_sync()
        crash_at(world, at, 0)
        world.disk.power_cut(random.Random(at))
        try:
            finish(world, 100)
        except AssertionError:
            caught += 1
    assert caught > operations // 4
