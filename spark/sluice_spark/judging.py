"""The exactly-once rule: which rows a micro-batch writes, and which only enter the ledger.

States of one row, by its sequence s in its lane, the version R of its kind's record table and the
version B of the ledger (both are transaction versions in the very snapshots that are committed
from):

    s <= B        done: records and ledger row stand, or it was dropped for good
    B < s <= R    recovered: an earlier run wrote its records and died before the ledger
    s > R         fresh: judged by its identity, then written, or dropped

A row is dropped when the ledger or an earlier row has its identity. A recovered row whose blob
could not be read is in the list of the dead that stands in the very commit that moved R; it stays
out of the ledger, so that it can be enqueued again. An unfinished run is finished first, up to
where it had come, before anything behind it is written: then at most one commit of a table is ever
ahead of the ledger.

Source: `docs/adr/0050-exactly-once-into-delta.md`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sluice_protocol.identity import Identity
from sluice_protocol.manifests import Kind
from sluice_queue.pending import PendingBatch
from sluice_spark.errors import LakeInconsistent

Place = tuple[int, int, int]
"""Lane, sequence, position: names a row of the queue."""

REBUILD = "run `sluice rebuild`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """How far every table has come, per lane; a lane without a version counts as 0.

    Attributes:
        records: Of each record table, by kind.
        ledger: Of the ledger.
    """

    records: Mapping[Kind, Mapping[int, int]]
    ledger: Mapping[int, int]

    def recorded(self, kind: Kind, lane: int) -> int:
        """Gives R of a kind and lane."""
        return self.records[kind].get(lane, 0)

    def entered(self, lane: int) -> int:
        """Gives B of a lane."""
        return self.ledger.get(lane, 0)

    def acknowledgeable(self, lane: int) -> int:
        """Gives min(R, B): everything up to it is in the lake for good."""
        return min(self.entered(lane), *(found.get(lane, 0) for found in self.records.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one round of a micro-batch does; a micro-batch is one round, after a crash two.

    Attributes:
        versions: Lane to the sequence that the ledger will stand at.
        record_versions: The same for each record table that has to move.
        recovered: Rows whose records stand already and that only the ledger lacks.
        fresh: Rows to be written, then entered in the ledger.
        judged: Every row between B and the boundary.
    """

    versions: Mapping[int, int]
    record_versions: Mapping[Kind, Mapping[int, int]]
    recovered: tuple[PendingBatch, ...]
    fresh: tuple[PendingBatch, ...]
    judged: tuple[PendingBatch, ...]

    def dead_places(self, kind: Kind, dead: Collection[Place]) -> list[Place]:
        """Gives what a kind's commit must say of the fresh rows that could not be read.

        Every row of such an identity is named, the dropped repetitions too: a later run with other
        boundaries may meet a repetition without the row that it repeats. Rows of other kinds are
        not, because another try of theirs may still succeed.
        """
        lost = {row.identity for row in self.fresh if row.order in dead}
        return [
            row.order for row in self.judged if row.manifest.kind == kind and row.identity in lost
        ]


def plan_boundary(rows: Sequence[PendingBatch], positions: Positions) -> dict[int, int]:
    """Gives, per lane that has something to do, the last sequence of the next round.

    Args:
        rows: Rows in order of lane, sequence, position.
        positions: How far the tables have come.

    Raises:
        LakeInconsistent: A record table is behind the ledger, or entries behind the ledger are
            missing: going on would lose them.
    """
    last: dict[int, int] = {}
    for row in rows:
        before = last.get(row.lane, positions.entered(row.lane))
        if row.sequence > before + 1:
            raise LakeInconsistent(
                row.lane,
                f"the ledger stands at {before} and the next entry here is {row.sequence}",
                f"delete the checkpoint; if that does not help, {REBUILD}",
            )
        if row.sequence > before:
            last[row.lane] = row.sequence
    return {lane: _unfinished(lane, end, positions) for lane, end in last.items()}


def _unfinished(lane: int, end: int, positions: Positions) -> int:
    entered = positions.entered(lane)
    for kind, found in positions.records.items():
        if found.get(lane, 0) < entered:
            raise LakeInconsistent(
                lane,
                f"table {kind} stands at {found.get(lane, 0)}, the ledger at {entered}",
                REBUILD,
            )
    ahead = max(found.get(lane, 0) for found in positions.records.values())
    return min(end, ahead) if ahead > entered else end


def judge_rows(
    rows: Sequence[PendingBatch],
    boundary: Mapping[int, int],
    positions: Positions,
    *,
    ledger: Collection[Identity],
    dead: Collection[Place],
) -> Round:
    """Judges every row up to the boundary, row by row.

    Args:
        rows: Rows in order of lane, sequence, position.
        boundary: What `plan_boundary` gave for the same rows.
        positions: How far the tables have come.
        ledger: The identities that the ledger has, at least for the accepted hours of the rows.
        dead: Rows between B and R that the commits of R name as unreadable.
    """
    seen = set(ledger)
    recovered: list[PendingBatch] = []
    fresh: list[PendingBatch] = []
    judged = [
        row
        for row in rows
        if positions.entered(row.lane) < row.sequence <= boundary.get(row.lane, 0)
    ]
    for row in judged:
        if row.identity in seen:
            continue
        seen.add(row.identity)
        if row.sequence > positions.recorded(row.manifest.kind, row.lane):
            fresh.append(row)
        elif row.order not in dead:
            recovered.append(row)
    moves = {
        kind: {lane: end for lane, end in boundary.items() if end > found.get(lane, 0)}
        for kind, found in positions.records.items()
    }
    return Round(
        versions=dict(boundary),
        record_versions={kind: ends for kind, ends in moves.items() if ends},
        recovered=tuple(recovered),
        fresh=tuple(fresh),
        judged=tuple(judged),
    )
