"""The store as the gateway sees it: the same port, with every answer counted and its time kept."""

from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

from sluice_gateway.metrics import GatewayMetrics
from sluice_protocol.clock import Clock
from sluice_protocol.errors import StoreError
from sluice_protocol.outcomes import (
    CreateOutcome,
    DeleteOutcome,
    GetOutcome,
    HeadOutcome,
    OverwriteOutcome,
    ReplaceOutcome,
    Unknown,
)
from sluice_protocol.units import Digest, ETag, ObjectKey, ObjectVersion
from sluice_store.port import IncarnationPage, ListPage, ObjectStore, Versioning

_Answer = TypeVar("_Answer")


class ObservedStore:
    """Wraps a store; `answered_at_ns` is when it last answered anything, on the monotonic clock."""

    def __init__(self, inner: ObjectStore, metrics: GatewayMetrics, clock: Clock) -> None:
        """Takes the store that does the work."""
        self._inner = inner
        self._metrics = metrics
        self._clock = clock
        self.answered_at_ns = clock.monotonic_ns()
        self.healthy = True

    async def _watch(self, op: str, call: Awaitable[_Answer]) -> _Answer:
        started_ns = self._clock.monotonic_ns()
        result = "error"
        try:
            answer = await call
            result = type(answer).__name__.lower()
            self._note(healthy=not isinstance(answer, Unknown))
        except StoreError:
            self._note(healthy=False)
            raise
        finally:
            elapsed_s = (self._clock.monotonic_ns() - started_ns) / 1e9
            self._metrics.count(self._metrics.store_requests, op, result)
            self._metrics.observe(self._metrics.store_seconds, op, elapsed_s)
        return answer

    def _note(self, *, healthy: bool) -> None:
        self.healthy = healthy
        self.answered_at_ns = self._clock.monotonic_ns()

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        """See `ObjectStore.create`."""
        return await self._watch("create", self._inner.create(key, body, sha256=sha256))

    async def replace(self, key: ObjectKey, body: bytes, *, if_match: ETag) -> ReplaceOutcome:
        """See `ObjectStore.replace`."""
        return await self._watch("replace", self._inner.replace(key, body, if_match=if_match))

    async def overwrite(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> OverwriteOutcome:
        """See `ObjectStore.overwrite`."""
        return await self._watch("overwrite", self._inner.overwrite(key, body, sha256=sha256))

    async def get(self, key: ObjectKey, *, first: int = 0, last: int | None = None) -> GetOutcome:
        """See `ObjectStore.get`."""
        return await self._watch("get", self._inner.get(key, first=first, last=last))

    async def head(self, key: ObjectKey) -> HeadOutcome:
        """See `ObjectStore.head`."""
        return await self._watch("head", self._inner.head(key))

    async def head_incarnation(self, key: ObjectKey, incarnation: ObjectVersion) -> HeadOutcome:
        """See `ObjectStore.head_incarnation`."""
        return await self._watch("head", self._inner.head_incarnation(key, incarnation))

    async def delete(self, key: ObjectKey, incarnation: ObjectVersion) -> DeleteOutcome:
        """See `ObjectStore.delete`."""
        return await self._watch("delete", self._inner.delete(key, incarnation))

    def list(
        self, prefix: str, *, start_after: str = "", end_at: str | None = None
    ) -> AsyncIterator[ListPage]:
        """See `ObjectStore.list`."""
        return self._inner.list(prefix, start_after=start_after, end_at=end_at)

    def list_incarnations(
        self, prefix: str, *, start_after: str = "", end_at: str | None = None
    ) -> AsyncIterator[IncarnationPage]:
        """See `ObjectStore.list_incarnations`."""
        return self._inner.list_incarnations(prefix, start_after=start_after, end_at=end_at)

    async def read_versioning(self) -> Versioning:
        """See `ObjectStore.read_versioning`."""
        return await self._watch("versioning", self._inner.read_versioning())
