"""Wrong input or an invalid basis is refused with its rule, and nothing is deleted."""

from dataclasses import replace

import msgspec
import pytest
from support.constants import changed
from support.gc_store import VersionedStore
from support.gc_world import (
    AUDIT,
    HORIZON_S,
    KEY,
    KEYS,
    PLAN,
    RUN,
    GcWorld,
    aged,
    refused,
    run_story,
)

from sluice_gc.certificate import certificate_key, read_newest, sign_certificate
from sluice_gc.errors import AuditIncomplete, CertificateInvalid, RefusalRule
from sluice_gc.plan import plan_key, sign_plan
from sluice_gc.store_verification import verify_store_chain
from sluice_protocol.authority import Authority
from sluice_protocol.collection_records import Plan
from sluice_protocol.keys import (
    ACCEPTED,
    AUTHORITY_SETTINGS,
    RAW_BLOBS,
    accepted_by_blob_key,
    accepted_key,
    blob_key,
    chain_key,
    digest_of,
)
from sluice_protocol.manifests import encode_record
from sluice_protocol.units import ObjectKey
from sluice_store.port import ListPage, Versioning


def test_plan_requires_a_certificate() -> None:
    """Without an audit no plan is made."""

    async def story(world: GcWorld, store: VersionedStore) -> None:
        await aged(world)
        await refused(world, world.plan(), RefusalRule.NO_CERTIFICATE)

    run_story(story)


def test_plan_for_too_many_blobs_is_refused() -> None:
    """A plan for every blob, or for too large a share of them, is refused."""

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

    run_story(story)


def test_wrong_clock_stops_plan_and_run() -> None:
    """A wrong local clock, or a store's clock that went back, stops plan and run."""

    async def story(world: GcWorld, store: VersionedStore) -> None:
        await aged(world)
        await world.audit()
        plan = await world.plan()
        off = FastClock(world)
        store.clock, world.clock = world.clock, off  # type: ignore[assignment]
        await refused(world, world.plan(), RefusalRule.CLOCKS_DIFFER)
        await refused(world, world.run(plan), RefusalRule.CLOCKS_DIFFER)
        world.clock = store.clock  # type: ignore[assignment]
        world.clock.pass_s(-60)
        await refused(world, world.plan(), RefusalRule.CLOCK_FELL)
        await refused(world, world.run(plan), RefusalRule.CLOCK_FELL)
        await refused(world, world.audit(), RefusalRule.CLOCK_FELL)

    run_story(story)


class FastClock:
    """A local clock that is six minutes fast."""

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
def test_foreign_key_prevents_a_plan(key: str) -> None:
    """A key of unknown form under an audited prefix is reported and prevents a plan."""

    async def story(world: GcWorld, store: VersionedStore) -> None:
        await aged(world)
        store.put(ObjectKey(key), b"unknown")
        assert (await world.audit()).counts.foreign == 1
        await refused(world, world.plan(), RefusalRule.FOREIGN_KEYS)

    run_story(story)


@pytest.mark.parametrize("body", [b"", b"{", b'{"schema":"other"}', b"\xff\x00"])
def test_unreadable_manifest_prevents_a_plan(body: bytes) -> None:
    """An unreadable manifest may name any blob and prevents a plan."""

    async def story(world: GcWorld, store: VersionedStore) -> None:
        await aged(world)
        store.put(accepted_key(world.identity(700)), body)
        assert (await world.audit()).counts.unreadable_manifests == 1
        await refused(world, world.plan(), RefusalRule.UNREADABLE_MANIFESTS)

    run_story(story)


def test_certificate_of_another_authority_is_refused() -> None:
    """A correctly signed certificate from another deployment is refused."""

    async def story(world: GcWorld, store: VersionedStore) -> None:
        await aged(world)
        certificate = await world.audit()
        other = msgspec.structs.replace(certificate, authority_id="A2", audit_id="B")
        store.put(certificate_key("B"), sign_certificate(other, KEY))
        await refused(world, world.plan(audit_id="B"), RefusalRule.OTHER_AUTHORITY)

    run_story(story)


def test_altered_certificate_is_refused() -> None:
    """A certificate with one changed count is refused by plan, run and audit."""

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

    run_story(story)


