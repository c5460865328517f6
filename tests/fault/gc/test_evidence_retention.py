"""Old audit evidence is removed by a rule in the chain; every reader copes, and any crash too."""

import asyncio
import contextlib
import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.dying_store import Died, DyingStore
from support.gc_store import VersionedStore
from support.gc_world import (
    AUDIT,
    AUDITOR_KEY,
    HORIZON_S,
    KEYS,
    PLAN,
    RUN,
    TRUSTED,
    GcWorld,
    certificate,
    memory_world,
)

from sluice_gc.auditor import Auditor, link_after, read_audit_report
from sluice_gc.blob_explanation import explain_blob
from sluice_gc.certificate import read_certificate, sign_certificate, verify_chain
from sluice_gc.errors import CertificateInvalid, GcRefused, RefusalRule
from sluice_gc.evidence_retention import (
    OPEN_PLAN_NS,
    UNCERTIFIED_NS,
    FolderRuling,
    decide_folder,
    decide_kept_from,
    prune_evidence,
)
from sluice_gc.store_verification import verify_store
from sluice_gc.task_engine import LocalTaskEngine
from sluice_protocol.collection_records import Certificate
from sluice_protocol.keys import AUDIT as AUDIT_PREFIX
from sluice_protocol.keys import GC_EVIDENCE
from sluice_protocol.units import NS_PER_S


def evidence_of(store: VersionedStore) -> set[str]:
    """Return the audits that have evidence."""
    return {
        key.removeprefix(GC_EVIDENCE).partition("/")[0]
        for key in store.versions
        if key.startswith(GC_EVIDENCE)
    }


async def audits(world: GcWorld, count: int) -> list[Certificate]:
    found = []
    for number in range(count):
        await world.accept(1000 + 3 * number)
        world.clock.pass_s(HORIZON_S + 2)
        found.append(await world.audit())
    return found


async def test_the_newest_two_and_every_certificate_are_kept() -> None:
    async with memory_world() as (world, store):
        made = await audits(world, 6)
        report = await prune_evidence(store, KEYS.trusted)
        assert report.kept_from == 4
        assert report.audits == {"kept": 2, "remove": 4}
        assert evidence_of(store) == {one.audit_id for one in made[-2:]}
        assert (await prune_evidence(store, KEYS.trusted)).files == 0
        told = await verify_store(store, KEYS.trusted, evidence=True)
        assert (told.certificates, told.evidence_kept_from) == (6, 4)
        assert told.evidence_files == len(made[4].evidence) + len(made[5].evidence)
        assert not any("/evidence/" in k for k in store.versions if k.startswith(AUDIT_PREFIX))


async def test_every_reader_copes_with_removed_evidence() -> None:
    """The next audit reads no body again; an old report has counts; an old plan is refused."""
    async with memory_world() as (world, store):
        orphan = await world.orphan(1)
        await world.accept(500, indexed=False)
        made = await audits(world, 4)
        await prune_evidence(store, KEYS.trusted)
        following = await world.audit()
        assert following.counts.bodies_read == 0
        old = await read_certificate(store, made[0].audit_id, KEYS.trusted)
        shown = await read_audit_report(store, old.certificate)
        assert shown.removed
        assert shown.certificate.counts == made[0].counts
        with pytest.raises(GcRefused, match="removed by rule") as refused:
            await world.plan(PLAN, audit_id=made[0].audit_id)
        assert refused.value.rule is RefusalRule.EVIDENCE_CHANGED
        assert (await world.run(await world.plan())).facts.deleted == 1
        assert (await explain_blob(store, KEYS.trusted, orphan)).proofs


async def test_an_open_plan_keeps_its_evidence_until_it_is_finished() -> None:
    async with memory_world() as (world, store):
        await world.orphan(1)
        first = (await audits(world, 1))[0]
        plan = await world.plan()
        await audits(world, 4)
        assert (await prune_evidence(store, KEYS.trusted)).kept_from == 0
        assert first.audit_id in evidence_of(store)
        assert (await world.run(plan, RUN)).facts.deleted == 1
        await audits(world, 1)
        assert (await prune_evidence(store, KEYS.trusted)).kept_from == 4
        assert first.audit_id not in evidence_of(store)


async def test_a_plan_that_is_never_executed_keeps_its_evidence_for_a_week() -> None:
    async with memory_world() as (world, store):
        await world.orphan(1)
        await audits(world, 1)
        await world.plan()
        world.clock.pass_s(OPEN_PLAN_NS / NS_PER_S + 1)
        await audits(world, 3)
        assert (await prune_evidence(store, KEYS.trusted)).kept_from == 2


async def test_an_audit_whose_predecessor_lost_its_evidence_reads_the_manifests_again() -> None:
    async with memory_world() as (world, store):
        made = await audits(world, 2)
        for file in made[-1].files("manifests"):
            store.remove_key(file.key)
        again = await world.audit()
        assert again.counts.bodies_read == again.counts.accepted == 2
        assert again.counts.names == made[-1].counts.names


