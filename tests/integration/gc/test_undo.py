"""The undo window: a deleted blob can be restored until its copy is purged."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from support.gc_world import HORIZON_S, KEYS, RUN, GcWorld, memory_world

from sluice_gc import trash
from sluice_gc.evidence_files import read_names
from sluice_gc.trash import PurgeReport, purge_trash, restore_blob
from sluice_protocol.collection_records import EvidenceFile
from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import trash_key
from sluice_protocol.outcomes import Found
from sluice_protocol.units import Digest
from sluice_store.port import ObjectStore

UNDO = replace(RUN, undo=True)


async def deleted(world: GcWorld) -> Digest:
    """Delete an orphan with undo and return its digest."""
    await world.accept(0)
    orphan = await world.orphan(10)
    world.clock.pass_s(HORIZON_S + 2)
    await world.audit()
    assert (await world.run(await world.plan(), UNDO)).facts.deleted == 1
    assert not await world.has(orphan)
    return orphan


async def purge(world: GcWorld) -> PurgeReport:
    return await purge_trash(world.store, KEYS.trusted, world.ids.ulid(), clock=world.clock)


async def test_deleted_blob_is_restored_from_the_trash() -> None:
    """Undo restores the same bytes; a blob that was never deleted has no copy."""
    async with memory_world() as (world, _):
        orphan = await deleted(world)
        assert (await restore_blob(world.store, orphan, world.clock)).restored
        assert await world.has(orphan)
        with pytest.raises(BadUsage):
            await restore_blob(world.store, await world.accept(30), world.clock)


async def test_copy_is_purged_under_the_clauses_of_a_blob() -> None:
    """A copy is kept until its retry horizon ends and a later audit covers it."""
    async with memory_world() as (world, _):
        orphan = await deleted(world)
        assert (await purge(world)).purged == 0
        world.clock.pass_s(HORIZON_S + 2)
        assert (await purge(world)).purged == 0
        await world.audit()
        assert (await purge(world)).purged == 1
        assert not isinstance(await world.store.get(trash_key(orphan)), Found)


async def test_purge_reads_the_names_of_shards_with_copies_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The names of all shards together may be more than fits into memory."""
    reads: list[list[EvidenceFile]] = []

    async def recorded(store: ObjectStore, files: Iterable[EvidenceFile]) -> frozenset[bytes]:
        reads.append(list(files))
        return await read_names(store, reads[-1])

    monkeypatch.setattr(trash, "read_names", recorded)

    async with memory_world() as (world, _):
        await deleted(world)
        world.clock.pass_s(HORIZON_S + 2)
        await world.audit()
        assert (await purge(world)).purged == 1
        assert len(reads) == 1


async def test_copy_of_a_referenced_blob_is_kept() -> None:
    """A copy is kept while a late manifest names its blob."""
    async with memory_world() as (world, _):
        orphan = await deleted(world)
        await world.put_manifest(world.identity(10), orphan)
        world.clock.pass_s(HORIZON_S + 2)
        assert (await world.audit()).counts.missing_blobs == 1
        assert (await purge(world)).purged == 0
        assert (await restore_blob(world.store, orphan, world.clock)).restored


async def test_corrupt_orphan_is_not_deleted_with_undo() -> None:
    """A blob that cannot be copied correctly is kept."""
    async with memory_world() as (world, store):
        await world.accept(0)
        orphan = await world.orphan(10)
        key = next(key for key in store.versions if orphan in key)
        frame = store.versions[key][0].body
        store.remove_key(key)
        store.put(key, frame[:-1] + bytes([frame[-1] ^ 1]))
        world.clock.pass_s(HORIZON_S + 2)
        await world.audit()
        facts = (await world.run(await world.plan(), UNDO)).facts
        assert (facts.deleted, facts.kept) == (0, {"undo": 1})
