"""The services of `sluice up` in this folder, asked whether they can do their work.

The store does not show whether a gateway or a query service works, so `sluice status` asks those
whose addresses it knows: the ones that `sluice up` runs here.
"""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sluice_console.attention_items import ServiceState
from sluice_console.gateway_health import GatewayHealth

UP_STATE: Final = Path(".sluice-up") / "up.json"
_ASKED: Final = ("reconciler", "query", "console", "maintain")
"""Services that are asked, besides the gateway."""

TIMEOUT_S: Final = 3.0
"""Time for one response. These services are on the same machine, and a person waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalServices:
    """What the services responded; both are empty if none runs here."""

    services: tuple[ServiceState, ...] = ()
    gateways: tuple[GatewayHealth, ...] = ()


def read_addresses(url: str, path: Path = UP_STATE) -> dict[str, str]:
    """Return the addresses of the services over this store by name; empty if none runs here."""
    try:
        state = json.loads(path.read_bytes())
        addresses = dict(state["addresses"]) if state["store"] == url else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {str(name): str(address) for name, address in addresses.items()}


async def ask_local_services(url: str) -> LocalServices:
    """Ask each service of `sluice up` over this store whether it can do its work."""
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

        async def ask_gateway() -> GatewayHealth:
            gateway = client("gateway")
            try:
                return GatewayHealth(url=gateway.url, not_ready=await gateway.why_not_ready())
            except ServiceFailed as error:
                return GatewayHealth(url=gateway.url, problem=str(error))

        services = [client(name).check() for name in _ASKED if name in addresses]
        gateways = [ask_gateway()] if "gateway" in addresses else []
        return LocalServices(
            services=tuple(await asyncio.gather(*services)),
            gateways=tuple(await asyncio.gather(*gateways)),
        )
