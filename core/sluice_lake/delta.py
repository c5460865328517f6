"""Opening, checking and creating the lake's tables by delta-rs, without a JVM.

The rule for a path, of a directory or of a bucket, where delta-rs finds no table:

- A missing or empty folder is a table that does not exist yet.
- A folder that contains only `_delta_log`, with no commit in it, is the same: another process is
  creating the table, or stopped while it did.
- Anything else is refused: treating it as empty would hide its data. Before the refusal the table
  is opened a second time, because another process may have created it since the first attempt. A
  creator commits before it writes data, so the second attempt finds every such table.

delta-rs writes only to tables whose features it supports, and sluice adds and reads data files by
itself. A feature is accepted only if both are correct with it. A feature that a table supports and
does not use is harmless for some features; these are recognized by their property or column.

Source: https://github.com/delta-io/delta/blob/master/PROTOCOL.md, "Valid feature names".

`check_lake` shows whether the tables contain what the queue has handed over, and their files. The
ingestion acknowledges a queue entry only after each record table and the ledger contain it. So
a table that is behind an acknowledged entry lost commits, is missing, or was restored from an older
copy. A record table that is behind the ledger shows the same, because it is committed first.

`read_lane_versions` returns the queue sequences that one state of a table contains. Each commit of
the ingestion records the last sequence of its lanes as transaction versions. delta-rs returns the
version of one lane per call, and reads the log since the checkpoint each time. Here the log is read
once for all lanes, newest entry first, until every lane is found. A lane without batches in these
entries is in the checkpoint, of which only one column is read.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from sluice_lake.data_files import DataFile, list_files
from sluice_lake.errors import (
    RESTORE_LOG,
    CommitConflict,
    LogDamaged,
    TableRefused,
    first_line,
    log_errors_translated,
)
from sluice_lake.locations import (
    TableLocation,
    lake_location,
    open_filesystem,
    require_lake_store,
    trusting,
)
from sluice_lake.schemas import PROMOTES, schema_json
from sluice_lake.tables import BATCHES, RECORD_TABLES, TABLES, Table, ingest_app_id
from sluice_protocol.errors import UNREADABLE_JSON, OutcomeUnknown, SluiceError, StoreUnavailable

_ACCEPTED: Final = frozenset(
    {"appendOnly", "changeDataFeed", "checkConstraints", "generatedColumns", "invariants"}
)
"""Harmless unless the table uses them; a change feed is correct without files of changes."""
_BY_PROPERTY: Final = {
    "delta.appendOnly": "appendOnly",
    "delta.enableDeletionVectors": "deletionVectors",
    "delta.enableRowTracking": "rowTracking",
    "delta.enableInCommitTimestamps": "inCommitTimestamp",
    "delta.enableTypeWidening": "typeWidening",
}
_COLUMN_MAPPING: Final = "delta.columnMapping.mode"
_CONSTRAINT: Final = "delta.constraints."
_BY_COLUMN: Final = {
    "delta.generationExpression": "generatedColumns",
    "delta.identity.start": "identityColumns",
    "delta.invariants": "invariants",
}


def unsupported_features(opened: DeltaTable) -> list[str]:
    """Return the names of the features that make a table unusable, sorted."""
    protocol = opened.protocol()
    listed = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    columns = {name for field in opened.schema().fields for name in field.metadata}
    used = _used_by_properties(opened.metadata().configuration)
    used |= {feature for name, feature in _BY_COLUMN.items() if name in columns}
    return sorted((listed - _ACCEPTED) | used)


def _used_by_properties(properties: Mapping[str, str | None]) -> set[str]:
    """Return the features that are on; a table of an old version does not list them."""
    used = {
        feature
        for name, feature in _BY_PROPERTY.items()
        if (properties.get(name) or "").lower() == "true"
    }
    if (properties.get(_COLUMN_MAPPING) or "none").lower() != "none":
        used.add("columnMapping")
    if any(name.startswith(_CONSTRAINT) for name in properties):
        used.add("checkConstraints")
    return used


CONFIGURATION: Final = {
    "delta.enableDeletionVectors": "false",
    "delta.checkpointInterval": "50",
    "delta.dataSkippingNumIndexedCols": "-1",
}
"""With deletion vectors a reader of the data files alone would return deleted rows (ADR 31).
delta-rs returns the statistics of the first 32 columns only, unless the last property is set, and
promoted columns are the last ones.
"""
_CONFLICTS: Final = ("Failed to commit transaction", "Tried committing existing table version")
"""How delta-rs begins the error of a commit that lost to another one (ADR 32)."""
LaneEnds = Mapping[int, int]
"""Lane to a queue sequence."""
_STORE_FAILURES: Final = ("Log storage error", "Transaction failed")
_UNSUPPORTED: Final = "Unsupported table features required"
_ADD_TRIES: Final = 5
"""Each try that fails shows that another writer has committed."""
_LOG: Final = "_delta_log"
_COMMIT: Final = re.compile(r"\d{20}\.(json|checkpoint\b.*)|_last_checkpoint")


@contextmanager
def delta_errors_translated(location: TableLocation) -> Iterator[None]:
    """Translate the errors of a commit by delta-rs; only a lost race is a `CommitConflict`.

    Raises:
        OutcomeUnknown: The store failed; whether the commit was made is unknown.
        TableRefused: Every other reason; repeating the commit would fail again.
    """
    try:
        yield
    except CommitFailedError as error:
        raise _commit_error(location, str(error)) from error
    except DeltaError as error:
        raise TableRefused(location.uri, first_line(error)) from error
    except OSError as error:
        raise OutcomeUnknown("commit", location.uri, 1) from error


def vacuum_table(opened: DeltaTable, hours: int, *, full: bool, dry_run: bool) -> list[str]:
    """Delete the files that commits replaced longer ago, and return their paths.

    With `full` also the files of that age that no commit names. A path may be returned again.
    """
    with delta_errors_translated(TableLocation(uri=opened.table_uri)):
        found: list[str] = opened.vacuum(
            retention_hours=hours, dry_run=dry_run, full=full, enforce_retention_duration=False
        )
    return found


def _commit_error(location: TableLocation, reason: str) -> SluiceError:
    if reason.startswith(_CONFLICTS):
        return CommitConflict(location.uri, reason)
    if reason.startswith(_STORE_FAILURES):
        return OutcomeUnknown("commit", location.uri, 1)
    if reason.startswith(_UNSUPPORTED):
        return TableRefused(location.uri, f"{reason}; rewrite it without these features")
    return TableRefused(location.uri, f"the commit was refused: {first_line(reason)}")


def delta_schema(table: Table) -> Schema:
    """Return a table's schema as delta-rs represents it."""
    return Schema.from_json(schema_json(table))


