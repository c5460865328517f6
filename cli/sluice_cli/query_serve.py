"""`sluice query serve` and `sluice query dead-letters`: the service, and what was not ingested."""

import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from sluice_cli.shell.asking import SpoolUrl, run_with_searcher
from sluice_cli.shell.options import STORE_DEFAULT, Json, StoreUrl
from sluice_cli.shell.output import emit
from sluice_cli.shell.running import RunningDeployment, announce
from sluice_protocol.identity import format_identity
from sluice_query.settings import QuerySettings, ServeSettings
from sluice_store.url import absolute_url

if TYPE_CHECKING:
    from rich.console import Console

    from sluice_query.dead_letters import DeadLetterList

_SETTINGS: Final = QuerySettings()
_SERVING: Final = ServeSettings()


def serve(
    *,
    store: StoreUrl = STORE_DEFAULT,
    spool: SpoolUrl = None,
    serving: Annotated[ServeSettings, Parameter(name="*")] = _SERVING,
    settings: Annotated[QuerySettings, Parameter(name="*")] = _SETTINGS,
    json: Json = False,
) -> None:
    """Serve searches, histograms, fields and live tails over HTTP until SIGTERM.

    Without a token it listens on a loopback address only.

    Args:
        store: The store to search.
        spool: The spool of the gateway that transfers to this store.
        serving: The address and the token.
        settings: Limits of each query.
        json: Print the address as JSON.
    """
    from sluice_query.engine import IdleEngines  # noqa: PLC0415 - imports DuckDB
    from sluice_query.http.service import serve_queries  # noqa: PLC0415 - imports the web server

    announced: list[Path] = []

    def say(url: str) -> None:
        # Commands read a store without its spool, with the default limits, and have no token.
        if spool is None and not serving.api_token and settings == _SETTINGS:
            address = {"query": url.removeprefix("http://")}
            here = RunningDeployment(pid=os.getpid(), store=absolute_url(store), addresses=address)
            with suppress(OSError):  # commands compute their answers themselves then
                announced.append(announce(here))
        sys.stdout.write(f'{{"url":"{url}"}}\n' if json else f"listening on {url}\n")
        sys.stdout.flush()

    engines = IdleEngines()
    try:
        run_with_searcher(
            store,
            spool,
            settings,
            lambda one: serve_queries(replace(one, engines=engines), serving, say),
        )
    finally:
        engines.close()
        for path in announced:
            path.unlink(missing_ok=True)


def dead_letters(
    *,
    agent: Annotated[str | None, Parameter(help="Only this agent.")] = None,
    limit: Annotated[int, Parameter(help="Most dead letters, those accepted last.")] = 100,
    store: StoreUrl = STORE_DEFAULT,
    json: Json = False,
) -> int:
    """List accepted batches that could not be ingested, and why.

    Returns:
        0 if there are none, 1 if there are some.
    """
    from sluice_query.dead_letters import list_dead_letters  # noqa: PLC0415 - imports DuckDB

    found = run_with_searcher(
        store, None, _SETTINGS, lambda one: list_dead_letters(one, agent, limit)
    )
    emit(found, as_json=json, human=lambda console: _draw_dead_letters(console, found))
    return 1 if found.dead_letters else 0


def _draw_dead_letters(console: "Console", found: "DeadLetterList") -> None:
    """Print dead letters, each with the command that shows its whole path."""
    for one in found.dead_letters:
        name = format_identity(one)
        console.print(f"{name}: {one.reason}, {one.record_count} records of kind {one.kind}")
        console.print(f"  accepted {one.accepted_at}, last tried {one.observed_at}")
        console.print(f"  {one.detail}")
    console.print(f"{'more than ' if found.more else ''}{len(found.dead_letters)} dead letters")
