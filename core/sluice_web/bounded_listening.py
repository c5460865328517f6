"""An HTTP server whose number of open connections is bounded by `BoundedAccepts`."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

from aiohttp import web
from aiohttp.typedefs import Middleware

from sluice_web.addresses import parse_listen
from sluice_web.bounded_accepts import BoundedAccepts
from sluice_web.connection_guard import SERVER_IDLE_S, ConnectionGuard, ConnectionLimits
from sluice_web.listening import ServerOptions, cannot_listen, http_runner, url_of
from sluice_web.problems import Handler


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedServer:
    """How the connections of a server are bounded.

    Attributes:
        accepts: Accepts them.
        limits: Their times; the head timeout is also that of a handshake of TLS.
        shutdown_s: Time that open requests have to end when the server stops.
    """

    accepts: BoundedAccepts
    limits: ConnectionLimits
    shutdown_s: float


@asynccontextmanager
async def listening_bounded(
    app: web.Application, listen: str, server: BoundedServer, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[str, ...]]:
    """Serve an application on `HOST:PORT` until the block ends; yields its URLs.

    Raises:
        BadUsage: The address has another form or cannot be bound.
    """
    runner = http_runner(
        app, ServerOptions(keepalive_s=SERVER_IDLE_S, shutdown_s=server.shutdown_s)
    )
    await runner.setup()
    sockets: list[socket.socket] = []
    try:
        sockets += await _bound(listen)
        async with asyncio.TaskGroup() as group:
            serving = _Connections(runner, server.limits, tls)
            accepting = [
                group.create_task(server.accepts.run(sock, serving.serve, group))
                for sock in sockets
            ]
            scheme = "http" if tls is None else "https"
            try:
                yield tuple(url_of(sock.getsockname(), scheme) for sock in sockets)
            finally:
                for task in accepting:
                    task.cancel()
                await runner.cleanup()  # open requests end
                server.accepts.cancel()
    finally:
        for sock in sockets:
            sock.close()
        await runner.cleanup()


class _Connections:
    """Serves accepted connections with an HTTP server."""

    def __init__(
        self, runner: web.AppRunner, limits: ConnectionLimits, tls: ssl.SSLContext | None
    ) -> None:
        self._new_protocol = cast(Callable[[], asyncio.Protocol], runner.server)
        self._limits = limits
        self._tls = tls

    async def serve(self, connection: socket.socket) -> None:
        """Serve a connection until it is closed."""
        loop = asyncio.get_running_loop()
        closed: asyncio.Future[None] = loop.create_future()
        guard = _Observed(self._new_protocol(), self._limits, closed)
        try:
            await loop.connect_accepted_socket(
                lambda: guard,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else self._limits.head_timeout_s,
            )
        except OSError:  # the TLS handshake failed or took too long
            return
        await closed


class _Observed(ConnectionGuard):
    """A guard that reports the end of its connection."""

    def __init__(
        self, inner: asyncio.Protocol, limits: ConnectionLimits, closed: "asyncio.Future[None]"
    ) -> None:
        super().__init__(inner, limits)
        self._closed = closed

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection."""
        super().connection_lost(exc)
        if not self._closed.done():
            self._closed.set_result(None)


async def _bound(listen: str) -> list[socket.socket]:
    """Return a bound socket for each address of the host."""
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