def find_table(
    store_url: str, table: Table, *, for_writing: bool = False, extend: bool = False
) -> DeltaTable | None:
    """Open a table's newest state, or return None when the table does not exist yet.

    With `for_writing` a column that this version does not know is refused, because a rewrite would
    lose it; with `extend` too, the columns that an earlier version did not have are added, as only
    a caller does that commits rows. A reader accepts additional columns and another order.

    Raises:
        TableRefused: The path contains something other than a table, a column is missing or has
            another type, or the table has a feature that is not supported.
        NoStore: The store is to be written, and its directory is not a store at this moment.
    """
    location = lake_location(store_url, table.name)
    if for_writing:
        require_lake_store(store_url)
    opened = _open(location)
    if opened is None and _is_occupied(location):
        opened = _open(location)
        if opened is None:
            raise _not_a_table(location)
    if opened is not None:
        _check_features(location, opened)
        _check_schema(location, table, opened, exact=for_writing)
    if opened is not None and extend:
        opened = _with_added_columns(location, table, opened)
    return opened


def refresh_table(store_url: str, table: Table, opened: DeltaTable | None) -> DeltaTable | None:
    """Return the newest state of a table that `find_table` has just opened for reading.

    It reads only what was committed since, so of several tables that have to be read in an order,
    all can be opened concurrently before.

    Raises:
        TableRefused: As `find_table`.
    """
    if opened is None:
        return find_table(store_url, table)
    location, version = lake_location(store_url, table.name), opened.version()
    try:
        with trusting(location):
            opened.update_incremental()
    except (DeltaError, OSError):
        return find_table(store_url, table)
    if opened.version() != version:
        _check_features(location, opened)
        _check_schema(location, table, opened, exact=False)
    return opened


