"""A run without one clause of the proof deletes something that must be kept.

The plan is hostile: it lists every object version and is signed, so that only the clauses of the
run protect a blob. The conditions are implemented here a second time, on the state of the store and
not on what the run read.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

import pytest
from support.gc_store import SimulatedVersion, VersionedStore
from support.gc_world import HORIZON_S, RUN, GcWorld, hostile_plan, memory_world

from sluice_gc.deletion_proof import ClauseSets
from sluice_gc.errors import GcRefused, RefusalRule
from sluice_protocol import blob_deletion as d
from sluice_protocol.collection_records import Certificate, Plan
from sluice_protocol.keys import (
    ACCEPTED,
    QUARANTINE,
    accepted_by_blob_key,
    accepted_by_blob_prefix,
    blob_key,
    digest_of,
    parse_blob_key,
    quarantine_by_blob_prefix,
)
from sluice_protocol.units import NS_PER_S, NULL_VERSION, Digest, ObjectKey
from sluice_store.port import Versioning

HORIZON_NS = HORIZON_S * NS_PER_S


class DeletionJudge:
    """Records every deletion that violates a clause, by the state of the store."""

    def __init__(self, world: GcWorld, store: VersionedStore) -> None:
        self._world, self._store = world, store
        self._started: list[int] = []
        self.wrong: list[str] = []
        self.deleted = 0
        self.truly_enabled = True
        self.expired: set[Digest] = set()
        self.held = self.table_lost = False
        store.on_delete = self.see

    def certified(self, certificate: Certificate) -> None:
        self._started.append(certificate.started_at_unix_ns)

    def see(self, key: ObjectKey, version: SimulatedVersion) -> None:
        self.deleted += 1
        self.wrong += self._reasons(key, version)

    def _reasons(self, key: ObjectKey, version: SimulatedVersion) -> Iterator[str]:
        digest = parse_blob_key(key)
        held = self._store.versions[key]
        if not self.truly_enabled:
            yield "versioning"
        if version.incarnation == NULL_VERSION:
            yield "incarnation"
        if self._world.clock.now_ns() - version.at_ns <= HORIZON_NS:
            yield "age"
        if held[0] is not version:
            if digest_of(held[0].body) != digest:
                yield "current"
            if not self._named(digest):
                yield "listed"
            return
        if not any(at > version.stamp_ns + HORIZON_NS for at in self._started):
            yield "certificate"
        if digest not in self.expired:
            if self._named(digest):
                yield "named"
            return
        if self.held:
            yield "held"
        if self.table_lost:
            yield "table"

    def _named(self, digest: Digest) -> bool:
        manifests = (key for key in self._store.versions if key.startswith((ACCEPTED, QUARANTINE)))
        by_body = any(digest.encode() in self._store.versions[key][0].body for key in manifests)
        prefixes = (accepted_by_blob_prefix(digest), quarantine_by_blob_prefix(digest))
        return by_body or any(key.startswith(prefixes) for key in self._store.versions)


Scene = Callable[[GcWorld, VersionedStore, DeletionJudge], Awaitable[Plan]]


async def _aged_orphan(world: GcWorld, judge: DeletionJudge) -> Digest:
    orphan = await world.orphan(10)
    world.clock.pass_s(HORIZON_S + 2)
    judge.certified(await world.audit())
    return orphan


async def versioning_goes_off(world: GcWorld, store: VersionedStore, judge: DeletionJudge) -> Plan:
    """Versioning is suspended after the run started."""
    await _aged_orphan(world, judge)
    plan = await hostile_plan(store, world.ids.ulid())
    store.versioning[:] = [Versioning.ENABLED, Versioning.SUSPENDED]
    judge.truly_enabled = False
    return plan


async def null_version(world: GcWorld, store: VersionedStore, judge: DeletionJudge) -> Plan:
    """The orphan was written before versioning was enabled."""
    store.versioning[:] = [Versioning.OFF]
    orphan = await world.orphan(10)
    store.versioning[:] = [Versioning.ENABLED]
    world.clock.pass_s(HORIZON_S + 2)
    judge.certified(await world.audit())
    assert await world.has(orphan)
    return await hostile_plan(store, world.ids.ulid())


async def clock_falls(world: GcWorld, store: VersionedStore, judge: DeletionJudge) -> Plan:
    """The store's clock goes back after the audit, by less than half the safety margin."""
    await _aged_orphan(world, judge)
    plan = await hostile_plan(store, world.ids.ulid())
    world.clock.pass_s(-30)
    return plan


