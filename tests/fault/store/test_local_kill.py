"""`kill -9` of a process that writes to a local store leaves complete objects or none."""

import asyncio
import random
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.repetitions import times
from support.store_worker import TESTS
from support.store_writer import REGISTER, body_of

from sluice_protocol.outcomes import Found, ObjectInfo
from sluice_protocol.units import ObjectKey
from sluice_store.conformance import collect_incarnations, collect_keys
from sluice_store.local import open_local_store


@dataclass
class Known:
    """What the killed processes printed."""

    begun: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)
    count: int = 0
    stamp: int = 0

    def take(self, output: bytes) -> None:
        for line in output.decode().split("\n")[:-1]:
            mark, text = line[:1], line[1:]
            if text.startswith("count "):
                self.count = max(self.count, int(text[6:])) if mark == "!" else self.count
            else:
                (self.answered if mark == "!" else self.begun).add(text)


def _kill_one(root: Path, run: str, after_s: float) -> bytes:
    command = [sys.executable, "-m", "support.store_writer", str(root), run]
    with subprocess.Popen(command, cwd=TESTS, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = process.stdout.readline()  # the writer has begun
        time.sleep(after_s)
        process.kill()
        return first + process.stdout.read()


async def _check(root: Path, known: Known) -> None:
    async with open_local_store(root) as store:
        listed = {str(one.key): one for one in await collect_keys(store, "blobs/")}
        assert known.answered <= listed.keys() <= known.begun
        assert {one.size_bytes for one in listed.values()} <= {65_536}
        for key in random.Random(0).sample(sorted(listed), min(40, len(listed))):
            read = await store.get(ObjectKey(key))
            assert isinstance(read, Found)
            assert read.body == body_of(key)
        register = await store.get(REGISTER)
        if isinstance(register, Found):
            assert len(register.body) == 4096
            assert int(register.body) >= known.count
        for row in await collect_incarnations(store, "over/"):
            assert row.size_bytes == 4096
            seen = await store.head_incarnation(row.key, row.incarnation)
            assert isinstance(seen, ObjectInfo)
        stamps = [one.last_modified_ns for one in listed.values()]
        assert len(stamps) == len(set(stamps))
        fresh = (await store.head(ObjectKey("nothing"))).date_ns
        assert fresh >= max(stamps, default=0)
        assert fresh >= known.stamp
        known.stamp = fresh


def _loop(root: Path, kills: int, seed: int) -> Known:
    rng, known = random.Random(seed), Known()
    for run in range(kills):
        known.take(_kill_one(root, f"{seed}.{run}", rng.uniform(0.0, 0.25)))
        asyncio.run(_check(root, known))
    return known


def test_local_kill_leaves_whole_objects_or_none(tmp_path: Path) -> None:
    """Whenever a writer dies, every acknowledged object is complete, and no object is partial."""
    known = _loop(tmp_path, kills=2, seed=1)
    assert known.answered


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_local_kill_leaves_whole_objects_or_none_repeatedly(tmp_path: Path) -> None:
    """The same fact, with more kills."""
    kills = times(10)
    known = _loop(tmp_path, kills=kills, seed=2)
    assert len(known.answered) > kills