def _with_added_columns(location: TableLocation, table: Table, opened: DeltaTable) -> DeltaTable:
    """Add the columns that an earlier version did not have; another writer may do the same."""
    for _ in range(_ADD_TRIES):
        have = {field.name for field in opened.schema().fields}
        missing = [column for column in table.addable_columns if column.name not in have]
        if not missing:
            return opened
        wanted = {field.name: field for field in delta_schema(table).fields}
        with suppress(CommitConflict), delta_errors_translated(location), trusting(location):
            opened.alter.add_columns([wanted[column.name] for column in missing])
        with trusting(location):
            opened.update_incremental()
        from sluice_lake.durable_files import sync_state  # noqa: PLC0415 - writers only

        with delta_errors_translated(location):
            sync_state(opened)
    raise CommitConflict(location.uri, "other writers change the columns of the table")


def is_extended(opened: DeltaTable, table: Table) -> bool:
    """Return whether data files may do without some columns, which were added after them."""
    names = [field.name for field in opened.schema().fields]
    first = names.index(table.partition_column)
    return any(
        column.name not in names or names.index(column.name) > first
        for column in table.addable_columns
    )


def list_paths_at(store_url: str, table: Table, version: int, at_most: LaneEnds) -> set[str] | None:
    """Return the paths of the data files of an earlier version of a table.

    `at_most` is the last queue sequence of each lane that the version may contain. Return None if
    it contains later ones, or if the log no longer contains the version.
    """
    location = lake_location(store_url, table.name)
    try:
        with trusting(location):
            opened = DeltaTable(
                location.uri, version=version, storage_options=dict(location.storage_options)
            )
    except DeltaError:
        return None
    except OSError as error:
        raise StoreUnavailable("open", location.uri, first_line(error)) from error
    found = read_lane_versions(location, opened, list(at_most))
    if any(found[lane] > end for lane, end in at_most.items()):
        return None
    with log_errors_translated(location.uri):
        return set(pa.table(opened.get_add_actions()).column("path").to_pylist())


def open_or_create_table(store_url: str, table: Table) -> DeltaTable:
    """Open a table's newest state for writing; create the table if it does not exist."""
    found = find_table(store_url, table, for_writing=True, extend=True)
    if found is not None:
        return found
    from sluice_lake.durable_files import make_folder, sync_new_table  # noqa: PLC0415 - writers only

    location = lake_location(store_url, table.name)
    if location.is_local:
        make_folder(Path(location.uri))
    with delta_errors_translated(location), trusting(location):
        created = DeltaTable.create(
            location.uri,
            delta_schema(table),
            mode="error",
            partition_by=[table.partition_column],
            configuration=CONFIGURATION,
            storage_options=dict(location.storage_options),
        )
        sync_new_table(location.uri)
    return created


def check_tables(store_url: str) -> None:
    """Check that every existing table can be written, before a job starts a JVM."""
    for table in TABLES:
        find_table(store_url, table, for_writing=True)


