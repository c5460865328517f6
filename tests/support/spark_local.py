"""Ingestion without a JVM: the same micro-batch, judged, written and committed in this process.

Run as a script it ingests one store and leaves as `SLUICE_FAILPOINT` says, which is how the tests
kill the driver at every step.
"""

import asyncio
import sys
from collections.abc import Sequence

from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_queue.lane import Lane
from sluice_queue.worklists import read_work_list
from sluice_spark.descriptors import Waiting, waiting_of
from sluice_spark.facts import Fact
from sluice_spark.guard import QueueGuard
from sluice_spark.lanes import read_lanes
from sluice_spark.microbatch import Ingester, Totals, open_snapshot
from sluice_spark.tasks import plan_tasks
from sluice_spark.writing import write_rows
from sluice_store import open_store


def waiting_rows(url: str) -> list[Waiting]:
    """Gives every row that waits in the queue, ordered by lane."""

    async def read() -> list[Waiting]:
        rows = []
        async with open_store(url) as store:
            for view in await read_lanes(store, "spark"):
                lane = Lane(queue="spark", lane=view.lane.lane)
                for entry in view.descriptors:
                    found = await read_work_list(store, lane, entry)
                    rows += waiting_of(lane.lane, entry.sequence, found.batches)
        return sorted(rows, key=lambda row: row.order)

    return asyncio.run(read())


def ingester(url: str, guard: QueueGuard, parallelism: int = 2) -> Ingester:
    def write(rows: Sequence[Waiting]) -> list[Fact]:
        return [fact for task in plan_tasks(url, rows, parallelism) for fact in write_rows(task)]

    return Ingester(store_url=url, guard=guard, write=write, clock=SystemClock(), ids=SystemIds())


def ingest_locally(url: str, entries_max: int | None = None) -> Totals:
    """Ingests what waits, up to a number of entries of each lane at a time, to the end."""
    with QueueGuard(url, "spark") as guard:
        snapshot = open_snapshot(url)
        guard.open(lambda lane: snapshot.positions([lane]).acknowledgeable(lane))
        job = ingester(url, guard)
        while rows := waiting_rows(url):
            first: dict[int, int] = {}
            for row in rows:
                first.setdefault(row.lane, row.sequence)
            taken = [
                r for r in rows if entries_max is None or r.sequence < first[r.lane] + entries_max
            ]
            job.ingest(taken)
        return job.totals


if __name__ == "__main__":
    ingest_locally(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None)
