"""`sluice console`: serve the web console."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from sluice_cli.price_files import read_prices
from sluice_cli.shell.options import STORE_DEFAULT, StoreUrl
from sluice_console.settings import ConsoleSettings

_DEFAULTS = ConsoleSettings()


def console(
    *,
    store: StoreUrl = STORE_DEFAULT,
    settings: Annotated[ConsoleSettings, Parameter(name="*")] = _DEFAULTS,
) -> int:
    """Serve the web console until SIGTERM.

    Logs are JSON lines on standard error. The URL of the console is printed when it listens.
    """
    from sluice_console.app import serve_console  # noqa: PLC0415 - imports the web server

    def say(url: str) -> None:
        sys.stdout.write(f"console on {url}\n")
        sys.stdout.flush()

    prices = read_prices(Path(settings.prices) if settings.prices else None)
    asyncio.run(serve_console(store, settings, say, prices))
    return 0
