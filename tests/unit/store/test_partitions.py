"""Folders of partitions leave a directory store with their last object."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from support.store_groups import ALWAYS_GROUPS, CountedSync

from sluice_protocol.outcomes import Applied, Deleted, Found
from sluice_protocol.units import ObjectKey, ObjectVersion
from sluice_store.local import open_local_store
from sluice_store.local.store import GroupLimits, LocalStore
from sluice_store.retry import delete_versions

LIMITS = pytest.mark.parametrize("limits", [None, ALWAYS_GROUPS], ids=["separate", "group"])


@asynccontextmanager
async def two_stores(
    root: Path, limits: GroupLimits | None
) -> AsyncIterator[tuple[LocalStore, LocalStore]]:
    """Open a directory as two processes do."""
    sync = CountedSync(root) if limits else None
    async with AsyncExitStack() as stack:
        one, other = [
            await stack.enter_async_context(open_local_store(root, filesystem=sync, limits=limits))
            for _ in range(2)
        ]
        yield one, other


async def delete(store: LocalStore, key: ObjectKey) -> None:
    found = await store.get(key)
    version = found.info.incarnation or ObjectVersion("")
    assert isinstance(await store.delete(key, version), Deleted)


def folders(root: Path) -> set[str]:
    found = (path.relative_to(root) for path in root.rglob("*") if path.is_dir())
    return {str(path) for path in found if path.parts[0] != ".sluice" or "@" in str(path)}


@LIMITS
async def test_a_partition_is_removed_with_its_last_object(
    limits: GroupLimits | None, tmp_path: Path
) -> None:
    """Another process may create an object in it at any time."""
    async with two_stores(tmp_path, limits) as (one, other):
        keys = [ObjectKey(f"lists/v1/date=1/hour={n}/a") for n in (1, 1, 2)]
        for key in keys[1:]:
            assert isinstance(await one.create(key, b"1"), Applied)
        await delete(other, keys[0])
        assert folders(tmp_path) == {"lists", "lists/v1", *paths("lists/v1/date=1", "hour=2")}
        await delete(one, keys[2])
        assert folders(tmp_path) == {"lists", "lists/v1"}
        for key in keys[1:]:
            assert isinstance(await one.create(key, b"2"), Applied)
        assert isinstance(await other.get(keys[0]), Found)


def paths(folder: str, inner: str) -> tuple[str, str]:
    return folder, f"{folder}/{inner}"


def test_folders_that_are_no_partitions_stay(tmp_path: Path) -> None:
    """No process writes to them for a limited time only."""

    async def run() -> None:
        async with open_local_store(tmp_path) as store:
            key = ObjectKey("reconciler/v1/members/a")
            assert isinstance(await store.create(key, b"1"), Applied)
            await delete(store, key)

    asyncio.run(run())
    assert "reconciler/v1/members" in folders(tmp_path)


def test_noncurrent_versions_leave_no_folder(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_local_store(tmp_path) as store:
            key = ObjectKey("index/v1/date=1/a")
            for body in (b"1", b"2", b"3"):
                assert isinstance(await store.overwrite(key, body), Applied)
            await delete_versions(store, key)

    asyncio.run(run())
    assert folders(tmp_path) == {"index", "index/v1"}


def test_a_partition_that_another_process_made_again_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That process may die before it syncs the folder, so an earlier sync of it proves nothing."""
    synced: list[str] = []
    fsync = os.fsync

    def record(fd: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", record)
    hour = tmp_path / "lists/date=1/hour=1"

    async def run() -> None:
        async with two_stores(tmp_path, None) as (one, other):
            assert isinstance(await one.create(ObjectKey("lists/date=1/hour=1/a"), b"1"), Applied)
            await delete(other, ObjectKey("lists/date=1/hour=1/a"))
            hour.mkdir(parents=True)
            synced.clear()
            assert isinstance(await one.create(ObjectKey("lists/date=1/hour=1/b"), b"1"), Applied)

    asyncio.run(run())
    assert {str(hour), str(hour.parent), str(hour.parent.parent)} <= set(synced)


@LIMITS
def test_two_processes_use_one_partition_at_the_same_time(
    limits: GroupLimits | None, tmp_path: Path
) -> None:
    """Each create succeeds although the other process removes the folder again and again."""

    async def use(store: LocalStore, name: str) -> None:
        for number in range(40):
            key = ObjectKey(f"lists/date=1/hour=1/{name}{number}")
            assert isinstance(await store.create(key, b"1"), Applied)
            await delete(store, key)

    async def run() -> None:
        async with two_stores(tmp_path, limits) as (one, other), asyncio.TaskGroup() as group:
            group.create_task(use(one, "a"))
            group.create_task(use(other, "b"))

    asyncio.run(run())
    assert folders(tmp_path) == {"lists"}
