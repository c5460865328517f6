"""What a run reads again before each batch, and what it records before it deletes."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.constants import changed
from support.gc_store import VersionedStore
from support.gc_world import AUDIT, RUN, GcWorld, aged, run_story

from sluice_gc.deletion_proof import proof_key
from sluice_gc.errors import GcRefused, RefusalRule
from sluice_gc.plan import stopped_key
from sluice_protocol.authority import Authority
from sluice_protocol.collection_records import PlanStopped
from sluice_protocol.keys import AUTHORITY_SETTINGS, blob_key
from sluice_protocol.manifests import encode_record

Change = Callable[[GcWorld, VersionedStore, str], None]


def stop(_: GcWorld, store: VersionedStore, plan_id: str) -> None:
    body = PlanStopped(plan_id=plan_id, rule="planned", reason="planned")
    store.put(stopped_key(plan_id), encode_record(body))


def settle_otherwise(world: GcWorld, store: VersionedStore, _: str) -> None:
    horizon_s, margin_s = world.authority.retry_horizon_s + 1, world.authority.margin_s
    other = Authority(authority_id="A1", retry_horizon_s=horizon_s, margin_s=margin_s)
    store.put(AUTHORITY_SETTINGS, encode_record(other))


def fall(world: GcWorld, _: VersionedStore, __: str) -> None:
    world.clock.pass_s(-world.authority.margin_s)


CHANGES = {
    RefusalRule.PLAN_STOPPED: stop,
    RefusalRule.OTHER_AUTHORITY: settle_otherwise,
    RefusalRule.CLOCK_FELL: fall,
}


@pytest.mark.parametrize("rule", CHANGES)
def test_a_change_between_two_batches_stops_the_run(rule: RefusalRule) -> None:
    async def story(world: GcWorld, store: VersionedStore) -> None:
        await world.orphan(20)
        orphans = sorted([await aged(world), await world.orphan(20)])
        await world.audit(replace(AUDIT, shards=1))
        plan = await world.plan()
        change = CHANGES[rule]
        store.hooks["delete", blob_key(orphans[0])] = lambda: change(world, store, plan.plan_id)
        with pytest.raises(GcRefused) as error:
            await world.run(plan, changed(RUN, batch=1))
        assert error.value.rule is rule
        assert [await world.has(one) for one in orphans] == [False, True]

    run_story(story)


def test_a_fall_below_a_time_of_an_earlier_batch_stops_the_run() -> None:
    """The clock is still above its time at the start of the run."""

    async def story(world: GcWorld, store: VersionedStore) -> None:
        for start in (20, 30):
            await world.orphan(start)
        orphans = sorted([await aged(world), await world.orphan(20), await world.orphan(30)])
        await world.audit(replace(AUDIT, shards=1))
        plan = await world.plan()
        margin_s = world.authority.margin_s
        first, second, _ = (("delete", blob_key(one)) for one in orphans)
        store.hooks[first] = lambda: world.clock.pass_s(2 * margin_s)
        store.hooks[second] = lambda: world.clock.pass_s(-margin_s)
        with pytest.raises(GcRefused) as error:
            await world.run(plan, changed(RUN, batch=1))
        assert error.value.rule is RefusalRule.CLOCK_FELL
        assert [await world.has(one) for one in orphans] == [False, False, True]

    run_story(story)


def test_a_dry_run_changes_nothing() -> None:
    async def story(world: GcWorld, store: VersionedStore) -> None:
        await aged(world)
        await world.audit()
        plan = await world.plan()
        before = {key: list(found) for key, found in store.versions.items()}
        report = await world.run(plan, replace(RUN, dry_run=True))
        assert (report.facts.would_go, report.facts.deleted) == (1, 0)
        assert {key: list(found) for key, found in store.versions.items()} == before

    run_story(story)


def test_the_proofs_of_an_earlier_attempt_are_kept() -> None:
    """A new attempt writes its own: every deletion has a stored proof."""

    async def story(world: GcWorld, store: VersionedStore) -> None:
        orphan = await aged(world)
        await world.audit()
        plan = await world.plan()
        keys = [proof_key(plan.plan_id, orphan, orphan, 0, attempt) for attempt in range(3)]
        store.put(keys[0], b"proofs of an attempt that crashed")
        await world.run(plan)
        assert not await world.has(orphan)
        assert [bool(store.versions.get(key)) for key in keys] == [True, True, False]

    run_story(story)
