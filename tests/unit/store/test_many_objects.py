"""Many objects: one call on a directory, a call for each elsewhere; the same result."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from support.queue_store import SimStore

from sluice_protocol.errors import StoreError
from sluice_protocol.outcomes import (
    Applied,
    Exists,
    Found,
    GetOutcome,
    HeadOutcome,
    NotFound,
    ObjectInfo,
)
from sluice_protocol.units import ObjectKey, UnixNs
from sluice_store import StoreMode, open_store
from sluice_store.local.store import open_local_store
from sluice_store.port import NewObject, ObjectStore, read_bodies

KEYS = [ObjectKey("a/1"), ObjectKey("a/missing"), ObjectKey("a/2")]


async def read(store: ObjectStore) -> list[bytes | None]:
    await store.create(KEYS[0], b"one")
    await store.create(KEYS[2], b"")
    return await read_bodies(store, KEYS)


async def test_bodies_are_read_in_the_order_of_their_keys(tmp_path: Path) -> None:
    async with open_store(f"file://{tmp_path}/store", StoreMode.CREATE) as store:
        assert await read(store) == [b"one", None, b""]
        with pytest.raises(StoreError):
            await read_bodies(store, [ObjectKey("../x")])
    other = SimStore()
    assert await read(other) == [b"one", None, b""]


async def test_a_call_for_many_objects_has_the_outcomes_of_a_call_for_each(tmp_path: Path) -> None:
    async with open_store(f"file://{tmp_path}/store", StoreMode.CREATE) as store:
        new = [NewObject(key=ObjectKey(f"a/{name}"), body=name.encode()) for name in "xyx"]
        first, second, again = await store.create_many(new)
        assert isinstance(first, Applied)
        assert isinstance(second, Applied)
        assert isinstance(again, Exists)
        keys = [new[1].key, KEYS[1], new[0].key]
        assert [_dateless(one) for one in await store.get_many(keys)] == [
            _dateless(await store.get(key)) for key in keys
        ]
        assert [_dateless(one) for one in await store.head_many(keys)] == [
            _dateless(await store.head(key)) for key in keys
        ]
        infos = await store.head_many(keys)
        for one in infos:
            assert not isinstance(one, StoreError)
            assert one.date_ns >= first.date_ns
        assert await store.head_many([]) == await store.get_many([]) == []
        for call in (store.get_many, store.head_many):
            good, bad = await call([keys[0], ObjectKey("../x")])
            assert isinstance(bad, StoreError)
            assert not isinstance(good, StoreError)


async def test_folders_of_new_objects_are_synced_once_before_a_read_reports_them(
    tmp_path: Path,
) -> None:
    class Synced:
        def __init__(self) -> None:
            self.directories: list[str] = []

        def sync(self, directories: Iterable[str]) -> None:
            self.directories += directories

    keys = [ObjectKey(f"{folder}/{name}") for folder in "ab" for name in "xyz"]
    root = tmp_path / "store"
    async with open_local_store(root) as writer:
        for key in keys:
            await writer.create(key, b"body")
    synced = Synced()
    async with open_local_store(root, syncer=synced) as reader:
        await reader.head_many(keys)
        assert sorted(synced.directories) == [str(root), str(root / "a"), str(root / "b")]
        await reader.get_many(keys)
        assert len(synced.directories) == 3


def _dateless(outcome: GetOutcome | HeadOutcome | StoreError) -> object:
    match outcome:
        case Found(info=info, body=body):
            return replace(info, date_ns=UnixNs(0)), body
        case ObjectInfo():
            return replace(outcome, date_ns=UnixNs(0))
        case NotFound() | StoreError():
            return None
