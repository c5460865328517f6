"""Bad input and broken ground: refused by name, and nothing is deleted."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import msgspec
import pytest
from support.gc_store import VersionedStore
from support.gc_world import AUDIT, HORIZON_S, KEY, KEYS, PLAN, RUN, GcWorld, memory_world

from sluice_gc.certificate import certificate_key, chain_key, sign_certificate
from sluice_gc.certificate_chain import read_newest, verify_store_chain
from sluice_gc.errors import AuditIncomplete, CertificateInvalid, GcRefused, RefusalRule
from sluice_gc.plan import Plan, plan_key, sign_plan
from sluice_gc.plan_inputs import stopped_key
from sluice_protocol.authority import Authority
from sluice_protocol.keys import (
    ACCEPTED,
    AUTHORITY_SETTINGS,
    RAW_BLOBS,
    accepted_by_blob_key,
    accepted_key,
    blob_key,
    digest_of,
)
from sluice_protocol.manifests import encode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.units import Digest, ObjectKey
from sluice_store.port import ListPage, Versioning

Story = Callable[[GcWorld, VersionedStore], Awaitable[None]]


def tell(story: Story) -> VersionedStore:
    async def run() -> VersionedStore:
        async with memory_world() as (world, store):
            await story(world, store)
            return store

    return asyncio.run(run())


async def aged(world: GcWorld) -> Digest:
    """One accepted batch and one orphan past its horizon."""
    await world.accept(0)
    orphan = await world.orphan(10)
    world.clock.pass_s(HORIZON_S + 2)
    return orphan


async def refused(world: GcWorld, work: Awaitable[object], rule: RefusalRule) -> None:
    with pytest.raises(GcRefused) as error:
        await work
    assert error.value.rule is rule
    assert not world.store.deleted  # type: ignore[attr-defined]


def test_no_certificate() -> None:
    """Without any audit there is no plan."""

    async def story(world: GcWorld, store: VersionedStore) -> None:
        await aged(world)
        await refused(world, world.plan(), RefusalRule.NO_CERTIFICATE)

    tell(story)


def test_every_blob_and_too_many() -> None:
    """A store whose references are gone would lose everything: refused; so is too large a share."""

    async def story(world: GcWorld, store: VersionedStore) -> None:
        await aged(world)
        for start in (20, 30, 40):
            await world.orphan(start)
        world.clock.pass_s(HORIZON_S + 2)
        await world.audit()
        await refused(
            world, world.plan(replace(PLAN, max_delete_ratio=0.5)), RefusalRule.DELETE_RATIO
        )
        store.remove_key(accepted_key(world.identity(0)))
        for key in [one for one in store.versions if one.startswith("accepted-by-blob")]:
            store.remove_key(key)
        await world.audit()
        await refused(
            world, world.plan(replace(PLAN, max_delete_ratio=1.0)), RefusalRule.EVERY_BLOB
        )

    tell(story)


def test_clocks() -> None:
    """A local clock that is off, or a store's clock that fell, stops plan and run."""

    async def story(world: GcWorld, store: VersionedStore) -> None:
        await aged(world)
        await world.audit()
        plan = await world.plan()
        off = MovedClockOff(world)
        store.clock, world.clock = world.clock, off  # type: ignore[assignment]
        await refused(world, world.plan(), RefusalRule.CLOCKS_DIFFER)
        await refused(world, world.run(plan), RefusalRule.CLOCKS_DIFFER)
        world.clock = store.clock  # type: ignore[assignment]
        world.clock.pass_s(-60)
        await refused(world, world.plan(), RefusalRule.CLOCK_FELL)
        await refused(world, world.run(plan), RefusalRule.CLOCK_FELL)
        await refused(world, world.audit(), RefusalRule.CLOCK_FELL)

    tell(story)


class MovedClockOff:
    """A machine's clock that is six minutes fast."""

    def __init__(self, world: GcWorld) -> None:
        self._clock = world.clock

    def now_ns(self) -> int:
        return self._clock.now_ns() + 360 * 1_000_000_000

    def monotonic_ns(self) -> int:
        return self._clock.monotonic_ns()


@pytest.mark.parametrize(
    "key",
    [
        f"{RAW_BLOBS}sha256/readme.txt",
        f"{ACCEPTED}agent=zz/boot=00/1-2.json",
        f"{ACCEPTED}left-over.tmp",
        "quarantine/v1/other-reason/x.json",
        "accepted-by-blob/v1/sha256/00/11/x.json",
    ],
)
def test_foreign_key(key: str) -> None:
    """A key of unknown form under an audited prefix is reported, and there is no plan."""

    async def story(world: GcWorld, store: VersionedStore) -> None:
        await aged(world)
        store.put(ObjectKey(key), b"what is this")
        assert (await world.audit()).counts.foreign == 1
        await refused(world, world.plan(), RefusalRule.FOREIGN_KEYS)

    tell(story)


