"""Opens, creates and commits to the lake's tables through delta-rs, without a JVM."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import (
    CommitFailedError,
    DeltaError,
    DeltaProtocolError,
    TableNotFoundError,
)
from deltalake.transaction import AddAction

from sluice_protocol.lake import TABLES, Table, ingest_app_id
from sluice_spark.errors import CommitConflict, TableRefused
from sluice_spark.schemas import schema_json
from sluice_spark.written_files import WrittenFile
from sluice_store.lake import TableLocation, lake_location

CONFIGURATION: Final = {
    "delta.enableDeletionVectors": "false",
    "delta.checkpointInterval": "50",
}
"""Deletion vectors stay off: a reader of the files alone would give deleted rows (ADR 0051)."""
REFUSED_FEATURES: Final = frozenset({"deletionVectors", "clustering", "columnMapping"})

Versions = Mapping[int, int]
"""Lane to the last sequence that a table has taken from it; a lane without one counts as 0."""


@contextmanager
def translated_errors(location: TableLocation) -> Iterator[None]:
    """Turns delta-rs's errors into ours."""
    try:
        yield
    except CommitFailedError as error:
        raise CommitConflict(location.uri, str(error)) from error
    except (DeltaProtocolError, DeltaError) as error:
        raise TableRefused(location.uri, str(error)) from error


def delta_schema(table: Table) -> Schema:
    """Gives a table's schema as delta-rs takes it."""
    return Schema.from_json(schema_json(table))


def find_table(store_url: str, table: Table) -> DeltaTable | None:
    """Opens a table's newest state, or gives None where there is none yet.

    Raises:
        TableRefused: Something else stands there, or the table has another schema or a feature
            that makes writing it or reading its files unsafe.
    """
    location = lake_location(store_url, table.name)
    try:
        opened = DeltaTable(location.uri, storage_options=dict(location.storage_options))
    except TableNotFoundError:
        _refuse_occupied(location)
        return None
    except DeltaError as error:
        if not Path(location.uri).is_dir():
            _refuse_occupied(location)
        raise TableRefused(location.uri, f"it cannot be opened: {error}") from error
    _check(location, table, opened)
    return opened


def check_lake(store_url: str) -> None:
    """Makes sure that every table that stands is ours, before a job starts a JVM for them.

    Raises:
        TableRefused: As `find_table`.
    """
    for table in TABLES:
        find_table(store_url, table)


def open_table(store_url: str, table: Table) -> DeltaTable:
    """Opens a table's newest state; creates the table where there is none.

    Raises:
        TableRefused: As `find_table`.
        CommitConflict: Another process created it at the same moment.
    """
    found = find_table(store_url, table)
    if found is not None:
        return found
    location = lake_location(store_url, table.name)
    if location.is_local:
        Path(location.uri).mkdir(parents=True, exist_ok=True)
    with translated_errors(location):
        return DeltaTable.create(
            location.uri,
            delta_schema(table),
            mode="error",
            partition_by=[table.partition_column],
            configuration=CONFIGURATION,
            storage_options=dict(location.storage_options),
        )


def _refuse_occupied(location: TableLocation) -> None:
    if not location.is_local or not Path(location.uri).exists():
        return
    folder = Path(location.uri)
    # A log folder without a log is what a crash while the table was made leaves behind.
    if not folder.is_dir() or any(found.name != "_delta_log" for found in folder.iterdir()):
        raise TableRefused(location.uri, "this path is not a Delta table: move it away")


def _check(location: TableLocation, table: Table, opened: DeltaTable) -> None:
    protocol = opened.protocol()
    features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    refused = sorted(features & REFUSED_FEATURES)
    if refused:
        raise TableRefused(location.uri, f"its feature {refused[0]} must be off: rewrite the table")
    have = [(field.name, _plain(field.type)) for field in opened.schema().fields]
    want = [(field.name, _plain(field.type)) for field in delta_schema(table).fields]
    if have != want:
        odd = sorted({name for name, _ in set(have) ^ set(want)}) or ["their order"]
        raise TableRefused(
            location.uri, f"its schema is not that of this version, see columns {', '.join(odd)}"
        )
    if opened.metadata().partition_columns != [table.partition_column]:
        raise TableRefused(location.uri, f"it is not partitioned by {table.partition_column}")


def _plain(kind: Any) -> str:  # noqa: ANN401 - delta-rs's type, which is not typed here
    return str(kind.to_json())


def read_versions(opened: DeltaTable, lanes: Sequence[int]) -> dict[int, int]:
    """Gives the last sequence of each lane that this state of the table has taken."""
    return {lane: opened.transaction_version(ingest_app_id(lane)) or 0 for lane in lanes}


def commit_files(
    opened: DeltaTable,
    table: Table,
    facts: Sequence[WrittenFile],
    versions: Versions,
    metadata: Mapping[str, str],
) -> None:
    """Appends written files and moves the lanes' versions, in one commit from this very state.

    Raises:
        CommitConflict: The table moved on in a way that may matter; read everything again.
    """
    location = TableLocation(uri=opened.table_uri)
    actions = [add_action(table, fact, data_change=True) for fact in facts]
    transactions = [Transaction(ingest_app_id(lane), last) for lane, last in versions.items()]
    with translated_errors(location):
        opened.create_write_transaction(
            actions,
            "append",
            delta_schema(table),
            [table.partition_column],
            commit_properties=CommitProperties(
                app_transactions=transactions, custom_metadata=dict(metadata)
            ),
        )


def add_action(table: Table, fact: WrittenFile, *, data_change: bool) -> AddAction:
    """Gives a written file as delta-rs takes it."""
    return AddAction(
        path=fact.path,
        size=fact.size_bytes,
        partition_values={table.partition_column: fact.partition},
        modification_time=fact.written_at_ms,
        data_change=data_change,
        stats=json.dumps(fact.stats),
    )
