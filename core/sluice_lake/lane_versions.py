"""The queue sequences that one state of a table contains, read from the newest entries of its log.

Each commit of the ingestion records the last sequence of its lanes as transaction versions.
delta-rs returns the version of one lane per call, and reads the log since the checkpoint each time.
Here the log is read once for all lanes, newest entry first, until every lane is found. A lane
without batches in these entries is in the checkpoint, of which only one column is read.
"""

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import pyarrow as pa
from deltalake import DeltaTable

from sluice_lake.locations import TableLocation, open_filesystem
from sluice_lake.log_errors import LogDamaged, log_errors_translated
from sluice_lake.tables import ingest_app_id
from sluice_protocol.errors import UNREADABLE_JSON

ENTRIES_MAX: Final = 256
"""Log entries that are read before delta-rs searches for the remaining lanes."""
_CONCURRENT_READS: Final = 16
_LAST_CHECKPOINT: Final = "_last_checkpoint"


class LogFiles(Protocol):
    """The files of one table's log."""

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a file, or None if it does not exist."""
        ...

    def open(self, name: str) -> Any:  # noqa: ANN401 - pyarrow has no types
        """Open a file for reads of ranges, or return None if it does not exist."""
        ...


def read_lane_versions(
    location: TableLocation, opened: DeltaTable, lanes: Sequence[int]
) -> dict[int, int]:
    """Return the last queue sequence of each lane in this state of a table; 0 for none."""
    apps = {lane: ingest_app_id(lane) for lane in lanes}
    with log_errors_translated(location.uri):
        search = search_transactions(open_log(location), opened.version(), apps.values())
        versions = dict(search.found)
        if not search.complete:
            rest = [app for app in apps.values() if app not in versions]
            versions |= {app: opened.transaction_version(app) or 0 for app in rest}
    return {lane: versions.get(app, 0) for lane, app in apps.items()}


@dataclass(slots=True, kw_only=True)
class TransactionSearch:
    """Transaction versions that were found; if `complete`, other applications have none."""

    found: dict[str, int] = field(default_factory=dict)
    complete: bool = False

    def add(self, name: str, entry: bytes, apps: Collection[str]) -> None:
        """Add what a log entry records; entries are added newest first."""
        for app, version in _transactions_of(name, entry):
            if app in apps:
                self.found.setdefault(app, version)

    def is_done(self, apps: Collection[str]) -> bool:
        """Return True if every application is found."""
        return len(self.found) == len(set(apps))


def search_transactions(log: LogFiles, version: int, apps: Collection[str]) -> TransactionSearch:
    """Search one state of a table for the transaction versions of some applications."""
    search = TransactionSearch()
    newest = log.read(_entry_name(version))
    if newest is None:
        return search
    search.add(_entry_name(version), newest, apps)
    if search.is_done(apps):
        search.complete = True
        return search
    checkpoint = _checkpoint_before(log.read(_LAST_CHECKPOINT), version)
    first = 0 if checkpoint is None else checkpoint + 1
    oldest = max(first, version - ENTRIES_MAX)
    whole = _search_entries(log, range(version - 1, oldest - 1, -1), search, apps)
    if search.is_done(apps):
        search.complete = True
    elif whole and oldest == first:
        search.complete = checkpoint is None or _search_checkpoint(log, checkpoint, search, apps)
    return search


def _search_entries(
    log: LogFiles, versions: Sequence[int], search: TransactionSearch, apps: Collection[str]
) -> bool:
    """Search entries until every application is found; return False if an entry is missing."""
    with ThreadPoolExecutor(_CONCURRENT_READS) as pool:
        for at in range(0, len(versions), _CONCURRENT_READS):
            names = [_entry_name(one) for one in versions[at : at + _CONCURRENT_READS]]
            for name, entry in zip(names, pool.map(log.read, names), strict=True):
                if entry is None:
                    return False
                search.add(name, entry, apps)
            if search.is_done(apps):
                break
    return True


def _search_checkpoint(
    log: LogFiles, version: int, search: TransactionSearch, apps: Collection[str]
) -> bool:
    """Add what a checkpoint records; return False if it is not one file with that column."""
    name = f"{version:020d}.checkpoint.parquet"
    opened = log.open(name)
    if opened is None:
        return False
    import pyarrow.parquet as pq  # noqa: PLC0415 - takes 0.3 s to import; rarely needed

    with opened:
        try:
            file = pq.ParquetFile(opened)
            if "txn" not in file.schema_arrow.names:
                return False
            rows = file.read(columns=["txn"])["txn"].drop_null().to_pylist()
            found = {row["appId"]: int(row["version"]) for row in rows}
        except (pa.ArrowException, LookupError, TypeError, ValueError) as error:
            raise LogDamaged(name, error) from error
    for app, last in found.items():
        if app in apps:
            search.found.setdefault(app, last)
    return True


def _entry_name(version: int) -> str:
    return f"{version:020d}.json"


class _Transaction(msgspec.Struct, frozen=True, rename="camel"):
    app_id: str
    version: int


class _LogLine(msgspec.Struct, frozen=True):
    txn: _Transaction | None = None


def _transactions_of(name: str, entry: bytes) -> Iterator[tuple[str, int]]:
    for line in entry.splitlines():
        if b'"txn"' in line:  # most lines add a file and have long statistics
            try:
                txn = msgspec.json.decode(line, type=_LogLine).txn
            except UNREADABLE_JSON as error:
                raise LogDamaged(name, error) from error
            if txn is not None:
                yield txn.app_id, txn.version


class _LastCheckpoint(msgspec.Struct, frozen=True):
    version: int


def _checkpoint_before(pointer: bytes | None, version: int) -> int | None:
    """Return the version of the newest checkpoint, or None if it is not known or too new."""
    if pointer is None:
        return None
    try:
        checkpoint = msgspec.json.decode(pointer, type=_LastCheckpoint).version
    except UNREADABLE_JSON:
        return None
    return checkpoint if checkpoint <= version else None


def open_log(location: TableLocation) -> LogFiles:
    """Return the log of a table."""
    if location.is_local:
        return _LocalLog(Path(location.uri, "_delta_log"))
    filesystem, root = open_filesystem(location)
    return _BucketLog(filesystem, f"{root}/_delta_log")


@dataclass(frozen=True, slots=True)
class _LocalLog:
    folder: Path

    def read(self, name: str) -> bytes | None:
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def open(self, name: str) -> Any:  # noqa: ANN401 - pyarrow has no types
        try:
            return pa.OSFile(str(self.folder / name))
        except FileNotFoundError:
            return None


@dataclass(frozen=True, slots=True)
class _BucketLog:
    filesystem: Any
    folder: str

    def read(self, name: str) -> bytes | None:
        opened = self.open(name)
        if opened is None:
            return None
        with opened:
            return bytes(opened.read())

    def open(self, name: str) -> Any:  # noqa: ANN401 - pyarrow has no types
        try:
            return self.filesystem.open_input_file(f"{self.folder}/{name}")
        except FileNotFoundError:
            return None
