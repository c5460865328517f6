"""A store over another one that reports the end of each call, for counts and times."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from sluice_protocol.clock import Clock
from sluice_protocol.errors import StoreError
from sluice_protocol.outcomes import (
    CreateOutcome,
    DeleteOutcome,
    GetOutcome,
    HeadOutcome,
    OverwriteOutcome,
    ReplaceOutcome,
)
from sluice_protocol.units import Digest, ETag, ObjectKey, ObjectVersion
from sluice_store.port import IncarnationPage, ListPage, NewObject, ObjectStore, Versioning

_Result = TypeVar("_Result")
_In = TypeVar("_In")


class WrappedStore(ObjectStore):
    """The port over another store. A subclass defines `ended`."""

    def __init__(self, inner: ObjectStore, clock: Clock) -> None:
        self._inner = inner
        self._clock = clock

    def ended(self, op: str, outcome: object, size_bytes: int, started_ns: int) -> None:
        """Record a call that ended; a call for many objects counts once for each.

        Both kinds of HEAD are `head`, and each page of a listing is a `list`. `outcome` is the
        result or the exception. `started_ns` is monotonic; for a page, at its end.
        """
        raise NotImplementedError

    async def _call(self, op: str, call: Awaitable[_Result], size_bytes: int = 0) -> _Result:
        started_ns = self._clock.monotonic_ns()
        try:
            outcome = await call
        except BaseException as error:
            self.ended(op, error, size_bytes, started_ns)
            raise
        self.ended(op, outcome, size_bytes, started_ns)
        return outcome

    async def _call_many(
        self,
        op: str,
        items: Sequence[_In],
        verb: Callable[[Sequence[_In]], Awaitable[list[_Result]]],
        size_of: Callable[[_In], int] = lambda _: 0,
    ) -> list[_Result]:
        started_ns = self._clock.monotonic_ns()
        outcomes = await verb(items)
        for item, outcome in zip(items, outcomes, strict=True):
            self.ended(op, outcome, size_of(item), started_ns)
        return outcomes

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        """See `ObjectStore.create`."""
        return await self._call("create", self._inner.create(key, body, sha256=sha256), len(body))

    async def replace(self, key: ObjectKey, body: bytes, *, if_match: ETag) -> ReplaceOutcome:
        """See `ObjectStore.replace`."""
        call = self._inner.replace(key, body, if_match=if_match)
        return await self._call("replace", call, len(body))

    async def overwrite(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> OverwriteOutcome:
        """See `ObjectStore.overwrite`."""
        call = self._inner.overwrite(key, body, sha256=sha256)
        return await self._call("overwrite", call, len(body))

    async def get(self, key: ObjectKey, *, first: int = 0, last: int | None = None) -> GetOutcome:
        """See `ObjectStore.get`."""
        return await self._call("get", self._inner.get(key, first=first, last=last))

    async def head(self, key: ObjectKey) -> HeadOutcome:
        """See `ObjectStore.head`."""
        return await self._call("head", self._inner.head(key))

    async def head_incarnation(self, key: ObjectKey, incarnation: ObjectVersion) -> HeadOutcome:
        """See `ObjectStore.head_incarnation`."""
        return await self._call("head", self._inner.head_incarnation(key, incarnation))

    async def create_many(self, objects: Sequence[NewObject]) -> list[CreateOutcome | StoreError]:
        """See `ObjectStore.create_many`."""
        return await self._call_many(
            "create", objects, self._inner.create_many, lambda one: len(one.body)
        )

    async def get_many(self, keys: Sequence[ObjectKey]) -> list[GetOutcome | StoreError]:
        """See `ObjectStore.get_many`."""
        return await self._call_many("get", keys, self._inner.get_many)

    async def head_many(self, keys: Sequence[ObjectKey]) -> list[HeadOutcome | StoreError]:
        """See `ObjectStore.head_many`."""
        return await self._call_many("head", keys, self._inner.head_many)

    async def delete(self, key: ObjectKey, incarnation: ObjectVersion) -> DeleteOutcome:
        """See `ObjectStore.delete`."""
        return await self._call("delete", self._inner.delete(key, incarnation))

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

    async def _pages(self, pages: AsyncIterator[_Result]) -> AsyncIterator[_Result]:
        """Report each page as a call: a store charges for it."""
        try:
            async for page in pages:
                self.ended("list", page, 0, self._clock.monotonic_ns())
                yield page
        except StoreError as error:
            self.ended("list", error, 0, self._clock.monotonic_ns())
            raise

    async def read_versioning(self) -> Versioning:
        """See `ObjectStore.read_versioning`."""
        return await self._call("versioning", self._inner.read_versioning())
