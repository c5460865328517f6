"""Bodies of many objects: one call on a directory, a call for each elsewhere; the same result."""

import asyncio
from pathlib import Path

import pytest
from support.queue_store import SimClock, SimStore

from sluice_protocol.errors import StoreError
from sluice_protocol.units import ObjectKey
from sluice_store import open_store
from sluice_store.bulk_reads import BulkReader, read_bodies
from sluice_store.port import ObjectStore

KEYS = [ObjectKey("a/1"), ObjectKey("a/missing"), ObjectKey("a/2")]


async def read(store: ObjectStore) -> list[bytes | None]:
    await store.create(KEYS[0], b"one")
    await store.create(KEYS[2], b"")
    return await read_bodies(store, KEYS, asyncio.Semaphore(2))


def test_bodies_are_read_in_the_order_of_their_keys(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_store(f"file://{tmp_path}/store") as store:
            assert isinstance(store, BulkReader)
            assert await read(store) == [b"one", None, b""]
            with pytest.raises(StoreError):
                await read_bodies(store, [ObjectKey("../x")], asyncio.Semaphore(1))
        other = SimStore(clock=SimClock())
        assert not isinstance(other, BulkReader)
        assert await read(other) == [b"one", None, b""]

    asyncio.run(run())
