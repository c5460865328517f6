"""Commits to Delta tables: adding and replacing data files, and the metadata of record commits.

The metadata of a record commit contains the sequence that each lane has reached, and the rows that
could not be read. A later run needs them to complete a run that stopped before the ledger commit.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from sluice_lake.data_files import DataFile, list_files
from sluice_lake.delta import delta_errors_translated, delta_schema, find_table
from sluice_lake.durable_files import sync_commits, sync_state
from sluice_lake.errors import CommitConflict, log_errors_translated, read_transaction
from sluice_lake.locations import TableLocation, lake_location
from sluice_lake.tables import Table, ingest_app_id
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S
from sluice_spark.errors import LakeInconsistent
from sluice_spark.ingest.exactly_once import REBUILD_LAKE, RowId
from sluice_spark.written_files import WrittenFile

LaneVersions = Mapping[int, int]
"""Lane to the last sequence that a table contains of it; a lane that is not listed has 0."""

MAINTENANCE_APP: Final = "sluice-maintenance"
"""The application id whose transaction versions order replacements; a stale one is refused."""
COMMIT_ATTEMPTS_MAX: Final = 50
"""Attempts of one replacement; each attempt fails if another commit is made meanwhile."""
_THROUGH: Final = "sluice.through"
_UNREADABLE: Final = "sluice.dead"
_HISTORY_MAX: Final = 10_000
"""Number of commits of the history that are searched.

Ingestion completes an unfinished run before it commits again, so only other jobs commit in between.
"""


def commit_files(
    opened: DeltaTable,
    table: Table,
    files: Sequence[WrittenFile],
    versions: LaneVersions,
    metadata: Mapping[str, str],
) -> None:
    """Append written files and advance the lanes' versions, in one commit based on this state.

    On a directory the commit is durable when this function returns.

    Raises:
        CommitConflict: The table has changed in a way that may matter; read everything again.
        OutcomeUnknown: The store failed; the commit may have been made, and may not be durable.
    """
    location, based_on = TableLocation(uri=opened.table_uri), opened.version()
    actions = [add_action(table, file, data_change=True) for file in files]
    transactions = [Transaction(ingest_app_id(lane), last) for lane, last in versions.items()]
    with delta_errors_translated(location):
        opened.create_write_transaction(
            actions,
            "append",
            delta_schema(table),
            [table.partition_column],
            commit_properties=CommitProperties(
                app_transactions=transactions, custom_metadata=dict(metadata)
            ),
        )
        sync_commits(location.uri, based_on)


def encode_commit_metadata(
    versions: Mapping[int, int], unreadable: Iterable[RowId]
) -> dict[str, str]:
    """Return the metadata of a commit."""
    rows = sorted(unreadable)
    return {
        _THROUGH: ",".join(f"{lane}={end}" for lane, end in sorted(versions.items())),
        _UNREADABLE: ",".join(f"{lane}:{sequence}:{position}" for lane, sequence, position in rows),
    }


def parse_through(text: str) -> dict[int, int]:
    """Return the sequence of each lane from a commit's metadata."""
    pairs = (part.split("=") for part in text.split(",") if part)
    return {int(lane): int(end) for lane, end in pairs}


def parse_unreadable(text: str) -> set[RowId]:
    """Return the unreadable rows from a commit's metadata."""
    found = (part.split(":") for part in text.split(",") if part)
    return {(int(lane), int(sequence), int(position)) for lane, sequence, position in found}


def read_unreadable(records: DeltaTable, ahead: Mapping[int, int]) -> set[RowId]:
    """Return the unreadable rows of the commits by which a record table is ahead of the ledger.

    `ahead` maps each lane in which the table is ahead to the table's position. Raise
    `LakeInconsistent` if the table's history no longer contains such a commit.
    """
    wanted = dict(ahead)
    unreadable: set[RowId] = set()
    if not wanted:
        return unreadable
    with log_errors_translated(records.table_uri):
        history = records.history(_HISTORY_MAX)
    for commit in history:
        try:
            through = parse_through(commit.get(_THROUGH, ""))
            its_unreadable = parse_unreadable(commit.get(_UNREADABLE, ""))
        except ValueError as error:
            found = f"a commit of the table has damaged metadata: {error}"
            raise LakeInconsistent(min(wanted), found, REBUILD_LAKE) from error
        for lane in [lane for lane in wanted if through.get(lane) == wanted[lane]]:
            unreadable |= {row for row in its_unreadable if row[0] == lane}
            del wanted[lane]
        if not wanted:
            return unreadable
    lane, end = next(iter(wanted.items()))
    raise LakeInconsistent(
        lane,
        f"the table's history does not contain the commit that reached sequence {end}",
        REBUILD_LAKE,
    )


