"""What the lake contains, for processes that may run without the packages that read it.

Problems of the tables, open dead letters, and where a batch is.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from sluice_protocol.batch_in_lake import BatchInLake, unreadable_lake
from sluice_protocol.distribution import describe_missing_package
from sluice_protocol.errors import SluiceError
from sluice_protocol.keys import INGEST_QUEUE, LAKE
from sluice_protocol.manifests import AcceptedManifest
from sluice_queue.errors import LaneDamaged
from sluice_queue.inspection import handed_over, read_lane
from sluice_queue.lane import list_lanes
from sluice_store.authority import read_authority
from sluice_store.port import ObjectStore

_DEAD_LETTERS_LOG: Final = f"{LAKE}dead_letters/_delta_log/"


async def read_lake_problems(url: str, store: ObjectStore) -> tuple[str, ...] | None:
    """Return what is wrong with the tables of the lake, by what the queue has handed over.

    None means that they were not compared, because the packages that read them are not installed.
    """
    lanes = await list_lanes(store, INGEST_QUEUE)
    if not lanes:  # a store that was never used has no authority either
        return ()
    acknowledged, authority = dict[int, int](), await read_authority(store)
    for place in lanes:
        with suppress(LaneDamaged):  # reported with the lanes
            found = await read_lane(store, INGEST_QUEUE, place.lane, entries_max=0)
            acknowledged[place.lane] = handed_over(authority, place.lane, found.state)
    if not any(acknowledged.values()):
        return ()
    try:
        from sluice_lake.delta import check_lake  # noqa: PLC0415 - an extra
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


def make_lake_reader(
    store: ObjectStore, store_url: str
) -> Callable[[AcceptedManifest], Awaitable[BatchInLake]]:
    """Return the function that reads where a batch is in the lake of a store.

    The packages are imported by the first call, which takes 0.3 s. Without them, each result names
    the extra to install.
    """

    async def read_lake(manifest: AcceptedManifest) -> BatchInLake:
        try:
            from sluice_maintain.lake_places import LakeReader  # noqa: PLC0415 - as above
        except ModuleNotFoundError as error:
            return unreadable_lake(manifest, describe_missing_package("query", error.name))
        return await LakeReader(store=store, store_url=store_url).read(manifest)

    return read_lake
