"""Audits and garbage collection as tasks: with one key, or with separate processes."""

import asyncio
import base64
import threading
from pathlib import Path
from typing import NoReturn

import pytest
from support.constants import with_constants
from support.gc_store import VersionedStore
from support.gc_world import HORIZON_S, GcWorld, memory_world
from support.reconciler_seed import accept_logs

from sluice_gc.errors import AuditTooOld
from sluice_gc.signing_keys import make_key_file
from sluice_maintain.lease_rules import RunResult
from sluice_maintain.settings import GcOptions, MaintainSettings
from sluice_maintain.tasks import TaskName
from sluice_maintain.worker import StoreJobs, classify_error, run_spark_job
from sluice_protocol.authority import Authority
from sluice_protocol.errors import BadUsage
from sluice_protocol.fields import KINDS
from sluice_protocol.keys import ACCEPTED_BY_BLOB, AUDIT, GC_EVIDENCE, GC_PLANS
from sluice_protocol.maintenance import RunOutcome
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_store import StoreMode, create_authority, open_store
from sluice_store.retry import Backoff
from sluice_store.stored_deletes import read_all_deletes
from sluice_store.stored_expiry import set_retention


async def run(world: GcWorld, task: TaskName, options: GcOptions) -> RunResult:
    jobs = StoreJobs(world.store, world.clock, SystemIds())
    return await jobs.run(task, MaintainSettings(gc=options))


def folders(store: VersionedStore, prefix: str) -> set[str]:
    """Return the names of the folders under a prefix that have objects."""
    found = [str(key) for key, versions in store.versions.items() if versions]
    return {key[len(prefix) :].partition("/")[0] for key in found if key.startswith(prefix)}


async def test_an_audit_removes_evidence_that_is_not_kept(tmp_path: Path) -> None:
    policy = GcOptions(key_file=tmp_path / "k.pem", shards=4)
    async with memory_world() as (world, store):
        for number in range(4):
            await world.accept(10 * number)
            world.clock.pass_s(2)
            await run(world, TaskName.AUDIT, policy)
        assert len(folders(store, GC_EVIDENCE)) == 2
        assert folders(store, GC_PLANS) == set()


@pytest.mark.parametrize("task", [TaskName.AUDIT, TaskName.GC])
async def test_missing_references_are_repaired(tmp_path: Path, task: TaskName) -> None:
    key_file = tmp_path / "k.pem"
    async with memory_world() as (world, store):
        await world.accept(0, indexed=False)
        world.clock.pass_s(2)
        await run(world, task, GcOptions(key_file=key_file, shards=4))
        assert folders(store, ACCEPTED_BY_BLOB)
        assert folders(store, AUDIT)


async def test_one_process_certifies_and_plans_and_another_deletes(tmp_path: Path) -> None:
    """The process that deletes has the public key only, and writes no certificate."""
    public = make_key_file(tmp_path / "k.pem")
    audit = GcOptions(key_file=tmp_path / "k.pem", shards=4, plan=True, max_delete_ratio=0.9)
    gc = GcOptions(
        key_file=tmp_path / "none.pem",
        trusted_keys=(_base64(public.public_bytes_raw()),),
        execute_only=True,
        grace_s=60.0,
    )
    async with memory_world() as (world, store):
        kept, orphan = await world.accept(0), await world.orphan(50)
        for number in range(2):
            await world.accept(100 + number * 10)
        world.clock.pass_s(HORIZON_S + 10)
        assert (await run(world, TaskName.GC, gc)).outcome is RunOutcome.DONE
        planned = await run(world, TaskName.AUDIT, audit)
        assert planned.figures["plans_made"] == 1
        assert (await run(world, TaskName.GC, gc)).outcome is RunOutcome.DONE
        assert await world.has(orphan)  # the grace period is not over
        chain = folders(store, AUDIT)
        world.clock.pass_s(61)
        done = await run(world, TaskName.GC, gc)
        assert (done.outcome, done.figures["deleted"]) == (RunOutcome.DONE, 1)
        assert not await world.has(orphan)
        assert await world.has(kept)
        assert folders(store, AUDIT) == chain


