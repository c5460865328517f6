"""Whether the services of `sluice up` in this folder can do their work.

The store does not show whether a gateway or a query service works, so `sluice status` sends a
request to those whose addresses it knows: the ones that `sluice up` runs here.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from sluice_console.attention_items import ServiceState
from sluice_console.gateway_health import GatewayHealth
from sluice_protocol.errors import UNREADABLE_JSON

UP_STATE: Final = Path(".sluice-up") / "up.json"
_REQUESTED: Final = ("reconciler", "query", "console", "maintain")
"""Services that get a request, in addition to the gateway."""

TIMEOUT_S: Final = 3.0
"""Time for one response: these services are on the same machine."""


class _UpState(msgspec.Struct, frozen=True):
    store: str
    addresses: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalServices:
    """What the services responded; both are empty if none runs here."""

    services: tuple[ServiceState, ...] = ()
    gateways: tuple[GatewayHealth, ...] = ()


def read_addresses(url: str, path: Path = UP_STATE) -> dict[str, str]:
    """Return the addresses of the services over this store by name; empty if none runs here."""
    try:
        state = msgspec.json.decode(path.read_bytes(), type=_UpState)
    except (OSError, *UNREADABLE_JSON):
        return {}
    return state.addresses if state.store == url else {}


async def read_local_services(url: str) -> LocalServices:
    """Request the readiness of each service of `sluice up` over this store."""
    addresses = read_addresses(url)
    if not addresses:
        return LocalServices()
    import aiohttp  # noqa: PLC0415 - a status without local services starts quickly

    from sluice_console.reconcilers import ServiceClient, ServiceFailed  # noqa: PLC0415 - as above

    async with aiohttp.ClientSession() as session:

        def client(service: str) -> ServiceClient:
            return ServiceClient(
                service=service,
                url=f"http://{addresses[service]}",
                token="",
                session=session,
                timeout_s=TIMEOUT_S,
            )

        async def read_gateway() -> GatewayHealth:
            gateway = client("gateway")
            try:
                return GatewayHealth(
                    url=gateway.url,
                    not_ready=await gateway.why_not_ready(),
                    refused_doors=await gateway.refused_doors(),
                )
            except ServiceFailed as error:
                return GatewayHealth(url=gateway.url, problem=str(error))

        services = [client(name).check() for name in _REQUESTED if name in addresses]
        gateways = [read_gateway()] if "gateway" in addresses else []
        return LocalServices(
            services=tuple(await asyncio.gather(*services)),
            gateways=tuple(await asyncio.gather(*gateways)),
        )
