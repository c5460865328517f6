"""One connection as a stream of messages: limits of memory and time, and back pressure.

Bytes are read ahead up to a limit while a message is accepted; then the socket is not read until
the server continues, and TCP stops the client. A message that is not complete has to arrive at a
minimum rate, and its bytes are counted in the budget of bodies.
"""

import asyncio
from collections import deque
from contextlib import ExitStack
from typing import Final, cast

from sluice_doors.acceptance import MemoryBudget
from sluice_doors.forward.messages import MessageSplitter, read_message
from sluice_protocol.errors import ErrorCode, TooLarge
from sluice_web.connection_guard import BodyPace, ConnectionGuard, ConnectionLimits
from sluice_web.problems import HttpRefusal

READ_AHEAD_BYTES: Final = 1024 * 1024
"""Complete messages beyond this wait in the socket. Messages without a name are accepted together
up to this size.
"""
GROUP_MESSAGES_MAX: Final = 1000
"""Messages without a name that are accepted together."""
FREE_BYTES: Final = 64 * 1024
"""Incomplete messages up to this size are not counted in the budget."""

Chunk = str | bytes


class ForwardStream(asyncio.Protocol):
    """The messages of a connection, and the responses to them."""

    def __init__(self, message_bytes_max: int, budget: MemoryBudget, pace: BodyPace) -> None:
        """Start without a connection; `guarded` makes the protocol that a server needs."""
        self._splitter = MessageSplitter(message_bytes_max)
        self._budget = budget
        self._pace = pace
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._guard: ConnectionGuard | None = None
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._queue: deque[tuple[bytes, Chunk | None]] = deque()
        self._reserved = ExitStack()
        self._reserved_bytes = 0
        self._partial_since_s = 0.0
        self._paused = False
        self._waiting = False
        self._busy = False
        self.failure: Exception | None = None
        self.message_bytes_max = message_bytes_max
        self.ended = False
        self.connected = asyncio.Event()
        self.peer = ""
        self.certificate: dict[str, object] | None = None

    def guarded(self, limits: ConnectionLimits) -> ConnectionGuard:
        """Return this protocol behind the limits of connections."""
        self._guard = ConnectionGuard(self, limits)
        return self._guard

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note who connected."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        self.certificate = transport.get_extra_info("peercert")
        self.connected.set()

    def data_received(self, data: bytes) -> None:
        """Keep bytes; stop reading where enough wait."""
        self._splitter.feed(data)
        self._arrived.set()
        if not self._waiting and self._splitter.pending_bytes >= READ_AHEAD_BYTES:
            self._pause()

    def eof_received(self) -> bool | None:
        """End the stream after the bytes that have arrived."""
        self._end()
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """End the stream; what has arrived is still accepted."""
        del exc
        self._transport = None
        self._writable.set()
        self._end()

    def pause_writing(self) -> None:
        """Stop writing until the client reads."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Continue writing."""
        self._writable.set()

    def close(self) -> None:
        """Close the connection after what was written, and release the budget."""
        if self._transport is not None:
            self._transport.close()
        self._reserved.close()

    def end(self) -> None:
        """End the stream after the bytes that have arrived, and read no more."""
        self._pause()
        self._end()

    def set_busy(self, *, busy: bool) -> None:
        """Note whether messages are being accepted: until their end the connection is not idle."""
        self._busy = busy
        if not busy and self._waiting and not self._splitter.pending_bytes:
            self._idle()

    def fail(self, error: Exception) -> None:
        """Make `next_group` raise an error; the first one counts."""
        if self.failure is None:
            self.failure = error
        self._arrived.set()

    async def write(self, data: bytes) -> None:
        """Send a response; raise `TimeoutError` if the client does not read."""
        async with asyncio.timeout(self._pace.grace_s):
            await self._writable.wait()
        if self._transport is not None:
            self._transport.write(data)

    async def next_group(self) -> tuple[list[bytes], Chunk | None] | None:
        """Return messages to accept together, and the name of the only one.

        A message with a name is returned alone; so is a message that would make the group too
        large. None is returned at the end of the stream.
        """
        self._check()
        if not self._queue and not await self._fill():
            return None
        self._begin()
        message, chunk = self._queue.popleft()
        group, size = [message], len(message)
        while chunk is None and self._queue and len(group) < GROUP_MESSAGES_MAX:
            message, name = self._queue[0]
            size += len(message)
            if name is not None or size > min(READ_AHEAD_BYTES, self.message_bytes_max):
                break
            group.append(message)
            self._queue.popleft()
        return group, chunk

    async def _fill(self) -> bool:
        """Wait for a complete message; return False at the end."""
        self._partial_since_s = self._loop.time()
        while True:
            found = self._splitter.take()
            for message in found:
                parts = read_message(message)
                self._queue.append((message, parts.chunk if parts is not None else None))
            if found:
                self._release()
                return True
            if self.ended:
                return False
            await self._wait()
            self._check()

    async def _wait(self) -> None:
        """Wait for bytes: inside a message at the pace of a body, else for the idle time."""
        pending_bytes = self._splitter.pending_bytes
        self._waiting = True
        self._resume()
        limit: float | None = None
        if pending_bytes > self.message_bytes_max:
            raise TooLarge("message", pending_bytes, self.message_bytes_max)
        if pending_bytes:
            self._reserve(pending_bytes)
            allowed_s = self._pace.grace_s + pending_bytes / self._pace.rate_min
            limit = self._partial_since_s + allowed_s
        elif not self._busy:
            self._idle()
        try:
            async with asyncio.timeout_at(limit):
                await self._arrived.wait()
        except TimeoutError as error:
            raise HttpRefusal(ErrorCode.OVERLOADED, "a message arrived too slowly") from error
        finally:
            self._waiting = False
        self._arrived.clear()
        if not pending_bytes:
            self._partial_since_s = self._loop.time()
        self._begin()

    def _begin(self) -> None:
        if self._guard is not None and self._transport is not None:
            self._guard.begin()

    def _idle(self) -> None:
        if self._guard is not None:
            self._guard.end()

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _reserve(self, size_bytes: int) -> None:
        """Count the bytes of an incomplete message, in steps that double."""
        if size_bytes <= max(self._reserved_bytes, FREE_BYTES):
            return
        wanted = 1 << size_bytes.bit_length()
        self._reserved.enter_context(self._budget.take(wanted - self._reserved_bytes))
        self._reserved_bytes = wanted

    def _release(self) -> None:
        self._reserved.close()
        self._reserved_bytes = 0

    def _pause(self) -> None:
        if self._transport is not None and not self._paused:
            self._transport.pause_reading()
            self._paused = True

    def _resume(self) -> None:
        if self._transport is not None and self._paused:
            self._transport.resume_reading()
            self._paused = False

    def _end(self) -> None:
        self.ended = True
        self._arrived.set()
