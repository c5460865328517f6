"""The chunks of one connection that are being accepted at the same time.

Their number and size are limited; beyond the limits the stream is not read, and TCP stops the
client. The first error ends the stream: no further message is read, the other chunks are still
accepted and acknowledged.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from sluice_door_ports.forward_stream import READ_AHEAD_BYTES, ForwardStream

CHUNKS_MAX: Final = 16
"""Chunks of a connection that are accepted at the same time."""


class RunningChunks:
    """Runs the acceptance of chunks until the block ends, and then waits for all of them."""

    def __init__(self, stream: ForwardStream) -> None:
        self._stream = stream
        self._tasks: set[asyncio.Task[None]] = set()
        self._bytes = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for the chunks; cancel them if the block was cancelled."""
        if isinstance(error, asyncio.CancelledError):
            await self._cancel()
        elif error is None:
            await self.finish()
        else:
            with suppress(Exception):  # the error of the block is raised
                await self.finish()

    async def room(self) -> None:
        """Wait until another chunk may start."""
        while len(self._tasks) >= CHUNKS_MAX or self._bytes >= READ_AHEAD_BYTES:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    def start(self, accept: Callable[[], Awaitable[None]], size_bytes: int) -> None:
        """Start to accept a chunk."""
        self._bytes += size_bytes
        self._stream.set_busy(busy=True)
        task = asyncio.create_task(self._run(accept))
        self._tasks.add(task)

        def end(ended: asyncio.Task[None]) -> None:
            self._tasks.discard(ended)
            self._bytes -= size_bytes
            if not self._tasks:
                self._stream.set_busy(busy=False)

        task.add_done_callback(end)

    async def finish(self) -> None:
        """Wait until every chunk has ended.

        Raises:
            Exception: One of them was not accepted.
        """
        try:
            while self._tasks:
                await asyncio.wait(self._tasks)
        except asyncio.CancelledError:
            await self._cancel()
            raise
        if self._stream.failure is not None:
            raise self._stream.failure

    async def _run(self, accept: Callable[[], Awaitable[None]]) -> None:
        try:
            await accept()
        except Exception as error:  # noqa: BLE001 - raised where the stream is read
            self._stream.fail(error)

    async def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
