"""What is wrong with the lake, for the console and `sluice status`: problems, open dead letters."""

import asyncio
from contextlib import suppress
from typing import Final

from sluice_protocol.errors import SluiceError
from sluice_protocol.keys import INGEST_QUEUE, LAKE
from sluice_queue.errors import LaneDamaged
from sluice_queue.inspection import list_lanes, read_lane
from sluice_store.port import ObjectStore

_DEAD_LETTERS_LOG: Final = f"{LAKE}dead_letters/_delta_log/"


async def read_lake_problems(url: str, store: ObjectStore) -> tuple[str, ...] | None:
    """Return what is wrong with the tables of the lake, by what the queue has handed over.

    None means that they were not compared, because the packages that read them are not installed.
    """
    acknowledged: dict[int, int] = {}
    for place in await list_lanes(store, INGEST_QUEUE):
        with suppress(LaneDamaged):  # reported with the lanes
            found = await read_lane(store, INGEST_QUEUE, place.lane, entries_max=0)
            acknowledged[place.lane] = found.state.acked_through
    if not any(acknowledged.values()):
        return ()
    try:
        from sluice_lake.table_check import check_lake  # noqa: PLC0415 - an extra
    except ImportError:
        return None

    return await asyncio.to_thread(check_lake, url, acknowledged)


async def count_open_dead_letters(url: str, store: ObjectStore) -> int | None:
    """Return the number of open dead letters, or None if the tables cannot be read."""
    async for page in store.list(_DEAD_LETTERS_LOG):
        # The tables are slow to read, so they are read only if the table exists.
        return await asyncio.to_thread(count_letters, url) if page.objects else 0
    return 0


def count_letters(url: str) -> int | None:
    """Return the number of open dead letters, or None if the tables cannot be read."""
    try:
        from sluice_lake.open_dead_letters import read_open_dead_letters  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    try:
        return len(read_open_dead_letters(url))
    except SluiceError:
        return None
