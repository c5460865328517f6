"""The store calls of gateways, from the counters that they serve under `/metrics`."""

import asyncio
from collections.abc import Mapping

from sluice_console.costs import RequestRates, rates_between, sum_rates
from sluice_console.reconcilers import ServiceClient, ServiceFailed
from sluice_protocol.clock import Clock
from sluice_protocol.units import NS_PER_S

_CALLS = "sluice_store_requests_total"


class GatewayCounters:
    """Reads the counters of gateways, and remembers the last reading of each."""

    def __init__(self, clients: tuple[ServiceClient, ...], clock: Clock) -> None:
        self._clients = clients
        self._clock = clock
        self._last: dict[str, tuple[int, Mapping[str, float]]] = {}

    async def read(self) -> RequestRates | None:
        """Return the calls per second since the last reading; None before the second one."""
        return sum_rates(list(await asyncio.gather(*map(self._read_one, self._clients))))

    async def _read_one(self, client: ServiceClient) -> RequestRates | None:
        try:
            counts = await client.counters(_CALLS, "op")
        except ServiceFailed:
            self._last.pop(client.url, None)
            return None
        now_ns = self._clock.monotonic_ns()
        before = self._last.get(client.url)
        self._last[client.url] = (now_ns, counts)
        if before is None:
            return None
        return rates_between(before[1], counts, (now_ns - before[0]) / NS_PER_S)
