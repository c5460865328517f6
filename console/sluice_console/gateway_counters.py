"""The metrics of gateways that they serve under `/metrics`: store calls, and what is wrong."""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final

import msgspec

from sluice_console.costs import RequestRates, rates_between, sum_rates
from sluice_console.gateway_addresses import GatewayAddresses
from sluice_console.gateway_health import (
    GatewayHealth,
    GatewayReading,
    health_between,
    is_successor,
    parse_reading,
)
from sluice_console.reconcilers import ServiceClient, ServiceFailed
from sluice_protocol.clock import Clock
from sluice_protocol.units import NS_PER_S

WINDOW_S: Final = 300.0
"""Time over which shares of uploads and store calls are computed."""
_READINGS_MAX: Final = 301
_PAIR: Final = 2
"""Readings that a rate needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayReport:
    """What the gateways served.

    Attributes:
        rates: Their store calls since the last reading; None before the second one.
        health: The health of each.
    """

    rates: RequestRates | None
    health: tuple[GatewayHealth, ...]


class GatewayCounters:
    """Reads the metrics of gateways, and keeps those of the last minutes."""

    def __init__(self, gateways: GatewayAddresses, clock: Clock) -> None:
        self._gateways = gateways
        self._clock = clock
        self._kept: dict[str, deque[GatewayReading]] = {}

    async def read(self) -> GatewayReport:
        """Return the store calls per second since the last reading, and the health of each."""
        found = await self._gateways.find()
        read = await asyncio.gather(*map(self._read_one, found.clients))
        lost = [GatewayHealth(url=one.entry, problem=one.problem) for one in found.unknown]
        urls = {client.url for client in found.clients}
        self._kept = {url: kept for url, kept in self._kept.items() if url in urls}
        rates = sum_rates([self._rates(client.url) for client in found.clients])
        return GatewayReport(rates=rates, health=(*read, *lost))

    async def _read_one(self, client: ServiceClient) -> GatewayHealth:
        try:
            not_ready = await client.why_not_ready()
            refused_doors = await client.refused_doors()
            text = await client.metrics()
            latest = parse_reading(text, self._clock.monotonic_ns())
        except ServiceFailed as error:
            self._kept.pop(client.url, None)
            return GatewayHealth(url=client.url, problem=str(error))
        except ValueError as error:
            self._kept.pop(client.url, None)
            problem = f"unreadable metrics: {error}; correct its URL"
            return GatewayHealth(url=client.url, problem=problem)
        kept = self._kept.setdefault(client.url, deque(maxlen=_READINGS_MAX))
        if kept and not is_successor(kept[-1], latest):
            kept.clear()
        kept.append(latest)
        while len(kept) > _PAIR and latest.at_ns - kept[0].at_ns > WINDOW_S * NS_PER_S:
            kept.popleft()
        health = health_between(client.url, kept[0], latest)
        return msgspec.structs.replace(health, not_ready=not_ready, refused_doors=refused_doors)

    def _rates(self, url: str) -> RequestRates | None:
        kept = self._kept.get(url)
        if kept is None or len(kept) < _PAIR:
            return None
        earlier, later = kept[-2], kept[-1]
        return rates_between(earlier.calls, later.calls, (later.at_ns - earlier.at_ns) / NS_PER_S)
