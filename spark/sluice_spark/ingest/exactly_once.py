"""The exactly-once rule: which rows a micro-batch writes, and which it only enters in the ledger.

The state of a row follows from its sequence in its lane, the position of its kind's record table
(record position) and the position of the ledger (ledger position). Both are transaction versions,
read from the snapshots from which the round commits:

    sequence <= ledger position       done: records and ledger row are committed, or it was dropped
    ... <= record position            recovered: an earlier run committed its records and stopped
                                      before the ledger commit
    sequence > record position        fresh: written, or dropped

A row is dropped if the ledger or an earlier row has its identity. A recovered row whose blob could
not be read is named in the metadata of the record commit. It is not entered in the ledger, so that
it can be enqueued again.

An unfinished run is completed first, up to the position that it reached, before later rows are
written. Several commits of a record table can still be ahead of the ledger: if runs with fewer rows
stop too, the table reaches that position in steps. So each commit also names the unreadable rows of
those before it, and the newest one suffices.

Source: `docs/adr/0030-exactly-once-into-the-lake.md`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sluice_protocol.fields import Kind
from sluice_protocol.identity import Identity
from sluice_queue.worklists import PendingBatch
from sluice_spark.errors import LakeInconsistent

RowId = tuple[int, int, int]
"""Lane, sequence of the queue entry, position in its work list: identifies a row of the queue."""

REBUILD_LAKE = "rebuild the lake (docs/spark.md)"
"""`sluice rebuild` does not help: the queue no longer contains what the tables have lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePositions:
    """The last committed sequence of each table and lane; a lane without commits is at 0."""

    records: Mapping[Kind, Mapping[int, int]]
    ledger: Mapping[int, int]

    def record_position(self, kind: Kind, lane: int) -> int:
        """Return the position of a record table in a lane."""
        return self.records[kind].get(lane, 0)

    def ledger_position(self, lane: int) -> int:
        """Return the position of the ledger in a lane."""
        return self.ledger.get(lane, 0)

    def after(self, done: "IngestRound") -> "TablePositions":
        """Return the positions after the commits of a round."""
        return TablePositions(
            records={
                kind: {**found, **done.record_versions.get(kind, {})}
                for kind, found in self.records.items()
            },
            ledger={**self.ledger, **done.versions},
        )

    def committed_through(self, lane: int) -> int:
        """Return the sequence up to which every table has committed a lane."""
        return min(
            self.ledger_position(lane), *(found.get(lane, 0) for found in self.records.values())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestRound:
    """The plan of one round of a micro-batch; after a crash a micro-batch has two rounds, else one.

    Attributes:
        versions: Lane to the position that the ledger will have.
        record_versions: As `versions`, for each record table that advances.
        recovered: Their records are committed, and their ledger rows are missing.
        judged: Every row from the ledger position to the end of the round.
        lost: Identities of recovered rows that an earlier run could not read.
    """

    versions: Mapping[int, int]
    record_versions: Mapping[Kind, Mapping[int, int]]
    recovered: tuple[PendingBatch, ...]
    fresh: tuple[PendingBatch, ...]
    judged: tuple[PendingBatch, ...]
    lost: frozenset[Identity] = frozenset()

    def unreadable_rows(self, kind: Kind, unreadable: Collection[RowId]) -> list[RowId]:
        """Return the unreadable rows to name in the metadata of a kind's record commit.

        Every row with such an identity is named, including dropped repetitions: a later run with
        other boundaries may read a repetition without the row that it repeats. Rows of other kinds
        are omitted, because another attempt may still read them.
        """
        identities = self.lost.union(row.identity for row in self.fresh if row.order in unreadable)
        return [
            row.order
            for row in self.judged
            if row.manifest.kind == kind and row.identity in identities
        ]


def plan_boundary(rows: Sequence[PendingBatch], positions: TablePositions) -> dict[int, int]:
    """Return, for each lane with rows to process, the last sequence of the next round.

    Rows are in the order of lane, sequence, position. Raise `LakeInconsistent` if a record table is
    behind the ledger, or entries after the ledger position are missing; continuing would lose them.
    """
    last: dict[int, int] = {}
    for row in rows:
        before = last.get(row.lane, positions.ledger_position(row.lane))
        if row.sequence > before + 1:
            raise LakeInconsistent(
                row.lane,
                f"the ledger has committed up to sequence {before}, but the next entry is "
                f"{row.sequence}",
                f"run the job again; if the error remains, {REBUILD_LAKE}",
            )
        if row.sequence > before:
            last[row.lane] = row.sequence
    return {lane: _unfinished(lane, end, positions) for lane, end in last.items()}


def _unfinished(lane: int, end: int, positions: TablePositions) -> int:
    entered = positions.ledger_position(lane)
    for kind, found in positions.records.items():
        if found.get(lane, 0) < entered:
            raise LakeInconsistent(
                lane,
                f"table {kind} has committed up to sequence {found.get(lane, 0)}, the ledger up "
                f"to {entered}",
                REBUILD_LAKE,
            )
    ahead = max(found.get(lane, 0) for found in positions.records.values())
    return min(end, ahead) if ahead > entered else end


def plan_round(
    rows: Sequence[PendingBatch],
    boundary: Mapping[int, int],
    positions: TablePositions,
    *,
    ledger: Collection[Identity],
    unreadable: Collection[RowId],
) -> IngestRound:
    """Plan a round: decide for each row up to the boundary whether it is written.

    `boundary` is the result of `plan_boundary` for the same rows. `ledger` has the identities at
    least for the accepted hours of the rows. `unreadable` has the rows between the ledger position
    and the record position that the record commits name as unreadable.
    """
    seen = set(ledger)
    recovered: list[PendingBatch] = []
    fresh: list[PendingBatch] = []
    judged = [
        row
        for row in rows
        if positions.ledger_position(row.lane) < row.sequence <= boundary.get(row.lane, 0)
    ]
    for row in judged:
        if row.identity in seen:
            continue
        seen.add(row.identity)
        if row.sequence > positions.record_position(row.manifest.kind, row.lane):
            fresh.append(row)
        elif row.order not in unreadable:
            recovered.append(row)
    moves = {
        kind: {lane: end for lane, end in boundary.items() if end > found.get(lane, 0)}
        for kind, found in positions.records.items()
    }
    return IngestRound(
        versions=dict(boundary),
        record_versions={kind: ends for kind, ends in moves.items() if ends},
        recovered=tuple(recovered),
        fresh=tuple(fresh),
        judged=tuple(judged),
        lost=frozenset(row.identity for row in judged if row.order in unreadable),
    )
