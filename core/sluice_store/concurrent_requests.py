"""Requests for many items, with a bound on how many are in flight."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

_Item = TypeVar("_Item")


async def run_concurrently(
    items: Iterable[_Item], work: Callable[[_Item], Awaitable[object]], *, concurrency: int
) -> None:
    """Await `work` for every item, at most `concurrency` items concurrently.

    The first failure cancels the other tasks and is raised. All tasks have ended on return.
    """
    pending = iter(items)

    async def worker() -> None:
        for item in pending:
            await work(item)

    workers = [asyncio.create_task(worker()) for _ in range(concurrency)]
    try:
        await asyncio.gather(*workers)
    finally:
        for one in workers:
            one.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
