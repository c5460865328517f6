"""Limits between a socket and a server: number of connections, slow heads, idle time.

aiohttp does not limit the time of a request head, and keeps idle connections for an hour. The guard
is a protocol that passes every byte on. It closes connections with a slow head, or idle for too
long. Above the limits it closes the connection with the longest idle time; if none is idle, the new
one. The reader of a body enforces its pace.

A guard sees a connection of TLS only after its handshake, so a port with TLS accepts its
connections through `BoundedAccepts`, which counts them from the start. Further clients wait in the
queue of the kernel. Without TLS the guard bounds them, and the event loop accepts, which needs no
task for each connection.

Every HTTP server of sluice bounds its connections: `listening_on` those of the gateway's port,
`BoundedAccepts` those of all others. A connection that sends no request, or is idle, is closed
after a time. While all places of a service are taken, the connection with the longest idle time is
closed for each waiting client. So clients that keep connections open never lock others out.
"""

import asyncio
import os
import resource
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol, cast

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from sluice_protocol.system_clock import SystemClock
from sluice_web.addresses import parse_listen
from sluice_web.listening import (
    BACKLOG,
    BoundedAccepts,
    ServerOptions,
    cannot_listen,
    http_runner,
    url_of,
)
from sluice_web.problems import Handler
from sluice_web.rare_warnings import RareWarnings

REQUEST_S_MAX: Final = 1800.0
"""Limit of a whole request; every phase of it has a shorter limit."""

