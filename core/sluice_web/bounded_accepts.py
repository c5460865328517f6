"""Connections of listening sockets, at most a maximum number of them at a time.

While that many are open, no further one is accepted. It waits in the queue of the kernel, in the
order of arrival and with what its client has written, and flow control stops the client. Closing it
would lose what clients that never repeat have written.

Source: listen(2) and tcp(7) on the queue of established connections.
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Final

from sluice_protocol.clock import Clock
from sluice_web.listening import BACKLOG

ACCEPT_RETRY_S: Final = 1.0
"""Time until the next attempt if the system has no file descriptor or memory for a connection."""
PLACE_RETRY_S: Final = 0.25
"""Time between two calls of `on_full` while a client waits."""

ServeConnection = Callable[[socket.socket], Coroutine[None, None, None]]
"""Serves an accepted connection to its end."""


class BoundedAccepts:
    """The open connections of one or several sockets."""

    def __init__(
        self,
        connections_max: int,
        *,
        clock: Clock,
        on_full: Callable[[socket.socket], None],
        on_failed: Callable[[OSError], None],
    ) -> None:
        """Create it without a connection.

        `connections_max` includes handshakes of TLS. `on_full` is called with a socket while a
        client waits for a place.
        """
        self.connections_max = connections_max
        self._clock = clock
        self._on_full = on_full
        self._on_failed = on_failed
        self._free = asyncio.Semaphore(connections_max)
        self._waiting = 0
        self._open: set[asyncio.Task[None]] = set()

    async def run(
        self, sock: socket.socket, serve: ServeConnection, group: asyncio.TaskGroup
    ) -> None:
        """Accept connections of a bound socket until the task is cancelled.

        The end of `serve` frees the place.
        """
        sock.listen(BACKLOG)
        while True:
            await _readable(sock)
            await self._place(sock)
            self._start(serve(await self._next_connection(sock)), group)

    def is_waited_for(self) -> bool:
        """Return whether a client waits for a place."""
        return self._waiting > 0

    def cancel(self) -> None:
        """Stop serving the connections that are open."""
        for task in self._open:
            task.cancel()

    async def _place(self, sock: socket.socket) -> None:
        if not self._free.locked():
            await self._free.acquire()
            return
        self._waiting += 1
        taking = asyncio.ensure_future(self._free.acquire())
        try:
            while not taking.done():
                self._on_full(sock)
                await asyncio.wait((taking,), timeout=PLACE_RETRY_S)
        except asyncio.CancelledError:
            taking.cancel()
            raise
        finally:
            self._waiting -= 1

    def _start(self, serving: Coroutine[None, None, None], group: asyncio.TaskGroup) -> None:
        task = group.create_task(serving)
        self._open.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        self._free.release()

    async def _next_connection(self, sock: socket.socket) -> socket.socket:
        while True:
            try:
                connection, _ = await asyncio.get_running_loop().sock_accept(sock)
            except ConnectionError:  # its client has reset it
                continue
            except OSError as error:
                self._on_failed(error)
                await self._clock.sleep(ACCEPT_RETRY_S)
            else:
                return connection


async def _readable(sock: socket.socket) -> None:
    """Return when a client has connected: a place is not taken before."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    loop.add_reader(sock, _resolve, readable)
    try:
        await readable
    finally:
        loop.remove_reader(sock)


def _resolve(readable: "asyncio.Future[None]") -> None:
    if not readable.done():
        readable.set_result(None)
