"""Limits between a socket and a server: number of connections, slow heads, idle time.

aiohttp does not limit the time of a request head, and keeps idle connections for an hour. The
guard is a protocol that passes every byte on. It closes connections above the limits, with a slow
head, or idle for too long. Who reads a body enforces its pace.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Final, Protocol, cast

from aiohttp import web

from sluice_web.problems import Handler

REQUEST_S_MAX: Final = 1800.0
"""Limit of a whole request; every phase of it has a shorter limit."""

SERVER_IDLE_S: Final = 365 * 86_400.0
"""When the HTTP server behind a guard closes an idle connection; the guard does so earlier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyPace:
    """How slowly a body may arrive.

    Attributes:
        grace_s: Time in which no byte needs to arrive, seconds.
        rate_min: Minimum rate after that, bytes per second.
    """

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
        self._connections_max = connections_max
        self._per_address_max = per_address_max
        self.head_timeout_s = head_timeout_s
        self.idle_timeout_s = idle_timeout_s
        self.request_s_max = request_s_max
        self._opened = opened
        self.closed = closed
        self._open: set[ConnectionGuard] = set()
        self._addresses: Counter[str] = Counter()

    def enter(self, guard: "ConnectionGuard") -> bool:
        """Add a connection; return whether there is room for it."""
        full = len(self._open) >= self._connections_max
        if full or self._addresses[guard.address] >= self._per_address_max:
            self.closed.labels("too_many").inc()
            return False
        self._open.add(guard)
        self._addresses[guard.address] += 1
        self._opened.inc()
        return True

    def leave(self, guard: "ConnectionGuard") -> None:
        """Remove a connection that `enter` added."""
        if guard in self._open:
            self._opened.dec()
        self._open.discard(guard)
        self._addresses[guard.address] -= 1
        if self._addresses[guard.address] <= 0:
            del self._addresses[guard.address]


class ObservedProtocol(asyncio.Protocol):
    """A protocol behind the guard that learns when a request was handled."""

    def finish(self, request: web.Request) -> None:
        """Note that the server writes the response to a request next, without waiting."""
        raise NotImplementedError


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
        self.address = ""

    @property
    def protocol(self) -> asyncio.Protocol:
        """The protocol behind the guard."""
        return self._protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the timer of the first head, or close the connection when there are too many."""
        real = cast(asyncio.Transport, transport)
        peer = real.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        if not self._limits.enter(self):
            real.abort()
            return
        self._transport = real
        self._arm(self._limits.head_timeout_s, "slow_head")
        self._protocol.connection_made(real)

    def data_received(self, data: bytes) -> None:
        """Pass bytes on; the first bytes of a head start its timer, later ones do not move it."""
        if self._idle:
            self._idle = False
            self._arm(self._limits.head_timeout_s, "slow_head")
        if self._transport is not None:
            self._protocol.data_received(data)

    def begin(self) -> None:
        """Note that the head is complete; the handler has separate deadlines."""
        self._idle = False
        self._arm(self._limits.request_s_max, "endless_request")

    def end(self) -> None:
        """Note that the response was sent."""
        self._idle = True
        self._arm(self._limits.idle_timeout_s, "idle")

    def eof_received(self) -> bool | None:
        """Pass the end of the client's data on."""
        return self._protocol.eof_received() if self._transport is not None else None

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection."""
        self._disarm()
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


def guard_of(request: web.Request) -> ConnectionGuard | None:
    """Return the guard of the connection of a request."""
    transport = request.transport
    found = None if transport is None else transport.get_protocol()
    return found if isinstance(found, ConnectionGuard) else None


@web.middleware
async def watch_connection(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Report to the guard of the connection when a request begins and ends."""
    guard = guard_of(request)
    if guard is not None:
        guard.begin()
    try:
        return await handler(request)
    finally:
        if guard is not None:
            guard.end()
            if isinstance(guard.protocol, ObservedProtocol):
                guard.protocol.finish(request)