SERVER_IDLE_S: Final = 365 * 86_400.0
"""When the HTTP server behind a guard closes an idle connection; the guard does so earlier."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyPace:
    """How slowly a body may arrive: after `grace_s` seconds, at least `rate_min` bytes a second."""

    grace_s: float
    rate_min: int


class _Counter(Protocol):
    def inc(self) -> None: ...


class OpenConnections(Protocol):
    """A gauge of open connections."""

    def inc(self) -> None:
        """Count a connection that was opened."""
        ...

    def dec(self) -> None:
        """Count a connection that ended."""
        ...


class ClosedConnections(Protocol):
    """Counters of the connections that a server closed."""

    def labels(self, reason: str, /) -> _Counter:
        """Return the counter of a reason."""
        ...


class ConnectionLimits:
    """The open connections of one server and their limits."""

    def __init__(  # noqa: PLR0913 - one limit each
        self,
        *,
        connections_max: int,
        per_address_max: int,
        head_timeout_s: float,
        idle_timeout_s: float,
        request_s_max: float = REQUEST_S_MAX,
        opened: OpenConnections,
        closed: ClosedConnections,
    ) -> None:
        self.connections_max = connections_max
        self._per_address_max = per_address_max
        self.head_timeout_s = head_timeout_s
        self.idle_timeout_s = idle_timeout_s
        self.request_s_max = request_s_max
        self._opened = opened
        self.closed = closed
        self._open: set[ConnectionGuard] = set()
        self._idle: dict[ConnectionGuard, float] = {}  # since when; the longest idle first
        self._addresses: Counter[str] = Counter()
        self._may_warn = RareWarnings(SystemClock()).may_warn

    def enter(self, guard: "ConnectionGuard") -> bool:
        """Add a connection; return whether there is room for it, or an idle one made room."""
        is_greedy = self._addresses[guard.address] >= self._per_address_max
        if is_greedy or len(self._open) >= self.connections_max:
            self._warn_full(guard.port, guard.address)
            if not self.close_idle(guard.address if is_greedy else None):
                self.closed.labels("too_many").inc()
                return False
        self._open.add(guard)
        self._addresses[guard.address] += 1
        self._opened.inc()
        return True

    def make_place(self, port: int) -> None:
        """Close the longest idle connection, if there is one, for a client that waits at a port."""
        self._warn_full(port, "")
        self.close_idle()

    def leave(self, guard: "ConnectionGuard") -> None:
        """Remove a connection that `enter` added."""
        if guard in self._open:
            self._opened.dec()
            self._open.discard(guard)
            self._idle.pop(guard, None)
            self._addresses[guard.address] -= 1
            if self._addresses[guard.address] <= 0:
                del self._addresses[guard.address]

    def note_idle(self, guard: "ConnectionGuard", *, idle: bool) -> None:
        """Note that a connection has no request from now on, or has one."""
        self._idle.pop(guard, None)
        if idle and guard in self._open:
            self._idle[guard] = asyncio.get_running_loop().time()

    def close_idle(self, address: str | None = None, *, idle_s_min: float = 0.0) -> bool:
        """Close the connection that has been idle longest; return False if there was none.

        `address` is that of its client; None for any. The connection must have been idle for
        `idle_s_min`, because a client that has just received a response often sends its next
        request, which would be lost.
        """
        until_s = asyncio.get_running_loop().time() - idle_s_min
        for guard, since_s in self._idle.items():
            if since_s > until_s:
                break
            if address in (None, guard.address) and guard.has_sent_all():
                self.closed.labels("displaced").inc()
                guard.abort()
                self.leave(guard)
                return True
        return False

    def _warn_full(self, port: int, peer: str) -> None:
        if self._may_warn("full"):
            log.warning(
                "connections_full",
                port=port,
                connections=len(self._open),
                idle=len(self._idle),
                peer=peer,
            )


class ConnectionGuard(asyncio.Protocol):
    """One connection: idle, waiting for a request head, or in a request."""

    def __init__(self, inner: asyncio.Protocol, limits: ConnectionLimits) -> None:
        self._protocol = inner
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._limit_s = 0.0
        self._reason = ""
        self._idle = False
        self._has_request = False
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.address = ""
        self.port = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the timer of the first head, or close the connection when there are too many."""
        real = cast(asyncio.Transport, transport)
        peer = real.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        name = real.get_extra_info("sockname")
        self.port = int(name[1]) if isinstance(name, tuple) and len(name) > 1 else 0
        if not self._limits.enter(self):
            real.abort()
            return
        self._transport = real
        self._limits.note_idle(self, idle=True)
        self._arm(self._limits.head_timeout_s, "slow_head")
        self._protocol.connection_made(real)

    def data_received(self, data: bytes) -> None:
        """Pass bytes on; the first bytes of a head start its timer, later ones do not move it."""
        if self._idle:
            self._idle = False
            self._arm(self._limits.head_timeout_s, "slow_head")
        if not self._has_request:
            self._set_request(has_request=True)
        if self._transport is not None:
            self._protocol.data_received(data)

    def begin(self) -> None:
        """Note that the head is complete; the handler has separate deadlines."""
        self._idle = False
        self._set_request(has_request=True)
        self._arm(self._limits.request_s_max, "endless_request")

    def end(self) -> None:
        """Note that the response was sent."""
        self._idle = True
        self._set_request(has_request=False)
        self._arm(self._limits.idle_timeout_s, "idle")

    def has_sent_all(self) -> bool:
        """Return whether nothing of a response is left to send."""
        return self._transport is None or self._transport.get_write_buffer_size() == 0

    def abort(self) -> None:
        """Close the connection immediately."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close the connection after what was written."""
        if self._transport is not None:
            self._transport.close()

    def eof_received(self) -> bool | None:
        """Pass the end of the client's data on."""
        return self._protocol.eof_received() if self._transport is not None else None

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection."""
        self._disarm()
        if not self.closed.done():  # a server that stops cancels it
            self.closed.set_result(None)
        if self._transport is None:
            return
        self._transport = None
        self._limits.leave(self)
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass flow control on."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Pass flow control on."""
        self._protocol.resume_writing()

    def _set_request(self, *, has_request: bool) -> None:
        self._has_request = has_request
        self._limits.note_idle(self, idle=not has_request)

    def _arm(self, after_s: float, reason: str) -> None:
        """Set the limit; a timer that fires before the limit is set again when it fires."""
        self._limit_s, self._reason = self._loop.time() + after_s, reason
        if self._timer is not None and self._timer.when() > self._limit_s:
            self._disarm()
        if self._timer is None:
            self._timer = self._loop.call_at(self._limit_s, self._on_timer)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        if self._loop.time() < self._limit_s:
            self._timer = self._loop.call_at(self._limit_s, self._on_timer)
        elif self._transport is not None:
            self._limits.closed.labels(self._reason).inc()
            self._transport.abort()


