"""Unattended cycles: two cycles delete an old orphan, and a refusal stops the cycle."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict
from support.gc_world import HORIZON_S, KEYS, GcWorld, memory_world

from sluice_gc.cycle import CycleRunner, GcMetrics
from sluice_gc.errors import GcRefused, RefusalRule
from sluice_gc.plan import stop_plan
from sluice_gc.settings import CycleSettings
from sluice_gc.task_engine import LocalTaskEngine
from sluice_protocol.keys import RAW_BLOBS
from sluice_protocol.units import ObjectKey
from sluice_store.retry import Backoff

SETTINGS = CycleSettings(shards=4, max_delete_ratio=0.9, grace_s=60.0, deep=0.5)


def cycles(world: GcWorld, metrics: GcMetrics) -> CycleRunner:
    engine = LocalTaskEngine(world.store)
    return CycleRunner(world.store, engine, KEYS, world.clock, world.ids, metrics=metrics)


def test_second_cycle_executes_the_plan_of_the_first(tmp_path: Path) -> None:
    """The second cycle runs the plan after the grace period; the third has no plan to run."""

    async def scenario() -> None:
        async with memory_world() as (world, _):
            kept, orphan = await world.accept(0), await world.orphan(10)
            world.clock.pass_s(HORIZON_S + 2)
            metrics = GcMetrics()
            made = cycles(world, metrics)
            first = await made.cycle(SETTINGS)
            assert (first.ran_plan_id, first.facts.deleted) == (None, 0)
            soon = await made.cycle(SETTINGS)
            assert soon.ran_plan_id is None
            world.clock.pass_s(61)
            second = await made.cycle(SETTINGS)
            assert (second.ran_plan_id, second.facts.deleted) == (soon.made_plan_id, 1)
            assert await world.has(kept)
            assert not await world.has(orphan)
            metrics.write(tmp_path / "gc.prom")
            text = (tmp_path / "gc.prom").read_text()
            assert "sluice_gc_deleted_blobs_total 1.0" in text
            assert 'sluice_gc_cycles_total{result="done"} 3.0' in text

    asyncio.run(scenario())


def test_a_cycle_passes_over_a_stopped_plan_and_plans_again() -> None:
    """Nothing of the stopped plan is deleted, and no command is needed after the stop."""

    async def scenario() -> None:
        async with memory_world() as (world, _):
            await world.accept(0)
            orphan = await world.orphan(10)
            world.clock.pass_s(HORIZON_S + 2)
            made = cycles(world, GcMetrics())
            await made.cycle(SETTINGS)
            stopped = (await made.cycle(SETTINGS)).made_plan_id
            assert stopped is not None
            backoff = Backoff.seeded_by(world.clock)
            await stop_plan(world.store, stopped, by="otto", reason="wait", backoff=backoff)
            world.clock.pass_s(61)
            passed = await made.cycle(SETTINGS)
            assert (passed.ran_plan_id, passed.facts.deleted) == (None, 0)
            assert await world.has(orphan)
            assert passed.made_plan_id not in (None, stopped)
            world.clock.pass_s(61)
            done = await made.cycle(SETTINGS)
            assert (done.ran_plan_id, done.facts.deleted) == (passed.made_plan_id, 1)

    asyncio.run(scenario())


def test_refused_cycle_deletes_nothing_and_counts(events: list[EventDict]) -> None:
    """With a foreign key the cycle is refused and does not run the due plan."""

    async def scenario() -> None:
        async with memory_world() as (world, store):
            await world.accept(0)
            await world.orphan(10)
            world.clock.pass_s(HORIZON_S + 2)
            metrics = GcMetrics()
            made = cycles(world, metrics)
            await made.cycle(SETTINGS)
            world.clock.pass_s(61)
            store.put(ObjectKey(f"{RAW_BLOBS}notes.txt"), b"what is this")
            with pytest.raises(GcRefused) as refused:
                await made.cycle(replace(SETTINGS, grace_s=0.0))
            assert refused.value.rule is RefusalRule.FOREIGN_KEYS
            counted = metrics.registry.get_sample_value(
                "sluice_gc_refusals_total", {"rule": "foreign_keys"}
            )
            assert counted == 1.0
            assert not store.deleted

    asyncio.run(scenario())
    refusals = [one for one in events if one["event"] == "gc_refused"]
    assert [(one["rule"], one["log_level"]) for one in refusals] == [("foreign_keys", "error")]


@pytest.fixture(autouse=True)
def events() -> Iterator[list[EventDict]]:
    """The log events; other tests may have configured the loggers."""
    with capture_logs() as logged:
        yield logged