async def _pruned_world() -> GcWorld:
    """Return a world with an orphan and three audits, the first of which lost its evidence."""
    async with memory_world() as (world, store):
        await world.orphan(1)
        await audits(world, 3)
        await prune_evidence(store, KEYS.trusted)
        return world


@pytest.mark.parametrize(
    ("after", "every"),
    [
        (False, 3),
        pytest.param(False, 1, marks=pytest.mark.long),
        pytest.param(True, 1, marks=pytest.mark.long),
    ],
)
def test_a_crash_at_any_write_or_removal_keeps_what_the_chain_promises(
    after: bool, every: int
) -> None:
    """After every crash the kept evidence verifies, and the next run finishes the removal.

    A crash after a write leaves the store as one before the next write.
    """

    async def scenario(at: int) -> bool:
        world = copy.deepcopy(prepared)
        store: Any = world.store
        dying: Any = DyingStore(store, at, after, {"create", "delete"})
        engine = LocalTaskEngine(dying)
        with contextlib.suppress(Died, BaseExceptionGroup):
            await Auditor(dying, engine, KEYS, world.clock, world.ids).audit(AUDIT)
            await prune_evidence(dying, KEYS.trusted)
        if not dying.died:
            return False
        newest = await world.audit()
        told = await verify_store(store, KEYS.trusted, evidence=True)
        assert told.evidence_kept_from == newest.chain_index - 1
        world.clock.pass_s(UNCERTIFIED_NS / NS_PER_S + 1)
        await prune_evidence(store, KEYS.trusted)
        assert len(evidence_of(store)) == 2
        assert (await verify_store(store, KEYS.trusted, evidence=True)).evidence_files > 0
        assert (await world.run(await world.plan())).facts.deleted == 1
        return True

    prepared = asyncio.run(_pruned_world())
    at = 0
    while asyncio.run(scenario(at)):
        at += every
    assert at > 20


async def test_an_audit_that_ends_during_a_removal_keeps_its_evidence() -> None:
    """The removal read the chain before, and finds its certificate later."""
    async with memory_world() as (world, store):
        await world.orphan(1)
        await audits(world, 4)
        ended: list[Certificate] = []

        async def delete(*args: Any, **named: Any) -> Any:
            if not ended:
                ended.append(await world.audit())
            return await VersionedStore.delete(store, *args, **named)

        store.delete = delete  # type: ignore[method-assign]
        report = await prune_evidence(store, KEYS.trusted)
        assert ended
        assert report.audits == {"kept": 3, "remove": 2}
        told = await verify_store(store, KEYS.trusted, evidence=True)
        assert (told.certificates, told.evidence_kept_from) == (5, 3)
        assert (await world.run(await world.plan())).facts.deleted == 1


def test_evidence_of_a_running_audit_is_kept() -> None:
    now = 10 * UNCERTIFIED_NS
    young, old = now - UNCERTIFIED_NS + 1, now - UNCERTIFIED_NS
    for written, ruling in ((young, FolderRuling.RUNNING), (old, FolderRuling.REMOVE)):
        found = decide_folder(kept=False, certified=False, newest_write_ns=written, now_ns=now)
        assert found is ruling


@given(
    steps=st.lists(st.lists(st.integers(0, 30), max_size=3), min_size=1, max_size=30),
)
def test_the_position_never_falls_and_keeps_the_newest_two(steps: list[list[int]]) -> None:
    before = 0
    for place, wanted in enumerate(steps):
        pinned = [one for one in wanted if one < place]
        kept = decide_kept_from(place, before, pinned)
        assert before <= kept <= max(place - 1, 0)
        assert all(kept <= one for one in pinned if one >= before)
        before = kept
    assert decide_kept_from(40, 0, []) == 39


def chain(*kept: int) -> list[bytes]:
    """Return a signed chain whose certificates state these positions."""
    bodies: list[bytes] = []
    for place, value in enumerate(kept):
        one = msgspec.structs.replace(certificate(), audit_id=f"A{place}", chain_index=place)
        if bodies:
            from sluice_gc.certificate import ChainLink  # noqa: PLC0415 - only here
            from sluice_protocol.keys import digest_of  # noqa: PLC0415 - only here

            (*_, last) = verify_chain(bodies, TRUSTED)
            link = ChainLink(certificate=last, body=bodies[-1], sha256=digest_of(bodies[-1]))
            one = link_after(one, link)
        one = msgspec.structs.replace(one, evidence_kept_from=value)
        bodies.append(sign_certificate(one, AUDITOR_KEY))
    return bodies


def test_a_chain_is_valid_and_a_wrong_position_is_not() -> None:
    found = verify_chain(chain(0, 0, 0, 2), TRUSTED)
    assert [one.evidence_kept_from for one in found] == [0, 0, 0, 2]
    with pytest.raises(CertificateInvalid, match="newest two"):
        verify_chain(chain(0, 0, 2), TRUSTED)
    with pytest.raises(CertificateInvalid, match="already removed"):
        verify_chain(chain(0, 0, 1, 2, 1), TRUSTED)
