"""Whether the tables contain what the queue has handed over, and whether their files exist.

The ingestion acknowledges a queue entry only after each record table and the ledger contain it. So
a table that is behind an acknowledged entry lost commits, is missing, or was restored from an older
copy. A record table that is behind the ledger shows the same, because it is committed first.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from deltalake import DeltaTable

from sluice_lake.data_files import DataFile, list_files
from sluice_lake.delta import find_table
from sluice_lake.errors import TableRefused
from sluice_lake.lane_versions import read_lane_versions
from sluice_lake.locations import TableLocation, lake_location, open_filesystem
from sluice_lake.tables import BATCHES, RECORD_TABLES, Table
from sluice_protocol.errors import SluiceError

FILES_CHECKED_LOCAL: Final = 1_000
"""How many of the newest files of a table have their size checked on a directory."""
FILES_CHECKED_BUCKET: Final = 50
"""The same in a bucket, where each costs a request."""
FILE_REMEDY: Final = (
    "restore this file from a backup; without one, rebuild the lake (docs/spark.md)"
)


def describe_older(table: str, found: Mapping[int, int], needed: Mapping[int, int]) -> str:
    """Return why a table is incomplete, in one sentence; empty if it contains every needed entry.

    `found` is the last queue entry of each lane that the table contains, `needed` one that was
    ingested.
    """
    older = sorted(lane for lane, entry in needed.items() if found.get(lane, 0) < entry)
    if not older:
        return ""
    lane = older[0]
    more = f" (and {len(older) - 1} more lanes)" if len(older) > 1 else ""
    return (
        f"table `{table}` is missing, older than the queue, or lost commits: it contains lane"
        f" {lane} up to entry {found.get(lane, 0)}, and entry {needed[lane]} was ingested{more};"
        " restore its newest copy, or rebuild the lake (docs/spark.md)"
    )


def read_positions(
    store_url: str, table: Table, opened: DeltaTable | None, lanes: Sequence[int]
) -> dict[int, int]:
    """Return the last queue entry of each lane in a state of a table; empty without a table."""
    if opened is None or not lanes:
        return {}
    return read_lane_versions(lake_location(store_url, table.name), opened, lanes)


def check_lake(store_url: str, acknowledged: Mapping[int, int]) -> tuple[str, ...]:
    """Return what is wrong with the record tables and the ledger, one sentence each.

    Of the data files only the size of the newest is compared. `acknowledged` is the last entry of
    each lane that the queue has handed over, read before the tables.
    """
    problems: list[str] = []
    lanes = sorted(acknowledged)
    ledger: Mapping[int, int] = {}
    for table in (BATCHES, *RECORD_TABLES.values()):
        try:
            opened = find_table(store_url, table)
            found = read_positions(store_url, table, opened, lanes)
            needed = {lane: max(acknowledged[lane], ledger.get(lane, 0)) for lane in lanes}
            older = describe_older(table.name, found, needed)
            problems += [older] if older else []
            if opened is not None:
                problems += _wrong_files(store_url, table, opened)
        except SluiceError as error:
            problems.append(str(error))
            continue
        if table is BATCHES:
            ledger = found
    return tuple(problems)


def _wrong_files(store_url: str, table: Table, opened: DeltaTable) -> list[str]:
    location = lake_location(store_url, table.name)
    files = sorted(list_files(opened, table), key=lambda one: one.partition, reverse=True)
    newest = files[: FILES_CHECKED_LOCAL if location.is_local else FILES_CHECKED_BUCKET]
    return [describe_file(location, one, why) for one, why in find_wrong_files(location, newest)]


def describe_file(location: TableLocation, file: DataFile, why: str) -> str:
    """Return a sentence about a data file that cannot be read, with what to do."""
    return f"data file {why}: {FILE_REMEDY}, file=`{location.uri_of(file.path)}`"


def find_wrong_files(
    location: TableLocation, files: Sequence[DataFile]
) -> list[tuple[DataFile, str]]:
    """Return the files that are missing or have another size than in the log, and the fault."""
    sizes = _sizes(location, files)
    wrong: list[tuple[DataFile, str]] = []
    for file, size_bytes in zip(files, sizes, strict=True):
        if size_bytes is None:
            wrong.append((file, "is missing"))
        elif size_bytes != file.size_bytes:
            wrong.append((file, f"has {size_bytes} bytes instead of {file.size_bytes}"))
    return wrong


def _sizes(location: TableLocation, files: Sequence[DataFile]) -> list[int | None]:
    if location.is_local:
        return [_size(Path(location.uri_of(file.path))) for file in files]
    filesystem, root = open_filesystem(location)
    try:
        found = filesystem.get_file_info([f"{root}/{file.path}" for file in files])
    except OSError as error:
        raise TableRefused(location.uri, f"its files cannot be listed: {error}") from error
    return [one.size if one.is_file else None for one in found]


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
