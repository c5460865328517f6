"""Reading the bodies of many small objects, in one call where the store can do that."""

import asyncio
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey
from sluice_store.port import ObjectStore


@runtime_checkable
class BulkReader(Protocol):
    """A store for which one call for many objects costs less than one call for each."""

    async def read_bodies(self, keys: Sequence[ObjectKey]) -> list[bytes | None]:
        """Read whole objects without their metadata; None for a key without an object.

        Raises:
            StoreError: Some object could not be read.
        """
        ...


async def read_bodies(
    store: ObjectStore, keys: Sequence[ObjectKey], limit: asyncio.Semaphore
) -> list[bytes | None]:
    """Read whole objects, concurrently or in one call; None for a key without an object.

    Args:
        store: The store.
        keys: The keys; together their objects fit into memory.
        limit: Bounds the calls in flight.

    Raises:
        StoreError: Some object could not be read.
    """
    if isinstance(store, BulkReader):
        async with limit:
            return await store.read_bodies(keys)

    async def read(key: ObjectKey) -> bytes | None:
        async with limit:
            found = await store.get(key)
        return found.body if isinstance(found, Found) else None

    return list(await asyncio.gather(*map(read, keys)))
