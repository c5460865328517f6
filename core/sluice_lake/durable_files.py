"""Durability of the data files and the log of a table in a directory.

A bucket is durable when it responds. On a directory delta-rs names a log entry and syncs nothing,
so a power failure can leave an entry that is empty, or none. What other objects record on the basis
of an entry, such as the acknowledgement of a queue, must not outlive it. Therefore every commit
syncs its entry before the next step, and a job first syncs the entries that it continues from: the
process that wrote them may have died in between.
"""

import os
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

from deltalake import DeltaTable

from sluice_lake.errors import log_errors_translated
from sluice_protocol.errors import StoreUnavailable
from sluice_store.url import parse_local_path

RECENT_ENTRIES: Final = 64
"""Entries before a version that may not be durable; every file system writes older ones sooner."""
_NEW_FOLDERS: Final = 3
"""Folders above a table that may be as new as the table: `lake/v1/` and what contains it."""


def make_folder(table: Path, partition: str = "") -> None:
    """Create the folder of a table or of a partition, but never the directory of the store.

    That is missing while the store is moved away. A directory in its place would look like an empty
    store.
    """
    if not table.parents[2].is_dir():  # of `lake/v1/<table>`
        raise StoreUnavailable("write", str(table), "the directory of the store is missing")
    (table / partition).mkdir(parents=True, exist_ok=True)


def sync_file(path: str) -> None:
    """Sync a local file and its folder to disk, so that a committed file survives a crash."""
    for place in (Path(path), Path(path).parent):
        _sync(place)


def sync_commits(uri: str, after: int) -> None:
    """Make the entries and checkpoints of a log after a version durable; do nothing on a bucket.

    The folder of the table is synced too, because it names the partitions of new data files.
    """
    folder = _local_folder(uri)
    if folder is None:
        return
    log = folder / "_delta_log"
    for version in count(after + 1):
        if not _sync_found(_entry_of(folder, version)):
            break
        if _sync_found(log / f"{version:020d}.checkpoint.parquet"):
            _sync_found(log / "_last_checkpoint")
    for place in (log, folder):
        _sync(place)


def sync_state(opened: DeltaTable) -> None:
    """Make a state of a table durable before a commit relies on it."""
    oldest = max(-1, opened.version() - RECENT_ENTRIES)
    folder = _local_folder(opened.table_uri)
    if folder is None:
        return
    while oldest < opened.version() and not _entry_of(folder, oldest + 1).exists():
        oldest += 1  # Delta has removed the entries before a checkpoint
    sync_commits(opened.table_uri, oldest)


def require_durable(opened: DeltaTable) -> None:
    """Make a state of a table durable before another object names it or what it contains.

    A version that is lost would be assigned to other files.
    """
    with log_errors_translated(opened.table_uri):
        sync_state(opened)


def sync_new_table(uri: str) -> None:
    """Make a table that was just created durable, with the folders above it."""
    sync_commits(uri, -1)
    if (folder := _local_folder(uri)) is not None:
        for above in folder.parents[:_NEW_FOLDERS]:
            _sync(above)


def _entry_of(folder: Path, version: int) -> Path:
    return folder / "_delta_log" / f"{version:020d}.json"


def _local_folder(uri: str) -> Path | None:
    if uri.startswith("file://"):
        return parse_local_path(uri)
    return None if "://" in uri else Path(uri)


def _sync_found(path: Path) -> bool:
    """Sync a file; return False if it does not exist."""
    with suppress(FileNotFoundError):
        _sync(path)
        return True
    return False


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
