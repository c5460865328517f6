"""Deletion of the blobs of expired batches: by the path of all other blobs, and never too early."""

from dataclasses import replace as changed
from pathlib import Path

from msgspec.structs import replace
from support.gc_world import (
    HORIZON_S,
    KEYS,
    PLAN,
    RIVAL,
    RUN,
    GcWorld,
    hostile_plan,
    memory_world,
    open_world,
)

from sluice_gc.blob_explanation import explain_blob
from sluice_gc.deletion_proof import ClauseSets
from sluice_gc.evidence_files import EXPIRING, read_tables
from sluice_gc.trash import restore_blob
from sluice_protocol.blob_deletion import DELETION_CLAUSES, audit_unnamed
from sluice_protocol.expiry import decode_tombstone, encode_tombstone
from sluice_protocol.keys import accepted_by_blob_key, accepted_key, digest_of, parse_accepted_key
from sluice_protocol.outcomes import Found, NotFound
from sluice_protocol.units import ObjectKey
from sluice_store.retry import Backoff, delete_current_version
from sluice_store.stored_expiry import lift_hold

DAY_S = 86_400


async def aged(world: GcWorld) -> None:
    """Accept three batches, of which 10 expires."""
    for start in (10, 20, 30):
        await world.accept(start)
    world.clock.pass_s(HORIZON_S + 2)


async def names(world: GcWorld, *starts: int) -> list[bool]:
    found = []
    for start in starts:
        read = await world.store.get(accepted_key(world.identity(start)))
        found.append(isinstance(read, Found))
    return found


async def test_the_blob_of_an_expired_batch_is_deleted_and_its_manifest_stays(
    tmp_path: Path,
) -> None:
    async with open_world(tmp_path) as world:
        await aged(world)
        tombstone = await world.expire(10)
        ((_, digest),) = tombstone.named()
        certificate = await world.audit()
        assert (certificate.counts.expired, certificate.counts.accepted) == (1, 3)
        assert not certificate.counts.found_wrong
        plan = await world.plan()
        assert plan.summary.expired_tally.incarnations == 1
        assert plan.summary.orphans.incarnations == 0
        report = await world.run(plan)
        assert report.facts.deleted == 1
        assert not await world.has(digest)
        assert await names(world, 10, 20, 30) == [True] * 3
        later = await world.audit()
        assert later.counts.missing_blobs == 0
        assert not later.counts.found_wrong
        assert (await world.plan()).summary.expired_tally.incarnations == 0


async def test_every_batch_may_expire_although_a_plan_of_every_orphan_is_refused() -> None:
    async with memory_world() as (world, _):
        await aged(world)
        for start in (10, 20, 30):
            await world.expire(start)
        await world.audit()
        plan = await world.plan(changed(PLAN, max_delete_ratio=0.01))
        assert plan.summary.expired_tally.incarnations == 3
        assert (await world.run(plan)).facts.deleted == 3


async def test_a_hold_keeps_the_blob_until_the_last_one_is_lifted() -> None:
    async with memory_world() as (world, _):
        await aged(world)
        ((_, digest),) = (await world.expire(10)).named()
        await world.audit()
        plan = await world.plan()
        holds = [await world.hold(), await world.hold()]
        for hold in holds:
            report = await world.run(plan, changed(RUN, dry_run=True))
            assert report.facts.kept == {"held": 1}
            backoff = Backoff.seeded_by(world.clock)
            await lift_hold(world.store, hold.hold_id, by="bob", reason="over", backoff=backoff)
        assert (await world.run(plan)).facts.deleted == 1
        assert not await world.has(digest)


async def test_a_table_that_was_restored_keeps_the_blob() -> None:
    async with memory_world() as (world, _):
        await aged(world)
        ((_, digest),) = (await world.expire(10)).named()
        await world.audit()
        plan = await world.plan()
        await world.commit(4, "another")
        assert (await world.run(plan)).facts.kept == {"table": 1}
        told = await explain_blob(world.store, KEYS.trusted, digest)
        assert [one.clause for one in told.incarnations] == ["table"]


async def test_a_tombstone_that_is_not_trusted_is_a_finding_and_frees_nothing() -> None:
    """It is signed by another key, is of another deployment, or was changed by a byte."""
    async with memory_world() as (world, store):
        await aged(world)
        await world.expire(10, key=RIVAL)
        await world.expire(20, authority_id="A2")
        edited = await world.expire(30)
        signed = decode_tombstone(edited.key, store.versions[edited.key][0].body)
        other = replace(signed, tombstone=replace(edited, rule=2))
        store.put(edited.key, encode_tombstone(other))
        certificate = await world.audit()
        assert certificate.counts.refused_tombstones == 3
        assert certificate.counts.found_wrong
        assert not certificate.counts.expired
        assert not (await world.plan()).summary.expired


