"""Audit, plan and run on a real S3 server with versioning."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.gc_world import AUDIT, KEYS, PLAN, RUN, GcWorld, open_brief_world
from support.store_versitygw import CREDENTIALS, Server, make_bucket, versitygw

from sluice_gc.auditor import Auditor
from sluice_gc.blob_explanation import explain_blob
from sluice_gc.plan_runner import PlanRunner
from sluice_gc.planner import Planner
from sluice_gc.task_engine import LocalTaskEngine
from sluice_protocol.keys import blob_key
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff
from sluice_store.stored_expiry import lift_hold

pytestmark = pytest.mark.s3


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with versitygw(tmp_path) as running:
        yield running


async def cycle(store: ObjectStore, world: GcWorld) -> int:
    engine, clock, ids = LocalTaskEngine(store), SystemClock(), SystemIds()
    await Auditor(store, engine, KEYS, clock, ids).audit(AUDIT)
    plan = await Planner(store, engine, KEYS, clock, ids).plan(PLAN)
    report = await PlanRunner(store, engine, KEYS.trusted, clock).run(plan.plan_id, RUN)
    assert report.facts.unknown == report.facts.unread == 0
    return report.facts.deleted


@asynccontextmanager
async def brief_world(server: Server) -> AsyncIterator[tuple[ObjectStore, GcWorld]]:
    """Open a deployment with a retry horizon of 3 s."""
    url = server.url("gc-bucket", "some/prefix")
    await make_bucket(url)
    async with open_brief_world(url) as world:
        yield world.store, world


async def test_expired_batches_are_deleted_and_explained_on_a_real_server(server: Server) -> None:
    """A hold keeps one of two until it is lifted; a late duplicate is deleted again."""
    async with brief_world(server) as (store, world):
        first, second = await world.accept(0), await world.accept(10)
        unexpired = await world.accept(20)
        for start in (0, 10):
            await world.expire(start)
        hold = await world.hold()
        await SystemClock().sleep(5)
        assert await cycle(store, world) == 0
        backoff = Backoff.seeded_by(SystemClock())
        await lift_hold(store, hold.hold_id, by="bob", reason="over", backoff=backoff)
        assert await cycle(store, world) == 2
        assert not await world.has(first)
        assert await world.has(unexpired)
        assert await world.put_blob(world.frame(10)) == second
        assert await cycle(store, world) == 0
        await SystemClock().sleep(5)
        assert await cycle(store, world) == 1
        assert not await world.has(second)


async def test_orphan_is_deleted_on_a_real_server(server: Server) -> None:
    """Exactly the orphan's version is deleted; accepted, quarantined and rewritten blobs are kept.

    The clock of a server cannot be set back. The authority's retry horizon is therefore shorter
    than `sluice init` allows. The rules are unchanged.
    """
    async with brief_world(server) as (store, world):
        kept = await world.accept(0)
        refused = await world.quarantine(0, salt="other")
        orphan = await world.orphan(10)
        await store.overwrite(blob_key(kept), world.frame(0))
        await SystemClock().sleep(5)
        young = await world.orphan(20)
        assert await cycle(store, world) == 2
        assert not await world.has(orphan)
        assert all([await world.has(digest) for digest in (kept, refused, young)])
        told = await explain_blob(store, KEYS.trusted, kept)
        assert [one.current for one in told.incarnations] == [True]
        assert {one.verdict for one in told.proofs} == {"may_go"}