async def audit_too_early(world: GcWorld, store: VersionedStore, judge: DeletionJudge) -> Plan:
    """The audit ran while a gateway could still finish; then the retry horizon ended."""
    await world.orphan(10)
    judge.certified(await world.audit())
    plan = await hostile_plan(store, world.ids.ulid())
    world.clock.pass_s(HORIZON_S + 2)
    return plan


async def misnamed_in_audit(world: GcWorld, store: VersionedStore, judge: DeletionJudge) -> Plan:
    """A manifest under another identity names the blob; its reference was lost later."""
    orphan = await world.orphan(10)
    await world.put_manifest(world.identity(500), orphan)
    world.clock.pass_s(HORIZON_S + 2)
    judge.certified(await world.audit())
    store.remove_key(accepted_by_blob_key(orphan, world.identity(500)))
    return await hostile_plan(store, world.ids.ulid())


async def misnamed_later(world: GcWorld, store: VersionedStore, judge: DeletionJudge) -> Plan:
    """A manifest under another identity was created after the audit and indexed."""
    orphan = await _aged_orphan(world, judge)
    plan = await hostile_plan(store, world.ids.ulid())
    world.clock.pass_s(5)
    await world.put_manifest(world.identity(500), orphan)
    return plan


async def late_manifest(world: GcWorld, store: VersionedStore, judge: DeletionJudge) -> Plan:
    """A manifest was created after the audit, too late for its proof; it is not indexed."""
    orphan = await _aged_orphan(world, judge)
    plan = await hostile_plan(store, world.ids.ulid())
    world.clock.pass_s(5)
    await world.put_manifest(world.identity(10), orphan, indexed=False)
    return plan


async def late_quarantine(world: GcWorld, store: VersionedStore, judge: DeletionJudge) -> Plan:
    """A quarantine manifest was created after the audit; it is not indexed."""
    await world.accept(10)
    orphan = await _aged_orphan(world, judge)
    plan = await hostile_plan(store, world.ids.ulid())
    world.clock.pass_s(5)
    assert await world.quarantine(10, salt="orphan", indexed=False) == orphan
    return plan


async def written_again(world: GcWorld, store: VersionedStore, judge: DeletionJudge) -> Plan:
    """A gateway writes the blob again between two reads of the proof."""
    orphan = await _aged_orphan(world, judge)
    key = blob_key(orphan)

    def again() -> None:
        store.put(key, store.versions[key][0].body)

    store.hooks["list_incarnations", key] = again
    return await hostile_plan(store, world.ids.ulid())


async def corrupt_current(world: GcWorld, store: VersionedStore, judge: DeletionJudge) -> Plan:
    """Only the noncurrent version of an accepted blob has the correct bytes."""
    accepted = await world.accept(10)
    store.put(blob_key(accepted), b"damaged")
    world.clock.pass_s(HORIZON_S + 2)
    judge.certified(await world.audit())
    return await hostile_plan(store, world.ids.ulid(), noncurrent=True)


async def current_goes(world: GcWorld, store: VersionedStore, judge: DeletionJudge) -> Plan:
    """The current version disappears between two reads; the old one becomes current."""
    accepted = await world.accept(10)
    key = blob_key(accepted)
    store.put(key, store.versions[key][0].body)
    world.clock.pass_s(HORIZON_S + 2)
    judge.certified(await world.audit())

    def vanish() -> None:
        del store.versions[key][0]

    store.hooks["list_incarnations", key] = vanish
    return await hostile_plan(store, world.ids.ulid(), noncurrent=True)


async def young_superseded(world: GcWorld, store: VersionedStore, judge: DeletionJudge) -> Plan:
    """A version became noncurrent a moment ago."""
    accepted = await world.accept(10)
    key = blob_key(accepted)
    store.put(key, store.versions[key][0].body)
    judge.certified(await world.audit())
    return await hostile_plan(store, world.ids.ulid(), noncurrent=True)


async def _aged_expired(world: GcWorld, judge: DeletionJudge) -> None:
    batch = await world.accept(10)
    world.clock.pass_s(HORIZON_S + 2)
    await world.expire(10)
    judge.expired.add(batch)
    judge.certified(await world.audit())


