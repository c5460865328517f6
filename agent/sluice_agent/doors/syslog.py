"""The input of syslog: TCP, TLS and UDP sockets, messages to the batcher.

Syslog has no responses, so nothing is promised for what a sender has written and this agent has not
sealed yet. While the spool is full, no socket is read: TCP senders are stopped by flow control, and
the kernel drops and counts datagrams. While the maximum number of connections is open, further
ones are queued by the kernel: to accept and close one would silently lose data, because plain TCP
has no acknowledgements (ADR 21). An address is bound by one process only, so that a second agent
fails to start and does not receive a part of the messages.

Source: RFC 5425 (TLS), RFC 5426 (UDP), RFC 6587 (TCP); socket(7), SO_RXQ_OVFL.
"""

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from sluice_agent.metrics import AgentMetrics
from sluice_agent.settings import SyslogAddress, SyslogSettings
from sluice_agent.spool.batching import Batcher, RecordBlock, cost_bytes
from sluice_doors.syslog import PEER, SyslogFrames, SyslogPiece, cut_pieces, decode_syslog
from sluice_protocol.clock import Clock
from sluice_protocol.errors import BadUsage
from sluice_web.addresses import plain_address
from sluice_web.listening import BoundedAccepts, TlsFiles, server_tls
from sluice_web.process_limits import port_connections_max
from sluice_web.rare_warnings import RareWarnings

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
    """A bound socket whose connections are accepted."""

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

    Close the connection if it fails.
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


SUBJECT: Final = "tls.client.subject"
DATAGRAMS_MAX: Final = 512
"""Datagrams that are decoded together."""
DATAGRAM_BYTES_MAX: Final = 65_535
RECEIVE_BUFFER_BYTES: Final = 8 * 1024 * 1024
"""Requested; the kernel limits it to `net.core.rmem_max`."""
DRAIN_S: Final = 2.0
"""Time for a sender to close a connection whose messages cannot be separated any more."""
_SO_RXQ_OVFL: Final = 40
"""Linux: each message has the number of datagrams that this socket has dropped; not in `socket`."""
_COUNTER: Final = struct.Struct("I")
_WRAP: Final = 1 << 32


