"""`sluice batches`: list accepted batches."""

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from sluice_cli.shell.options import STORE_DEFAULT, FoundStoreUrl, Json
from sluice_cli.shell.output import emit, format_size
from sluice_protocol.errors import BadUsage
from sluice_protocol.identity import format_identity
from sluice_protocol.units import NS_PER_S
from sluice_reconciler.batch_lists import BatchPage, read_batches
from sluice_store import StoreMode, open_deployment

if TYPE_CHECKING:
    from rich.console import Console


def batches(
    *,
    agent: Annotated[str | None, Parameter(help="Only this agent.")] = None,
    limit: Annotated[int, Parameter(help="Maximum number of batches.")] = 1000,
    store: FoundStoreUrl = STORE_DEFAULT,
    json: Json = False,
) -> int:
    """List accepted batches, ordered by agent, boot and sequence.

    Returns:
        0, or 1 if an accepted manifest cannot be read.
    """
    if limit < 1:
        raise BadUsage(f"--limit must be at least 1, limit=`{limit}`")
    page = asyncio.run(_read(store, agent, limit))
    emit(page.batches, as_json=json, human=lambda console: _draw(console, page, agent, limit))
    return 1 if page.unreadable else 0


async def _read(url: str, agent: str | None, limit: int) -> BatchPage:
    async with open_deployment(url, StoreMode.READ) as store:
        return await read_batches(store, agent, limit)


def _draw(console: "Console", page: BatchPage, agent: str | None, limit: int) -> None:
    if agent is not None and not page.batches and not page.unreadable:
        console.print(f"no batch of this agent is accepted; `sluice gaps` lists all, agent={agent}")
        return
    for one in page.batches:
        moment = datetime.fromtimestamp(one.accepted_at_unix_ns / NS_PER_S, UTC)
        accepted = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        console.print(
            f"{format_identity(one)}  {accepted}"
            f"  {one.record_count} {one.kind}, {format_size(one.frame_bytes)},"
            f" by {one.collector_id}"
        )
    more = "; there may be more, raise --limit" if len(page.batches) >= limit else ""
    console.print(
        f"{len(page.batches)} batches, {len(page.unreadable)} manifests that cannot be read{more}"
    )
