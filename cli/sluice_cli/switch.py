"""`sluice switch`: change the acceptance mode without losing batches."""

import asyncio
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from sluice_cli.shell.options import EXISTING_SPOOL, STORE_DEFAULT, Json, StoreUrl
from sluice_cli.shell.output import emit
from sluice_gateway.spool.claim import lock_spool
from sluice_gateway.spool.mode_switch import switch_to_manifest, switch_to_spool
from sluice_protocol.authority import AcceptanceMode, Authority
from sluice_protocol.errors import BadUsage
from sluice_protocol.system_clock import SystemClock
from sluice_store import open_store

if TYPE_CHECKING:
    from rich.console import Console


def switch(
    acceptance: AcceptanceMode,
    *,
    store: StoreUrl = STORE_DEFAULT,
    spool: Annotated[str | None, EXISTING_SPOOL] = None,
    spool_writer: Annotated[str | None, Parameter(name="--spool-writer")] = None,
    json: Json = False,
) -> None:
    """Change the acceptance mode; gateways in the old mode exit within 30 s.

    Args:
        acceptance: The new mode.
        store: The acceptance authority.
        spool: To leave `local_spool`: the URL of the spool; its gateway must be stopped and all
            batches transferred.
        spool_writer: To enter `local_spool`: the collector id of the one gateway.
        json: Print JSON for programs.
    """
    if acceptance == "local_spool":
        if spool_writer is None:
            raise BadUsage("local_spool needs --spool-writer, the collector id of the one gateway")
        settings = asyncio.run(_to_spool(store, spool_writer))
    else:
        if spool is None:
            raise BadUsage(
                "leaving local_spool needs --spool, the value of the gateway's `--spool`; `sluice"
                " status` prints the mode that is in effect"
            )
        settings = asyncio.run(_to_manifest(store, spool))
    emit(settings, as_json=json, human=lambda console: _draw(console, store, settings))


async def _to_spool(url: str, spool_writer: str) -> Authority:
    async with open_store(url) as remote:
        return await switch_to_spool(remote, spool_writer, SystemClock())


async def _to_manifest(url: str, spool: str) -> Authority:
    with lock_spool(spool):
        async with open_store(url) as remote, open_store(spool) as local:
            return await switch_to_manifest(remote, local, SystemClock())


def _draw(console: "Console", url: str, settings: Authority) -> None:
    console.print(f"authority {settings.authority_id} in {url}")
    console.print(f"  acceptance = {settings.acceptance}")
    if settings.spool_writer is not None:
        console.print(f"  spool_writer = {settings.spool_writer}")
