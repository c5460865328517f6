"""The exactly-once rule over every short history of crashes, limits and reappearing blobs."""

from dataclasses import dataclass, replace
from itertools import product

import pytest
from support.builders import manifest

from sluice_protocol.fields import Kind
from sluice_protocol.identity import Identity
from sluice_protocol.manifests import AcceptedManifest
from sluice_queue.worklists import PendingBatch, pending_batches
from sluice_spark.errors import LakeInconsistent
from sluice_spark.ingest.exactly_once import RowId, TablePositions, plan_boundary, plan_round

KINDS: tuple[Kind, ...] = ("logs", "metrics")


def made(seq: int, kind: Kind) -> AcceptedManifest:
    from msgspec.structs import replace as changed  # noqa: PLC0415

    return changed(manifest(seq), kind=kind)


GOOD, LOST, POINT = made(0, "logs"), made(100, "logs"), made(200, "metrics")
ENTRIES = ((GOOD, LOST), (LOST, POINT, GOOD), (LOST, GOOD, POINT))
"""Three entries of one lane with repeated batches; the blob of LOST may be missing."""
ROWS = tuple(
    row
    for number, found in enumerate(ENTRIES, 1)
    for row in pending_batches(0, number, list(found))
)


@dataclass(frozen=True)
class LakeState:
    """The contents of the tables."""

    records: tuple[tuple[Identity, int], ...] = ()
    ledger: frozenset[Identity] = frozenset()
    reached: tuple[int, ...] = (0, 0)
    entered: int = 0
    metadata: tuple[tuple[tuple[int, frozenset[RowId]], ...], ...] = ((), ())

    @property
    def positions(self) -> TablePositions:
        records = {kind: {0: self.reached[n]} for n, kind in enumerate(KINDS)}
        return TablePositions(records=records, ledger={0: self.entered})


def run_round(
    state: LakeState,
    rows: tuple[PendingBatch, ...],
    *,
    back: bool,
    steps: int,
    order: tuple[Kind, ...] = KINDS,
) -> LakeState:
    """Run one round that crashes after some steps: a step per record table, then the ledger."""
    before = state.positions
    boundary = plan_boundary(rows, before)
    if not boundary:
        return state
    unreadable = {
        row_id
        for n in range(len(KINDS))
        if state.reached[n] > state.entered
        for through, rows_of_commit in state.metadata[n]
        if through == state.reached[n]
        for row_id in rows_of_commit
    }
    plan = plan_round(rows, boundary, before, ledger=state.ledger, unreadable=unreadable)
    lost = {row.order for row in plan.fresh if row.manifest == LOST and not back}
    for kind in order[:steps]:
        n = KINDS.index(kind)
        if kind not in plan.record_versions:
            continue
        end = plan.record_versions[kind][0]
        fresh = [r for r in plan.fresh if r.manifest.kind == kind and r.order not in lost]
        reached, metadata = list(state.reached), list(state.metadata)
        reached[n] = end
        metadata[n] = (*metadata[n], (end, frozenset(plan.unreadable_rows(kind, lost))))
        more = tuple((row.identity, row.sequence) for row in fresh)
        state = replace(
            state, records=state.records + more, reached=tuple(reached), metadata=tuple(metadata)
        )
    if steps <= len(KINDS):
        return state
    entered = [r.identity for r in (*plan.recovered, *plan.fresh) if r.order not in lost]
    assert not state.ledger & set(entered), "a ledger row is duplicated"
    done = replace(state, ledger=state.ledger | set(entered), entered=boundary[0])
    assert before.after(plan) == done.positions, "the tables are elsewhere after the commits"
    return done


def check(state: LakeState) -> None:
    written = [identity for identity, _ in state.records]
    assert len(written) == len(set(written)), "records are duplicated"
    assert state.ledger <= set(written), "the ledger contains a batch without records"


MOVES = tuple(product((1, 2, 3), (False, True), (0, 1, 2, 3)))
"""Number of visible entries, whether the blob exists, and the steps before the crash."""


@pytest.mark.parametrize("order", [KINDS, KINDS[::-1]])
def test_every_history_of_crashes_commits_each_batch_once(order: tuple[Kind, ...]) -> None:
    """After any four rounds with crashes, completing the run commits every batch exactly once.

    The table of the batch that may be unreadable is committed first, or last.

    A batch that was unreadable is committed once after it is enqueued again.
    """
    seen, frontier = {LakeState()}, {LakeState()}
    for _ in range(4):
        frontier = {
            run_round(
                state,
                tuple(r for r in ROWS if r.sequence <= limit),
                back=back,
                steps=steps,
                order=order,
            )
            for state in frontier
            for limit, back, steps in MOVES
        } - seen
        for state in frontier:
            check(state)
        seen |= frontier
    assert len(seen) > 50
    again = pending_batches(0, 4, [LOST])
    for state in seen:
        done = state
        for _ in range(3):
            done = run_round(done, ROWS, back=True, steps=3, order=order)
        for _ in range(2):
            done = run_round(done, (*ROWS, *again), back=True, steps=3, order=order)
        check(done)
        assert done.ledger == {GOOD.identity, LOST.identity, POINT.identity}
        assert {identity for identity, _ in done.records} == done.ledger


@pytest.mark.parametrize(("reached", "entered"), [((3, 2), 1), ((3, 1), 2), ((1, 3), 3)])
def test_a_lane_resumes_after_what_every_table_has(reached: tuple[int, int], entered: int) -> None:
    """A later sequence would skip rows that a crash kept out of one table."""
    assert LakeState(reached=reached, entered=entered).positions.committed_through(0) == 1


def test_missing_entries_after_the_ledger_position_are_an_error() -> None:
    with pytest.raises(LakeInconsistent, match="run the job again"):
        plan_boundary([r for r in ROWS if r.sequence > 1], LakeState().positions)


def test_record_table_behind_the_ledger_is_an_error() -> None:
    """A table that was deleted or restored is not written to."""
    behind = LakeState(reached=(1, 0), entered=1).positions
    with pytest.raises(LakeInconsistent, match="table metrics"):
        plan_boundary(ROWS, behind)
