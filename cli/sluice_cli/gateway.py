"""`sluice gateway`: accept uploads."""

from typing import Annotated

from cyclopts import Parameter

from sluice_cli.options import STORE_DEFAULT, Json, StoreUrl
from sluice_gateway.settings import GatewaySettings

_DEFAULTS = GatewaySettings()


def gateway(
    *,
    store: StoreUrl = STORE_DEFAULT,
    settings: Annotated[GatewaySettings, Parameter(name="*")] = _DEFAULTS,
    json: Json = False,
) -> int:
    """Accept uploads until SIGTERM, then finish running uploads and exit.

    Logs are JSON lines on standard error, with or without `--json`.
    """
    from sluice_gateway.processes import run_gateway  # noqa: PLC0415 - imports the web server

    del json
    return run_gateway(settings, store)
