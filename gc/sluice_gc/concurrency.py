"""Does the same work for many items, some at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

_Item = TypeVar("_Item")


async def for_each(
    items: Iterable[_Item], work: Callable[[_Item], Awaitable[None]], *, at_once: int
) -> None:
    """Awaits `work` for every item, at most `at_once` at a time.

    The first failure cancels what is under way and is raised; no task is left behind.
    """
    pending = iter(items)

    async def worker() -> None:
        for item in pending:
            await work(item)

    workers = [asyncio.create_task(worker()) for _ in range(at_once)]
    try:
        await asyncio.gather(*workers)
    finally:
        for one in workers:
            one.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
