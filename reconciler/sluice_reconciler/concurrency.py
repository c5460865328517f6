"""The bound on store requests in flight that all routes of one process share."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

from sluice_protocol.units import ObjectKey
from sluice_store.port import ListedObject, ObjectStore, read_bodies, run_together

_In = TypeVar("_In")
_Out = TypeVar("_Out")

READ_BYTES_MAX: Final = 16 << 20
"""Size of the objects that are read together; a larger one is read alone."""


class RequestLimit:
    """A bound on how many items are worked on concurrently."""

    def __init__(self, requests_max: int) -> None:
        self._gate = asyncio.Semaphore(requests_max)

    async def each(self, items: Iterable[_In], do: Callable[[_In], Awaitable[_Out]]) -> list[_Out]:
        """Call `do` for every item concurrently within the bound; return results in order.

        The first error cancels the other calls.
        """

        async def gated(item: _In) -> _Out:
            async with self._gate:
                return await do(item)

        return list(await run_together(*map(gated, items)))

    async def read(
        self,
        store: ObjectStore,
        prefix: str,
        wanted: Callable[[ObjectKey], bool] | None = None,
        *,
        start_after: str = "",
        end_at: str | None = None,
    ) -> AsyncIterator[list[tuple[ObjectKey, bytes]]]:
        """List a prefix and yield key and bytes of its objects, many at a time, in key order.

        An object that is deleted after it was listed is left out. By default all objects are read.
        """
        async for page in store.list(prefix, start_after=start_after, end_at=end_at):
            listed = [one for one in page.objects if wanted is None or wanted(one.key)]
            for keys in _read_together(listed):
                bodies = await read_bodies(store, keys)
                found = zip(keys, bodies, strict=True)
                yield [(key, body) for key, body in found if body is not None]


def _read_together(listed: Sequence[ListedObject]) -> Iterable[list[ObjectKey]]:
    """Divide listed objects so that the bodies of each part fit into memory."""
    keys, size_bytes = list[ObjectKey](), 0
    for one in listed:
        if keys and size_bytes + one.size_bytes > READ_BYTES_MAX:
            yield keys
            keys, size_bytes = [], 0
        keys.append(one.key)
        size_bytes += one.size_bytes
    if keys:
        yield keys
