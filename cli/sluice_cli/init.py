"""`sluice init`: create the authority's settings."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from sluice_cli.shell.options import STORE_DEFAULT, Json, NewStoreUrl
from sluice_cli.shell.output import emit
from sluice_protocol.authority import (
    MARGIN_S_DEFAULT,
    RETRY_HORIZON_S_DEFAULT,
    AcceptanceMode,
    Authority,
    check_authority,
)
from sluice_protocol.system_clock import SystemIds
from sluice_store import StoreMode, create_authority, open_store

if TYPE_CHECKING:
    from rich.console import Console

LANES_DEFAULT = 4


def init(
    *,
    store: NewStoreUrl = STORE_DEFAULT,
    retry_horizon_s: int = RETRY_HORIZON_S_DEFAULT,
    margin_s: int = MARGIN_S_DEFAULT,
    lanes: int = LANES_DEFAULT,
    acceptance: AcceptanceMode = "s3_manifest",
    spool_writer: Annotated[str | None, Parameter(name="--spool-writer")] = None,
    json: Json = False,
) -> None:
    """Create the settings of a deployment; identical existing settings are kept.

    Args:
        store: The acceptance authority.
        retry_horizon_s: How long an agent may keep sending the same bytes, seconds.
        margin_s: Safety margin between acceptance and garbage collection, seconds.
        lanes: Number of queue lanes, 1 to 1000; it cannot be changed later.
        acceptance: Where acceptance happens.
        spool_writer: In `local_spool` mode, the collector id of the one gateway.
        json: Print JSON for programs.
    """
    wanted = Authority(
        authority_id=SystemIds().ulid(),
        retry_horizon_s=retry_horizon_s,
        margin_s=margin_s,
        lanes=lanes,
        acceptance=acceptance,
        spool_writer=spool_writer,
    )
    check_authority(wanted)  # before its directory is created
    settings = asyncio.run(_write(store, wanted))
    emit(settings, as_json=json, human=lambda console: _draw(console, store, settings))


async def _write(url: str, wanted: Authority) -> Authority:
    async with open_store(url, StoreMode.CREATE) as store:
        return await create_authority(store, wanted)


def _draw(console: "Console", url: str, settings: Authority) -> None:
    console.print(f"authority {settings.authority_id} in {url}")
    for name, value in msgspec.structs.asdict(settings).items():
        if name.endswith("_s"):
            console.print(f"  {name} = {value} s")
        elif name in {"lanes", "acceptance", "spool_writer"} and value is not None:
            console.print(f"  {name} = {value}")
    console.print(f"next: sluice doctor --store {url}")
