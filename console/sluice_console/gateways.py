"""The gateways whose metrics are read: their addresses, and the newest readings of `/metrics`.

A balancer in front of several processes would mix their counters. An entry `dns+http://NAME:PORT`
is therefore looked up for each sample, and each address is one gateway. In Kubernetes a headless
service is such a name.
"""

import asyncio
import ipaddress
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

import aiohttp
import msgspec

from sluice_console.costs import RequestRates, rates_between, sum_rates
from sluice_console.gateway_health import (
    LOOKUP,
    GatewayHealth,
    GatewayReading,
    health_between,
    is_successor,
    parse_reading,
)
from sluice_console.reconcilers import ServiceClient, ServiceFailed
from sluice_protocol.clock import Clock
from sluice_protocol.errors import BadUsage
from sluice_protocol.units import NS_PER_S
from sluice_store.port import run_together

ADDRESSES_MAX: Final = 500
"""Addresses of one name that are read."""
_PORTS: Final = {"http": 80, "https": 443}

LookUp = Callable[[str, int], Awaitable[tuple[str, ...]]]
"""Return the addresses of a name, or raise OSError."""


async def look_up(name: str, port: int) -> tuple[str, ...]:
    """Return the addresses of a name, as the machine resolves it, or raise `OSError`."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return tuple(sorted({str(address[0]) for *_, address in found}))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownGateways:
    """A name without addresses, and why."""

    entry: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundGateways:
    """The gateways of one sample."""

    clients: tuple[ServiceClient, ...]
    unknown: tuple[UnknownGateways, ...] = ()


class GatewayAddresses:
    """The gateways of the setting."""

    def __init__(
        self,
        entries: tuple[str, ...],
        session: aiohttp.ClientSession,
        *,
        tls_name: str = "",
        look_up: LookUp = look_up,
    ) -> None:
        self._session = session
        self._tls_name = tls_name
        self._look_up = look_up
        self._fixed = [self._client(one) for one in entries if not one.startswith(LOOKUP)]
        self._named = [_parse_name(one) for one in entries if one.startswith(LOOKUP)]

    async def find(self) -> FoundGateways:
        """Return a client for each gateway, with the addresses that names have now."""
        clients = list(self._fixed)
        unknown: list[UnknownGateways] = []
        for name in self._named:
            try:
                clients += await self._clients_of(name)
            except (OSError, UnicodeError) as error:
                problem = (
                    f"cannot look up {name.hostname}: {error}; check the name, and whether a"
                    " gateway is running"
                )
                unknown.append(UnknownGateways(entry=f"{LOOKUP}{name.geturl()}", problem=problem))
        return FoundGateways(clients=tuple(clients), unknown=tuple(unknown))

    async def _clients_of(self, name: SplitResult) -> list[ServiceClient]:
        host, port = name.hostname or "", name.port or _PORTS[name.scheme]
        addresses = await self._look_up(host, port)
        tls_name = self._tls_name or host
        return [
            self._client(url_of_address(name.scheme, address, port), tls_name)
            for address in addresses[:ADDRESSES_MAX]
        ]

    def _client(self, url: str, tls_name: str = "") -> ServiceClient:
        return ServiceClient(
            service="gateway",
            url=checked_url("gateways", url),
            token="",
            session=self._session,
            tls_name=tls_name or self._tls_name,
        )


def url_of_address(scheme: str, address: str, port: int) -> str:
    """Return the URL of an address."""
    bare = address.partition("%")[0]
    host = f"[{bare}]" if ipaddress.ip_address(bare).version == 6 else bare  # noqa: PLR2004
    return f"{scheme}://{host}:{port}"


def checked_url(setting: str, url: str) -> str:
    """Return the URL of a service without a slash at the end."""
    if not url.startswith(("http://", "https://")):
        raise BadUsage(f"{setting} must be a URL that begins with http:// or https://, url=`{url}`")
    return url.rstrip("/")


def _parse_name(entry: str) -> SplitResult:
    form = f"gateways must be URLs, or of the form {LOOKUP}http://NAME:PORT, found=`{entry}`"
    try:
        parts = urlsplit(entry.removeprefix(LOOKUP).rstrip("/"))
        usable = parts.scheme in _PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise BadUsage(form) from error
    if not usable or parts.path or parts.query:
        raise BadUsage(form)
    return parts


WINDOW_S: Final = 300.0
"""Time over which shares of uploads and store calls are computed."""
_READINGS_MAX: Final = 301
_PAIR: Final = 2
"""Readings that a rate needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayReport:
    """What the gateways served.

    Rates are those since the last reading; None before the second one.
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
        read = await run_together(*map(self._read_one, found.clients))
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
