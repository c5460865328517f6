"""Ingestion without a JVM: the same micro-batches, planned, written and committed in this process.

Tests also run it in another process, which ends at a step of a commit as a killed driver does.
"""

import asyncio
import multiprocessing
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress

from pyspark_sluice.source import read_lanes
from sluice_lake.data_files import list_files
from sluice_lake.delta import find_table
from sluice_lake.tables import Table
from sluice_protocol.fields import Kind
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_queue.lane import Lane
from sluice_queue.worklists import PendingBatch, read_pending_batches
from sluice_spark.commits import replace_files
from sluice_spark.compaction.rewrite import write_ordered
from sluice_spark.failpoints import (
    FAILPOINT_EXIT_CODE,
    FAILPOINT_VARIABLE,
    FailPoint,
    read_failpoint,
)
from sluice_spark.ingest.fenced_consumers import FencedConsumers
from sluice_spark.ingest.job import PromotedColumns
from sluice_spark.ingest.microbatch import Ingester, IngestTotals, open_snapshot
from sluice_spark.ingest.write_tasks import plan_tasks, write_rows
from sluice_spark.written_files import TaskResult
from sluice_store import open_store

_FORKS = multiprocessing.get_context("forkserver")
"""Children of a process that has imported the product, so that they start in milliseconds."""
_FORKS.set_forkserver_preload(["pandas", "pyspark_sluice.source", "sluice_spark.ingest.microbatch"])
DIED_MAX_S = 240


def pending_rows(url: str) -> list[PendingBatch]:
    """Return every pending row of the queue, ordered by lane."""

    async def read() -> list[PendingBatch]:
        rows = []
        async with open_store(url) as store:
            for view in await read_lanes(store, "spark"):
                lane = Lane(queue="spark", lane=view.lane.lane)
                for entry in view.descriptors:
                    rows += await read_pending_batches(store, lane, entry)
        return sorted(rows, key=lambda row: row.order)

    return asyncio.run(read())


class Stopped(Exception):
    """The driver reached the step at which a test stops it."""


def _stop() -> None:
    raise Stopped


def ingester(
    url: str,
    consumers: FencedConsumers,
    parallelism: int = 2,
    failpoint: FailPoint | None = None,
) -> Ingester:
    def write(rows: Sequence[PendingBatch], tables: Mapping[Kind, Table]) -> list[TaskResult]:
        tasks = plan_tasks(url, rows, parallelism, tables)
        return [result for task in tasks for result in write_rows(task)]

    return Ingester(
        store_url=url,
        consumers=consumers,
        write=write,
        clock=SystemClock(),
        ids=SystemIds(),
        failpoint=failpoint or read_failpoint(),
    )


def ingest_locally(
    url: str, entries_max: int | None = None, failpoint: FailPoint | None = None
) -> IngestTotals:
    """Ingest the backlog to the end, at most `entries_max` entries of each lane at a time."""
    with FencedConsumers(url, "spark") as consumers:
        snapshot = open_snapshot(url)
        consumers.open(snapshot.committed_through)
        promoted = PromotedColumns(store_url=url, consumers=consumers, clock=SystemClock())
        promoted.add_if_due()
        job = ingester(url, consumers, failpoint=failpoint)
        while rows := pending_rows(url):
            first: dict[int, int] = {}
            for row in rows:
                first.setdefault(row.lane, row.sequence)
            taken = [
                r for r in rows if entries_max is None or r.sequence < first[r.lane] + entries_max
            ]
            job.ingest(taken)
        return job.totals


def merge_locally(url: str, table: Table) -> None:
    """Merge the files of a record table into one of each date, without dropping rows."""
    opened = find_table(url, table)
    assert opened is not None
    order = [(name, "ascending") for name in (table.partition_column, "ts")]
    rows = opened.to_pyarrow_table().sort_by(order)
    added = list(write_ordered(url, table, rows.to_batches()))
    replace_files(url, table, list_files(opened, table), added, data_change=False)


def stop_at(url: str, step: str, entries_max: int | None = None) -> None:
    """Ingest the backlog up to a step, at which an exception ends the work."""
    with suppress(Stopped):
        ingest_locally(url, entries_max, FailPoint(step=step, action=_stop))
        raise AssertionError(step)


def die_at(url: str, step: str, entries_max: int | None = None) -> None:
    """Ingest the backlog in another process, which ends at a step without cleanup."""
    process = _FORKS.Process(target=_ingest_until, args=(url, step, entries_max))
    process.start()
    process.join(DIED_MAX_S)
    if process.exitcode is None:
        process.kill()
        process.join()
    assert process.exitcode == FAILPOINT_EXIT_CODE


def _ingest_until(url: str, step: str, entries_max: int | None) -> None:
    os.environ[FAILPOINT_VARIABLE] = step
    ingest_locally(url, entries_max)
