"""Where a lost queue register resumes: the sequences that the lake has committed."""

import asyncio

from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import INGEST_QUEUE, LEDGER_LOG
from sluice_queue.lane import Lane
from sluice_store.port import ObjectStore


async def read_committed_positions(store: ObjectStore, url: str, lanes: int) -> dict[Lane, int]:
    """Return the last sequence of each lane that the lake has committed; empty without a lake.

    Raises:
        BadUsage: The ingest stopped between the commits of two tables.
        SluiceError: A table has another schema or a refused feature.
    """
    async for page in store.list(LEDGER_LOG):
        if not page.objects:
            return {}
        return await asyncio.to_thread(_read, url, lanes)
    return {}


def _read(url: str, lanes: int) -> dict[Lane, int]:
    from sluice_spark.microbatch import open_snapshot  # noqa: PLC0415 - needs the extra `spark`

    positions = open_snapshot(url).positions(range(lanes))
    found = {}
    for lane in range(lanes):
        records = max(positions.record_position(kind, lane) for kind in positions.records)
        ledger = positions.ledger_position(lane)
        if records != ledger:
            raise BadUsage(
                "the ingest stopped between the commits of two tables, and only the original work"
                " lists name the batches in between: run the ingest; if their lists are lost,"
                " restore `queue/` and `manifests/`, or rebuild the lake (docs/spark.md),"
                f" lane=`{lane}`, ledger=`{ledger}`, records=`{records}`"
            )
        found[Lane(queue=INGEST_QUEUE, lane=lane)] = ledger
    return found
