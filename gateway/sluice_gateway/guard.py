"""What stands between a socket and the HTTP server: connection caps and the timers of slow heads.

aiohttp has no limit on how long a request head may take and a keep-alive of an hour. The guard is
a protocol of its own that hands every byte on and cuts connections that are too many, too slow
with a head, or idle for too long. The body's own deadline is `receive`'s.
"""

import asyncio
from collections import Counter
from typing import Final, cast

from aiohttp import web

from sluice_gateway.metrics import GatewayMetrics

REQUEST_S_MAX: Final = 1800.0
"""Last resort against a request that neither ends nor fails; every phase has a shorter limit."""


class Gate:
    """Counts the open connections of one worker and knows the limits."""

    def __init__(
        self,
        *,
        connections_max: int,
        per_address_max: int,
        head_timeout_s: float,
        idle_timeout_s: float,
        metrics: GatewayMetrics,
    ) -> None:
        """Takes the limits."""
        self._connections_max = connections_max
        self._per_address_max = per_address_max
        self.head_timeout_s = head_timeout_s
        self.idle_timeout_s = idle_timeout_s
        self.metrics = metrics
        self._open: set[ConnectionGuard] = set()
        self._addresses: Counter[str] = Counter()

    def enter(self, guard: "ConnectionGuard") -> bool:
        """Takes a connection in, unless there are too many."""
        full = len(self._open) >= self._connections_max
        if full or self._addresses[guard.address] >= self._per_address_max:
            self.metrics.closed.labels("too_many").inc()
            return False
        self._open.add(guard)
        self._addresses[guard.address] += 1
        self.metrics.connections.set(len(self._open))
        return True

    def leave(self, guard: "ConnectionGuard") -> None:
        """Forgets a connection that `enter` took in."""
        self._open.discard(guard)
        self._addresses[guard.address] -= 1
        if self._addresses[guard.address] <= 0:
            del self._addresses[guard.address]
        self.metrics.connections.set(len(self._open))


class ConnectionGuard(asyncio.Protocol):
    """One connection: resting, waiting for a head, or in a request."""

    def __init__(self, inner: asyncio.Protocol, gate: Gate) -> None:
        """Takes the HTTP protocol that does the work."""
        self._inner = inner
        self._gate = gate
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._limit_s = 0.0
        self._reason = ""
        self._resting = False
        self.address = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Starts the timer of the first head, or cuts the connection when there are too many."""
        real = cast(asyncio.Transport, transport)
        peer = real.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        if not self._gate.enter(self):
            real.abort()
            return
        self._transport = real
        self._arm(self._gate.head_timeout_s, "slow_head")
        self._inner.connection_made(real)

    def data_received(self, data: bytes) -> None:
        """Hands bytes on; the first ones of a head start its timer, later ones do not move it."""
        if self._resting:
            self._resting = False
            self._arm(self._gate.head_timeout_s, "slow_head")
        if self._transport is not None:
            self._inner.data_received(data)

    def begin(self) -> None:
        """The head is complete: the handler has its own deadlines from here."""
        self._resting = False
        self._arm(REQUEST_S_MAX, "endless_request")

    def end(self) -> None:
        """The request is answered."""
        self._resting = True
        self._arm(self._gate.idle_timeout_s, "idle")

    def eof_received(self) -> bool | None:
        """Hands the end of the client's side on."""
        return self._inner.eof_received() if self._transport is not None else None

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the connection."""
        self._disarm()
        if self._transport is None:
            return
        self._transport = None
        self._gate.leave(self)
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """Hands backpressure on."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Hands backpressure on."""
        self._inner.resume_writing()

    def _arm(self, after_s: float, reason: str) -> None:
        """Sets the limit. A timer that rings before a later limit is wound again when it rings."""
        self._limit_s, self._reason = self._loop.time() + after_s, reason
        if self._timer is not None and self._timer.when() > self._limit_s:
            self._disarm()
        if self._timer is None:
            self._timer = self._loop.call_at(self._limit_s, self._ring)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        if self._loop.time() < self._limit_s:
            self._timer = self._loop.call_at(self._limit_s, self._ring)
        elif self._transport is not None:
            self._gate.metrics.closed.labels(self._reason).inc()
            self._transport.abort()


def guard_of(request: web.Request) -> ConnectionGuard | None:
    """Gives the guard of the connection that a request came on."""
    transport = request.transport
    found = None if transport is None else transport.get_protocol()
    return found if isinstance(found, ConnectionGuard) else None