@web.middleware
async def watch_connection(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Report to the guard of the connection when a request begins and ends."""
    transport = request.transport
    guard = None if transport is None else transport.get_protocol()
    if not isinstance(guard, ConnectionGuard):
        return await handler(request)
    guard.begin()
    try:
        return await handler(request)
    finally:
        guard.end()


NewGuard = Callable[[], ConnectionGuard]
"""Returns the guard of a new connection, before the handshake of TLS."""
EndRequests = Callable[[], Awaitable[None]]
"""Lets open requests end, and closes their connections."""


@asynccontextmanager
async def serving_guarded(
    sock: socket.socket,
    new_guard: NewGuard,
    limits: ConnectionLimits,
    *,
    tls: ssl.SSLContext | None,
    end: EndRequests,
) -> AsyncIterator[None]:
    """Serve the connections of a bound socket until the block ends.

    The socket is closed before `end`, which is called when no further connection is accepted. The
    head timeout of `limits` is also that of a handshake.
    """
    if tls is not None:
        accepts = _guarded_accepts(sock, limits)
        async with serving_accepted((sock,), accepts, new_guard, limits, tls=tls, end=end):
            yield
        return
    loop = asyncio.get_running_loop()
    server = await loop.create_server(new_guard, sock=sock, backlog=BACKLOG)
    try:
        yield
    finally:
        server.close()
        await end()


@asynccontextmanager
async def serving_accepted(
    sockets: Sequence[socket.socket],
    accepts: BoundedAccepts,
    new_guard: NewGuard,
    limits: ConnectionLimits,
    *,
    tls: ssl.SSLContext | None,
    end: EndRequests,
) -> AsyncIterator[None]:
    """Serve the connections that `accepts` accepts until the block ends.

    An error of the block is raised as it is, not in a group. The sockets are closed before `end`,
    and what is left after it is closed. The head timeout of `limits` is also that of a handshake.
    """
    failure: Exception | None = None
    serve = partial(_serve, new_guard, tls, limits.head_timeout_s)
    try:
        for sock in sockets:
            sock.listen(BACKLOG)  # a client may connect as soon as the block begins
        async with asyncio.TaskGroup() as group:
            accepting = [group.create_task(accepts.run(sock, serve, group)) for sock in sockets]
            try:
                yield
            except Exception as error:  # noqa: BLE001 - raised below
                failure = error
            finally:
                await _stop(accepting, sockets)
                await end()
                accepts.cancel()
    finally:
        for sock in sockets:
            sock.close()
    if failure is not None:
        raise failure


async def _stop(accepting: Sequence[asyncio.Task[None]], sockets: Sequence[socket.socket]) -> None:
    for task in accepting:
        task.cancel()
    await asyncio.wait(accepting)  # the event loop does not use the sockets after it
    for sock in sockets:
        sock.close()


async def _serve(
    new_guard: NewGuard,
    tls: ssl.SSLContext | None,
    handshake_s: float,
    connection: socket.socket,
) -> None:
    """Serve an accepted connection until it is closed."""
    guard = new_guard()
    try:
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: guard,
            connection,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else handshake_s,
        )
    except OSError:  # the TLS handshake failed or took too long; the connection is closed
        return
    try:
        await guard.closed
    finally:
        guard.close()


def _guarded_accepts(sock: socket.socket, limits: ConnectionLimits) -> BoundedAccepts:
    """Return the accepts of a port; for a waiting client the longest idle connection is closed."""
    host, port = sock.getsockname()[:2]
    return BoundedAccepts(
        limits.connections_max,
        clock=SystemClock(),
        on_full=lambda _: limits.make_place(port),
        on_failed=warn_accept_failed(f"{host}:{port}"),
    )


def warn_accept_failed(address: str) -> Callable[[OSError], None]:
    """Return the function that logs, once a minute, why no connection could be accepted."""
    may_warn = RareWarnings(SystemClock()).may_warn

    def warn(error: OSError) -> None:
        if may_warn("failed"):
            log.warning("accept_failed", address=address, reason=os.strerror(error.errno or 0))

    return warn


CONNECTIONS_MAX: Final = 1024
HEAD_TIMEOUT_S: Final = 10.0
"""Time in which a connection must send the head of a request."""
IDLE_S_MIN: Final = 1.0
"""Idle time after which a connection may be closed for a client that waits."""
STREAM_S_MAX: Final = 7 * 86_400.0
"""Longest response of a service: a tail is one response for as long as its reader follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedServer:
    """How the connections of a server are bounded.

    The head timeout of `limits` is also that of a handshake of TLS. Open requests have `shutdown_s`
    to end when the server stops.
    """

    accepts: BoundedAccepts
    limits: ConnectionLimits
    shutdown_s: float


@asynccontextmanager
async def listening(
    app: web.Application,
    listen: str,
    options: ServerOptions | None = None,
    *,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[tuple[str, ...]]:
    """Serve the application of a service on `HOST:PORT` until the block ends; yields its URLs."""
    options = options or ServerOptions()
    server = _service_bounds(listen, options)
    app.middlewares.insert(0, make_room(server.accepts))
    app.middlewares.insert(0, watch_connection)
    async with listening_bounded(app, listen, server, options=options, tls=tls) as urls:
        yield urls


def _service_bounds(listen: str, options: ServerOptions) -> BoundedServer:
    """Return the bounds of a service, which has no settings for them."""
    clock = SystemClock()
    connections_max = service_connections_max()
    may_warn = RareWarnings(clock).may_warn

    def make_place(_: socket.socket) -> None:
        if may_warn("full"):
            log.warning("http_connections_full", address=listen, connections=connections_max)
        limits.close_idle(idle_s_min=IDLE_S_MIN)

    uncounted = _Uncounted()
    limits = ConnectionLimits(
        connections_max=connections_max,
        per_address_max=connections_max,
        head_timeout_s=HEAD_TIMEOUT_S,
        idle_timeout_s=options.keepalive_s,
        request_s_max=STREAM_S_MAX,
        opened=uncounted,
        closed=uncounted,
    )
    return BoundedServer(
        accepts=BoundedAccepts(
            connections_max,
            clock=clock,
            on_full=make_place,
            on_failed=warn_accept_failed(listen),
        ),
        limits=limits,
        shutdown_s=options.shutdown_s,
    )


def service_connections_max() -> int:
    """Return the most open connections of a service: half of the open files it may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = CONNECTIONS_MAX * 2 if soft == resource.RLIM_INFINITY else soft
    return max(1, min(CONNECTIONS_MAX, files // 2))


class _Uncounted:
    """The counters of a service without metrics of its connections."""

    def labels(self, _reason: str, /) -> "_Uncounted":
        """Return itself."""
        return self

    def inc(self) -> None:
        """Count nothing."""

    def dec(self) -> None:
        """Count nothing."""


@asynccontextmanager
async def listening_bounded(
    app: web.Application,
    listen: str,
    server: BoundedServer,
    *,
    options: ServerOptions | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[tuple[str, ...]]:
    """Serve an application on `HOST:PORT` until the block ends; yields its URLs."""
    options = replace(
        options or ServerOptions(), keepalive_s=SERVER_IDLE_S, shutdown_s=server.shutdown_s
    )
    runner = http_runner(app, options)
    await runner.setup()
    scheme = "http" if tls is None else "https"
    try:
        sockets = await _bound(listen)
        urls = tuple(url_of(sock.getsockname(), scheme) for sock in sockets)
        async with serving_accepted(
            sockets,
            server.accepts,
            _new_guard(runner, server.limits),
            server.limits,
            tls=tls,
            end=runner.cleanup,
        ):
            yield urls
    finally:
        await runner.cleanup()


@asynccontextmanager
async def listening_on(
    app: web.Application,
    sock: socket.socket,
    options: ServerOptions,
    limits: ConnectionLimits,
    *,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[None]:
    """Serve an application on a bound socket until the block ends, and close the socket."""
    runner = http_runner(app, options)
    await runner.setup()
    new_guard = _new_guard(runner, limits)
    async with serving_guarded(sock, new_guard, limits, tls=tls, end=runner.cleanup):
        yield


def _new_guard(runner: web.AppRunner, limits: ConnectionLimits) -> NewGuard:
    protocols = cast(Callable[[], asyncio.Protocol], runner.server)
    return lambda: ConnectionGuard(protocols(), limits)


async def _bound(listen: str) -> list[socket.socket]:
    host, port = parse_listen(listen)
    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
    except OSError as error:
        raise cannot_listen(error, "listen", listen) from error
    sockets = [sock.dup() for sock in server.sockets]
    server.close()
    return sockets


def make_room(accepts: BoundedAccepts) -> Middleware:
    """Return the middleware that closes connections after a response while clients wait.

    Without it, clients that keep their connections would never let another one in. A client that
    reads `Connection: close` loses no request, as it could if an idle connection were closed.
    """

    @web.middleware
    async def close_when_waited_for(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        if not response.prepared and accepts.is_waited_for():
            response.force_close()
        return response

    return close_when_waited_for