def test_altered_or_missing_evidence_is_refused() -> None:
    """Evidence must match its certificate, and candidates must match their plan."""

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

    run_story(story)


def test_edited_early_or_missing_plan_is_refused() -> None:
    """A plan that was edited, is older than its certificate, too young or missing is refused."""

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

    run_story(story)


def sign(plan: Plan, **changed: object) -> bytes:
    return sign_plan(msgspec.structs.replace(plan, **changed), KEY)


@pytest.mark.parametrize("versioning", [Versioning.OFF, Versioning.SUSPENDED])
def test_run_requires_versioning(versioning: Versioning) -> None:
    """Without versioning a plan can be made but not run."""

    async def story(world: GcWorld, store: VersionedStore) -> None:
        await aged(world)
        await world.audit()
        store.versioning[:] = [versioning]
        plan = await world.plan()
        assert plan.summary.orphans.incarnations == 1
        await refused(world, world.run(plan), RefusalRule.VERSIONING)

    run_story(story)


def test_changed_retry_horizon_is_refused() -> None:
    """A run or plan with another retry horizon than the certificate is refused."""

    async def story(world: GcWorld, store: VersionedStore) -> None:
        await aged(world)
        await world.audit()
        plan = await world.plan()
        other = Authority(authority_id="A1", retry_horizon_s=250, margin_s=80)
        store.put(AUTHORITY_SETTINGS, encode_record(other))
        await refused(world, world.run(plan), RefusalRule.HORIZON_NOT_COVERED)
        await refused(world, world.plan(), RefusalRule.HORIZON_NOT_COVERED)

    run_story(story)


def test_incomplete_listing_prevents_a_certificate() -> None:
    """One incomplete range prevents the certificate and the plan."""

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

    run_story(story)


def test_missing_blob_is_reported_and_a_misnamed_manifest_keeps_its_blob() -> None:
    """A missing blob is a finding; a manifest under a wrong key keeps the blob that it names."""

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

    run_story(story)


def test_both_copies_of_a_certificate_must_be_equal() -> None:
    """A change of one copy of a certificate is detected with the other copy."""

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

    run_story(story)


def test_deep_audit_finds_a_corrupt_blob() -> None:
    """A deep audit detects a corrupt blob; each audit reads another share of the blobs."""

    async def story(world: GcWorld, store: VersionedStore) -> None:
        digests = [await world.accept(start) for start in range(0, 60, 3)]
        store.put(blob_key(digests[3]), b"damaged")
        shallow = (await world.audit()).counts
        assert (shallow.deep_read, shallow.corrupt_blobs) == (0, 0)
        whole = (await world.audit(replace(AUDIT, deep=1.0))).counts
        assert (whole.deep_read, whole.corrupt_blobs, whole.bodies_read) == (20, 1, 20)
        share = (await world.audit(replace(AUDIT, deep=0.3))).counts
        assert 0 < share.deep_read < 20
        found = set()
        for _ in range(40):
            if len(found) == 2:
                break
            world.clock.pass_s(1)
            found.add((await world.audit(replace(AUDIT, deep=0.3))).counts.corrupt_blobs)
        assert found == {0, 1}

    run_story(story)


def test_gaps_and_overlaps_are_reported() -> None:
    """Gaps and overlaps in sequence numbers are findings."""

    async def story(world: GcWorld, store: VersionedStore) -> None:
        for start in (0, 3, 9, 10):
            await world.accept(start, salt=str(start))
        counts = (await world.audit()).counts
        assert (counts.gaps, counts.overlaps) == (1, 1)

    run_story(story)


def test_ranges_cover_every_agent_once() -> None:
    """The counts do not depend on the number of ranges, and no body is read twice."""

    async def story(world: GcWorld, store: VersionedStore) -> None:
        for number in range(12):
            await world.accept(0, agent=f"host-{number}")
            await world.accept(9, agent=f"host-{number}")
        counts = {}
        for ranges in (1, 2, 4, 100):
            certificate = await world.audit(changed(AUDIT, ranges=ranges))
            counts[ranges] = (certificate.counts.accepted, certificate.counts.gaps)
            assert len(certificate.coverage[0].ranges) == min(ranges, 12)
            assert certificate.counts.bodies_read == (24 if ranges == 1 else 0)
        assert set(counts.values()) == {(24, 12)}

    run_story(story)
