"""Ingestion without a JVM: the same micro-batches, planned, written and committed in this process.

As a script it ingests one store and exits at the step that `SLUICE_FAILPOINT` names; tests use it
to kill the driver at every step.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pyspark_sluice.offsets import read_lanes
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_queue.lane import Lane
from sluice_queue.pending import PendingBatch, read_pending_batches
from sluice_spark.failpoints import (
    FAILPOINT_EXIT_CODE,
    FAILPOINT_VARIABLE,
    FailPoint,
    read_failpoint,
)
from sluice_spark.fenced_consumers import FencedConsumers
from sluice_spark.microbatch import Ingester, IngestTotals, open_snapshot
from sluice_spark.write_tasks import plan_tasks, write_rows
from sluice_spark.written_files import TaskResult
from sluice_store import open_store

TESTS = Path(__file__).parents[1]


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
    def write(rows: Sequence[PendingBatch]) -> list[TaskResult]:
        return [
            result for task in plan_tasks(url, rows, parallelism) for result in write_rows(task)
        ]

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


def stop_at(url: str, step: str) -> None:
    """Ingest the backlog up to a step, at which an exception ends the work."""
    with suppress(Stopped):
        ingest_locally(url, failpoint=FailPoint(step=step, action=_stop))
        raise AssertionError(step)


def die_at(url: str, step: str, entries_max: int | None = None) -> None:
    """Ingest the backlog in another process, which ends at a step."""
    arguments = [url, *([str(entries_max)] if entries_max else [])]
    died = subprocess.run(
        [sys.executable, "-m", "support.spark_local", *arguments],
        cwd=TESTS,
        env=os.environ | {FAILPOINT_VARIABLE: step, "PYTHONPATH": str(TESTS)},
        check=False,
        capture_output=True,
        timeout=240,
    )
    assert died.returncode == FAILPOINT_EXIT_CODE, died.stderr.decode()


if __name__ == "__main__":
    ingest_locally(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None)
