"""Requests for many small objects in one call, where the store can do that for less."""

import asyncio
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

from sluice_protocol.outcomes import CreateOutcome, Found, GetOutcome, HeadOutcome
from sluice_protocol.units import Digest, ObjectKey
from sluice_store.port import ObjectStore


class NewObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object to be created.

    Attributes:
        key: Its key.
        body: Its bytes.
        sha256: The digest of `body` when the caller knows it.
    """

    key: ObjectKey
    body: bytes
    sha256: Digest | None = None


@runtime_checkable
class BulkStore(Protocol):
    """A store for which one call for many objects costs less than one call for each.

    Each outcome is that of the verb for one object. An error of one object is raised for the whole
    call; the requests for the others may have been made.
    """

    async def read_bodies(self, keys: Sequence[ObjectKey]) -> list[bytes | None]:
        """Read whole objects without their metadata; None for a key without an object.

        Raises:
            StoreError: Some object could not be read.
        """
        ...

    async def get_all(self, keys: Sequence[ObjectKey]) -> list[GetOutcome]:
        """Read whole objects, as `get` does.

        Raises:
            StoreError: Some object could not be read.
        """
        ...

    async def head_all(self, keys: Sequence[ObjectKey]) -> list[HeadOutcome]:
        """Read the metadata of objects, as `head` does.

        Raises:
            StoreError: Some object could not be read.
        """
        ...

    async def create_all(self, objects: Sequence[NewObject]) -> list[CreateOutcome]:
        """Write objects under keys that do not exist, as `create` does.

        Raises:
            StoreError: Some request was refused or not sent; other objects may have been written.
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
    if isinstance(store, BulkStore):
        async with limit:
            return await store.read_bodies(keys)

    async def read(key: ObjectKey) -> bytes | None:
        async with limit:
            found = await store.get(key)
        return found.body if isinstance(found, Found) else None

    return list(await asyncio.gather(*map(read, keys)))
