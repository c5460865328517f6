"""A bound on the bytes in flight, first come first served."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ByteGate:
    """Lets bodies pass while their sum stays under a bound; one larger body passes alone."""

    def __init__(self, limit_bytes: int) -> None:
        """Starts empty."""
        self._limit = limit_bytes
        self._held = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def held(self, size_bytes: int) -> AsyncIterator[None]:
        """Waits for room, and gives it back at the end."""
        size = min(size_bytes, self._limit)
        await self._take(size)
        try:
            yield
        finally:
            self._held -= size
            self._wake()

    async def _take(self, size: int) -> None:
        if not self._waiting and self._held + size <= self._limit:
            self._held += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._held -= size  # the room was given in the same moment
            self._wake()
            raise

    def _wake(self) -> None:
        while self._waiting:
            size, turn = self._waiting[0]
            if not turn.done() and self._held + size > self._limit:
                return
            self._waiting.popleft()
            if not turn.done():
                self._held += size
                turn.set_result(None)
