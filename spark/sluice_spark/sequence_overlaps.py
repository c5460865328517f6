"""Sequence ranges that several batches of the ledger contain."""

from typing import Final

from sluice_lake.data_files import list_files
from sluice_lake.delta import find_table
from sluice_lake.tables import BATCHES
from sluice_spark.file_selection import SequenceOverlap
from sluice_spark.rewrite import read_files
from sluice_spark.session import Session

OVERLAPS_MAX: Final = 10_000
"""Maximum number of overlapping ranges that a run processes; the next run processes the others."""


def find_overlaps(spark: Session, store_url: str, kind: str) -> list[SequenceOverlap]:
    """Return sequence ranges that several batches of the ledger contain, at most `OVERLAPS_MAX`.

    Batches with different ranges have different identities, so both are accepted. Compaction drops
    the records that are in both.
    """
    ledger = find_table(store_url, BATCHES, for_writing=True)
    files = list_files(ledger, BATCHES) if ledger is not None else []
    if not files:
        return []
    rows = read_files(spark, store_url, BATCHES, files).where(f"kind = '{kind}'")
    before = "PARTITION BY agent_id, boot_id ORDER BY seq_start, seq_end DESC"
    seen = f"max(seq_end) OVER ({before} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    found = (
        rows.selectExpr("agent_id", "boot_id", "seq_start", "seq_end", f"{seen} AS reached")
        .where("seq_start <= reached")
        .selectExpr("agent_id", "boot_id", "seq_start", "least(seq_end, reached) AS seq_end")
        .limit(OVERLAPS_MAX)
        .collect()
    )
    return [
        SequenceOverlap(
            agent_id=row.agent_id,
            boot_id=row.boot_id,
            seq_start=row.seq_start,
            seq_end=row.seq_end,
        )
        for row in found
    ]
