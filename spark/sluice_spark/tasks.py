"""Cuts a micro-batch into executor tasks and runs them: `mapInArrow`, only facts come back."""

import pickle
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from sluice_queue.pending import PendingBatch
from sluice_spark.facts import Fact, decode_fact, encode_fact
from sluice_spark.session import Session
from sluice_spark.writing import WriteTask, write_rows

TASK_BYTES_MIN: Final = 4 * 1024 * 1024
"""Less than this is not worth a second task."""
TASK_BYTES_MAX: Final = 256 * 1024 * 1024
"""A task takes at most about this many frame bytes, so that losing it costs little."""


def plan_tasks(store_url: str, rows: Sequence[PendingBatch], parallelism: int) -> list[WriteTask]:
    """Cuts rows, in their order, into tasks of about the same bytes.

    Args:
        store_url: The store.
        rows: Rows in order of lane, sequence, position.
        parallelism: How many tasks run at once.
    """
    total = sum(row.manifest.frame_bytes for row in rows)
    wanted = min(parallelism, max(1, total // TASK_BYTES_MIN))
    count = max(wanted, -(-total // TASK_BYTES_MAX))
    share = total / max(count, 1)
    cut: list[list[PendingBatch]] = []
    taken = 0
    for row in rows:
        if not cut or (taken >= share * len(cut) and len(cut) < count):
            cut.append([])
        cut[-1].append(row)
        taken += row.manifest.frame_bytes
    return [
        WriteTask(store_url=store_url, part=part, rows=tuple(found))
        for part, found in enumerate(cut)
    ]


def run_tasks(spark: Session, tasks: Sequence[WriteTask]) -> list[Fact]:
    """Runs tasks on the executors and gives every fact.

    A task that Spark runs twice writes twice under other names; only what the last run returned is
    ever committed.
    """
    if not tasks:
        return []
    bodies = [pickle.dumps(task) for task in tasks]

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                facts = [encode_fact(fact) for fact in write_rows(pickle.loads(bodies[number]))]  # noqa: S301 - the driver's own bytes
                yield pa.RecordBatch.from_arrays([pa.array(facts, pa.binary())], names=["fact"])

    numbers = spark.range(0, len(tasks), 1, len(tasks))
    found = numbers.mapInArrow(write, "fact binary").toArrow()
    return [decode_fact(body) for body in found.column("fact").to_pylist()]
