"""A name of a blob that the audit did not see: it stops the plan, or keeps the blob."""

from collections.abc import Callable

import pytest
from support.gc_store import VersionedStore
from support.gc_world import GcWorld, aged, refused, run_story

from sluice_gc.errors import RefusalRule
from sluice_gc.plan import stopped_key
from sluice_protocol.authority import VISIBILITY_S_MAX
from sluice_protocol.collection_records import Plan
from sluice_protocol.identity import Identity
from sluice_protocol.keys import (
    accepted_by_blob_key,
    accepted_key,
    digest_of,
    quarantine_by_blob_key,
    quarantine_key,
)
from sluice_protocol.outcomes import Found
from sluice_protocol.units import Digest, ObjectKey

NAMES: dict[str, Callable[[Identity, Digest], ObjectKey]] = {
    "accepted manifest": lambda who, _: accepted_key(who),
    "accepted reference": lambda who, digest: accepted_by_blob_key(digest, who),
    "quarantine manifest": quarantine_key,
    "quarantine reference": lambda who, digest: quarantine_by_blob_key(digest, who),
}
CLAUSES = {"manifest": "envelope", "reference": "references"}


async def hide(world: GcWorld, store: VersionedStore, name: str, hidden_s: float) -> Plan:
    """Plan with an audit that starts `hidden_s` after the Last-Modified of a name it misses."""
    orphan, who = await aged(world), world.identity(10)
    await world.put_manifest(who, orphan)
    await world.quarantine(10, salt="orphan")
    hidden = {key: list(store.versions[key]) for key in (of(who, orphan) for of in NAMES.values())}
    for key in hidden:
        store.remove_key(key)
    world.clock.pass_s(hidden_s)
    await world.audit()
    plan = await world.plan()
    missed = NAMES[name](who, orphan)
    store.put(missed, hidden[missed][0].body)
    store.versions[missed][:] = hidden[missed]
    return plan


@pytest.mark.parametrize("name", NAMES)
def test_an_audit_that_missed_a_name_stops_the_plan(name: str) -> None:
    async def story(world: GcWorld, store: VersionedStore) -> None:
        plan = await hide(world, store, name, VISIBILITY_S_MAX + 2)
        await refused(world, world.run(plan), RefusalRule.AUDIT_MISSED_A_MANIFEST)
        assert isinstance(await world.store.get(stopped_key(plan.plan_id)), Found)
        await refused(world, world.run(plan), RefusalRule.PLAN_STOPPED)
        assert await world.has(digest_of(world.frame(10, salt="orphan")))

    run_story(story)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_appeared_during_the_audit_keeps_its_blob_only(name: str) -> None:
    """An object may appear 10 s after its Last-Modified, so the audit was complete."""

    async def story(world: GcWorld, store: VersionedStore) -> None:
        plan = await hide(world, store, name, VISIBILITY_S_MAX)
        report = await world.run(plan)
        assert (report.facts.deleted, report.facts.kept) == (0, {CLAUSES[name.split()[1]]: 1})
        assert await world.has(digest_of(world.frame(10, salt="orphan")))

    run_story(story)


def test_an_unreadable_manifest_at_the_key_of_the_envelope_keeps_the_blob() -> None:
    """It may have named the blob before it was damaged."""

    async def story(world: GcWorld, store: VersionedStore) -> None:
        await aged(world)
        await world.audit()
        plan = await world.plan()
        store.put(accepted_key(world.identity(10)), b"{}")
        report = await world.run(plan)
        assert (report.facts.deleted, report.facts.kept) == (0, {"envelope": 1})

    run_story(story)