async def test_a_late_duplicate_is_deleted_again_after_the_retry_horizon() -> None:
    """A gateway proves the blob again; the tombstone still names the manifest."""
    async with memory_world() as (world, _):
        await aged(world)
        ((_, digest),) = (await world.expire(10)).named()
        await world.cycle()
        assert not await world.has(digest)
        await world.put_blob(world.frame(10))
        assert (await world.cycle()).facts.deleted == 0
        assert await world.has(digest)
        world.clock.pass_s(HORIZON_S + 2)
        assert (await world.cycle()).facts.deleted == 1
        assert not await world.has(digest)


async def lose_reference(world: GcWorld, start: int) -> ObjectKey:
    key = accepted_by_blob_key(digest_of(world.frame(start)), world.identity(start))
    assert (await delete_current_version(world.store, key)).is_gone
    return key


async def test_a_reference_that_ended_with_its_batch_is_neither_damage_nor_needed() -> None:
    """The audit does not write it again, and a late duplicate is deleted without it."""
    async with memory_world() as (world, _):
        await aged(world)
        ((_, digest),) = (await world.expire(10)).named()
        await world.cycle()
        key = await lose_reference(world, 10)
        await world.put_blob(world.frame(10))
        world.clock.pass_s(HORIZON_S + 2)
        certificate = await world.audit()
        assert not certificate.counts.references_repaired
        assert not certificate.counts.found_wrong
        assert (await world.run(await world.plan())).facts.deleted == 1
        assert not await world.has(digest)
        assert isinstance(await world.store.get(key), NotFound)


async def test_a_lost_reference_frees_no_blob_that_a_manifest_names() -> None:
    """One batch has no tombstone, another has one that no trusted key signed."""
    async with memory_world() as (world, _):
        await aged(world)
        await world.expire(10, key=RIVAL)
        await world.expire(30)
        keys = [await lose_reference(world, start) for start in (10, 20, 30)]
        counts = (await world.audit()).counts
        assert (counts.expired, counts.references_repaired) == (1, 2)
        assert (await world.run(await world.plan())).facts.deleted == 1
        assert await blobs(world) == [True, True, False]
        there = [isinstance(await world.store.get(key), Found) for key in keys]
        assert there == [True, True, False]


async def test_no_reference_is_needed_to_keep_a_blob_at_its_deletion() -> None:
    """The plan lists every blob, and no reference of a manifest exists any more."""
    async with memory_world() as (world, store):
        await aged(world)
        await world.audit()
        for start in (10, 20, 30):
            await lose_reference(world, start)
        plan = await hostile_plan(store, "01ARZ3NDEKTSV4RRFFQ69G5FAV")
        clauses = tuple(one for one in DELETION_CLAUSES if one is not audit_unnamed)
        report = await world.run(plan, clauses=ClauseSets(orphan=clauses))
        assert report.facts.kept == {"envelope": 3}
        assert await blobs(world) == [True] * 3


async def blobs(world: GcWorld) -> list[bool]:
    return [await world.has(digest_of(world.frame(start))) for start in (10, 20, 30)]


async def test_a_quarantine_manifest_of_the_same_bytes_keeps_them() -> None:
    async with memory_world() as (world, _):
        await aged(world)
        assert await world.quarantine(10, salt="") == digest_of(world.frame(10))
        await world.expire(10)
        certificate = await world.audit()
        assert certificate.counts.expired == 1
        assert not (await world.plan()).summary.expired


async def test_a_deleted_blob_can_be_restored_within_the_undo_window() -> None:
    async with memory_world() as (world, _):
        await aged(world)
        ((_, digest),) = (await world.expire(10)).named()
        await world.audit()
        await world.run(await world.plan(), changed(RUN, undo=True))
        await world.hold()
        assert (await restore_blob(world.store, digest, world.clock)).restored
        world.clock.pass_s(HORIZON_S + 2)
        assert (await world.cycle()).facts.kept == {"held": 1}
        assert await world.has(digest)


async def test_the_audit_names_the_manifests_that_are_old_enough() -> None:
    """Only under a rule; without those that have expired and whose blob is deleted."""
    async with memory_world() as (world, _):
        await aged(world)
        assert not (await world.audit()).files("expiring")
        world.clock.pass_s(8 * DAY_S)
        await world.accept(40)
        await world.decide(8 * DAY_S)
        assert await expiring(world) == [10, 20, 30]
        await world.expire(10)
        assert await expiring(world) == [20, 30]
        world.clock.pass_s(8 * DAY_S)
        assert await expiring(world) == [10, 20, 30], "its tombstone is old and its blob exists"
        await world.expire(10)
        await world.cycle()
        world.clock.pass_s(8 * DAY_S)
        assert await expiring(world) == [20, 30, 40]


async def expiring(world: GcWorld) -> list[int]:
    rows = await read_tables(world.store, (await world.audit()).files("expiring"), EXPIRING)
    return sorted(parse_accepted_key(key).seq_start for key in rows["key"].to_pylist())
