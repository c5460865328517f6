"""A loss of power at any call of the directory store loses nothing that it reported.

The calls are recorded from a real process; `support.power_loss` states what may be on the disk.
"""

import asyncio
import random
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.power_loss import STRACE, Machine, record
from support.repetitions import times
from support.store_groups import ALWAYS_GROUPS

from sluice_protocol.outcomes import Applied, Found, NotFound
from sluice_protocol.units import ObjectKey
from sluice_store.local import open_local_store

pytestmark = pytest.mark.skipif(STRACE is None, reason="strace is missing: install it")
STATES = 20
WRITER = """
import asyncio, os, random, sys
from pathlib import Path
from support.store_groups import ALWAYS_GROUPS
from sluice_protocol.outcomes import Applied, Found
from sluice_protocol.units import ETag, ObjectKey
from sluice_store.local import open_local_store

def say(mark, key, value):
    os.write(1, f"{mark} {key} {value}\\n".encode())

def body(value):
    return f"[{value}]".encode() * 300

async def create(store, worker):
    for number in range(7):
        key = f"blobs/{number % 3}/{worker}.{number}"
        say("?", key, key)
        if isinstance(await store.create(ObjectKey(key), body(key)), Applied):
            say("!", key, key)

async def swap(store):
    for number in range(8):
        read = await store.get(ObjectKey("register"))
        say("?", "register", number)
        if isinstance(read, Found):
            tag = ETag(read.info.etag)
            outcome = await store.replace(ObjectKey("register"), body(number), if_match=tag)
        else:
            outcome = await store.create(ObjectKey("register"), body(number))
        if isinstance(outcome, Applied):
            say("!", "register", number)

async def overwrite(store):
    for number in range(8):
        key = f"over/{number % 2}"
        say("?", key, number)
        await store.overwrite(ObjectKey(key), body(number))
        say("!", key, number)

async def delete(store):
    for number in range(5):
        key = f"gone/{number}"
        say("?", key, number)
        outcome = await store.create(ObjectKey(key), body(number))
        say("!", key, number)
        say("?", key, "deleted")
        await store.delete(ObjectKey(key), outcome.incarnation)
        say("!", key, "deleted")

async def main():
    more = {"limits": ALWAYS_GROUPS} if sys.argv[2] == "groups" else {}
    async with open_local_store(Path(sys.argv[1]), **more) as store:
        say("!", "opened", "")
        async with asyncio.TaskGroup() as group:
            for worker in range(3):
                group.create_task(create(store, worker))
            group.create_task(swap(store))
            group.create_task(overwrite(store))
            group.create_task(delete(store))

asyncio.run(main())
"""


@pytest.fixture(scope="module", params=["separate", "groups"])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    folder = tmp_path_factory.mktemp("power")
    command = [sys.executable, "-c", WRITER, str(folder / "store"), request.param]
    paths = [str(Path(__file__).parents[2]), *filter(None, sys.path)]
    calls = record(command, folder / "trace", PYTHONPATH=":".join(paths))
    assert {call.name for call in calls} >= {"link", "fsync"}
    return Machine(folder / "store", calls)


def _expected(said: list[str]) -> dict[str, tuple[str, set[str]]]:
    """Return the reported value of each key, and those that may have replaced it."""
    found: dict[str, tuple[str, set[str]]] = defaultdict(lambda: ("", set()))
    for line in said:
        mark, key, value = line.split(" ", 2)
        reported, later = found[key]
        found[key] = (value, set()) if mark == "!" else (reported, later | {value})
    found.pop("opened", None)
    return found


def _value(key: str, body: bytes) -> str:
    """Return the value that a complete body is of."""
    value = body.partition(b"]")[0].removeprefix(b"[").decode()
    assert body == f"[{value}]".encode() * 300, f"{key} has another body: {body[:60]!r}"
    return value


async def _problems(root: Path, said: list[str]) -> Iterator[str]:
    found: list[str] = []
    async with open_local_store(root, limits=ALWAYS_GROUPS) as store:
        listed = {one.key async for page in store.list("") for one in page.objects}
        for key, (reported, later) in _expected(said).items():
            read = await store.get(ObjectKey(key))
            value = _value(key, read.body) if isinstance(read, Found) else ""
            if isinstance(read, Found) != (key in listed):
                found.append(f"{key} is listed: {key in listed}, read: {read}")
            wanted = {"" if one == "deleted" else one for one in {reported, *later}}
            if value not in wanted:
                found.append(f"{key} is {value!r} instead of {sorted(wanted)}")
        new = ObjectKey("blobs/0/after")
        if not isinstance(await store.create(new, b"new"), Applied):
            found.append("nothing can be created")
        if isinstance(await store.get(new), NotFound):
            found.append("what was created cannot be read")
    return iter(found)


def _lose_power(machine: Machine, folder: Path, seed: int) -> list[str]:
    rng = random.Random(seed)
    point = rng.randrange(len(machine) + 1)
    root = folder / f"{seed}"
    said = machine.replay(point, rng, root)
    try:
        return [f"seed {seed}, call {point}: {one}" for one in asyncio.run(_problems(root, said))]
    except AssertionError as error:
        return [f"seed {seed}, call {point}: {error}"]
    finally:
        shutil.rmtree(root)


def test_nothing_that_was_reported_is_lost(recorded: Machine, tmp_path: Path) -> None:
    problems = [one for seed in range(STATES) for one in _lose_power(recorded, tmp_path, seed)]
    assert problems == []


@pytest.mark.long
def test_nothing_is_lost_in_many_states(recorded: Machine, tmp_path: Path) -> None:
    seeds = range(STATES, STATES + times(1_000))
    problems = [one for seed in seeds for one in _lose_power(recorded, tmp_path, seed)]
    assert problems == []


@pytest.mark.parametrize("sync", ["file", "folder"])
def test_a_sync_that_is_left_out_is_found(recorded: Machine, tmp_path: Path, sync: str) -> None:
    machine = recorded.without(sync)
    found = any(_lose_power(machine, tmp_path, seed) for seed in range(20 * STATES))
    assert found
