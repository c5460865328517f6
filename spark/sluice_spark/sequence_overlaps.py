"""Sequence ranges that several batches of the ledger contain.

The ledger has a row for each batch that was ever ingested, and compaction can only drop rows that
the record tables contain. The rows of a batch are in the partition of the date on which it was
accepted, and its row in the ledger is in an hour of this date. A run therefore reads the hours of
the dates that have record files, and only the columns of an identity.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from sluice_lake.data_files import DataFile, list_files, list_partitions
from sluice_lake.delta import find_table
from sluice_lake.tables import BATCHES, RECORD_TABLES
from sluice_spark.file_selection import SequenceOverlap
from sluice_spark.rewrite import read_files
from sluice_spark.session import Session

OVERLAPS_MAX: Final = 10_000
"""Maximum number of overlapping ranges that a run processes."""


_IDENTITY: Final = ("kind", "agent_id", "boot_id", "seq_start", "seq_end")
_IDENTITIES: Final = replace(
    BATCHES,
    columns=tuple(
        column
        for column in BATCHES.columns
        if column.name in (*_IDENTITY, BATCHES.partition_column)
    ),
)
"""The ledger without the other columns."""


def files_of_dates(files: Sequence[DataFile], dates: Collection[str]) -> list[DataFile]:
    """Return the files of a table by hour, `YYYY-MM-DDTHH`, whose hour is on one of the dates."""
    return [file for file in files if file.partition.partition("T")[0] in dates]


def _record_dates(store_url: str) -> set[str]:
    """Return the dates of which a record table has files."""
    dates: set[str] = set()
    for table in RECORD_TABLES.values():
        opened = find_table(store_url, table)
        if opened is not None:
            dates |= list_partitions(opened, table)
    return dates


def find_overlaps(spark: Session, store_url: str) -> Mapping[str, list[SequenceOverlap]]:
    """Return sequence ranges that several batches of the ledger contain, by kind.

    Batches with different ranges have different identities, so both are accepted. Compaction drops
    the records that are in both. The ledger keeps their rows, so they are found again, until
    retention has removed the records of their dates. Of more than
    `OVERLAPS_MAX` ranges each call therefore returns a random selection: an order would return the
    same ones in every run, and the others would never be processed.
    """
    ledger = find_table(store_url, BATCHES, for_writing=True)
    if ledger is None:
        return {}
    files = files_of_dates(list_files(ledger, BATCHES), _record_dates(store_url))
    if not files:
        return {}
    rows = read_files(spark, store_url, _IDENTITIES, files)
    before = "PARTITION BY kind, agent_id, boot_id ORDER BY seq_start, seq_end DESC"
    seen = f"max(seq_end) OVER ({before} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    found = (
        rows.selectExpr(*_IDENTITY, f"{seen} AS reached")
        .where("seq_start <= reached")
        .selectExpr(
            *("kind", "agent_id", "boot_id", "seq_start", "least(seq_end, reached) AS seq_end"),
            "rand() AS place",
        )
        .orderBy("place")
        .limit(OVERLAPS_MAX)
        .collect()
    )
    by_kind: dict[str, list[SequenceOverlap]] = defaultdict(list)
    for row in found:
        by_kind[row.kind].append(
            SequenceOverlap(
                agent_id=row.agent_id,
                boot_id=row.boot_id,
                seq_start=row.seq_start,
                seq_end=row.seq_end,
            )
        )
    return by_kind