async def held_after_plan(world: GcWorld, store: VersionedStore, judge: DeletionJudge) -> Plan:
    """A hold is placed after the plan of an expired batch."""
    await _aged_expired(world, judge)
    plan = await hostile_plan(store, world.ids.ulid())
    await world.hold()
    judge.held = True
    return plan


async def older_table(world: GcWorld, store: VersionedStore, judge: DeletionJudge) -> Plan:
    """An older copy of the table was restored, which reached the same version again."""
    await _aged_expired(world, judge)
    plan = await hostile_plan(store, world.ids.ulid())
    await world.commit(4, "another")
    judge.table_lost = True
    return plan


ORPHAN_SCENES: list[tuple[d.ClauseCheck, Scene, str]] = [
    (d.versioning_enabled, versioning_goes_off, "versioning"),
    (d.incarnation_exact, null_version, "incarnation"),
    (d.old_enough, clock_falls, "age"),
    (d.certificate_covers, audit_too_early, "certificate"),
    (d.audit_unnamed, misnamed_in_audit, "named"),
    (d.references_absent, misnamed_later, "named"),
    (d.envelope_unnamed, late_manifest, "named"),
    (d.envelope_unnamed, late_quarantine, "named"),
    (d.expiry_stands, held_after_plan, "held"),
    (d.expiry_stands, older_table, "table"),
    (d.still_listed, written_again, "listed"),
]
SUPERSEDED_SCENES: list[tuple[d.ClauseCheck, Scene, str]] = [
    (d.old_enough, young_superseded, "age"),
    (d.listed_noncurrent, current_goes, "named"),
    (d.current_verified, corrupt_current, "current"),
]


def play(scene: Scene, clauses: ClauseSets) -> tuple[DeletionJudge, str | None]:
    """Run a scene and its plan; return the judge and the refusal, if any."""

    async def story() -> tuple[DeletionJudge, str | None]:
        async with memory_world() as (world, store):
            await world.accept(1000)
            judge = DeletionJudge(world, store)
            plan = await scene(world, store, judge)
            try:
                await world.run(plan, replace(RUN, grace_s=-60.0), clauses)
            except GcRefused as refused:
                return judge, refused.rule.value
            return judge, None

    return asyncio.run(story())


def without(clauses: ClauseSets, check: d.ClauseCheck) -> ClauseSets:
    return replace(
        clauses,
        orphan=tuple(one for one in clauses.orphan if one is not check),
        noncurrent=tuple(one for one in clauses.noncurrent if one is not check),
    )


SCENES = ORPHAN_SCENES + SUPERSEDED_SCENES
SCENE_IDS = [scene.__name__ for _, scene, _ in SCENES]


@pytest.mark.parametrize(("check", "scene", "broken"), SCENES, ids=SCENE_IDS)
def test_each_scene_deletes_nothing(check: d.ClauseCheck, scene: Scene, broken: str) -> None:
    """With every clause, no scene loses anything although the plan lists everything."""
    judge, refused = play(scene, ClauseSets())
    assert judge.wrong == []
    assert judge.deleted == 0
    assert refused == (RefusalRule.VERSIONING.value if broken == "versioning" else None)


@pytest.mark.parametrize(("check", "scene", "broken"), SCENES, ids=SCENE_IDS)
def test_run_without_one_clause_deletes_wrongly(
    check: d.ClauseCheck, scene: Scene, broken: str
) -> None:
    """The judge detects the mutant without that clause."""
    judge, _ = play(scene, without(ClauseSets(), check))
    assert judge.deleted
    assert broken in judge.wrong


def test_every_clause_has_a_scene() -> None:
    """Every clause of the product has a mutant."""
    assert {check for check, _, _ in ORPHAN_SCENES} == set(d.DELETION_CLAUSES)
    shared = {d.versioning_enabled, d.incarnation_exact}
    assert {check for check, _, _ in SUPERSEDED_SCENES} | shared == set(d.NONCURRENT_CLAUSES)


def test_hostile_plan_deletes_only_the_orphan() -> None:
    """The clauses allow only the deletion of the orphan."""

    async def only_an_orphan(world: GcWorld, store: VersionedStore, judge: DeletionJudge) -> Plan:
        await _aged_orphan(world, judge)
        return await hostile_plan(store, world.ids.ulid())

    judge, refused = play(only_an_orphan, ClauseSets())
    assert (judge.deleted, judge.wrong, refused) == (1, [], None)