@pytest.mark.parametrize("body", [b"", b"{", b'{"schema":"other"}', b"\xff\x00"])
def test_unreadable_manifest(body: bytes) -> None:
    """A manifest that nobody can read may name any blob: no plan."""

    async def story(world: GcWorld, store: VersionedStore) -> None:
        await aged(world)
        store.put(accepted_key(world.identity(700)), body)
        assert (await world.audit()).counts.unreadable_manifests == 1
        await refused(world, world.plan(), RefusalRule.UNREADABLE_MANIFESTS)

    tell(story)


def test_certificate_of_another_authority() -> None:
    """A certificate copied from another deployment is refused, rightly signed as it is."""

    async def story(world: GcWorld, store: VersionedStore) -> None:
        await aged(world)
        certificate = await world.audit()
        other = msgspec.structs.replace(certificate, authority_id="A2", audit_id="B")
        store.put(certificate_key("B"), sign_certificate(other, KEY))
        await refused(world, world.plan(audit_id="B"), RefusalRule.OTHER_AUTHORITY)

    tell(story)


def test_altered_certificate() -> None:
    """A certificate with one changed count carries no plan and no audit after it."""

    async def story(world: GcWorld, store: VersionedStore) -> None:
        await aged(world)
        certificate = await world.audit()
        plan = await world.plan()
        for key in (chain_key(0), certificate_key(certificate.audit_id)):
            body = store.versions[key][0].body.replace(b'"foreign":0', b'"foreign":9')
            store.put(key, body)
        for work in (world.plan(), world.run(plan), world.audit()):
            with pytest.raises(CertificateInvalid):
                await work
        assert not store.deleted

    tell(story)


def test_altered_or_missing_evidence() -> None:
    """Evidence is bound to its certificate and candidates to their plan."""

    async def story(world: GcWorld, store: VersionedStore) -> None:
        await aged(world)
        certificate = await world.audit()
        plan = await world.plan()
        names = certificate.files("names")[0].key
        kept = store.versions[names][0].body
        store.put(names, kept[:-1] + b"x")
        await refused(world, world.plan(), RefusalRule.EVIDENCE_CHANGED)
        store.remove_key(names)
        await refused(world, world.plan(), RefusalRule.EVIDENCE_CHANGED)
        store.put(names, kept)
        store.put(plan.candidates[0].key, b"edited")
        await refused(world, world.run(plan), RefusalRule.EVIDENCE_CHANGED)

    tell(story)


def test_edited_and_misplaced_plans() -> None:
    """A plan edited by hand, or older than its certificate, or too young, deletes nothing."""

    async def story(world: GcWorld, store: VersionedStore) -> None:
        await aged(world)
        await world.audit()
        plan = await world.plan()
        body = store.versions[plan_key(plan.plan_id)][0].body
        store.put(plan_key(plan.plan_id), body.replace(b'"incarnations":1', b'"incarnations":0'))
        await refused(world, world.run(plan), RefusalRule.PLAN_INVALID)
        store.put(plan_key(plan.plan_id), sign(plan, made_at_unix_ns=plan.made_at_unix_ns - 10**10))
        await refused(world, world.run(plan), RefusalRule.PLAN_BEFORE_CERTIFICATE)
        store.put(plan_key(plan.plan_id), body)
        await refused(world, world.run(plan, replace(RUN, grace_s=60.0)), RefusalRule.GRACE)
        missing = msgspec.structs.replace(plan, plan_id="NONE")
        await refused(world, world.run(missing), RefusalRule.PLAN_INVALID)

    tell(story)


def sign(plan: Plan, **changed: object) -> bytes:
    return sign_plan(msgspec.structs.replace(plan, **changed), KEY)


@pytest.mark.parametrize("versioning", [Versioning.OFF, Versioning.SUSPENDED])
def test_unversioned_store_plans_only(versioning: Versioning) -> None:
    """Without versioning there is a plan to look at, and no run."""

    async def story(world: GcWorld, store: VersionedStore) -> None:
        await aged(world)
        await world.audit()
        store.versioning[:] = [versioning]
        plan = await world.plan()
        assert plan.summary.orphans.incarnations == 1
        await refused(world, world.run(plan), RefusalRule.VERSIONING)

    tell(story)


def test_authority_lowered_under_a_run() -> None:
    """Garbage collection with a shorter horizon than the gateways' never starts."""

    async def story(world: GcWorld, store: VersionedStore) -> None:
        await aged(world)
        await world.audit()
        plan = await world.plan()
        other = Authority(authority_id="A1", retry_horizon_s=250, margin_s=80)
        store.put(AUTHORITY_SETTINGS, encode_record(other))
        await refused(world, world.run(plan), RefusalRule.HORIZON_NOT_COVERED)
        await refused(world, world.plan(), RefusalRule.HORIZON_NOT_COVERED)

    tell(story)


