"""`sluice gateway`: serves uploads."""

from typing import Annotated

from cyclopts import Parameter

from sluice_cli.common import STORE_DEFAULT, Json, StoreUrl
from sluice_gateway.processes import run_gateway
from sluice_gateway.settings import GatewaySettings

_DEFAULTS = GatewaySettings()


def gateway(
    *,
    store: StoreUrl = STORE_DEFAULT,
    settings: Annotated[GatewaySettings, Parameter(name="*")] = _DEFAULTS,
    json: Json = False,
) -> int:
    """Serves uploads until SIGTERM, then answers the running ones and leaves.

    Logs are JSON lines on standard error, with or without `--json`.
    """
    del json
    return run_gateway(settings, store)