async def test_retention_deletes_after_the_recorded_days_unless_a_kind_has_its_own() -> None:
    async def reasons(days: dict[str, int]) -> set[tuple[str, str]]:
        jobs = StoreJobs(world.store, world.clock, SystemIds())
        await jobs.run(TaskName.RETENTION, MaintainSettings(retention_days=days))
        world.clock.pass_s(86_400)
        return {(one.kind, one.reason) for one in await read_all_deletes(world.store)}

    async with memory_world() as (world, _):
        assert await reasons({}) == set()
        backoff = Backoff.seeded_by(world.clock)
        await set_retention(
            world.store, None, tables_keep_s=90 * 86_400, by="ann", note="", backoff=backoff
        )
        assert await reasons({"logs": 7}) == {
            (kind, f"retention of {7 if kind == 'logs' else 90} days") for kind in KINDS
        }


async def test_a_plan_is_not_executed_without_a_recent_audit(tmp_path: Path) -> None:
    """The task is not halted: it is repeated, and the next audit is enough."""
    key_file = tmp_path / "k.pem"
    audit = GcOptions(key_file=key_file, shards=4, plan=True, max_delete_ratio=0.9)
    kind = with_constants(GcOptions, audit_age_s_max=600)
    gc = kind(key_file=key_file, execute_only=True, grace_s=60)
    async with memory_world() as (world, _):
        await world.accept(0)
        await world.accept(10)
        orphan = await world.orphan(50)
        world.clock.pass_s(HORIZON_S + 10)
        await run(world, TaskName.AUDIT, audit)
        world.clock.pass_s(601)
        with pytest.raises(AuditTooOld, match="let the task `audit` run") as late:
            await run(world, TaskName.GC, gc)
        assert classify_error(late.value) is RunOutcome.FAILED
        assert await world.has(orphan)
        await run(world, TaskName.AUDIT, audit)
        assert (await run(world, TaskName.GC, gc)).figures["deleted"] == 1
        assert not await world.has(orphan)


@pytest.mark.parametrize("task", [TaskName.AUDIT, TaskName.GC])
async def test_a_new_key_is_not_created_for_a_store_with_certificates(
    tmp_path: Path, task: TaskName
) -> None:
    async with memory_world() as (world, _):
        first, other = tmp_path / "k.pem", tmp_path / "other.pem"
        await run(world, TaskName.AUDIT, GcOptions(key_file=first, shards=4))
        with pytest.raises(BadUsage, match="copy it from the machine that audited before"):
            await run(world, task, GcOptions(key_file=other))
        assert not other.exists()


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def no_session() -> NoReturn:
    raise AssertionError("a session was opened although nothing can expire")


async def test_without_a_decision_or_an_audit_nothing_expires_and_no_session_is_opened(
    tmp_path: Path,
) -> None:
    url = f"file://{tmp_path}/store"
    settings = MaintainSettings(gc=GcOptions(key_file=tmp_path / "k.pem", shards=4))
    backoff = Backoff.seeded_by(SystemClock())

    async def expire() -> RunResult:
        return await asyncio.to_thread(
            run_spark_job, TaskName.EXPIRE, no_session, url, settings, threading.Event()
        )

    nothing = RunResult(outcome=RunOutcome.DONE, figures={})
    async with open_store(url, StoreMode.CREATE) as store:
        await create_authority(store, Authority(authority_id="A" * 26, lanes=2))
        await accept_logs(store, ["line"], seq=1, at_ns=SystemClock().now_ns())
        assert await expire() == nothing
        assert not (tmp_path / "k.pem").exists()
        await set_retention(store, 30 * 86_400, by="operator:o", note="", backoff=backoff)
        make_key_file(tmp_path / "k.pem")
        assert await expire() == nothing
        await StoreJobs(store, SystemClock(), SystemIds()).run(TaskName.AUDIT, settings)
        result = await expire()
    assert (result.outcome, result.figures["candidates"]) == (RunOutcome.DONE, 0)
