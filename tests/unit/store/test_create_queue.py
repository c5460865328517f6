"""Which creates of a process share a group."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.store_groups import ALWAYS_GROUPS, CountedSync

from sluice_protocol.errors import StoreError
from sluice_protocol.outcomes import Applied, Exists
from sluice_protocol.units import ObjectKey
from sluice_store.local import LocalStore, open_local_store
from sluice_store.local.store import GROUP_BODY_MAX, GroupLimits


class Watched(CountedSync):
    """Syncs of groups that can be held before they begin."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.open = threading.Event()
        self.open.set()
        self.reached = threading.Event()
        self.begun = 0

    def is_ready(self) -> bool:
        self.begun += 1
        self.reached.set()
        assert self.open.wait(30)
        return super().is_ready()


@asynccontextmanager
async def opened(
    root: Path, limits: GroupLimits | None = None
) -> AsyncIterator[tuple[LocalStore, Watched]]:
    syncs = Watched(root)
    async with open_local_store(root, filesystem=syncs, limits=limits) as store:
        yield store, syncs


def create(store: LocalStore, key: str, body: bytes = b"x") -> "asyncio.Task[object]":
    return asyncio.ensure_future(store.create(ObjectKey(key), body))


async def test_creates_that_are_made_together_share_two_syncs(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, syncs):
        found = await asyncio.gather(*(create(store, f"k/{number}") for number in range(32)))
        assert all(isinstance(one, Applied) for one in found)
    assert syncs.calls == 2


async def test_a_few_creates_run_separately(tmp_path: Path) -> None:
    """None waits for another."""
    async with opened(tmp_path) as (store, syncs):
        await asyncio.gather(*(create(store, f"k/{number}") for number in range(3)))
    assert syncs.calls == 0


async def test_large_bodies_run_separately(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, syncs):
        body = bytes(GROUP_BODY_MAX + 1)
        await asyncio.gather(*(create(store, f"k/{number}", body) for number in range(8)))
    assert syncs.calls == 0


async def test_two_groups_are_written_at_the_same_time(tmp_path: Path) -> None:
    """Creates that arrive meanwhile are the next group, also if they are many."""
    async with opened(tmp_path) as (store, syncs):
        syncs.open.clear()
        tasks = [create(store, f"a/{number}") for number in range(4)]
        await asyncio.to_thread(syncs.reached.wait, 30)
        for name in "bcd":
            tasks += [create(store, f"{name}/{number}") for number in range(4)]
            await asyncio.sleep(0.05)
        assert syncs.begun == 2
        syncs.open.set()
        await asyncio.gather(*tasks)
        assert syncs.begun == 3
    assert syncs.calls == 6


async def test_a_few_creates_wait_for_the_end_of_a_group(tmp_path: Path) -> None:
    """Separate ones would sync the disk that the group waits for."""
    async with opened(tmp_path) as (store, syncs):
        syncs.open.clear()
        tasks = [create(store, f"a/{number}") for number in range(4)]
        await asyncio.to_thread(syncs.reached.wait, 30)
        later = create(store, "b/0")
        await asyncio.sleep(0.05)
        assert not later.done()
        syncs.open.set()
        await asyncio.gather(*tasks, later)
    assert syncs.calls == 2


@pytest.mark.parametrize("grouped", [1, 6])
async def test_each_caller_has_its_own_outcome(grouped: int, tmp_path: Path) -> None:
    """One key that exists, one that is refused, and others."""
    async with opened(tmp_path, ALWAYS_GROUPS if grouped == 1 else None) as (store, _):
        await create(store, "old")
        others = [create(store, f"k/{number}") for number in range(grouped)]
        found = await asyncio.gather(
            create(store, "old"), create(store, "../bad"), *others, return_exceptions=True
        )
        assert isinstance(found[0], Exists)
        assert isinstance(found[1], StoreError)
        assert all(isinstance(one, Applied) for one in found[2:])


async def test_creates_run_separately_while_no_group_can_be_written(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, syncs):
        syncs.ready = False
        found = await asyncio.gather(*(create(store, f"k/{number}") for number in range(20)))
        assert all(isinstance(one, Applied) for one in found)
    assert syncs.calls == 0


async def test_a_group_that_fails_as_a_whole_fails_each_caller(tmp_path: Path) -> None:
    """The clock file was damaged: the next open rebuilds it."""
    async with opened(tmp_path) as (store, _):
        (tmp_path / ".sluice" / "clock").write_bytes(b"cut")
        found = await asyncio.gather(
            *(create(store, f"k/{number}") for number in range(5)), return_exceptions=True
        )
        assert all(isinstance(one, StoreError) for one in found)


async def test_a_cancelled_create_that_has_not_begun_is_skipped(tmp_path: Path) -> None:
    """One that is in a group is completed, and the others have their outcomes."""
    async with opened(tmp_path) as (store, syncs):
        syncs.open.clear()
        first = [create(store, f"a/{number}") for number in range(4)]
        await asyncio.to_thread(syncs.reached.wait, 30)
        later = [create(store, f"b/{number}") for number in range(4)]
        await asyncio.sleep(0)
        first[0].cancel()
        later[0].cancel()
        await asyncio.sleep(0)
        syncs.open.set()
        found = await asyncio.gather(*first, *later, return_exceptions=True)
        cancelled = [isinstance(one, asyncio.CancelledError) for one in found]
        assert cancelled == [True, False, False, False] * 2
        assert isinstance(await create(store, "a/0"), Exists)
        assert isinstance(await create(store, "b/0"), Applied)


@pytest.mark.parametrize("ready", [True, False])
async def test_creates_that_wait_when_the_store_closes_are_completed(
    ready: bool, tmp_path: Path
) -> None:
    async with opened(tmp_path) as (store, syncs):
        syncs.open.clear()
        waiting = [create(store, f"a/{number}") for number in range(4)]
        await asyncio.to_thread(syncs.reached.wait, 30)
        syncs.ready = ready
        waiting += [create(store, f"b/{number}") for number in range(2)]
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.05, syncs.open.set)
    assert all(isinstance(one, Applied) for one in await asyncio.gather(*waiting))
