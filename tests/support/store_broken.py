"""Stores that each break one promise, for tests of the doctor."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from support.memory_bucket import open_memory_store

from sluice_protocol.outcomes import (
    Applied,
    CreateOutcome,
    DeleteOutcome,
    Exists,
    GetOutcome,
    HeadOutcome,
    Mismatch,
    NotFound,
    ObjectInfo,
    OverwriteOutcome,
    ReplaceOutcome,
)
from sluice_protocol.units import Digest, ETag, ObjectKey, ObjectVersion, UnixNs
from sluice_store.port import IncarnationPage, ListPage, ObjectStore, Versioning
from sluice_store.s3.store import S3Store


class Honest(ObjectStore):
    """A store that forwards every call; the broken stores below change one verb each."""

    def __init__(self) -> None:
        self.inner: S3Store
        self.inner, self.transport = open_memory_store()

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        return await self.inner.create(key, body, sha256=sha256)

    async def replace(self, key: ObjectKey, body: bytes, *, if_match: ETag) -> ReplaceOutcome:
        return await self.inner.replace(key, body, if_match=if_match)

    async def overwrite(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> OverwriteOutcome:
        return await self.inner.overwrite(key, body, sha256=sha256)

    async def get(self, key: ObjectKey, *, first: int = 0, last: int | None = None) -> GetOutcome:
        return await self.inner.get(key, first=first, last=last)

    async def head(self, key: ObjectKey) -> HeadOutcome:
        return await self.inner.head(key)

    async def head_incarnation(self, key: ObjectKey, incarnation: ObjectVersion) -> HeadOutcome:
        return await self.inner.head_incarnation(key, incarnation)

    async def delete(self, key: ObjectKey, incarnation: ObjectVersion) -> DeleteOutcome:
        return await self.inner.delete(key, incarnation)

    async def delete_current(self, key: ObjectKey) -> DeleteOutcome:
        return await self.inner.delete_current(key)

    def list(
        self, prefix: str, *, start_after: str = "", end_at: str | None = None
    ) -> AsyncIterator[ListPage]:
        return self.inner.list(prefix, start_after=start_after, end_at=end_at)

    def list_incarnations(
        self, prefix: str, *, start_after: str = "", end_at: str | None = None
    ) -> AsyncIterator[IncarnationPage]:
        return self.inner.list_incarnations(prefix, start_after=start_after, end_at=end_at)

    async def read_versioning(self) -> Versioning:
        return await self.inner.read_versioning()


class IgnoresIfNoneMatch(Honest):
    """A create overwrites."""

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        return await self.inner.overwrite(key, body, sha256=sha256)


class IgnoresIfMatch(Honest):
    """A replace overwrites."""

    async def replace(self, key: ObjectKey, body: bytes, *, if_match: ETag) -> ReplaceOutcome:
        return await self.inner.overwrite(key, body)


class CreateNotAtomic(Honest):
    """Reads and then writes, as versions of SeaweedFS, RustFS and versitygw did."""

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        seen = await self.inner.head(key)
        if isinstance(seen, ObjectInfo):
            return Exists(date_ns=seen.date_ns)
        return await self.inner.overwrite(key, body, sha256=sha256)


class ReplaceNotAtomic(Honest):
    """Reads and then writes."""

    async def replace(self, key: ObjectKey, body: bytes, *, if_match: ETag) -> ReplaceOutcome:
        seen = await self.inner.head(key)
        if isinstance(seen, NotFound) or seen.etag != if_match:
            return Mismatch(date_ns=seen.date_ns)
        return await self.inner.overwrite(key, body)


class StaleList(Honest):
    """Lists what existed at its third last listing."""

    def __init__(self) -> None:
        super().__init__()
        self.known: list[ListPage] = []

    async def _stale(self, page: ListPage) -> ListPage:
        self.known.append(replace(page, last=True))
        return self.known[max(0, len(self.known) - 2)]

    async def list(
        self, prefix: str, *, start_after: str = "", end_at: str | None = None
    ) -> AsyncIterator[ListPage]:
        async for page in self.inner.list(prefix, start_after=start_after, end_at=end_at):
            yield await self._stale(page)


class IgnoresChecksum(Honest):
    """Stores a body without comparing its checksum."""

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        return await self.inner.create(key, body)


class TwoClocks(Honest):
    """Its Last-Modified and its Date come from two clocks."""

    async def head(self, key: ObjectKey) -> HeadOutcome:
        seen = await self.inner.head(key)
        if isinstance(seen, NotFound):
            return seen
        return replace(seen, last_modified_ns=UnixNs(seen.last_modified_ns - 60 * 10**9))


class SuspendedVersioning(Honest):
    """Keeps no versions: a delete of `null` removes any object."""

    def __init__(self) -> None:
        super().__init__()
        self.transport.bucket.versioning = Versioning.SUSPENDED


class DeletesCurrent(Honest):
    """A delete of an object version removes the current one."""

    async def delete(self, key: ObjectKey, incarnation: ObjectVersion) -> DeleteOutcome:
        seen = await self.inner.head(key)
        if isinstance(seen, ObjectInfo) and seen.incarnation is not None:
            incarnation = seen.incarnation
        return await self.inner.delete(key, incarnation)


class NoChecksumInHead(Honest):
    """A HEAD reports no checksum."""

    async def head(self, key: ObjectKey) -> HeadOutcome:
        seen = await self.inner.head(key)
        return seen if isinstance(seen, NotFound) else replace(seen, sha256=None)


class MarkerBlocksCreate(Honest):
    """A create over a delete marker is refused, as versitygw 1.8.0 does."""

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        async for page in self.inner.list_incarnations(key):
            if any(row.marker for row in page.incarnations):
                return Exists(date_ns=page.date_ns)
        return await self.inner.create(key, body, sha256=sha256)


class DelayedReads(Honest):
    """A read shows a write only some time after it was acknowledged."""

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        seen = await self.inner.head(key)
        if isinstance(seen, ObjectInfo):
            return Exists(date_ns=seen.date_ns)
        self.late = asyncio.get_running_loop().call_later(
            0.05, lambda: self.transport.bucket.put(key, body, {})
        )
        return Applied(etag=ETag('"late"'), incarnation=ObjectVersion("late"), date_ns=seen.date_ns)


BROKEN: dict[str, tuple[Callable[[], Honest], set[str]]] = {
    "ignores If-None-Match": (IgnoresIfNoneMatch, {"race-create", "create-once"}),
    "ignores If-Match": (IgnoresIfMatch, {"race-replace", "stale-replace"}),
    "create not atomic": (CreateNotAtomic, {"race-create"}),
    "replace not atomic": (ReplaceNotAtomic, {"race-replace"}),
    "stale list": (StaleList, {"read-after-write"}),
    "ignores checksums": (IgnoresChecksum, {"checksum"}),
    "clock astray": (TwoClocks, {"clock"}),
    "versioning suspended": (SuspendedVersioning, {"versioning", "delete-incarnation"}),
    "deletes the current one": (DeletesCurrent, {"delete-incarnation", "delete-then-create"}),
    "no checksum in HEAD": (NoChecksumInHead, {"head-checksum"}),
    "marker blocks create": (MarkerBlocksCreate, {"marker-create"}),
    "slow to show": (DelayedReads, {"read-after-write"}),
}
"""Each broken store and the probes that must fail, possibly with others that follow."""
