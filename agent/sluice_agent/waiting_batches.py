"""The batches of the spool that no worker has taken yet."""

import asyncio
from collections import deque
from collections.abc import Iterable

from sluice_agent.spool import SpooledBatch


class WaitingBatches:
    """The batches that no worker has taken, in the order of sealing."""

    def __init__(self) -> None:
        self._batches: deque[SpooledBatch] = deque()
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, batch: SpooledBatch) -> None:
        """Add a batch at the end."""
        self._batches.append(batch)
        self._filled.set()

    def put_back(self, batches: Iterable[SpooledBatch]) -> None:
        """Add batches that were taken before, at their places."""
        if taken := list(batches):
            ordered = sorted([*self._batches, *taken], key=lambda one: one.header.order)
            self._batches = deque(ordered)
            self._filled.set()

    async def wait(self) -> None:
        """Return once there is a batch."""
        while not self._batches:
            self._filled.clear()
            await self._filled.wait()

    def take(self, *, newest: bool = False) -> SpooledBatch:
        """Remove and return the oldest batch, or the newest one."""
        return self._batches.pop() if newest else self._batches.popleft()