def _open(location: TableLocation) -> DeltaTable | None:
    try:
        with trusting(location):
            return DeltaTable(location.uri, storage_options=dict(location.storage_options))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        if location.is_local and Path(location.uri).exists() and not Path(location.uri).is_dir():
            raise _not_a_table(location) from error
        if isinstance(error, OSError) and not location.is_local:
            raise StoreUnavailable("open", location.uri, first_line(error)) from error
        reason = f"it cannot be opened: {first_line(error)}"
        if isinstance(error, DeltaError) and _UNSUPPORTED not in reason:
            reason += f"; {RESTORE_LOG}"
        raise TableRefused(location.uri, reason) from error


def _is_occupied(location: TableLocation) -> bool:
    """Return True if the path contains anything but a log folder without a commit."""
    if location.is_local and Path(location.uri).is_file():
        return True
    try:
        if any(name != _LOG for name in _list_names(location, "")):
            return True
        return any(_COMMIT.fullmatch(name) for name in _list_names(location, _LOG))
    except OSError as error:
        raise TableRefused(location.uri, f"it cannot be listed: {error}") from error


def _list_names(location: TableLocation, folder: str) -> list[str]:
    if location.is_local:
        path = Path(location.uri, folder)
        return [entry.name for entry in path.iterdir()] if path.exists() else []
    from pyarrow.fs import FileSelector  # noqa: PLC0415 - takes 0.3 s to import; rarely needed

    filesystem, root = open_filesystem(location)
    selector = FileSelector(f"{root}/{folder}".rstrip("/"), allow_not_found=True)
    return [entry.base_name for entry in filesystem.get_file_info(selector)]


def _not_a_table(location: TableLocation) -> TableRefused:
    return TableRefused(location.uri, "this path is not a Delta table: move it away")


def _check_features(location: TableLocation, opened: DeltaTable) -> None:
    if features := unsupported_features(opened):
        raise TableRefused(
            location.uri,
            f"its features {', '.join(features)} must be off, because sluice would misread or"
            " damage the table: rewrite it without them",
        )


def _check_schema(
    location: TableLocation, table: Table, opened: DeltaTable, *, exact: bool
) -> None:
    wrong = _wrong_columns(table, opened)
    if exact and not wrong:
        wrong = _inexact_columns(table, opened)
    if wrong:
        raise TableRefused(
            location.uri, f"its schema is not that of this version: {'; '.join(wrong)}"
        )
    if opened.metadata().partition_columns != [table.partition_column]:
        raise TableRefused(location.uri, f"it must be partitioned by {table.partition_column}")


def _wrong_columns(table: Table, opened: DeltaTable) -> list[str]:
    have = {field.name: _type_name(field.type) for field in opened.schema().fields}
    return [
        f"column {column.name} must be {column.type.value}, found {have.get(column.name, 'none')}"
        for column in table.columns
        if have.get(column.name) != column.type.value
        and not (column.addable and column.name not in have)
    ]


def _inexact_columns(table: Table, opened: DeltaTable) -> list[str]:
    """Return what differs; columns that may be added may be missing, and be in any order.

    A promoted column that the caller does not know follows from others, so nothing is lost with it.
    """
    addable = {column.name for column in table.addable_columns}
    known = {column.name for column in table.columns}
    have = [
        (field.name, field.type.to_json())
        for field in opened.schema().fields
        if field.name in known or PROMOTES not in field.metadata
    ]
    want = [
        (field.name, field.type.to_json())
        for field in delta_schema(table).fields
        if field.name not in addable or field.name in dict(have)
    ]
    if different := sorted({name for name, _ in set(have) ^ set(want)}):
        return [f"see columns {', '.join(different)}"]
    orders = ([name for name, _ in ones if name not in addable] for ones in (have, want))
    return [] if next(orders) == next(orders) else ["see the order of its columns"]


def _type_name(kind: Any) -> str:  # noqa: ANN401 - a type of delta-rs, which is untyped here
    key_type = getattr(kind, "key_type", None)
    if key_type is not None:
        return f"map<{_type_name(key_type)},{_type_name(kind.value_type)}>"
    return str(getattr(kind, "type", kind))


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