def test_audit_that_missed_a_manifest_stops_the_plan() -> None:
    """A manifest older than the audit that the audit does not know: everything stops, for ever."""

    async def story(world: GcWorld, store: VersionedStore) -> None:
        orphan = await aged(world)
        await world.put_manifest(world.identity(10), orphan, indexed=False)
        hidden = store.versions[accepted_key(world.identity(10))]
        store.remove_key(accepted_key(world.identity(10)))
        world.clock.pass_s(5)
        await world.audit()
        plan = await world.plan()
        store.put(accepted_key(world.identity(10)), hidden[0].body)
        store.versions[accepted_key(world.identity(10))][:] = hidden
        await refused(world, world.run(plan), RefusalRule.AUDIT_MISSED_A_MANIFEST)
        assert isinstance(await world.store.get(stopped_key(plan.plan_id)), Found)
        await refused(world, world.run(plan), RefusalRule.PLAN_STOPPED)
        assert await world.has(orphan)

    tell(story)


def test_listing_that_ends_early_gives_no_certificate() -> None:
    """One incomplete range, and there is no certificate and no plan."""

    async def story(world: GcWorld, store: VersionedStore) -> None:
        await aged(world)
        listing = store.list

        async def cut(prefix: str, **bounds: str | None) -> object:  # type: ignore[misc]
            async for page in listing(prefix, **bounds):  # type: ignore[arg-type]
                last = page.last and prefix != ACCEPTED
                yield ListPage(objects=page.objects, date_ns=page.date_ns, last=last)

        store.list = cut  # type: ignore[method-assign, assignment]
        with pytest.raises(AuditIncomplete):
            await world.audit()
        store.list = listing  # type: ignore[method-assign]
        await refused(world, world.plan(), RefusalRule.NO_CERTIFICATE)

    tell(story)


def test_missing_blob_is_found_and_a_misnamed_manifest_keeps() -> None:
    """A lost blob is reported; a manifest under a wrong key keeps what it names."""

    async def story(world: GcWorld, store: VersionedStore) -> None:
        lost = await world.accept(0)
        kept = await world.orphan(10)
        await world.put_manifest(
            world.identity(20), kept, indexed=False, key=accepted_key(world.identity(30))
        )
        await world.put_manifest(world.identity(40), digest_of(b"dangles"), indexed=False)
        store.remove_key(blob_key(lost))
        store.put(accepted_by_blob_key(kept, world.identity(99)), b"{}")
        world.clock.pass_s(HORIZON_S + 2)
        counts = (await world.audit()).counts
        assert (counts.missing_blobs, counts.misnamed, counts.dangling_references) == (2, 1, 1)
        assert (await world.plan()).summary.orphans.incarnations == 0

    tell(story)


def test_two_copies_must_agree() -> None:
    """Whoever changes one copy of a certificate is found by the other."""

    async def story(world: GcWorld, store: VersionedStore) -> None:
        await aged(world)
        first = await world.audit()
        store.remove_key(certificate_key(first.audit_id))
        await world.audit()
        assert len(await verify_store_chain(world.store, KEYS.trusted)) == 2
        store.remove_key(certificate_key(first.audit_id))
        with pytest.raises(CertificateInvalid) as wrong:
            await verify_store_chain(world.store, KEYS.trusted)
        assert wrong.value.audit_id == first.audit_id
        assert (await read_newest(world.store, KEYS.trusted)) is not None

    tell(story)


def test_deep_audit_finds_a_corrupt_blob() -> None:
    """Reading blobs again finds what a listing cannot see; a seeded sample reads its share."""

    async def story(world: GcWorld, store: VersionedStore) -> None:
        digests = [await world.accept(start) for start in range(0, 60, 3)]
        store.put(blob_key(digests[3]), b"damaged")
        shallow = (await world.audit()).counts
        assert (shallow.deep_read, shallow.corrupt_blobs) == (0, 0)
        whole = (await world.audit(replace(AUDIT, deep=1.0))).counts
        assert (whole.deep_read, whole.corrupt_blobs, whole.bodies_read) == (20, 1, 20)
        share = [(await world.audit(replace(AUDIT, deep=0.3))).counts.deep_read for _ in range(2)]
        assert share[0] == share[1]
        assert 0 < share[0] < 20

    tell(story)


def test_gaps_and_overlaps_are_found() -> None:
    """Holes and doubled numbers of an agent are findings, and no ground to refuse a plan."""

    async def story(world: GcWorld, store: VersionedStore) -> None:
        for start in (0, 3, 9, 10):
            await world.accept(start, salt=str(start))
        counts = (await world.audit()).counts
        assert (counts.gaps, counts.overlaps) == (1, 1)

    tell(story)


def test_ranges_cover_every_agent_once() -> None:
    """However finely manifests are cut, the audit sees the same, and carries it on."""

    async def story(world: GcWorld, store: VersionedStore) -> None:
        for number in range(12):
            await world.accept(0, agent=f"host-{number}")
            await world.accept(9, agent=f"host-{number}")
        counts = {}
        for ranges in (1, 2, 4, 100):
            certificate = await world.audit(replace(AUDIT, ranges=ranges))
            counts[ranges] = (certificate.counts.accepted, certificate.counts.gaps)
            assert len(certificate.coverage[0].ranges) == min(ranges, 12)
            assert certificate.counts.bodies_read == (24 if ranges == 1 else 0)
        assert set(counts.values()) == {(24, 12)}

    tell(story)
