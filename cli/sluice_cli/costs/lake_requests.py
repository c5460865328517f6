"""Requests per second of the lake, as functions of a plan: ingestion, maintenance, queries. Pure.

The coefficients of micro-batches are compared with counted requests by
`tests/integration/spark/test_ingest_requests.py`, and those of audits by `tests/simulation/cost`.
"""

import math
from typing import Final

from sluice_cli.costs.plan import FullPlan
from sluice_cli.costs.service_requests import (
    PAGE_OBJECTS,
    CostLine,
    entries_per_s,
    micro_batch_lanes,
)
from sluice_protocol.prices import DAY_S, RequestCounts

TABLES: Final = 4
"""Tables that each micro-batch of the ingestion commits to: three of records, and the ledger."""
TABLE_CHECKPOINT_COMMITS: Final = 50
"""`delta.checkpointInterval`."""
TABLE_LISTS: Final = 4.0
"""LISTs of the log of one table that is opened and committed to, by delta-rs."""
TABLE_GETS: Final = 7.0
"""GET and HEAD of the same, without the commits since the checkpoint; with a share of writing it.
"""
COMMIT_GETS: Final = 2.0
"""GETs of each commit since the checkpoint, when a table is opened."""
TABLE_OPEN_GETS: Final = TABLE_GETS + COMMIT_GETS * TABLE_CHECKPOINT_COMMITS / 2
LEDGER_FILE_GETS: Final = 2.0
PART_BYTES: Final = 10 * 1024 * 1024
"""A larger file is written in parts of about this size, with two further requests."""
TASK_BYTES: Final = 256 * 1024 * 1024
FILE_BYTES: Final = 128 * 1024 * 1024
"""Target size of compaction."""
QUERY_GETS_PER_FILE: Final = 4.0


def ingest_lines(full: FullPlan) -> tuple[CostLine, ...]:
    """Return the requests of the ingestion: the queue, the blobs and the commits."""
    plan = full.plan
    lanes, rounds_s = plan.lanes, 1 / full.micro_batch_s
    lanes_used = micro_batch_lanes(full)
    # latestOffset, partitions and reportLatestOffset read authority and lanes; each of the two
    # checks of the fence, lanes.
    queue = RequestCounts(
        puts=lanes_used * rounds_s,
        lists=3 * rounds_s,
        gets=(3 * 2 + 5 * lanes + lanes_used) * rounds_s + entries_per_s(full),
    )
    round_bytes = plan.rate_bytes_per_s / plan.compression * full.micro_batch_s
    files = max(lanes_used * plan.ingest_files, round_bytes / TASK_BYTES)
    opened = TABLES * TABLE_OPEN_GETS
    ledger_files = 3600 / full.micro_batch_s / 2
    tables = RequestCounts(
        puts=rounds_s * (TABLES + files_puts(files, round_bytes) + 1),
        lists=rounds_s * TABLES * TABLE_LISTS,
        gets=rounds_s * (opened + LEDGER_FILE_GETS * ledger_files),
    )
    return (
        CostLine(
            component="ingest",
            activity="reading blobs",
            per_s=RequestCounts(gets=full.batches_per_s),
            setting=full.cut_setting,
            code="sluice_spark.blob_reader",
        ),
        CostLine(
            component="ingest",
            activity="queue: reading, fencing, acknowledging",
            per_s=queue,
            setting="trigger_s, lanes",
            code="pyspark_sluice.source",
        ),
        CostLine(
            component="ingest",
            activity="data files and commits",
            per_s=tables,
            setting="trigger_s",
            code="sluice_spark.microbatch",
        ),
    )


def files_puts(files: float, total_bytes: float) -> float:
    """Return the PUTs that write some files: one each, or parts if they are large."""
    each_bytes = total_bytes / files
    return files if each_bytes <= PART_BYTES else files * (2 + math.ceil(each_bytes / PART_BYTES))


def maintenance_lines(full: FullPlan) -> tuple[CostLine, ...]:
    """Return the requests of audits and of compaction."""
    plan = full.plan
    prefixes = 2 if plan.pack_by_time and plan.pack_references else 3
    pages = prefixes * full.listed_batches / PAGE_OBJECTS
    day_bytes = plan.rate_bytes_per_s / plan.compression * DAY_S
    merged = max(1.0, day_bytes / FILE_BYTES)
    read = files_read_per_day(full)
    return (
        CostLine(
            component="maintenance",
            activity="audits: listing",
            per_s=RequestCounts(lists=pages / plan.audit_every_s),
            setting="audit every_s",
            code="sluice_gc.audit_shard",
        ),
        CostLine(
            component="maintenance",
            activity="audits: reading new manifests",
            per_s=RequestCounts(gets=full.batches_per_s),
            setting=full.cut_setting,
            code="sluice_gc.audit_manifests",
        ),
        CostLine(
            component="maintenance",
            activity="compaction",
            per_s=RequestCounts(
                puts=files_puts(merged, day_bytes) / DAY_S,
                gets=(read * QUERY_GETS_PER_FILE + day_bytes / PART_BYTES) / DAY_S,
                deletes=read / DAY_S,
            ),
            setting="target_bytes",
            code="sluice_spark.compact",
            is_estimate=True,
        ),
    )


def files_read_per_day(full: FullPlan) -> float:
    """Return how many data files of a day compaction merges."""
    return DAY_S / full.micro_batch_s * full.plan.lanes * full.plan.ingest_files


def query_lines(full: FullPlan) -> tuple[CostLine, ...]:
    """Return the requests of queries over an hour: pending batches, and the files of the lake."""
    plan = full.plan
    if not plan.queries_per_day:
        return ()
    pending_s = full.micro_batch_s
    entries = entries_per_s(full) * pending_s
    files = 3600 / full.micro_batch_s * plan.lanes * plan.ingest_files
    gets = (
        4 * plan.lanes
        + entries
        + full.batches_per_s * pending_s
        + files * QUERY_GETS_PER_FILE
        + TABLES * TABLE_OPEN_GETS
    )
    return (
        CostLine(
            component="queries",
            activity="an hour of records, without caches",
            per_s=RequestCounts(
                lists=(1 + TABLES * TABLE_LISTS) * plan.queries_per_day / DAY_S,
                gets=gets * plan.queries_per_day / DAY_S,
            ),
            setting="queries per day, trigger_s",
            code="sluice_query",
            is_estimate=True,
        ),
    )
