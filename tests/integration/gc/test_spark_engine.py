"""Audit, plan and run of garbage collection on Spark's executors."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.gc_world import AUDIT, HORIZON_S, KEYS, PLAN, RUN, GcWorld, open_world

from sluice_gc.auditor import Auditor
from sluice_gc.errors import GcRefused, RefusalRule
from sluice_gc.plan_runner import PlanRunner
from sluice_gc.planner import Planner
from sluice_gc.task_engine import LocalTaskEngine, SparkTaskEngine, TaskEngine
from sluice_protocol.system_clock import SystemClock, SystemIds

pytestmark = pytest.mark.spark


async def _fill(world: GcWorld) -> None:
    """Create several agents, a conflict and an old orphan; end at the machine's current time."""
    world.clock.at_ns = SystemClock().now_ns() - (HORIZON_S + 60) * 1_000_000_000
    for agent in ("a", "ab", "b", "host-1"):
        for start in (0, 3, 9):
            await world.accept(start, agent=agent, indexed=agent != "b")
    await world.quarantine(0, salt="other")
    await world.orphan(50)
    world.clock.at_ns = SystemClock().now_ns()


def test_executors_and_driver_certify_the_same(spark: Any, tmp_path: Path) -> None:
    """An audit on executors equals one in the driver; plan and run delete the orphan."""

    async def scenario() -> None:
        async with open_world(tmp_path / "store") as world:
            await _fill(world)
            url = f"file://{tmp_path / 'store'}"
            engines: list[TaskEngine] = [
                LocalTaskEngine(world.store),
                SparkTaskEngine(spark, url),
            ]
            clock, ids = SystemClock(), SystemIds()
            here, there = [
                await Auditor(world.store, one, KEYS, clock, ids).audit(AUDIT) for one in engines
            ]
            assert here.counts.references_repaired == 3
            expected = msgspec.structs.replace(
                here.counts, references_repaired=0, bodies_read=0, references=13
            )
            assert there.counts == expected
            assert len(there.coverage[0].ranges) > 1
            executors = engines[1]
            plan = await Planner(world.store, executors, KEYS, clock, ids).plan(PLAN)
            assert plan.summary.orphans.incarnations == 1
            runner = PlanRunner(world.store, executors, KEYS.trusted, clock)
            assert (await runner.run(plan.plan_id, RUN)).facts.deleted == 1

    asyncio.run(scenario())


def test_error_of_an_executor_is_raised_in_the_driver(spark: Any, tmp_path: Path) -> None:
    """An error in a task is raised in the driver with its type."""

    async def scenario() -> None:
        async with open_world(tmp_path / "store") as world:
            await _fill(world)
            engine = SparkTaskEngine(spark, f"file://{tmp_path / 'store'}")
            clock, ids = SystemClock(), SystemIds()
            certificate = await Auditor(world.store, engine, KEYS, clock, ids).audit(AUDIT)
            await world.store.overwrite(certificate.files("names")[0].key, b"altered")
            with pytest.raises(GcRefused) as refused:
                await Planner(world.store, engine, KEYS, clock, ids).plan(PLAN)
            assert refused.value.rule is RefusalRule.EVIDENCE_CHANGED

    asyncio.run(scenario())
