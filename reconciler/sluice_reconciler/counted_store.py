"""A store whose requests are counted; a listing counts once for each page, as a bucket charges."""

from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

from prometheus_client import Counter

from sluice_protocol.outcomes import (
    CreateOutcome,
    DeleteOutcome,
    GetOutcome,
    HeadOutcome,
    OverwriteOutcome,
    ReplaceOutcome,
)
from sluice_protocol.units import Digest, ETag, ObjectKey, ObjectVersion
from sluice_store.bulk import BulkStore, NewObject
from sluice_store.port import IncarnationPage, ListPage, ObjectStore, Versioning

_Page = TypeVar("_Page")


class CountedStore:
    """The port over another store; see `ObjectStore` for the methods."""

    def __init__(self, inner: ObjectStore, requests: Counter) -> None:
        self._inner = inner
        self._requests = requests

    def _count(self, op: str, number: int = 1) -> None:
        self._requests.labels(op).inc(number)

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        """See `ObjectStore.create`."""
        self._count("create")
        return await self._inner.create(key, body, sha256=sha256)

    async def replace(self, key: ObjectKey, body: bytes, *, if_match: ETag) -> ReplaceOutcome:
        """See `ObjectStore.replace`."""
        self._count("replace")
        return await self._inner.replace(key, body, if_match=if_match)

    async def overwrite(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> OverwriteOutcome:
        """See `ObjectStore.overwrite`."""
        self._count("overwrite")
        return await self._inner.overwrite(key, body, sha256=sha256)

    async def get(self, key: ObjectKey, *, first: int = 0, last: int | None = None) -> GetOutcome:
        """See `ObjectStore.get`."""
        self._count("get")
        return await self._inner.get(key, first=first, last=last)

    async def head(self, key: ObjectKey) -> HeadOutcome:
        """See `ObjectStore.head`."""
        self._count("head")
        return await self._inner.head(key)

    async def head_incarnation(self, key: ObjectKey, incarnation: ObjectVersion) -> HeadOutcome:
        """See `ObjectStore.head_incarnation`."""
        self._count("head")
        return await self._inner.head_incarnation(key, incarnation)

    async def delete(self, key: ObjectKey, incarnation: ObjectVersion) -> DeleteOutcome:
        """See `ObjectStore.delete`."""
        self._count("delete")
        return await self._inner.delete(key, incarnation)

    def list(
        self, prefix: str, *, start_after: str = "", end_at: str | None = None
    ) -> AsyncIterator[ListPage]:
        """See `ObjectStore.list`."""
        return self._pages(self._inner.list(prefix, start_after=start_after, end_at=end_at))

    def list_incarnations(
        self, prefix: str, *, start_after: str = "", end_at: str | None = None
    ) -> AsyncIterator[IncarnationPage]:
        """See `ObjectStore.list_incarnations`."""
        pages = self._inner.list_incarnations(prefix, start_after=start_after, end_at=end_at)
        return self._pages(pages)

    async def _pages(self, pages: AsyncIterator[_Page]) -> AsyncIterator[_Page]:
        async for page in pages:
            self._count("list")
            yield page

    async def read_versioning(self) -> Versioning:
        """See `ObjectStore.read_versioning`."""
        self._count("versioning")
        return await self._inner.read_versioning()


class _CountedBulkStore(CountedStore):
    """The same over a store that accepts requests for many objects."""

    def __init__(self, inner: ObjectStore, bulk: BulkStore, requests: Counter) -> None:
        super().__init__(inner, requests)
        self._bulk = bulk

    async def read_bodies(self, keys: Sequence[ObjectKey]) -> Sequence[bytes | None]:
        """See `BulkStore.read_bodies`."""
        self._count("get", len(keys))
        return await self._bulk.read_bodies(keys)

    async def get_all(self, keys: Sequence[ObjectKey]) -> Sequence[GetOutcome]:
        """See `BulkStore.get_all`."""
        self._count("get", len(keys))
        return await self._bulk.get_all(keys)

    async def head_all(self, keys: Sequence[ObjectKey]) -> Sequence[HeadOutcome]:
        """See `BulkStore.head_all`."""
        self._count("head", len(keys))
        return await self._bulk.head_all(keys)

    async def create_all(self, objects: Sequence[NewObject]) -> Sequence[CreateOutcome]:
        """See `BulkStore.create_all`."""
        self._count("create", len(objects))
        return await self._bulk.create_all(objects)


def count_requests(store: ObjectStore, requests: Counter) -> ObjectStore:
    """Return a store that counts its requests by operation."""
    if isinstance(store, BulkStore):
        return _CountedBulkStore(store, store, requests)
    return CountedStore(store, requests)
