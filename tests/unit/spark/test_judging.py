"""The exactly-once rule, explored: every small history of crashes, limits and returning blobs."""

from dataclasses import dataclass, replace
from itertools import product

import pytest
from support.queue_batches import manifest

from sluice_protocol.identity import Identity
from sluice_protocol.manifests import AcceptedManifest, Kind
from sluice_queue.pending import PendingBatch, pending_batches
from sluice_spark.errors import LakeInconsistent
from sluice_spark.judging import Place, Positions, judge_rows, plan_boundary

KINDS: tuple[Kind, ...] = ("logs", "metrics")


def made(seq: int, kind: Kind) -> AcceptedManifest:
    from msgspec.structs import replace as changed  # noqa: PLC0415

    return changed(manifest(seq), kind=kind)


GOOD, LOST, POINT = made(0, "logs"), made(100, "logs"), made(200, "metrics")
ENTRIES = (
    (GOOD, LOST),
    (LOST, POINT, GOOD),
    (LOST, GOOD, POINT),
)
"""Three entries of one lane; the blob of LOST may be missing; everything is repeated."""
ROWS = tuple(
    row
    for number, found in enumerate(ENTRIES, 1)
    for row in pending_batches(0, number, list(found))
)


@dataclass(frozen=True)
class World:
    """What stands in the tables."""

    records: tuple[tuple[Identity, int], ...] = ()
    ledger: frozenset[Identity] = frozenset()
    reached: tuple[int, ...] = (0, 0)
    entered: int = 0
    notes: tuple[tuple[tuple[int, frozenset[Place]], ...], ...] = ((), ())

    @property
    def positions(self) -> Positions:
        records = {kind: {0: self.reached[n]} for n, kind in enumerate(KINDS)}
        return Positions(records=records, ledger={0: self.entered})


def run_round(world: World, rows: tuple[PendingBatch, ...], *, back: bool, steps: int) -> World:
    """Does one round and dies after some steps: each record table is one, the ledger the last."""
    boundary = plan_boundary(rows, world.positions)
    if not boundary:
        return world
    dead = {
        place
        for n in range(len(KINDS))
        if world.reached[n] > world.entered
        for through, places in world.notes[n]
        if through == world.reached[n]
        for place in places
    }
    plan = judge_rows(rows, boundary, world.positions, ledger=world.ledger, dead=dead)
    lost = {row.order for row in plan.fresh if row.manifest == LOST and not back}
    for n, kind in enumerate(KINDS[:steps]):
        if kind not in plan.record_versions:
            continue
        end = plan.record_versions[kind][0]
        fresh = [r for r in plan.fresh if r.manifest.kind == kind and r.order not in lost]
        reached, notes = list(world.reached), list(world.notes)
        reached[n] = end
        notes[n] = (*notes[n], (end, frozenset(plan.dead_places(kind, lost))))
        more = tuple((row.identity, row.sequence) for row in fresh)
        world = replace(
            world, records=world.records + more, reached=tuple(reached), notes=tuple(notes)
        )
    if steps <= len(KINDS):
        return world
    entered = [r.identity for r in (*plan.recovered, *plan.fresh) if r.order not in lost]
    assert not world.ledger & set(entered), "a ledger row was doubled"
    return replace(world, ledger=world.ledger | set(entered), entered=boundary[0])


def check(world: World) -> None:
    written = [identity for identity, _ in world.records]
    assert len(written) == len(set(written)), "records were doubled"
    assert world.ledger <= set(written), "the ledger has a batch without records"


MOVES = tuple(product((1, 2, 3), (False, True), (0, 1, 2, 3)))
"""How many entries are seen, whether the blob is there, and after how many steps it dies."""


def test_every_history_leaves_each_batch_once() -> None:
    """After any four rounds, whatever died and whatever was seen, finishing gives the whole lake.

    A batch that was dead comes in once when it is enqueued again.
    """
    seen, frontier = {World()}, {World()}
    for _ in range(4):
        frontier = {
            run_round(world, tuple(r for r in ROWS if r.sequence <= limit), back=back, steps=steps)
            for world in frontier
            for limit, back, steps in MOVES
        } - seen
        for world in frontier:
            check(world)
        seen |= frontier
    assert len(seen) > 50
    again = pending_batches(0, 4, [LOST])
    for world in seen:
        done = world
        for _ in range(3):
            done = run_round(done, ROWS, back=True, steps=3)
        for _ in range(2):
            done = run_round(done, (*ROWS, *again), back=True, steps=3)
        check(done)
        assert done.ledger == {GOOD.identity, LOST.identity, POINT.identity}
        assert {identity for identity, _ in done.records} == done.ledger


def test_gap_behind_the_ledger_stops() -> None:
    """Entries that are missing are never jumped over."""
    with pytest.raises(LakeInconsistent, match="delete the checkpoint"):
        plan_boundary([r for r in ROWS if r.sequence > 1], World().positions)


def test_record_table_behind_the_ledger_stops() -> None:
    """A table that was lost or restored is told, not written on."""
    behind = World(reached=(1, 0), entered=1).positions
    with pytest.raises(LakeInconsistent, match="table metrics"):
        plan_boundary(ROWS, behind)
