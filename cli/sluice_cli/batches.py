"""`sluice batches`: list accepted batches."""

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Final

from cyclopts import Parameter
from rich.console import Console

from sluice_cli.options import STORE_DEFAULT, Json, StoreUrl
from sluice_cli.output import emit, format_size
from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.keys import ACCEPTED, agent_prefix
from sluice_protocol.manifests import AcceptedManifest, decode_accepted
from sluice_protocol.outcomes import Found
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_store.port import ObjectStore
from sluice_store.url import open_store

READS_AT_ONCE: Final = 32


def batches(
    *,
    agent: Annotated[str | None, Parameter(help="Only batches of this agent.")] = None,
    limit: Annotated[int, Parameter(help="Maximum number of batches.")] = 1000,
    store: StoreUrl = STORE_DEFAULT,
    json: Json = False,
) -> int:
    """List accepted batches, ordered by agent, boot and sequence.

    Returns:
        0, or 1 if an accepted manifest cannot be read.
    """
    if limit < 1:
        raise BadUsage(f"--limit must be at least 1, limit=`{limit}`")
    found, broken = asyncio.run(_read(store, agent, limit))
    emit(found, as_json=json, human=lambda console: _draw(console, found, broken, limit))
    return 1 if broken else 0


async def _read(url: str, agent: str | None, limit: int) -> tuple[list[AcceptedManifest], int]:
    async with open_store(url) as store:
        return await read_batches(store, agent, limit)


async def read_batches(
    store: ObjectStore, agent: str | None, limit: int
) -> tuple[list[AcceptedManifest], int]:
    """Return up to `limit` accepted manifests, and the number of unreadable ones.

    Raises:
        StoreError: The store is unreachable or refused.
    """
    found: list[AcceptedManifest] = []
    broken = 0
    async for page in store.list(ACCEPTED if agent is None else agent_prefix(agent)):
        for at in range(0, len(page.objects), READS_AT_ONCE):
            if len(found) >= limit:
                return found[:limit], broken
            some = page.objects[at : at + READS_AT_ONCE]
            for one in await asyncio.gather(*(_manifest(store, listed.key) for listed in some)):
                if isinstance(one, AcceptedManifest):
                    found.append(one)
                broken += isinstance(one, InvalidRecord)
    return found[:limit], broken


async def _manifest(store: ObjectStore, key: ObjectKey) -> AcceptedManifest | InvalidRecord | None:
    read = await store.get(key)
    if not isinstance(read, Found):
        return None
    try:
        return decode_accepted(key, read.body)
    except InvalidRecord as error:
        return error


def _draw(console: Console, found: list[AcceptedManifest], broken: int, limit: int) -> None:
    for one in found:
        moment = datetime.fromtimestamp(one.accepted_at_unix_ns / NS_PER_S, UTC)
        accepted = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        console.print(
            f"{one.agent_id}/{one.boot_id}/{one.seq_start}-{one.seq_end}  {accepted}"
            f"  {one.record_count} {one.kind}, {format_size(one.frame_bytes)},"
            f" by {one.collector_id}"
        )
    more = "; there may be more, raise --limit" if len(found) >= limit else ""
    console.print(f"{len(found)} batches, {broken} manifests that cannot be read{more}")
