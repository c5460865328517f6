"""`sluice gateway`: accept uploads."""

from typing import Annotated

from cyclopts import Parameter

from sluice_cli.existing_directory import STORE_DEFAULT
from sluice_cli.gateway_run import run
from sluice_cli.options import StoreUrl
from sluice_gateway.settings import GatewaySettings

_DEFAULTS = GatewaySettings()


def gateway(
    *,
    store: StoreUrl = STORE_DEFAULT,
    settings: Annotated[GatewaySettings, Parameter(name="*")] = _DEFAULTS,
) -> int:
    """Accept uploads until SIGTERM, then finish running uploads and exit.

    Logs are JSON lines on standard error.
    """
    return run(store=store, settings=settings)
