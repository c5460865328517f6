"""Run a gateway. A plain command line of it is read without the command-line library."""

from typing import Final

from sluice_cli.plain_commands import STORE, PlainCommand
from sluice_gateway.settings import GatewaySettings


def run(*, store: str, settings: GatewaySettings) -> int:
    """Accept uploads until SIGTERM; return the exit code."""
    from sluice_gateway.process.processes import run_gateway  # noqa: PLC0415 - imports the web server

    return run_gateway(settings, store)


PLAIN: Final = PlainCommand(settings=GatewaySettings, options={"store": STORE}, run=run)
