"""Where a lost queue register resumes: the sequences that the lake has committed.

A running ingestion may have checked the old register and not have committed yet. Its commit would
name sequences that the new register assigns to other batches. Before a register is replaced, the
position of its lane is therefore committed again, without files, to the table that each round
commits to first. Delta then refuses every commit that was prepared from an earlier state of that
table (ADR 26).
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from sluice_lake.errors import CommitConflict
from sluice_lake.tables import RECORD_TABLES
from sluice_protocol.authority import Authority
from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import INGEST_QUEUE, LEDGER_LOG
from sluice_protocol.system_clock import SystemClock
from sluice_queue.errors import LaneDamaged
from sluice_queue.inspection import handed_over, read_lane
from sluice_queue.lane import Lane
from sluice_spark.ingest.exactly_once import REBUILD_LAKE, TablePositions
from sluice_store.authority import read_authority
from sluice_store.port import ObjectStore

_READS_MAX: Final = 3
"""Reads of the tables: a running ingestion commits to one after the other in between."""
_READ_PAUSE_S: Final = 1.0
"""Pause between reads after a fence: a round that it did not stop completes its commits."""
_FENCES_MAX: Final = 8
"""Attempts of a fence; each one fails if a round is committed meanwhile."""


async def read_committed_positions(store: ObjectStore, url: str, lanes: int) -> dict[Lane, int]:
    """Return the last sequence of each lane that the lake has committed; empty without a lake.

    Raises:
        BadUsage: The ingest stopped between the commits of two tables, or the lake has lost commits
            that the queue has acknowledged.
    """
    async for page in store.list(LEDGER_LOG):
        if not page.objects:
            return {}
        # Read before the tables: a running ingestion acknowledges what they contain already.
        authority = await read_authority(store)
        acked = {lane: await _read_acked(store, authority, lane) for lane in range(lanes)}
        return await _read(url, acked, pause_s=0.0)
    return {}


async def fence_ingestion(store: ObjectStore, url: str, lane: Lane) -> int:
    """Refuse every commit that an ingestion has prepared for a lane; return the lane's position.

    The register must be lost, or its consumer fenced: only then no later round can pass its check.
    A round that has already committed to the first table is not stopped, and completes.
    """
    acked = {lane.lane: await _read_acked(store, await read_authority(store), lane.lane)}
    await asyncio.to_thread(_commit_fence, url, lane.lane)
    return (await _read(url, acked, pause_s=_READ_PAUSE_S))[lane]


def _commit_fence(url: str, lane: int) -> None:
    # These need the extra `spark`.
    from sluice_spark.commits import commit_files  # noqa: PLC0415
    from sluice_spark.ingest.microbatch import open_snapshot  # noqa: PLC0415

    kind, table = next(iter(RECORD_TABLES.items()))
    for attempt in range(1, _FENCES_MAX + 1):
        snapshot = open_snapshot(url)
        position = snapshot.positions([lane]).record_position(kind, lane)
        try:
            commit_files(snapshot.records[kind], table, (), {lane: position}, {})
        except CommitConflict:
            if attempt == _FENCES_MAX:
                raise
        else:
            return


async def _read_acked(store: ObjectStore, authority: Authority, lane: int) -> int:
    """Return what a lane has handed over; 0 if its register is lost or damaged."""
    try:
        view = await read_lane(store, INGEST_QUEUE, lane, entries_max=0)
    except LaneDamaged:
        return 0
    return handed_over(authority, lane, view.state)


async def enter_layout(
    store: ObjectStore, url: str, authority: Authority, ends: Mapping[int, int]
) -> dict[int, int]:
    """Let the tables continue where the registers do since the number of lanes was changed.

    `ends` are the positions of the lanes that every table has committed. Return them as they are
    now. A lane whose entries before the change are not in every table stays where it is: its
    register refuses to continue there.
    """
    after, behind = authority.after_sequence, dict[int, int]()
    for lane, end in ends.items():
        if end < after:
            view = await read_lane(store, INGEST_QUEUE, lane, entries_max=0)
            if end >= handed_over(authority, lane, view.state):
                behind[lane] = after
    if behind:
        await asyncio.to_thread(_commit_positions, url, behind)
    return {**ends, **behind}


def _commit_positions(url: str, wanted: Mapping[int, int]) -> None:
    """Commit positions to every table that has not reached them, the ledger last."""
    # These need the extra `spark`.
    from sluice_lake.tables import BATCHES  # noqa: PLC0415
    from sluice_spark.commits import commit_files, encode_commit_metadata  # noqa: PLC0415
    from sluice_spark.ingest.microbatch import open_snapshot  # noqa: PLC0415

    for attempt in range(1, _FENCES_MAX + 1):
        snapshot = open_snapshot(url)
        positions = snapshot.positions(list(wanted))
        tables = [
            (opened, RECORD_TABLES[kind], positions.records[kind])
            for kind, opened in snapshot.records.items()
        ]
        try:
            for opened, table, found in (*tables, (snapshot.ledger, BATCHES, positions.ledger)):
                rest = {lane: end for lane, end in wanted.items() if found.get(lane, 0) < end}
                if rest:
                    commit_files(opened, table, (), rest, encode_commit_metadata(rest, ()))
        except CommitConflict:
            if attempt == _FENCES_MAX:
                raise
        else:
            return


async def _read(url: str, acked: Mapping[int, int], *, pause_s: float) -> dict[Lane, int]:
    for _ in range(_READS_MAX - 1):
        try:
            return await asyncio.to_thread(_read_once, url, acked)
        except BadUsage:
            await SystemClock().sleep(pause_s)
    return await asyncio.to_thread(_read_once, url, acked)


def _read_once(url: str, acked: Mapping[int, int]) -> dict[Lane, int]:
    from sluice_spark.ingest.microbatch import open_snapshot  # noqa: PLC0415 - needs the extra `spark`

    positions = open_snapshot(url).positions(list(acked))
    return {
        Lane(queue=INGEST_QUEUE, lane=lane): decide_position(positions, lane, end)
        for lane, end in acked.items()
    }


def decide_position(positions: TablePositions, lane: int, acked_through: int) -> int:
    """Return the sequence after which a register of a lane may continue.

    `acked_through` is what the register states as acknowledged, read before the tables; 0 if
    unknown. Raise `BadUsage` if the tables do not agree, or are behind the queue.
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