def replace_files(
    store_url: str,
    table: Table,
    removed: Sequence[DataFile],
    added: Sequence[WrittenFile],
    *,
    data_change: bool,
    needed: Sequence[DataFile] = (),
) -> None:
    """Replace data files with others in one commit, while all `needed` files are in the table.

    Raise `CommitConflict` if a removed or needed file is no longer in the table, or every attempt
    met another commit.
    """

    def next_turn(opened: DeltaTable) -> Transaction:
        if not _has_files(opened, table, needed):
            raise CommitConflict(opened.table_uri, "files with the same records were replaced")
        return Transaction(MAINTENANCE_APP, (read_transaction(opened, MAINTENANCE_APP) or 0) + 1)

    commit_from_state(store_url, table, removed, added, data_change=data_change, advance=next_turn)


def commit_from_state(
    store_url: str,
    table: Table,
    removed: Sequence[DataFile],
    added: Sequence[WrittenFile],
    *,
    data_change: bool,
    advance: Callable[[DeltaTable], Transaction],
) -> None:
    """Add and remove data files in one commit that is based on exactly one state of the table.

    delta-rs accepts the removal of a file that another commit has already removed, which would
    duplicate its rows. Therefore each attempt checks that every file is still part of the table,
    and commits from exactly that state without a rebase. Any commit in between causes another
    attempt. On a directory that state is durable before the commit, which contains rows of its
    files, and the commit is durable when this function returns. `advance` returns the transaction
    of the commit for a state. Raise `CommitConflict` if a file to remove is no longer in the table,
    `advance` refused the state, or every attempt met another commit.
    """
    location = lake_location(store_url, table.name)
    removals = [remove_action(table, file, data_change=data_change) for file in removed]
    additions = [add_action(table, file, data_change=data_change) for file in added]
    for _ in range(COMMIT_ATTEMPTS_MAX):
        opened = find_table(store_url, table, for_writing=True, extend=True)
        if opened is None or not _has_files(opened, table, removed):
            raise CommitConflict(location.uri, "the files to replace were already replaced")
        properties = CommitProperties(app_transactions=[advance(opened)], max_commit_retries=0)
        try:
            with delta_errors_translated(location):
                sync_state(opened)
                opened.create_write_transaction(
                    [*removals, *additions],
                    "append",
                    delta_schema(table),
                    [table.partition_column],
                    commit_properties=properties,
                )
                sync_commits(location.uri, opened.version())
        except CommitConflict:
            continue
        return
    raise CommitConflict(location.uri, f"{COMMIT_ATTEMPTS_MAX} commits came in between")


def _has_files(opened: DeltaTable, table: Table, files: Sequence[DataFile]) -> bool:
    if not files:
        return True
    current = {file.path for file in list_files(opened, table)}
    return current.issuperset(file.path for file in files)


def add_action(table: Table, file: WrittenFile, *, data_change: bool) -> AddAction:
    """Return the action that adds a written file."""
    return AddAction(
        path=file.path,
        size=file.size_bytes,
        partition_values={table.partition_column: file.partition},
        modification_time=file.written_at_ms,
        data_change=data_change,
        stats=json.dumps(file.stats),
    )


def remove_action(table: Table, file: DataFile, *, data_change: bool) -> RemoveAction:
    """Return the action that removes a file from a table."""
    return RemoveAction(
        path=file.path,
        data_change=data_change,
        deletion_timestamp=SystemClock().now_ns() * 1000 // NS_PER_S,
        size=file.size_bytes,
        partition_values={table.partition_column: file.partition},
    )
