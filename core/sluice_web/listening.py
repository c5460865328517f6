"""How a service listens: addresses, sockets, TLS, signals and the end of open requests.

`BoundedAccepts` accepts a maximum number of connections. While that many are open, no further one
is accepted. It waits in the queue of the kernel, in the order of arrival and with what its client
has written, and flow control stops the client. Closing it would lose what clients that never repeat
have written.

Source: listen(2) and tcp(7) on the queue of established connections.
"""

import asyncio
import os
import signal
import socket
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiohttp import web

from sluice_protocol.clock import Clock
from sluice_protocol.errors import BadUsage
from sluice_web.addresses import parse_listen
from sluice_web.library_logs import HttpServerLog

BACKLOG: Final = 1024
READ_BYTES: Final = 64 * 1024
"""Half of the unread bytes of a connection before flow control stops the sender."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How one HTTP server treats its connections.

    Attributes:
        decompress: Whether a body with a Content-Encoding is decompressed.
        keepalive_s: Time that an idle connection stays open.
        lingering_s: Time to read the rest of a body after the response.
        shutdown_s: Time that open requests have to end when the server stops.
    """

    decompress: bool = False
    keepalive_s: float = 75.0
    lingering_s: float = 10.0
    shutdown_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """The PEM files of a TLS server: the certificate chain and its key.

    `client_ca` has the authorities of client certificates; None accepts no client certificate.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None


def bind_shared(host: str, port: int) -> socket.socket:
    """Return a bound socket whose port other processes can bind too (SO_REUSEPORT)."""
    return _bind(host, port, is_shared=True)


def _bind(host: str, port: int, *, is_shared: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(is_shared))
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)  # noqa: FBT003 - the standard library's signature
    return sock


def cannot_listen(error: OSError, name: str, listen: str) -> BadUsage:
    """Return the error for an address that cannot be bound; it names the setting."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    return BadUsage(f"cannot listen: {reason}; choose another address, {name}=`{listen}`")


def bind_setting(name: str, listen: str, *, is_shared: bool) -> socket.socket:
    """Return a socket bound to the `HOST:PORT` of a setting; `is_shared` allows other processes."""
    try:
        return _bind(*parse_listen(listen), is_shared=is_shared)
    except OSError as error:
        raise cannot_listen(error, name, listen) from error


def server_tls(files: TlsFiles | None) -> ssl.SSLContext | None:
    """Return a TLS context that verifies client certificates if sent; None for plain HTTP."""
    if files is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(files.certificate, files.key)
        if files.client_ca is not None:
            context.load_verify_locations(files.client_ca)
            context.verify_mode = ssl.CERT_OPTIONAL
    except (OSError, ssl.SSLError) as error:
        raise BadUsage(f"cannot use TLS files: {error}") from error
    return context


def http_runner(app: web.Application, options: ServerOptions) -> web.AppRunner:
    """Return the runner of an application, not set up."""
    return web.AppRunner(
        app,
        access_log=None,
        logger=HttpServerLog(),
        handle_signals=False,
        auto_decompress=options.decompress,
        keepalive_timeout=options.keepalive_s,
        read_bufsize=READ_BYTES,
        lingering_time=options.lingering_s,
        shutdown_timeout=options.shutdown_s,
    )


def url_of(address: tuple[str, int], scheme: str) -> str:
    """Return the URL of a bound address."""
    host, port = address[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def stop_event() -> asyncio.Event:
    """Return an event that SIGTERM or SIGINT sets."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


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
        """Accept connections until the task is cancelled; the end of `serve` frees a place."""
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
