"""`sluice batches`: what was accepted."""

import asyncio
from datetime import UTC, datetime
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from sluice_cli.common import STORE_DEFAULT, Json, StoreUrl
from sluice_cli.output import emit, format_size
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import ACCEPTED, agent_prefix
from sluice_protocol.manifests import AcceptedManifest, decode_accepted
from sluice_protocol.outcomes import Found
from sluice_protocol.units import NS_PER_S
from sluice_store.port import ObjectStore
from sluice_store.url import open_store


def batches(
    *,
    agent: Annotated[str | None, Parameter(help="Only this agent.")] = None,
    limit: Annotated[int, Parameter(help="At most so many, count.")] = 1000,
    store: StoreUrl = STORE_DEFAULT,
    json: Json = False,
) -> int:
    """Lists accepted batches in the order of agent, boot and sequence.

    Returns:
        0; 1 when an accepted manifest cannot be read.
    """
    found, broken = asyncio.run(_read(store, agent, limit))
    emit(found, as_json=json, human=lambda console: _draw(console, found, broken))
    return 1 if broken else 0


async def _read(url: str, agent: str | None, limit: int) -> tuple[list[AcceptedManifest], int]:
    async with open_store(url) as store:
        return await read_batches(store, agent, limit)


async def read_batches(
    store: ObjectStore, agent: str | None, limit: int
) -> tuple[list[AcceptedManifest], int]:
    """Gives up to `limit` accepted manifests, and how many could not be read.

    Raises:
        StoreError: The store did not answer.
    """
    found: list[AcceptedManifest] = []
    broken = 0
    async for page in store.list(ACCEPTED if agent is None else agent_prefix(agent)):
        for listed in page.objects:
            if len(found) >= limit:
                return found, broken
            read = await store.get(listed.key)
            if isinstance(read, Found):
                try:
                    found.append(decode_accepted(listed.key, read.body))
                except InvalidRecord:
                    broken += 1
    return found, broken


def _draw(console: Console, found: list[AcceptedManifest], broken: int) -> None:
    for one in found:
        moment = datetime.fromtimestamp(one.accepted_at_unix_ns / NS_PER_S, UTC)
        accepted = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        console.print(
            f"{one.agent_id}/{one.boot_id}/{one.seq_start}-{one.seq_end}  {accepted}"
            f"  {one.record_count} {one.kind}, {format_size(one.frame_bytes)},"
            f" by {one.collector_id}"
        )
    console.print(f"{len(found)} batches, {broken} manifests that cannot be read")
