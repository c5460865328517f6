"""An operator stops a deletion plan, and lists see it."""

import asyncio
from pathlib import Path

import pytest
from support.gc_world import HORIZON_S, MARGIN_S, open_world

from sluice_gc.errors import GcRefused, RefusalRule
from sluice_gc.plan import stop_plan
from sluice_protocol.errors import BadUsage
from sluice_reconciler.audit_summaries import (
    AuditOverview,
    PlanOverview,
    list_newest_audits,
    list_newest_plans,
)
from sluice_store.retry import Backoff


def test_a_plan_that_an_operator_stopped_deletes_nothing(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_world(tmp_path / "store") as world:
            await world.accept(0)
            orphan = await world.orphan(10)
            world.clock.pass_s(HORIZON_S + MARGIN_S + 100)
            await world.audit()
            await world.audit()
            plan = await world.plan()
            backoff = Backoff.seeded_by(world.clock)
            for reason in ("wait for the backup", "again"):
                assert await stop_plan(
                    world.store, plan.plan_id, by="operator:otto", reason=reason, backoff=backoff
                )
            with pytest.raises(GcRefused, match="operator:otto: wait for the backup") as refused:
                await world.run(plan)
            assert refused.value.rule is RefusalRule.PLAN_STOPPED
            assert await world.has(orphan)
            (listed,) = await list_newest_plans(world.store, 10)
            assert isinstance(listed, PlanOverview)
            assert (listed.state, listed.stopped) == (
                "stopped",
                "operator:otto: wait for the backup",
            )
            audits = await list_newest_audits(world.store, 1)
            assert [one.chain_index for one in audits if isinstance(one, AuditOverview)] == [1]

    asyncio.run(check())


def test_an_unknown_plan_is_not_stopped(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_world(tmp_path / "store") as world:
            backoff = Backoff.seeded_by(world.clock)
            unknown = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
            assert not await stop_plan(
                world.store, unknown, by="operator:otto", reason="r", backoff=backoff
            )
            with pytest.raises(BadUsage, match="named by its ULID"):
                await stop_plan(world.store, "../x", by="o", reason="r", backoff=backoff)

    asyncio.run(check())
