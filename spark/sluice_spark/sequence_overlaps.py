"""Sequence ranges that several batches of the ledger contain."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from sluice_lake.data_files import list_files
from sluice_lake.delta import find_table
from sluice_lake.tables import BATCHES
from sluice_spark.file_selection import SequenceOverlap
from sluice_spark.rewrite import read_files
from sluice_spark.session import Session

OVERLAPS_MAX: Final = 10_000
"""Maximum number of overlapping ranges that a run processes."""


def find_overlaps(spark: Session, store_url: str) -> Mapping[str, list[SequenceOverlap]]:
    """Return sequence ranges that several batches of the ledger contain, by kind.

    Batches with different ranges have different identities, so both are accepted. Compaction drops
    the records that are in both. The ledger keeps their rows, so they are found again. Of more than
    `OVERLAPS_MAX` ranges each call therefore returns a random selection: an order would return the
    same ones in every run, and the others would never be processed.
    """
    ledger = find_table(store_url, BATCHES, for_writing=True)
    files = list_files(ledger, BATCHES) if ledger is not None else []
    if not files:
        return {}
    rows = read_files(spark, store_url, BATCHES, files)
    before = "PARTITION BY kind, agent_id, boot_id ORDER BY seq_start, seq_end DESC"
    seen = f"max(seq_end) OVER ({before} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    found = (
        rows.selectExpr("kind", "agent_id", "boot_id", "seq_start", "seq_end", f"{seen} AS reached")
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
