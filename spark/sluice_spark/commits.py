"""What a record commit says of itself in Delta's log: how far it went, and which rows were dead.

It stands in the very commit that moves the version, so that a run that died before the ledger can
be finished without guessing which of its rows had no readable blob.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import RemoveAction

from sluice_protocol.lake import Table
from sluice_protocol.units import NS_PER_S
from sluice_spark.data_files import DataFile, list_files
from sluice_spark.errors import CommitConflict, LakeInconsistent
from sluice_spark.exactly_once import REBUILD, RowId
from sluice_spark.tables import add_action, delta_schema, find_table, translated_errors
from sluice_spark.written_files import WrittenFile
from sluice_store.clock import SystemClock
from sluice_store.lake import lake_location

MAINTENANCE_APP: Final = "sluice-maintenance"
"""The application whose transactions order the removals of a table: a stale one is refused."""
COMMIT_TRIES_MAX: Final = 50
"""Commits of ingestion that one commit of maintenance lets pass."""
_THROUGH: Final = "sluice.through"
_DEAD: Final = "sluice.dead"
_HISTORY_MAX: Final = 10_000
"""As many commits back are looked at; ingestion finishes a dead run before it commits again."""


def encode_commit_metadata(versions: Mapping[int, int], dead: Iterable[RowId]) -> dict[str, str]:
    """Gives the metadata of a commit."""
    places = sorted(dead)
    return {
        _THROUGH: ",".join(f"{lane}={end}" for lane, end in sorted(versions.items())),
        _DEAD: ",".join(f"{lane}:{sequence}:{position}" for lane, sequence, position in places),
    }


def parse_through(text: str) -> dict[int, int]:
    """Gives the versions that a commit's metadata names."""
    pairs = (part.split("=") for part in text.split(",") if part)
    return {int(lane): int(end) for lane, end in pairs}


def parse_unreadable(text: str) -> set[RowId]:
    """Gives the dead rows that a commit's metadata names."""
    found = (part.split(":") for part in text.split(",") if part)
    return {(int(lane), int(sequence), int(position)) for lane, sequence, position in found}


def read_unreadable(records: DeltaTable, ahead: Mapping[int, int]) -> set[RowId]:
    """Gives the dead rows of the commits that moved a record table ahead of the ledger.

    Args:
        records: The record table.
        ahead: Lane to the version of the table, for each lane in which it is ahead.

    Raises:
        LakeInconsistent: The log no longer has such a commit.
    """
    wanted = dict(ahead)
    dead: set[RowId] = set()
    if not wanted:
        return dead
    for commit in records.history(_HISTORY_MAX):
        through = parse_through(commit.get(_THROUGH, ""))
        for lane in [lane for lane in wanted if through.get(lane) == wanted[lane]]:
            dead |= {place for place in parse_unreadable(commit.get(_DEAD, "")) if place[0] == lane}
            del wanted[lane]
        if not wanted:
            return dead
    lane, end = next(iter(wanted.items()))
    raise LakeInconsistent(lane, f"the log lacks the commit that reached {end}", REBUILD)


def replace_files(
    store_url: str,
    table: Table,
    removed: Sequence[DataFile],
    added: Sequence[WrittenFile],
    *,
    data_change: bool,
) -> None:
    """Puts files in the place of others, in one commit.

    delta-rs does not refuse to remove a file that another commit has removed already, which would
    double its rows. So every try looks whether all the files still stand, and commits from that
    very state with no rebase at all: any commit in between makes it look again.

    Raises:
        CommitConflict: A file to be replaced is gone, or commit after commit came in between.
    """
    location = lake_location(store_url, table.name)
    removals = [remove_action(table, file, data_change=data_change) for file in removed]
    additions = [add_action(table, fact, data_change=data_change) for fact in added]
    for _ in range(COMMIT_TRIES_MAX):
        opened = find_table(store_url, table)
        standing = (
            {file.path for file in list_files(opened, table)} if opened is not None else set()
        )
        if opened is None or not standing.issuperset(file.path for file in removed):
            raise CommitConflict(location.uri, "files to be replaced were replaced already")
        turn = (opened.transaction_version(MAINTENANCE_APP) or 0) + 1
        properties = CommitProperties(
            app_transactions=[Transaction(MAINTENANCE_APP, turn)], max_commit_retries=0
        )
        try:
            with translated_errors(location):
                opened.create_write_transaction(
                    [*removals, *additions],
                    "append",
                    delta_schema(table),
                    [table.partition_column],
                    commit_properties=properties,
                )
        except CommitConflict:
            continue
        return
    raise CommitConflict(location.uri, f"{COMMIT_TRIES_MAX} commits came in between")


def remove_action(table: Table, file: DataFile, *, data_change: bool) -> RemoveAction:
    """Gives the action that takes a file out of a table."""
    return RemoveAction(
        path=file.path,
        data_change=data_change,
        deletion_timestamp=SystemClock().now_ns() * 1000 // NS_PER_S,
        size=file.size_bytes,
        partition_values={table.partition_column: file.partition},
    )