class SyslogInput:
    """Receives messages on bound sockets."""

    def __init__(
        self,
        settings: SyslogSettings,
        sockets: Sequence[tuple[SyslogAddress, socket.socket]],
        *,
        batcher: Batcher,
        metrics: AgentMetrics,
        clock: Clock,
    ) -> None:
        self.sockets = sockets
        self._settings = settings
        self._batcher = batcher
        self._metrics = metrics
        self._clock = clock
        self._may_warn = RareWarnings(clock).may_warn

    async def run(self, stop: asyncio.Event) -> None:
        """Receive until `stop`, then pass on what was received."""
        connections = SyslogConnections(
            self._connection,
            clock=self._clock,
            metrics=self._metrics,
            may_warn=self._may_warn,
        )
        listeners = []
        async with asyncio.TaskGroup() as group:
            for address, sock in self.sockets:
                if address.transport == "udp":
                    group.create_task(self._datagrams(sock, stop))
                else:
                    tls = _tls(address)
                    listeners.append(StreamListener(address=address, sock=sock, tls=tls))
            await connections.run(listeners, stop)

    # -- connections -------------------------------------------------------------------------

    async def _connection(
        self, transport: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        source = _source_of(writer)
        frames = SyslogFrames(source, bytes_max=self._settings.message_bytes_max)
        while not frames.broken and (data := await reader.read(READ_BYTES)):
            await self._put(transport, frames.feed(data))
        if frames.broken:
            if self._may_warn("framing"):
                log.warning("syslog_framing_broken", peer=source[PEER])
            await self._drain(transport, reader, writer, frames)
        await self._put(transport, frames.end())

    async def _drain(
        self,
        transport: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        frames: SyslogFrames,
    ) -> None:
        """Make a sender connect again, and receive what it has sent before.

        Closing a connection with unread bytes resets it, and the sender does not repeat them.
        """
        if writer.can_write_eof():
            writer.write_eof()
        end_s = asyncio.get_running_loop().time() + DRAIN_S
        with contextlib.suppress(TimeoutError):
            while True:
                async with asyncio.timeout_at(end_s):  # no message is cancelled in the batcher
                    data = await reader.read(READ_BYTES)
                if not data:
                    return
                await self._put(transport, frames.feed(data))

    # -- datagrams ---------------------------------------------------------------------------

    async def _datagrams(self, sock: socket.socket, stop: asyncio.Event) -> None:
        loop, dropped = asyncio.get_running_loop(), 0
        stopping = asyncio.ensure_future(stop.wait())
        try:
            while True:
                ending = stop.is_set()
                pieces, total = self._receive(sock)
                if total is not None and total != dropped:
                    self._count_dropped((total - dropped) % _WRAP)
                    dropped = total
                await self._put("udp", pieces)
                if ending and not pieces:
                    return
                if not pieces:
                    readable = loop.create_future()
                    loop.add_reader(sock, _resolve, readable)
                    try:
                        await asyncio.wait(
                            {readable, stopping}, return_when=asyncio.FIRST_COMPLETED
                        )
                    finally:
                        loop.remove_reader(sock)
        finally:
            stopping.cancel()

    def _receive(self, sock: socket.socket) -> tuple[list[SyslogPiece], int | None]:
        """Return the datagrams that are there, and how many the kernel has dropped if known."""
        pieces: list[SyslogPiece] = []
        dropped = None
        for _ in range(DATAGRAMS_MAX):
            try:
                data, extra, _, peer = sock.recvmsg(
                    DATAGRAM_BYTES_MAX, socket.CMSG_SPACE(_COUNTER.size)
                )
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:  # such as an ICMP error for another datagram
                if self._may_warn("receive"):
                    log.warning("syslog_receive_failed", reason=os.strerror(error.errno or 0))
                break
            dropped = next((_counter(one) for one in extra if _is_counter(one)), dropped)
            source = {PEER: plain_address(str(peer[0]))}
            if data.strip(b"\r\n\0"):
                pieces += cut_pieces(data, source, bytes_max=self._settings.message_bytes_max)
        return pieces, dropped

    def _count_dropped(self, count: int) -> None:
        self._metrics.syslog_dropped.inc(count)
        if self._may_warn("dropped"):
            log.warning("syslog_datagrams_dropped", count=count)

    # -- records -----------------------------------------------------------------------------

    async def _put(self, transport: str, pieces: list[SyslogPiece]) -> None:
        """Pass messages on; wait while the spool is full."""
        if not pieces:
            return
        now_ns = self._clock.now_ns()
        found = decode_syslog(pieces, received_ns=now_ns, zone=self._settings.zone)
        if found is None:
            return
        self._metrics.syslog_messages.labels(transport).inc(sum(not piece.rest for piece in pieces))
        self._metrics.syslog_unreadable.labels(transport).inc(found.unreadable)
        columns = found.columns
        await self._batcher.put(RecordBlock(columns=columns, cost_bytes=cost_bytes(columns)))


def _resolve(readable: "asyncio.Future[None]") -> None:
    if not readable.done():
        readable.set_result(None)


def _is_counter(extra: tuple[int, int, bytes]) -> bool:
    level, kind, data = extra
    return (level, kind, len(data)) == (socket.SOL_SOCKET, _SO_RXQ_OVFL, _COUNTER.size)


def _counter(extra: tuple[int, int, bytes]) -> int:
    return int(_COUNTER.unpack(extra[2])[0])


def _source_of(writer: asyncio.StreamWriter) -> Mapping[str, str]:
    peer = writer.get_extra_info("peername")
    source = {PEER: plain_address(str(peer[0])) if peer else ""}
    certificate = writer.get_extra_info("peercert")
    if certificate:
        names = [f"{key}={value}" for part in certificate["subject"] for key, value in part]
        source[SUBJECT] = ", ".join(names)
    return source


def _tls(address: SyslogAddress) -> ssl.SSLContext | None:
    """Return the TLS context; with authorities, a client without a certificate is refused."""
    if address.certificate is None:
        return None
    key = address.key or address.certificate
    files = TlsFiles(certificate=address.certificate, key=key, client_ca=address.client_ca)
    context = server_tls(files)
    if context is not None and address.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


# -- sockets -----------------------------------------------------------------------------


@asynccontextmanager
async def opened_syslog(
    settings: SyslogSettings, *, batcher: Batcher, metrics: AgentMetrics, clock: Clock
) -> AsyncIterator[SyslogInput]:
    """Bind every address while the context is active."""
    for address in settings.addresses:
        _tls(address)  # wrong files are reported before anything is bound
    with contextlib.ExitStack() as stack:
        sockets = []
        for address in settings.addresses:
            sock = _bound(address)
            stack.callback(sock.close)
            sockets.append((address, sock))
            log.info("syslog_listening", address=str(address), port=sock.getsockname()[1])
        yield SyslogInput(settings, sockets, batcher=batcher, metrics=metrics, clock=clock)


def _bound(address: SyslogAddress) -> socket.socket:
    try:
        kind = socket.SOCK_DGRAM if address.transport == "udp" else socket.SOCK_STREAM
        (family, _, _, _, name), *_ = socket.getaddrinfo(
            address.host, address.port, type=kind, flags=socket.AI_PASSIVE
        )
        sock = socket.socket(family, kind)
    except OSError as error:
        raise _cannot_listen(address, error) from error
    try:
        if kind == socket.SOCK_STREAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # inherited by connections
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            with contextlib.suppress(OSError):  # other systems than Linux do not count
                sock.setsockopt(socket.SOL_SOCKET, _SO_RXQ_OVFL, 1)
        sock.bind(name)
    except OSError as error:
        sock.close()
        raise _cannot_listen(address, error) from error
    sock.setblocking(False)  # noqa: FBT003 - the standard library's signature
    return sock


def _cannot_listen(address: SyslogAddress, error: OSError) -> BadUsage:
    reason = error.strerror or str(error)
    advice = "choose another address"
    if error.errno == errno.EACCES:
        advice = "choose a port from 1024 on, or grant CAP_NET_BIND_SERVICE"
    return BadUsage(f"cannot listen for syslog: {reason}; {advice}, syslog=`{address}`")
