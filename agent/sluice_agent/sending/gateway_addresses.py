"""The gateways of an agent at run time: resolve the names of their URLs, and record each upload.

A name that resolves to several addresses is that many gateways. Names are resolved again about once
a minute, and after every gateway has failed. If a name does not resolve, its last addresses remain.
"""

import asyncio
import random  # noqa: TID251 - the type of the seeded argument
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog
from yarl import URL

from sluice_agent.sending.gateway_choice import (
    GatewaySet,
    GatewayTarget,
    NextAttempt,
    SendAttempts,
    backoff,
    plan_attempt,
)
from sluice_protocol.clock import Clock
from sluice_protocol.units import NS_PER_S
from sluice_web.addresses import is_address

RESOLVE_S: Final = 60.0
"""About how often a name is resolved again; the system does not report how long it is valid."""
RESOLVE_S_MIN: Final = 5.0
RESOLVE_TIMEOUT_S: Final = 5.0
ADDRESSES_MAX: Final = 64
"""Addresses used per URL; a random part if there are more."""

_log: Final = structlog.get_logger("sluice.agent.gateways")


ResolveName = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the IP addresses of a host and port; none if the name does not resolve."""


async def resolve_name(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host without repetition, sorted; none if it does not resolve.

    Only families are returned for which this machine has an address.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_TIMEOUT_S):
            found = await loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
            )
    except (OSError, TimeoutError):
        return ()
    return sorted({str(place[0]) for *_, place in found if "%" not in str(place[0])})


class Gateways:
    """What an agent knows about its gateways; shared by all its uploads."""

    def __init__(
        self,
        urls: Sequence[str],
        resolve: ResolveName | None,
        *,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        """Without `resolve` each URL is one gateway."""
        self._urls = tuple(urls)
        self._resolve_name = resolve
        self._clock = clock
        self._rng = rng
        self._addresses: dict[str, tuple[str, ...]] = {}
        self._due_s = 0.0
        self._earliest_s = 0.0
        self._resolving = asyncio.Lock()
        targets = [GatewayTarget(url=url) for url in self._urls]
        self.known = GatewaySet.of(rng.sample(targets, len(targets)))

    async def choose(self, attempts: SendAttempts) -> NextAttempt:
        """Return gateway and time of the next attempt to send a batch."""
        now_s = self._now_s()
        if now_s >= self._due_s or (attempts.rounds and now_s >= self._earliest_s):
            await self._resolve()
            now_s = self._now_s()
        self.known = self.known.with_choices(now_s=now_s, rng=self._rng)
        return plan_attempt(self.known, attempts, now_s=now_s, rng=self._rng)

    def backoff_s(self, rounds: int) -> float:
        """Return the pause after `rounds` in which every gateway failed; 0 after none."""
        return backoff(rounds, self._rng) if rounds else 0.0

    def succeeded(self, target: GatewayTarget, latency_s: float) -> None:
        """Record a response that ended an upload."""
        self.known = self.known.succeeded(target, now_s=self._now_s(), latency_s=latency_s)

    def failed(self, target: GatewayTarget, pause_s: float | None) -> None:
        """Record a failed attempt and the pause that the gateway requested."""
        self.known = self.known.failed(target, now_s=self._now_s(), pause_s=pause_s)

    def shed(self, target: GatewayTarget) -> None:
        """Record that a gateway requested to send the next batches to another one."""
        self.known = self.known.shed(target, now_s=self._now_s())
        _log.debug("gateway_shed", gateway=str(target))

    def after(self, attempts: SendAttempts, target: GatewayTarget) -> SendAttempts:
        """Return the attempts including one at `target`."""
        return attempts.after(target, self.known)

    async def _resolve(self) -> None:
        """Resolve all names; concurrent uploads wait for the first resolution only."""
        if self._resolve_name is None or (self._resolving.locked() and self._addresses):
            return
        async with self._resolving:
            now_s = self._now_s()
            if now_s < self._earliest_s:
                return
            self._earliest_s = now_s + RESOLVE_S_MIN
            self._due_s = now_s + RESOLVE_S * self._rng.uniform(0.5, 1.5)
            targets = [each for url in self._urls for each in await self._targets(url)]
            if {state.target for state in self.known.states} != set(targets):
                _log.info("gateways_resolved", gateways=[str(each) for each in targets])
                shuffled = self._rng.sample(targets, len(targets))
                self.known = self.known.replaced(shuffled)

    async def _targets(self, url: str) -> list[GatewayTarget]:
        parsed = URL(url)
        host, port = parsed.host or "", parsed.port or 0
        if self._resolve_name is None or is_address(host):
            return [GatewayTarget(url=url)]
        found = await self._resolve_name(host, port)
        if len(found) > ADDRESSES_MAX:
            found = self._rng.sample(list(found), ADDRESSES_MAX)
        if found:
            self._addresses[url] = tuple(found)
        known = self._addresses.get(url, ())
        return [GatewayTarget(url=url, address=one) for one in known] or [GatewayTarget(url=url)]

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / NS_PER_S
