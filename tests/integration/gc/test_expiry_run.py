"""A run of expiry: what it records, what keeps a batch, and a crash at any write."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import pytest
from support.gc_world import (
    AUDIT,
    BRIEF_S,
    HORIZON_S,
    KEYS,
    PLAN,
    RUN,
    GcWorld,
    Place,
    memory_world,
    open_place,
    refused,
)

from sluice_gc.auditor import Auditor
from sluice_gc.errors import RefusalRule
from sluice_gc.expiry_run import ExpireReport, ExpiryRun
from sluice_gc.plan_runner import PlanRunner
from sluice_gc.planner import Planner
from sluice_gc.settings import ExpireSettings
from sluice_gc.task_engine import LocalTaskEngine
from sluice_gc.tombstones import list_tombstones, read_tombstone
from sluice_protocol.collection_records import AuditCounts
from sluice_protocol.expiry import RowTally
from sluice_protocol.identity import Identity
from sluice_protocol.keys import ACCEPTED, RAW_BLOBS, accepted_key, digest_of, parse_accepted_key
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.outcomes import Found
from sluice_spark.read_back import BatchComparison, ComparedBatch
from sluice_store.port import ObjectStore

DAY_S = 86_400
ALL = ExpireSettings(max_expire_ratio=1.0)
STARTS = (10, 20, 30)


def expiring(counts: AuditCounts) -> list[object]:
    """Return the batches and bytes that may expire now, and those of the next week."""
    now, soon = (counts.expiring, counts.expiring_bytes), counts.expiring_soon
    return [value or 0 for value in (*now, soon, counts.expiring_soon_bytes)]


@dataclass
class Tables:
    """Tables that contain every batch, apart from what a test changes."""

    changes: dict[int, dict[str, Any]] = field(default_factory=dict)
    compared: list[int] = field(default_factory=list)

    def compare(self, manifests: Sequence[AcceptedManifest]) -> BatchComparison:
        self.compared += [one.seq_start for one in manifests]
        return BatchComparison(
            batches={one.identity: self._one(one) for one in manifests},
            versions={"logs": 4, "batches": 4},
            deletes=0,
        )

    def _one(self, batch: AcceptedManifest) -> ComparedBatch:
        rows = RowTally(rows=3, content=str(batch.seq_start))
        found = ComparedBatch(
            blob=batch.digest,
            ledger=batch.digest,
            blob_rows=rows,
            table_rows=rows,
            dead_letter=False,
        )
        return changed(found, **self.changes.get(batch.seq_start, {}))


async def aged(world: GcWorld, keep_s: int = 8 * DAY_S) -> Tables:
    """Accept batches, decide for 8 days, and let them become older; the audit is the newest."""
    for start in STARTS:
        await world.accept(start)
    await world.commit(4)
    await world.decide(keep_s)
    world.clock.pass_s(8 * DAY_S + HORIZON_S + 2)
    await world.discover()
    await world.audit()
    return Tables()


async def run(
    world: GcWorld,
    tables: Tables,
    settings: ExpireSettings = ALL,
    store: ObjectStore | None = None,
) -> ExpireReport:
    expiry = ExpiryRun(store or world.store, tables.compare, KEYS, world.clock, world.ids)
    return await expiry.run(settings)


async def expired(world: GcWorld) -> list[int]:
    """Return the batches that trusted tombstones name, with repetitions."""
    found = []
    for key in await list_tombstones(world.store):
        one = await read_tombstone(world.store, key, KEYS.trusted, "A1")
        assert one is not None
        found += [parse_accepted_key(key).seq_start for key, _ in one.named()]
    return sorted(found)


async def test_what_is_proved_is_recorded_and_the_next_cycle_deletes_it() -> None:
    async with memory_world() as (world, store):
        tables = await aged(world)
        report = await run(world, tables)
        assert (report.candidates, report.expired, report.kept) == (3, 3, {})
        assert await expired(world) == list(STARTS)
        assert report.tombstones == 1
        assert not store.deleted
        (key,) = await list_tombstones(world.store)
        one = await read_tombstone(world.store, key, KEYS.trusted, "A1")
        assert one is not None
        assert (one.rule, one.keep_s) == (1, 8 * DAY_S)
        assert one.compared == {"logs": RowTally(rows=9, content="60")}
        again = await run(world, tables)
        assert (again.expired, again.kept) == (0, {"expired": 3})
        assert sorted(tables.compared) == list(STARTS), "a batch was compared twice"
        await world.cycle()
        assert len(store.deleted) == 3
        assert (await run(world, tables)).candidates == 0


async def test_an_audit_counts_what_may_expire_now_and_within_a_week() -> None:
    async with memory_world() as (world, _):
        for start in STARTS:
            await world.accept(start)
        pages = [page async for page in world.store.list(RAW_BLOBS)]
        size = sum(one.size_bytes for page in pages for one in page.objects)
        assert expiring((await world.audit()).counts) == [0, 0, 0, 0]
        await world.decide(8 * DAY_S)
        assert expiring((await world.audit()).counts) == [0, 0, 0, 0]
        world.clock.pass_s(2 * DAY_S)
        assert expiring((await world.audit()).counts) == [0, 0, 3, size]
        world.clock.pass_s(7 * DAY_S)
        await world.accept(40)
        assert expiring((await world.audit()).counts) == [3, size, 0, 0]


async def test_a_dry_run_writes_nothing_and_counts_the_bytes() -> None:
    async with memory_world() as (world, store):
        tables = await aged(world)
        before = dict(store.versions)
        report = await run(world, tables, changed(ALL, dry_run=True))
        assert report.expired == 3
        assert report.expired_bytes > 0
        assert report.tombstones == 0
        assert store.versions == before


async def test_without_a_rule_nothing_is_read() -> None:
    async with memory_world() as (world, _):
        tables = await aged(world)
        await world.decide(None)
        assert (await run(world, tables)).candidates == 0
        assert tables.compared == []


WRONG = RowTally(rows=2, content="20")
KEPT = {
    "ledger": {"ledger": None},
    "blob": {"blob": None},
    "rows": {"table_rows": WRONG},
    "dead_letter": {"dead_letter": True},
}


@pytest.mark.parametrize("clause", KEPT)
async def test_one_batch_that_is_not_proved_is_kept(clause: str) -> None:
    async with memory_world() as (world, _):
        tables = await aged(world)
        tables.changes[20] = KEPT[clause]
        report = await run(world, tables)
        assert report.kept == {clause: 1}
        assert await expired(world) == [10, 30]


async def test_a_hold_that_is_placed_during_the_comparison_keeps() -> None:
    async with memory_world() as (world, _):
        tables = await aged(world)
        compare = tables.compare

        def slow(manifests: Sequence[AcceptedManifest]) -> BatchComparison:
            asyncio.run_coroutine_threadsafe(world.hold(), loop).result(10)
            return compare(manifests)

        loop = asyncio.get_running_loop()
        tables.compare = slow  # type: ignore[method-assign]
        assert (await run(world, tables)).kept == {"held": 3}
        assert await expired(world) == []


async def test_a_quarantined_identity_and_an_undiscovered_batch_are_kept() -> None:
    async with memory_world() as (world, _):
        for start in STARTS:
            await world.accept(start)
        await world.quarantine(20, salt="other")
        await world.commit(4)
        await world.decide(8 * DAY_S)
        world.clock.pass_s(8 * DAY_S + HORIZON_S + 2)
        await world.audit()
        assert (await run(world, Tables())).kept == {"consumers": 2, "conflict": 1}
        await world.discover()
        assert (await run(world, Tables())).kept == {"conflict": 1}


async def test_a_finding_of_the_audit_keeps_every_batch() -> None:
    async with memory_world() as (world, store):
        await aged(world)
        store.put(f"{ACCEPTED}foreign", b"x")  # type: ignore[arg-type]
        await world.audit()
        await refused(world, run(world, Tables()), RefusalRule.FOREIGN_KEYS)


async def test_more_than_the_ratio_is_refused() -> None:
    async with memory_world() as (world, _):
        tables = await aged(world)
        await refused(world, run(world, tables, ExpireSettings()), RefusalRule.EXPIRE_RATIO)
        assert await expired(world) == []


async def test_a_table_that_changed_during_the_run_is_refused() -> None:
    async with memory_world() as (world, store):
        tables = await aged(world)
        store.remove_key("lake/v1/logs/_delta_log/00000000000000000004.json")  # type: ignore[arg-type]
        await refused(world, run(world, tables), RefusalRule.TABLE_CHANGED)


class Died(BaseException):
    """The process was killed."""


class DyingStore:
    """A store whose caller is killed before or after its n-th write."""

    def __init__(self, inner: ObjectStore, *, at: int, after: bool) -> None:
        self._inner, self._left, self._after = inner, at, after

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._inner, name)
        if name not in {"create", "overwrite", "delete"}:
            return verb

        async def dying(*args: Any, **named: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                if self._after:
                    await verb(*args, **named)
                raise Died
            return await verb(*args, **named)

        return dying


async def step_all(world: GcWorld, store: Any) -> None:
    """Expire, audit, plan and delete, on a store that may kill the caller."""
    engine = LocalTaskEngine(store)
    await run(world, Tables(), store=store)
    await Auditor(store, engine, KEYS, world.clock, world.ids).audit(AUDIT)
    plan = await Planner(store, engine, KEYS, world.clock, world.ids).plan(PLAN)
    runner = PlanRunner(store, engine, KEYS.trusted, world.clock)
    await runner.run(plan.plan_id, changed(RUN, undo=True))


PLACES = [
    ("memory", 9),
    pytest.param("memory", 1, marks=pytest.mark.long),
    pytest.param("directory", 1, marks=pytest.mark.long),
    pytest.param("s3", 5, marks=[pytest.mark.long, pytest.mark.s3]),
]
"""Where a run is killed, and at which of its writes: at every one, or at a sample."""


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("kind", "every"), PLACES)
@pytest.mark.timeout(1800)
def test_a_kill_at_any_write_leaves_the_blob_or_the_record_of_its_end(
    after: bool, kind: str, every: int, tmp_path: Path
) -> None:
    async def killed_at(place: Place, write: int) -> bool:
        async with place(str(write)) as world:
            await aged(world, BRIEF_S if kind == "s3" else 8 * DAY_S)
            ended = True
            try:
                await step_all(world, DyingStore(world.store, at=write, after=after))
            except* Died:
                ended = False
            await check(world)
            await step_all(world, world.store)
            await check(world)
            assert not any([await world.has(digest_of(world.frame(start))) for start in STARTS])
            assert sorted(set(await expired(world))) == list(STARTS)
            return ended

    async def all_writes(place: Place) -> int:
        write = 0
        while not await killed_at(place, write):
            write += every
        return write

    with open_place(kind, tmp_path) as place:
        assert asyncio.run(all_writes(place)) > 10


async def check(world: GcWorld) -> None:
    """Each batch has its manifest, and its blob or a tombstone that was written before."""
    named = set(await expired(world))
    for start in STARTS:
        assert await is_accepted(world, world.identity(start))
        assert await world.has(digest_of(world.frame(start))) or start in named


async def is_accepted(world: GcWorld, who: Identity) -> bool:
    return isinstance(await world.store.get(accepted_key(who)), Found)
