"""A plan reads the eligible versions of an audit instead of every blob, and trusts them little."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from support.gc_store import VersionedStore
from support.gc_world import AUDIT, HORIZON_S, KEY, GcWorld, memory_world

from sluice_gc.certificate import certificate_key, sign_certificate
from sluice_gc.eligible_versions import EligibleVersions, LeftOut, eligible_table, left_out_of
from sluice_gc.errors import CertificateInvalid, GcRefused, RefusalRule
from sluice_gc.evidence_files import BLOBS, CANDIDATES, put_table, read_tables
from sluice_gc.store_verification import verify_evidence
from sluice_protocol.collection_records import Certificate, EvidenceFile, Plan
from sluice_protocol.keys import blob_key, chain_key
from sluice_store.retry import Backoff


def run_story(story: Callable[[GcWorld, VersionedStore], Awaitable[None]]) -> None:
    async def run() -> None:
        async with memory_world() as (world, store):
            for start in range(0, 30, 3):
                named = await world.accept(start)
            await world.store.overwrite(blob_key(named), world.frame(27))
            for start in range(60, 75, 3):
                await world.orphan(start)
            world.clock.pass_s(HORIZON_S + 2)
            await story(world, store)

    asyncio.run(run())


async def candidates(world: GcWorld, plan: Plan) -> list[dict[str, object]]:
    rows = (await read_tables(world.store, plan.candidates, CANDIDATES)).to_pylist()
    return [{**row, "now_ns": 0} for row in rows]


async def certify(store: VersionedStore, certificate: Certificate) -> None:
    """Store another certificate in the place of the newest one."""
    body = sign_certificate(certificate, KEY)
    for key in (chain_key(certificate.chain_index), certificate_key(certificate.audit_id)):
        store.put(key, body)


async def with_eligible(
    world: GcWorld, certificate: Certificate, change: Callable[[pa.Table, pa.Table], pa.Table]
) -> Certificate:
    """Return a certificate whose eligible versions an auditor made wrongly."""
    files: list[EvidenceFile] = []
    for file, blobs in zip(certificate.files("eligible"), certificate.files("blobs"), strict=True):
        table = change(
            await read_tables(world.store, [file], BLOBS),
            await read_tables(world.store, [blobs], BLOBS),
        )
        put = put_table(
            world.store, "gc/v1/evidence/x/", "eligible", file.place, table,
            backoff=Backoff.seeded_by(world.clock),
        )  # fmt: skip
        files.append(await put)
    others = (one for one in certificate.evidence if one.kind != "eligible")
    return msgspec.structs.replace(certificate, evidence=(*others, *files))


def test_a_plan_reads_names_and_eligible_versions_only() -> None:
    async def story(world: GcWorld, store: VersionedStore) -> None:
        certificate = await world.audit()
        whole = await world.plan()
        for file in certificate.files("blobs"):
            store.remove_key(file.key)
        plan = await world.plan()
        assert plan.summary == whole.summary
        assert (plan.summary.orphans.incarnations, plan.summary.superseded.incarnations) == (5, 1)
        assert (plan.summary.blobs.incarnations, plan.summary.kept["audit"].incarnations) == (
            15,
            10,
        )
        assert (await world.run(plan)).facts.deleted == 6

    run_story(story)


def test_missing_altered_or_incomplete_eligible_versions_refuse_the_plan() -> None:
    async def story(world: GcWorld, store: VersionedStore) -> None:
        certificate = await world.audit()
        file = certificate.files("eligible")[0]
        body = store.versions[file.key][0].body

        async def refused(rule: RefusalRule) -> None:
            with pytest.raises(GcRefused) as error:
                await world.plan()
            assert error.value.rule is rule

        store.put(file.key, body[:-1] + b"x")
        await refused(RefusalRule.EVIDENCE_CHANGED)
        store.remove_key(file.key)
        await refused(RefusalRule.EVIDENCE_CHANGED)
        store.put(file.key, body)
        kept = tuple(one for one in certificate.evidence if one != file)
        await certify(store, msgspec.structs.replace(certificate, evidence=kept))
        await refused(RefusalRule.CERTIFICATE_INVALID)
        without = await with_eligible(
            world, certificate, lambda rows, _: rows.replace_schema_metadata(None)
        )
        await certify(store, without)
        await refused(RefusalRule.EVIDENCE_CHANGED)

    run_story(story)


def test_versions_that_are_wrongly_eligible_are_not_candidates() -> None:
    """An auditor whose join found no name lists every blob; the plan's own join keeps them."""

    def every_blob(_: pa.Table, blobs: pa.Table) -> pa.Table:
        unnamed = np.zeros(len(blobs), bool)
        return eligible_table(EligibleVersions(rows=blobs, named=unnamed, left_out=LeftOut()))

    async def story(world: GcWorld, store: VersionedStore) -> None:
        certificate = await world.audit()
        plan = await world.plan()
        await certify(store, await with_eligible(world, certificate, every_blob))
        wrong = await world.plan()
        assert wrong.summary == plan.summary
        assert await candidates(world, wrong) == await candidates(world, plan)

    run_story(story)


@pytest.mark.parametrize("what", ["rows", "tallies", "file"])
def test_a_check_of_the_evidence_repeats_the_join(what: str) -> None:
    def changed(rows: pa.Table, _: pa.Table) -> pa.Table:
        if what == "rows":
            return rows.slice(1)
        left_out = left_out_of(rows).plus(left_out_of(rows))
        named = rows["current"].to_numpy()
        return eligible_table(EligibleVersions(rows=rows, named=named, left_out=left_out))

    async def story(world: GcWorld, store: VersionedStore) -> None:
        certificate = await world.audit()
        await verify_evidence(world.store, certificate)
        wrong = await with_eligible(world, certificate, changed)
        if what == "file":
            first = certificate.files("eligible")[0]
            kept = tuple(one for one in certificate.evidence if one != first)
            wrong = msgspec.structs.replace(certificate, evidence=kept)
        with pytest.raises(CertificateInvalid, match="not those of its blobs and names"):
            await verify_evidence(world.store, wrong)

    run_story(story)


def test_an_audit_that_lists_no_blobs_writes_no_eligible_versions() -> None:
    async def story(world: GcWorld, store: VersionedStore) -> None:
        certificate = await world.audit(replace(AUDIT, list_blobs=False))
        assert not certificate.files("eligible")
        assert await verify_evidence(store, certificate) == len(certificate.evidence)

    run_story(story)
