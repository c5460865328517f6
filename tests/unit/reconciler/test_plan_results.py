"""What a deletion plan has deleted, from the records of its finished batches."""

import pytest
from support.queue_store import SimStore

from sluice_protocol.collection_records import BatchDone, SweepFacts
from sluice_protocol.keys import GC_PLANS, GC_TRASH, digest_of, trash_key
from sluice_protocol.manifests import encode_record
from sluice_protocol.units import ObjectKey
from sluice_reconciler import audit_summaries
from sluice_reconciler.audit_summaries import list_restorable, read_plan_results

PLAN = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
FOLDER = f"{GC_PLANS}{PLAN}/"


async def with_batches(facts: list[SweepFacts]) -> SimStore:
    store = SimStore()
    await store.create(ObjectKey(f"{FOLDER}plan.json"), b"{}")
    for number, one in enumerate(facts):
        mark = encode_record(BatchDone(plan_id=PLAN, facts=one))
        await store.create(ObjectKey(f"{FOLDER}done/00-{number:06d}.json"), mark)
    return store


async def test_the_records_of_finished_batches_are_summed() -> None:
    facts = [
        SweepFacts(deleted=2, deleted_bytes=20, kept={"young": 1}, batches=1),
        SweepFacts(deleted=3, deleted_bytes=30, kept={"young": 1, "named": 4}, batches=1),
    ]
    store = await with_batches(facts)
    damaged = ObjectKey(f"{FOLDER}done/01-000000.json")
    await store.create(damaged, b"{")
    found = await read_plan_results(store, PLAN)
    assert (found.batches, found.deleted, found.deleted_bytes) == (3, 5, 50)
    assert found.kept == {"young": 2, "named": 4}
    assert (found.unreadable, found.more) == ((damaged,), False)


async def test_a_plan_with_more_batches_than_are_read_is_marked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audit_summaries, "BATCHES_MAX", 2)
    found = await read_plan_results(await with_batches([SweepFacts(deleted=1)] * 3), PLAN)
    assert (found.batches, found.deleted, found.more) == (2, 2, True)


@pytest.mark.parametrize("plan", ["01ARZ3NDEKTSV4RRFFQ69G5FA0", "..", "", f"{PLAN}/done"])
async def test_an_unknown_plan_has_no_results(plan: str) -> None:
    assert await read_plan_results(await with_batches([]), plan) is None


async def test_copies_of_deleted_blobs_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    store = SimStore()
    blobs = {digest_of(body): body for body in (b"one", b"three")}
    for digest, body in blobs.items():
        await store.create(trash_key(digest), body)
    await store.create(ObjectKey(f"{GC_TRASH}foreign"), b"")
    found = await list_restorable(store)
    assert {one.sha256: one.size_bytes for one in found.blobs} == {
        digest: len(body) for digest, body in blobs.items()
    }
    assert not found.more
    monkeypatch.setattr(audit_summaries, "COPIES_MAX", 1)
    found = await list_restorable(store)
    assert (len(found.blobs), found.more) == (1, True)
