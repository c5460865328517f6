"""How far the lake has come in each lane of Spark's queue: where a lost register goes on."""

import asyncio

from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import INGEST_QUEUE
from sluice_queue.lane import Lane
from sluice_reconciler.app import LEDGER_LOG
from sluice_store.port import ObjectStore


async def read_persisted(store: ObjectStore, url: str, lanes: int) -> dict[Lane, int]:
    """Gives the last sequence of each lane that is in the lake for good; empty without a lake.

    Raises:
        BadUsage: The ingest stopped between the commits of two tables.
        SluiceError: A table is not ours.
    """
    async for page in store.list(LEDGER_LOG):
        if not page.objects:
            return {}
        return await asyncio.to_thread(_read, url, lanes)
    return {}


def _read(url: str, lanes: int) -> dict[Lane, int]:
    from sluice_spark.microbatch import open_snapshot  # noqa: PLC0415 - Spark is an extra

    found = open_snapshot(url).positions(range(lanes))
    for lane in range(lanes):
        ahead = max(found.record_position(kind, lane) for kind in found.records)
        entered = found.ledger_position(lane)
        if ahead != entered:
            raise BadUsage(
                "the ingest stopped between the commits of two tables, and only the queue that is"
                " lost could tell what it was at: bring `queue/` and `manifests/` back, or delete"
                f" the rows of lane {lane} with a queue_sequence above {entered} from"
                " the record tables and give --first-sequence,"
                f" ledger=`{entered}`, records=`{ahead}`"
            )
    return {
        Lane(queue=INGEST_QUEUE, lane=lane): found.ledger_position(lane) for lane in range(lanes)
    }
