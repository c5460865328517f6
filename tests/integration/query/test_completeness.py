"""Answers while batches are accepted and not enqueued, held back, or not discovered."""

import asyncio
from pathlib import Path

import pytest
from support.constants import settings_with
from support.query_lake import DAY0_NS, bodies, deployment, log_batch, make_query, run_query
from support.spark_lake import Deployment
from support.spark_local import ingest_locally

from sluice_protocol.journals import DISCOVERY, DiscoveryRecord
from sluice_protocol.manifests import decode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.timestamps import parse_rfc3339
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_query.settings import QuerySettings
from sluice_queue.lane import Lane
from sluice_reconciler.app import run_once
from sluice_reconciler.indexes import DifferenceKind
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_store import open_store, read_authority

LARGE = settings_with(QuerySettings, threads=2, accepted_list_max=0)
"""As in a store whose manifests are too many to list."""


@pytest.fixture
def place(tmp_path: Path) -> Deployment:
    return deployment(tmp_path)


def reconcile(place: Deployment) -> None:
    asyncio.run(run_once(place.url, ReconcilerSettings()))


def discovery(place: Deployment) -> tuple[DiscoveryRecord, UnixNs]:
    """Return the stored record and the store's clock."""

    async def read() -> tuple[DiscoveryRecord, UnixNs]:
        async with open_store(place.url) as store:
            found = await store.get(DISCOVERY)
            assert isinstance(found, Found)
            return decode_record(DISCOVERY, found.body, DiscoveryRecord), found.info.date_ns

    return asyncio.run(read())


@pytest.mark.daily(1)
@pytest.mark.parametrize("ingested", [False, True])
def test_a_batch_that_is_not_enqueued_makes_the_answer_partial(
    place: Deployment, ingested: bool
) -> None:
    """The reconciler is down; the answer becomes complete when it has run again."""
    place.accept([log_batch(["a"])])
    reconcile(place)
    if ingested:
        ingest_locally(place.url)
    complete = run_query(place, make_query())
    assert bodies(complete) == ["a"]
    assert not complete.summary.partial, complete.summary.reasons

    place.accept([log_batch(["b"], start=1)])
    result = run_query(place, make_query())
    assert bodies(result) == ["a"]
    assert result.summary.partial
    assert result.summary.reasons == (
        "1 accepted batch is not enqueued yet: wait for the reconciler, or start it",
    )
    assert not run_query(place, make_query(kind="metrics")).summary.partial
    assert not run_query(place, make_query(agents=("host-2",))).summary.partial
    assert not run_query(place, make_query(from_ns=DAY0_NS + 1)).summary.partial

    reconcile(place)
    healed = run_query(place, make_query())
    assert bodies(healed) == ["a", "b"]
    assert not healed.summary.partial, healed.summary.reasons


def test_a_batch_that_no_reconciler_has_seen_makes_the_answer_partial(place: Deployment) -> None:
    place.accept([log_batch(["a"])])
    assert run_query(place, make_query()).summary.partial
    large = run_query(place, make_query(), LARGE).summary
    assert (large.partial, large.accepted_until) == (True, None)


def test_a_held_batch_makes_the_answers_partial_that_it_may_belong_to(place: Deployment) -> None:
    place.accept([log_batch(["a"])])
    place.accept([log_batch(["b"], start=1)], blobs=False)
    reconcile(place)
    for settings in (None, LARGE):
        result = run_query(place, make_query(), settings)
        assert bodies(result) == ["a"]
        assert result.summary.partial
        (reason,) = result.summary.reasons
        assert reason.startswith("1 batch is held back")
        assert "blob_missing" in reason
    for changes in ({"kind": "metrics"}, {"agents": ("host-2",)}, {"from_ns": DAY0_NS + 1}):
        assert not run_query(place, make_query(**changes)).summary.partial

    place.put_blob(place.sent[1])
    reconcile(place)
    healed = run_query(place, make_query())
    assert bodies(healed) == ["a", "b"]
    assert not healed.summary.partial


def test_an_invalid_manifest_may_belong_to_every_answer_about_its_agent(place: Deployment) -> None:
    batch = log_batch(["a"])
    place.accept([batch])
    (path,) = (place.root / "accepted").rglob("*.json*")
    path.write_bytes(b"{}")
    reconcile(place)
    assert run_query(place, make_query(kind="metrics")).summary.partial
    assert not run_query(place, make_query(agents=("host-2",))).summary.partial


def test_in_a_large_store_the_last_full_pass_decides(place: Deployment) -> None:
    place.accept([log_batch(["a"])])
    reconcile(place)
    record, now_ns = discovery(place)
    assert record.listed == 1
    assert record.complete_through_unix_ns <= now_ns
    recent = run_query(place, make_query(), LARGE).summary
    assert not recent.partial
    assert recent.accepted_until is not None
    assert parse_rfc3339(recent.accepted_until) == record.complete_through_unix_ns

    strict = settings_with(QuerySettings, threads=2, accepted_list_max=0, max_staleness_s=0)
    present = make_query(to_ns=UnixNs(now_ns + 1))
    stale = run_query(place, present, strict).summary
    assert stale.partial
    assert stale.reasons[0].startswith(f"batches accepted after {stale.accepted_until} may be miss")
    past = make_query(to_ns=UnixNs(record.complete_through_unix_ns))
    assert not run_query(place, past, strict).summary.partial


def test_a_pass_that_leaves_a_batch_behind_is_no_completed_discovery(place: Deployment) -> None:
    """A register is lost, so its lane is halted and the new batch cannot be appended."""
    place.accept([log_batch(["a"])])
    reconcile(place)
    (before, _) = discovery(place)
    for register in (place.root / "queue").rglob("manifest*"):
        register.unlink()
    lost = run_query(place, make_query()).summary
    assert lost.partial
    assert lost.reasons[0].startswith("the register of lane 00")
    place.accept([log_batch(["b"], start=1)])
    reconcile(place)
    assert discovery(place)[0] == before
    assert run_query(place, make_query()).summary.partial


@pytest.mark.parametrize("within_s", [0, 30])
def test_a_rebuilt_lane_makes_answers_partial_until_a_later_full_pass(
    place: Deployment, monkeypatch: pytest.MonkeyPatch, within_s: int
) -> None:
    """The record of discovery still states that the batches of the lost register are enqueued.

    A pass that began before the lane's state was empty has left out its batches.
    """
    monkeypatch.setattr("sluice_reconciler.lanes.rebuild.REBUILD_NS", within_s * NS_PER_S)
    monkeypatch.setattr("sluice_reconciler.passes.loop.PASS_STEP_S", 0.0)
    place.accept([log_batch(["a"])])
    reconcile(place)
    for register in (place.root / "queue").rglob("manifest*"):
        register.unlink()

    async def rebuild() -> None:
        async with open_store(place.url) as store:
            authority = await read_authority(store)
            lanes = {Lane(queue="spark", lane=lane): 0 for lane in range(authority.lanes)}
            found = Reconciler(store, authority).rebuild(lanes).repair()
            assert [one.wrong async for one in found] == [DifferenceKind.MISSING]

    asyncio.run(rebuild())
    result = run_query(place, make_query())
    assert bodies(result) == []
    assert result.summary.partial
    assert "was rebuilt, and is given its batches again" in result.summary.reasons[0]

    reconcile(place)
    after = run_query(place, make_query())
    assert bodies(after) == ["a"]
    assert after.summary.partial == (within_s > 0), after.summary.reasons
