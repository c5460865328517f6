"""Serves the connections of a port behind `ConnectionGuard`, with TLS or without.

A guard sees a connection of TLS only after its handshake, so a port with TLS accepts its
connections through `BoundedAccepts`, which counts them from the start. Further clients wait in the
queue of the kernel. Without TLS the guard bounds them, and the event loop accepts, which needs no
task for each connection.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import structlog

from sluice_protocol.system_clock import SystemClock
from sluice_web.bounded_accepts import BoundedAccepts
from sluice_web.connection_guard import ConnectionGuard, ConnectionLimits
from sluice_web.listening import BACKLOG
from sluice_web.rare_warnings import RareWarnings

NewGuard = Callable[[], ConnectionGuard]
"""Returns the guard of a new connection, before the handshake of TLS."""
EndRequests = Callable[[], Awaitable[None]]
"""Lets open requests end, and closes their connections."""

log = structlog.get_logger()


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
    """Return the accepts of a port; for a client that waits, its longest idle one is closed."""
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
