"""HTTP servers whose number of open connections is bounded.

Every HTTP server of sluice bounds its connections: `listening_on` those of the gateway's port,
`BoundedAccepts` those of all others. A connection that sends no request, or is idle, is closed
after a time. While all places of a service are taken, the connection with the longest idle time is
closed for each waiting client. So clients that keep connections open never lock others out.
"""

import asyncio
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final, cast

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from sluice_protocol.system_clock import SystemClock
from sluice_web.addresses import parse_listen
from sluice_web.connection_guard import (
    SERVER_IDLE_S,
    ConnectionGuard,
    ConnectionLimits,
    NewGuard,
    serving_accepted,
    serving_guarded,
    warn_accept_failed,
    watch_connection,
)
from sluice_web.listening import BoundedAccepts, ServerOptions, cannot_listen, http_runner, url_of
from sluice_web.problems import Handler
from sluice_web.rare_warnings import RareWarnings

CONNECTIONS_MAX: Final = 1024
HEAD_TIMEOUT_S: Final = 10.0
"""Time in which a connection must send the head of a request."""
IDLE_S_MIN: Final = 1.0
"""Idle time after which a connection may be closed for a client that waits."""
STREAM_S_MAX: Final = 7 * 86_400.0
"""Longest response of a service: a tail is one response for as long as its reader follows."""

log = structlog.get_logger()


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
