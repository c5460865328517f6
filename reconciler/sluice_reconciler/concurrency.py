"""The bound on store requests in flight that all routes of one process share."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Final, TypeVar

_In = TypeVar("_In")
_Out = TypeVar("_Out")

SPAN_MIN: Final = 8
"""Items in one span, at least: a smaller one costs more than it gains by concurrency."""


class RequestLimit:
    """A bound on how many items are worked on concurrently."""

    def __init__(self, requests_max: int) -> None:
        self._gate = asyncio.Semaphore(requests_max)
        self._requests_max = requests_max

    async def each(self, items: Iterable[_In], do: Callable[[_In], Awaitable[_Out]]) -> list[_Out]:
        """Call `do` for every item concurrently within the bound; return results in order.

        Raises:
            StoreError: As `do`; the other calls are cancelled.
            OutcomeUnknown: As `do`; the other calls are cancelled.
        """

        async def gated(item: _In) -> _Out:
            async with self._gate:
                return await do(item)

        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(gated(item)) for item in items]
        except BaseExceptionGroup as group:
            raise _first(group) from group
        return [task.result() for task in running]

    async def in_spans(
        self, items: Sequence[_In], do: Callable[[Sequence[_In]], Awaitable[list[_Out]]]
    ) -> list[_Out]:
        """Call `do` for as many spans of the items as may be in flight; return results in order.

        Raises:
            StoreError: As `each`.
            OutcomeUnknown: As `each`.
        """
        size = max(SPAN_MIN, -(-len(items) // self._requests_max))
        spans = [items[first : first + size] for first in range(0, len(items), size)]
        return [one for done in await self.each(spans, do) for one in done]


async def run_all(works: Iterable[Coroutine[object, object, None]]) -> None:
    """Run several coroutines concurrently; the first error cancels the others.

    Raises:
        StoreError: As what it runs.
        OutcomeUnknown: As what it runs.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            for work in works:
                tasks.create_task(work)
    except BaseExceptionGroup as group:
        raise _first(group) from group


def _first(group: BaseExceptionGroup) -> BaseException:
    """Return one error of a group: all of them report the same about the store."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
