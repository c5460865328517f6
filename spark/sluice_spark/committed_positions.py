"""Where a lost queue register resumes: the sequences that the lake has committed."""

import asyncio
from collections.abc import Mapping
from typing import Final

from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import INGEST_QUEUE, LEDGER_LOG
from sluice_queue.errors import LaneDamaged
from sluice_queue.inspection import read_lane
from sluice_queue.lane import Lane
from sluice_spark.exactly_once import REBUILD_LAKE, TablePositions
from sluice_store.port import ObjectStore

_READS_MAX: Final = 3
"""Reads of the tables: a running ingestion commits to one after the other in between."""


async def read_committed_positions(store: ObjectStore, url: str, lanes: int) -> dict[Lane, int]:
    """Return the last sequence of each lane that the lake has committed; empty without a lake.

    Raises:
        BadUsage: The ingest stopped between the commits of two tables, or the lake has lost commits
            that the queue has acknowledged.
        SluiceError: A table has another schema or a refused feature.
    """
    async for page in store.list(LEDGER_LOG):
        if not page.objects:
            return {}
        # Read before the tables: a running ingestion acknowledges what they contain already.
        acked = {lane: await _read_acked(store, lane) for lane in range(lanes)}
        return await asyncio.to_thread(_read, url, acked)
    return {}


async def _read_acked(store: ObjectStore, lane: int) -> int:
    """Return the acknowledged sequence of a lane; 0 if its register is lost or damaged."""
    try:
        return (await read_lane(store, INGEST_QUEUE, lane, entries_max=0)).state.acked_through
    except LaneDamaged:
        return 0


def _read(url: str, acked: Mapping[int, int]) -> dict[Lane, int]:
    from sluice_spark.microbatch import open_snapshot  # noqa: PLC0415 - needs the extra `spark`

    for _ in range(_READS_MAX - 1):
        try:
            return _decide_all(open_snapshot(url).positions(list(acked)), acked)
        except BadUsage:
            continue
    return _decide_all(open_snapshot(url).positions(list(acked)), acked)


def _decide_all(positions: TablePositions, acked: Mapping[int, int]) -> dict[Lane, int]:
    return {
        Lane(queue=INGEST_QUEUE, lane=lane): decide_position(positions, lane, end)
        for lane, end in acked.items()
    }


def decide_position(positions: TablePositions, lane: int, acked_through: int) -> int:
    """Return the sequence after which a register of a lane may continue.

    Args:
        positions: The positions of the tables.
        lane: The lane.
        acked_through: What the register states as acknowledged, read before the tables; 0 if it is
            not known.

    Raises:
        BadUsage: The tables do not agree, or are behind the queue.
    """
    ledger = positions.ledger_position(lane)
    records = [positions.record_position(kind, lane) for kind in positions.records]
    where = (
        f"lane=`{lane}`, ledger=`{ledger}`, records=`{min(records)}` to `{max(records)}`, "
        f"acknowledged=`{acked_through}`"
    )
    if ledger < acked_through or min(records) < ledger:
        raise BadUsage(
            "the lake has lost commits whose entries the queue no longer has: a table was lost or "
            f"restored from a copy, or another tool replaced a commit; {REBUILD_LAKE}, {where}"
        )
    if max(records) > ledger:
        raise BadUsage(
            "the ingest stopped between the commits of two tables, and only the original work"
            " lists name the batches in between: run the ingest; if their lists are lost,"
            f" restore `queue/` and `manifests/`, or {REBUILD_LAKE}, {where}"
        )
    return ledger
