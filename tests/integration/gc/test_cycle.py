"""Audit, plan and run on a local store: what is deleted, what is kept, and why."""

import asyncio
from pathlib import Path

import pytest
from support.constants import changed
from support.gc_world import AUDIT, HORIZON_S, KEYS, open_world

from sluice_gc.blob_explanation import explain_blob
from sluice_gc.errors import GcRefused, RefusalRule
from sluice_gc.store_verification import verify_store_chain
from sluice_protocol.keys import accepted_by_blob_key, quarantine_by_blob_key
from sluice_protocol.outcomes import Found


def test_cycle_deletes_only_the_orphan_past_its_horizon(tmp_path: Path) -> None:
    """Accepted blobs, quarantined blobs and a young orphan are kept; the old orphan is deleted."""

    async def scenario() -> None:
        async with open_world(tmp_path / "store") as world:
            accepted = await world.accept(0)
            refused = await world.quarantine(0, salt="other bytes")
            orphan = await world.orphan(10)
            world.clock.pass_s(HORIZON_S + 1)
            young = await world.orphan(20)
            report = await world.cycle()
            assert (report.facts.deleted, report.facts.kept) == (1, {})
            assert not await world.has(orphan)
            assert await world.has(accepted)
            assert await world.has(refused)
            assert await world.has(young)
            told = await explain_blob(world.store, KEYS.trusted, orphan)
            assert [one.verdict for one in told.proofs] == ["may_go"]
            assert told.incarnations == ()

    asyncio.run(scenario())


def test_audit_writes_missing_references_first(tmp_path: Path) -> None:
    """Without a reconciler no blob is lost: the audit writes the missing references."""

    async def scenario() -> None:
        async with open_world(tmp_path / "store") as world:
            accepted = await world.accept(0, indexed=False)
            refused = await world.quarantine(0, salt="other", indexed=False)
            certificate = await world.audit()
            assert certificate.counts.references_repaired == 2
            who = world.identity(0)
            for key in (
                accepted_by_blob_key(accepted, who),
                quarantine_by_blob_key(refused, who),
            ):
                assert isinstance(await world.store.get(key), Found)
            again = await world.audit()
            assert again.counts.references_repaired == 0
            assert again.counts.bodies_read == 0
            assert (again.counts.accepted, again.counts.quarantined) == (1, 1)
            chain = await verify_store_chain(world.store, KEYS.trusted)
            assert [one.audit_id for one in chain] == [certificate.audit_id, again.audit_id]

    asyncio.run(scenario())


def test_certificate_before_the_horizon_of_every_orphan_is_refused(tmp_path: Path) -> None:
    """An orphan that became old after the audit is not planned without a later audit."""

    async def scenario() -> None:
        async with open_world(tmp_path / "store") as world:
            await world.accept(0)
            await world.orphan(10)
            await world.audit()
            world.clock.pass_s(HORIZON_S + 1)
            with pytest.raises(GcRefused) as refused:
                await world.plan()
            assert refused.value.rule is RefusalRule.HORIZON_NOT_COVERED

    asyncio.run(scenario())


def test_without_single_references_no_named_blob_is_deleted(tmp_path: Path) -> None:
    """With packed references the audit writes none, and manifests and envelopes keep the blobs."""

    async def scenario() -> None:
        async with open_world(tmp_path / "store") as world:
            accepted = await world.accept(0, indexed=False)
            refused = await world.quarantine(0, salt="other bytes", indexed=False)
            orphan, late = await world.orphan(10), await world.orphan(20, salt="late")
            world.clock.pass_s(HORIZON_S + 1)
            certificate = await world.audit(changed(AUDIT, repair_references=False))
            assert certificate.counts.references_repaired == 1, "only the quarantined one"
            plan = await world.plan()
            await world.put_manifest(world.identity(20), late, indexed=False)
            report = await world.run(plan)
            assert (report.facts.deleted, report.facts.kept) == (1, {"envelope": 1})
            assert not await world.has(orphan)
            for kept in (accepted, refused, late):
                assert await world.has(kept)
            place = accepted_by_blob_key(accepted, world.identity(0))
            assert not isinstance(await world.store.get(place), Found)

    asyncio.run(scenario())
