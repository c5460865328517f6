"""An operator approves a deletion plan, and runs that require an approval obey it."""

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from support.dying_store import Died, DyingStore
from support.gc_store import VersionedStore
from support.gc_world import HORIZON_S, KEYS, MARGIN_S, RUN, GcWorld, memory_world

from sluice_gc.cycle import CycleRunner, GcMetrics, execute_due_plan
from sluice_gc.errors import GcRefused, RefusalRule
from sluice_gc.plan import approve_plan, finished_key, plan_key, stop_plan
from sluice_gc.settings import CycleSettings
from sluice_gc.task_engine import LocalTaskEngine
from sluice_protocol.blob_deletion import ApprovalRuling, PlanApproval, approval_key
from sluice_protocol.collection_records import Plan
from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import digest_of
from sluice_protocol.manifests import encode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.units import Digest
from sluice_reconciler.audit_summaries import PlanOverview, list_newest_plans
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff

REQUIRED = replace(RUN, require_approval=True)
UNKNOWN = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


@asynccontextmanager
async def planned() -> AsyncIterator[tuple[GcWorld, VersionedStore, Plan, Digest]]:
    async with memory_world() as (world, store):
        await world.accept(0)
        orphan = await world.orphan(10)
        world.clock.pass_s(HORIZON_S + MARGIN_S + 100)
        await world.audit()
        yield world, store, await world.plan(), orphan


async def sha256_of(store: ObjectStore, plan_id: str) -> Digest:
    found = await store.get(plan_key(plan_id))
    return digest_of(found.body if isinstance(found, Found) else b"")


async def approve(
    world: GcWorld, plan_id: str, *, store: ObjectStore | None = None, by: str = "operator:otto"
) -> PlanApproval | ApprovalRuling:
    return await approve_plan(
        store or world.store,
        plan_id,
        shown_sha256=await sha256_of(world.store, plan_id),
        by=by,
        note="checked",
        backoff=Backoff.seeded_by(world.clock),
    )


async def test_a_run_that_requires_an_approval_waits_for_it() -> None:
    async with planned() as (world, _, plan, orphan):
        with pytest.raises(GcRefused, match="sluice gc approve") as refused:
            await world.run(plan, REQUIRED)
        assert refused.value.rule is RefusalRule.NOT_APPROVED
        assert await world.has(orphan)
        dry = await world.run(plan, replace(REQUIRED, dry_run=True))
        assert dry.facts.would_go == 1
        first = await approve(world, plan.plan_id)
        assert isinstance(first, PlanApproval)
        again = await approve(world, plan.plan_id, by="operator:vera")
        assert again == first, "the first approval is kept"
        (listed,) = await list_newest_plans(world.store, 1)
        assert isinstance(listed, PlanOverview)
        assert (listed.approval, listed.approval_problem) == (first, "")
        assert (await world.run(plan, REQUIRED)).facts.deleted == 1
        assert not await world.has(orphan)
        assert await approve(world, plan.plan_id) is ApprovalRuling.FINISHED


async def test_a_run_without_the_requirement_needs_no_approval() -> None:
    async with planned() as (world, _, plan, _orphan):
        assert (await world.run(plan)).facts.deleted == 1


async def test_an_approval_of_other_bytes_does_not_count() -> None:
    async with planned() as (world, store, plan, orphan):
        other = await approve_plan(
            world.store,
            plan.plan_id,
            shown_sha256=digest_of(b"the plan that the operator saw"),
            by="operator:otto",
            note="",
            backoff=Backoff.seeded_by(world.clock),
        )
        assert other is ApprovalRuling.OTHER_BYTES
        forged = PlanApproval(
            plan_id=plan.plan_id,
            plan_sha256=digest_of(b"an earlier plan"),
            by="operator:otto",
            note="",
            approved_at_unix_ns=1,
        )
        for body in (b'{"damaged', encode_record(forged)):
            store.put(approval_key(plan.plan_id), body)
            with pytest.raises(GcRefused, match="other bytes") as refused:
                await world.run(plan, REQUIRED)
            assert refused.value.rule is RefusalRule.NOT_APPROVED
            (listed,) = await list_newest_plans(world.store, 1)
            assert isinstance(listed, PlanOverview)
            assert listed.approval_problem
        assert await approve(world, plan.plan_id) is ApprovalRuling.OTHER_BYTES
        assert await world.has(orphan)


async def test_a_stop_withdraws_an_approval() -> None:
    async with planned() as (world, _, plan, orphan):
        await approve(world, plan.plan_id)
        backoff = Backoff.seeded_by(world.clock)
        await stop_plan(world.store, plan.plan_id, by="operator:otto", reason="r", backoff=backoff)
        with pytest.raises(GcRefused) as refused:
            await world.run(plan, REQUIRED)
        assert refused.value.rule is RefusalRule.PLAN_STOPPED
        assert await world.has(orphan)
        assert await approve(world, plan.plan_id) is ApprovalRuling.STOPPED


async def test_an_unknown_plan_cannot_be_approved() -> None:
    async with memory_world() as (world, _):
        assert await approve(world, UNKNOWN) is ApprovalRuling.UNKNOWN
        with pytest.raises(BadUsage, match="named by its ULID"):
            await approve(world, "../x")


async def test_unattended_runs_pass_over_plans_without_an_approval() -> None:
    """A cycle executes the newest approved plan; a newer one without an approval is no obstacle."""

    async with planned() as (world, _, first, orphan):
        settings = CycleSettings(
            shards=4, max_delete_ratio=0.9, grace_s=60.0, require_approval=True
        )
        engine = LocalTaskEngine(world.store)
        runner = CycleRunner(world.store, engine, KEYS, world.clock, world.ids, metrics=GcMetrics())
        world.clock.pass_s(61)
        second = await runner.cycle(settings)
        assert second.ran_plan_id is None
        world.clock.pass_s(61)
        await approve(world, first.plan_id)
        report = await execute_due_plan(
            world.store,
            engine,
            KEYS.trusted,
            world.clock,
            settings.for_run(),
            audit_age_s_max=3600.0,
        )
        assert (report.plan_id, report.facts.deleted) == (first.plan_id, 1)
        assert not await world.has(orphan)
        assert isinstance(await world.store.get(finished_key(first.plan_id)), Found)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_an_approval_that_a_crash_interrupts_can_be_repeated(after: bool) -> None:
    async with planned() as (world, store, plan, _orphan):
        dying = DyingStore(store, left=0, after=after)
        with contextlib.suppress(Died):
            await approve(world, plan.plan_id, store=dying)  # type: ignore[arg-type]
        assert dying.died
        found = await world.store.get(approval_key(plan.plan_id))
        assert isinstance(found, Found) is after
        assert isinstance(await approve(world, plan.plan_id), PlanApproval)
        assert (await world.run(plan, REQUIRED)).facts.deleted == 1
