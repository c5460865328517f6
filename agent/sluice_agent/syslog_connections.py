"""Connections of syslog: at most a maximum number is open at a time.

Further ones wait in the queue of the kernel (`BoundedAccepts`). To accept and close one would lose
what its sender has written without a sign: plain TCP has no acknowledgements.

Source: ADR 21.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from sluice_agent.listen_settings import SyslogAddress
from sluice_agent.metrics import AgentMetrics
from sluice_protocol.clock import Clock
from sluice_web.bounded_accepts import BoundedAccepts
from sluice_web.open_files import port_connections_max

READ_BYTES: Final = 64 * 1024
CONNECTIONS_MAX: Final = 1024
"""Each may have a message of the maximum size and twice `READ_BYTES` in memory."""
HANDSHAKE_S: Final = 10.0
LAST_S: Final = 0.2
"""Time to receive what senders wrote before the agent was stopped."""

log = structlog.get_logger("sluice.agent.syslog")

ConnectionHandler = Callable[[str, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Reads a connection to its end; the first argument is the transport."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamListener:
    """A bound socket whose connections are accepted.

    Attributes:
        address: What it is bound to.
        sock: The socket.
        tls: The TLS context, or None for plain TCP.
    """

    address: SyslogAddress
    sock: socket.socket
    tls: ssl.SSLContext | None


class _ReceivedBytes(asyncio.StreamReader):
    """The bytes of a connection, also those that were received before it failed.

    With an error set, `asyncio.StreamReader.read` raises it and drops the bytes that it still has.
    """

    def set_exception(self, exc: Exception) -> None:
        """End the stream behind the bytes that were received: a reset is an end as well."""
        del exc
        self.feed_eof()


class SyslogConnections:
    """Accepts connections and has each of them read."""

    def __init__(
        self,
        handle: ConnectionHandler,
        *,
        clock: Clock,
        metrics: AgentMetrics,
        may_warn: Callable[[str], bool],
    ) -> None:
        """Create it without a connection.

        Args:
            handle: Reads a connection to its end.
            clock: Waits before a retry.
            metrics: Has the number of connections.
            may_warn: Returns whether to log a warning about a subject now.
        """
        self._handle = handle
        self._clock = clock
        self._metrics = metrics
        self._may_warn = may_warn
        self._accepts = BoundedAccepts(
            port_connections_max(CONNECTIONS_MAX),
            clock=clock,
            on_full=self._warn_full,
            on_failed=self._warn_failed,
        )
        self._addresses: dict[socket.socket, SyslogAddress] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def run(self, listeners: Sequence[StreamListener], stop: asyncio.Event) -> None:
        """Accept connections until `stop`, then read what each of them has received."""
        async with asyncio.TaskGroup() as group:
            accepting = []
            for one in listeners:
                self._addresses[one.sock] = one.address
                serve = partial(self._serve, one)
                accepting.append(group.create_task(self._accepts.run(one.sock, serve, group)))
            await stop.wait()
            await self._clock.sleep(LAST_S)
            for task in accepting:
                task.cancel()
            await asyncio.gather(*accepting, return_exceptions=True)
            for task in self._opening:
                task.cancel()
            for writer in self._writers:
                writer.close()  # its reader ends after what was received

    def _warn_full(self, sock: socket.socket) -> None:
        if self._may_warn("connections"):
            log.warning(
                "syslog_connections_full",
                address=str(self._addresses[sock]),
                connections=self._accepts.connections_max,
            )

    def _warn_failed(self, error: OSError) -> None:
        if self._may_warn("accept"):
            log.warning("syslog_accept_failed", reason=os.strerror(error.errno or 0))

    async def _serve(self, listener: StreamListener, connection: socket.socket) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._opening.add(task)
        try:
            reader, writer = await _open_streams(connection, listener.tls)
        except OSError:  # the TLS handshake failed or took too long
            return
        finally:
            if task is not None:
                self._opening.discard(task)
        self._writers.add(writer)
        self._metrics.syslog_connections.set(len(self._writers))
        try:
            await self._handle(listener.address.transport, reader, writer)
        finally:
            self._writers.discard(writer)
            self._metrics.syslog_connections.set(len(self._writers))
            writer.close()


async def _open_streams(
    connection: socket.socket, tls: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return the streams of an accepted connection, after the handshake of TLS.

    Raises:
        OSError: The connection or the handshake failed; the connection is closed.
    """
    loop = asyncio.get_running_loop()
    reader = _ReceivedBytes(limit=READ_BYTES)
    transport, protocol = await loop.connect_accepted_socket(
        lambda: asyncio.StreamReaderProtocol(reader),
        connection,
        ssl=tls,
        ssl_handshake_timeout=None if tls is None else HANDSHAKE_S,
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
