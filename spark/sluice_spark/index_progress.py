"""Which files of `logs` have an index chunk, without reading every chunk.

After a run, every file of the state of the table that it read has a chunk. The run records the
version of that state. The next run considers only files that this version does not contain, and
reads only the chunks of their dates. Without the record, or if the log of the table no longer
contains the version, it reads the chunks of every date. A wrong record would cost searches their
speed and no results.

The record also names the dates that may have chunks to remove (`index_removal`).
"""

from collections.abc import Collection, Sequence
from typing import Final, Literal

import msgspec
import structlog

from sluice_lake.data_files import DataFile
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.index_chunk import decode_chunk
from sluice_protocol.keys import INDEX, index_prefix
from sluice_protocol.manifests import decode_record, encode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import ObjectKey
from sluice_store import ObjectStore
from sluice_store.retry import Backoff, overwrite_known

INDEX_PROGRESS: Final = ObjectKey(f"{INDEX}progress.json")

_log = structlog.get_logger("sluice.index")


class WaitingDate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A date that may have chunks of files that left the table.

    Attributes:
        date: The date.
        since_unix_ns: When that was noticed.
        due_unix_ns: When its chunks are checked next.
        checked_through: The last chunk that the current check has decided; empty before its start.
        again: Whether another check must follow the current one.
    """

    date: str
    since_unix_ns: int
    due_unix_ns: int
    checked_through: str = ""
    again: bool = False


class IndexProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A state of the table `logs` of which every file has an index chunk.

    Attributes:
        table_id: The id of the table in its log; a table that was created again has another one.
        table_version: The version of the state.
        waiting: The dates that may have chunks of files that left the table before this version, at
            most one entry a date.
    """

    schema: Literal["sluice.index_progress.v2"] = "sluice.index_progress.v2"
    table_id: str
    table_version: int
    waiting: tuple[WaitingDate, ...] = ()


async def read_index_progress(store: ObjectStore) -> IndexProgress | None:
    """Read the record; return None if it is missing or cannot be decoded.

    Raises:
        StoreError: The store is unreachable or refused the request.
    """
    read = await store.get(INDEX_PROGRESS)
    if not isinstance(read, Found):
        return None
    try:
        return decode_record(INDEX_PROGRESS, read.body, IndexProgress)
    except InvalidRecord as error:
        _log.info("index_progress_ignored", reason=error.reason)
        return None


async def write_index_progress(store: ObjectStore, progress: IndexProgress) -> None:
    """Write the record; one that another run overwrites costs the next run reads, nothing else.

    Raises:
        OutcomeUnknown: No attempt had a known outcome.
        StoreError: The store is unreachable or refused the request.
    """
    backoff = Backoff.seeded_by(SystemClock())
    await overwrite_known(store, INDEX_PROGRESS, encode_record(progress), backoff)


async def find_new_files(
    store: ObjectStore, files: Sequence[DataFile], indexed: Collection[str]
) -> list[DataFile]:
    """Return the files without a chunk; read only the chunks of dates with files not in `indexed`.

    Args:
        store: The store.
        files: The files of the table.
        indexed: Paths of files that have a chunk.

    Raises:
        StoreError: The store is unreachable or refused a request.
    """
    unsure = [file for file in files if file.path not in indexed]
    covered: set[str] = set()
    for day in sorted({file.partition for file in unsure}):
        covered |= await _read_covered(store, day)
    return [file for file in unsure if file.path not in covered]


async def _read_covered(store: ObjectStore, day: str) -> set[str]:
    """Return the paths of the files that chunks of a date cover; skip unreadable chunks."""
    paths: set[str] = set()
    async for page in store.list(index_prefix(day)):
        for listed in page.objects:
            paths |= await read_paths(store, listed.key) or set()
    return paths


async def read_paths(store: ObjectStore, key: ObjectKey) -> set[str] | None:
    """Return the paths of the files that a chunk covers; None if it is missing or unreadable.

    Raises:
        StoreError: The store is unreachable or refused the request.
    """
    read = await store.get(key)
    if not isinstance(read, Found):
        return None
    try:
        return {one.file.path for one in decode_chunk(key, read.body)}
    except InvalidRecord as error:
        _log.warning("index_chunk_unreadable", reason=str(error))
        return None
