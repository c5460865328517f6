"""Commits to the lake's tables by delta-rs, without a JVM."""

import json
from collections.abc import Mapping, Sequence

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction

from sluice_lake.delta import delta_errors_translated, delta_schema
from sluice_lake.locations import TableLocation
from sluice_lake.tables import Table, ingest_app_id
from sluice_spark.facts import FileFact

LaneVersions = Mapping[int, int]
"""Lane to the last sequence that a table contains of it; a lane that is not listed has 0."""


def commit_files(
    opened: DeltaTable,
    table: Table,
    facts: Sequence[FileFact],
    versions: LaneVersions,
    metadata: Mapping[str, str],
) -> None:
    """Append written files and advance the lanes' versions, in one commit based on this state.

    Raises:
        CommitConflict: The table has changed in a way that may matter; read everything again.
    """
    location = TableLocation(uri=opened.table_uri)
    actions = [add_action(table, fact, data_change=True) for fact in facts]
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


def add_action(table: Table, fact: FileFact, *, data_change: bool) -> AddAction:
    """Return the action that adds a written file to a table."""
    return AddAction(
        path=fact.path,
        size=fact.size_bytes,
        partition_values={table.partition_column: fact.partition},
        modification_time=fact.written_at_ms,
        data_change=data_change,
        stats=json.dumps(fact.stats),
    )
