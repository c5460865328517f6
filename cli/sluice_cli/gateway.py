"""`sluice gateway`: accept uploads."""

from typing import Annotated

from cyclopts import Parameter

from sluice_cli.shell.options import STORE_DEFAULT, StoreUrl
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
    from sluice_gateway.process.processes import run_gateway  # noqa: PLC0415 - imports the web server

    return run_gateway(settings, store)
