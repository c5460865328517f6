"""A crashed run can be resumed, and two concurrent runs do no harm."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.constants import changed
from support.gc_store import VersionedStore, refuse_reads
from support.gc_world import (
    AUDIT,
    HORIZON_S,
    KEYS,
    PLAN,
    RUN,
    GcWorld,
    memory_world,
    open_world,
)
from support.local_deployment import clean_environment

from sluice_gc.auditor import Auditor
from sluice_gc.blob_explanation import explain_blob
from sluice_gc.evidence_files import decode_proofs, digest_from_bytes
from sluice_gc.plan_runner import PlanRunner
from sluice_gc.planner import Planner
from sluice_gc.store_verification import verify_store
from sluice_gc.task_engine import LocalTaskEngine
from sluice_protocol import keys
from sluice_protocol.collection_records import Plan
from sluice_protocol.keys import GC_PROOFS, blob_key, parse_blob_key
from sluice_protocol.outcomes import Deleted, DeleteOutcome, Unknown, UnknownReason
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import Digest, ObjectKey, ObjectVersion
from sluice_store.local import open_local_store

ORPHANS = 5
CHAIN = f"{keys.AUDIT}chain/"
TESTS = Path(__file__).parents[2]


class Died(BaseException):
    """The process crashed."""


class DyingStore:
    """A store whose caller crashes before or after its n-th write."""

    def __init__(self, inner: VersionedStore, *, at: int, after: bool) -> None:
        self._inner, self._left, self._after = inner, at, after
        self.died = False

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._inner, name)
        if name not in {"create", "delete"}:
            return verb

        async def dying(*args: Any, **named: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                self.died = True
                if self._after:
                    await verb(*args, **named)
                raise Died
            return await verb(*args, **named)

        return dying


async def planned(world: GcWorld) -> tuple[Plan, list[Digest], list[Digest]]:
    kept = [await world.accept(start) for start in range(0, 12, 3)]
    orphans = [await world.orphan(100 + 3 * number) for number in range(ORPHANS)]
    world.clock.pass_s(HORIZON_S + 2)
    await world.audit()
    return await world.plan(), orphans, kept


def proofs_on_record(store: VersionedStore) -> set[tuple[Digest, str]]:
    """Return the digest and version of each proved deletion."""
    rows: set[tuple[Digest, str]] = set()
    for key, versions in store.versions.items():
        if key.startswith(GC_PROOFS):
            assert len(versions) == 1, "a proof was overwritten"
            for row in decode_proofs(versions[0].body).to_pylist():
                if row["verdict"] == "may_go":
                    rows.add((digest_from_bytes(row["sha256"]), row["incarnation"]))
    return rows


def check_end(store: VersionedStore, orphans: list[Digest]) -> None:
    """Verify that exactly the orphans were deleted, each after its proof was written."""
    gone = [parse_blob_key(key) for key, _ in store.deleted]
    assert sorted(gone) == sorted(orphans)
    proved = proofs_on_record(store)
    for key, version in store.deleted:
        assert (parse_blob_key(key), version.incarnation) in proved


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    "after", [False, pytest.param(True, marks=pytest.mark.long)], ids=["before", "after"]
)
def test_run_resumes_after_a_crash_at_any_write(after: bool) -> None:
    """After a crash at write 0, 1, 2, … the next run completes the plan, with a proof each.

    A crash after a write leaves the store as one before the next write.
    """

    async def scenario(at: int) -> bool:
        async with memory_world() as (world, store):
            plan, orphans, _ = await planned(world)
            settings = changed(RUN, batch=3)
            store.on_delete = lambda key, version: proved_first(store, key, version.incarnation)
            dying = DyingStore(store, at=at, after=after)
            engine = LocalTaskEngine(dying)  # type: ignore[arg-type]
            runner = PlanRunner(dying, engine, KEYS.trusted, world.clock)  # type: ignore[arg-type]
            with contextlib.suppress(Died):
                await runner.run(plan.plan_id, settings)
            report = await world.run(plan, settings)
            check_end(store, orphans)
            assert report.facts.unknown == 0
            again = await world.run(plan, settings)
            assert (again.facts.batches, again.facts.deleted) == (0, 0)
            return dying.died

    def proved_first(store: VersionedStore, key: ObjectKey, incarnation: ObjectVersion) -> None:
        assert (parse_blob_key(key), incarnation) in proofs_on_record(store)

    at = 0
    while asyncio.run(scenario(at)):
        at += 1
    assert at > 2 * ORPHANS


async def test_two_concurrent_runs_delete_each_orphan_once() -> None:
    """Two concurrent runs of one plan delete each orphan once and nothing else."""
    async with memory_world() as (world, store):
        plan, orphans, kept = await planned(world)
        settings = changed(RUN, batch=2)
        await asyncio.gather(*(world.run(plan, settings) for _ in range(3)))
        check_end(store, orphans)
        assert all([await world.has(digest) for digest in kept])


async def test_an_audit_after_one_that_died_between_two_copies_writes_the_second_one() -> None:
    """The audits run concurrently: the survivor finds the other one's certificate at its place."""
    async with memory_world() as (world, store):
        await world.accept(1)
        await world.audit()
        rival = AtChain(store, die, after=True)
        survivor = AtChain(store, partial(audit_until_death, world, rival), after=False)
        await audit_with(world, survivor)
        report = await verify_store(store, KEYS.trusted, evidence=True)
        assert (rival.reached, report.certificates) == (True, 3)


class AtChain:
    """A store that acts once, before or after the creation of a chain position.

    Attributes:
        reached: Whether it has acted.
    """

    def __init__(
        self, inner: VersionedStore, act: Callable[[], Awaitable[None]], *, after: bool
    ) -> None:
        self._inner, self._act, self._after = inner, act, after
        self.reached = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def create(self, key: ObjectKey, body: bytes, **named: Any) -> Any:
        if self.reached or not key.startswith(CHAIN):
            return await self._inner.create(key, body, **named)
        self.reached = True
        if not self._after:
            await self._act()
        created = await self._inner.create(key, body, **named)
        if self._after:
            await self._act()
        return created


async def die() -> None:
    raise Died


async def audit_with(world: GcWorld, store: AtChain) -> None:
    auditor = Auditor(store, LocalTaskEngine(store), KEYS, world.clock, SystemIds())  # type: ignore[arg-type]
    await auditor.audit(AUDIT)


async def audit_until_death(world: GcWorld, store: AtChain) -> None:
    with contextlib.suppress(Died):
        await audit_with(world, store)


async def test_unknown_outcomes_are_resolved_by_further_runs() -> None:
    """Deletes with a lost response, and late or repeated deletes, end in the same state."""
    async with memory_world() as (world, store):
        plan, orphans, kept = await planned(world)
        fate = iter(range(10_000))
        whole = store.delete

        async def unsure(key: ObjectKey, incarnation: ObjectVersion) -> DeleteOutcome:
            number = next(fate)
            if number % 3 == 0:
                return Unknown(reason=UnknownReason.TIMEOUT)
            outcome = await whole(key, incarnation)
            assert isinstance(outcome, Deleted)
            return Unknown(reason=UnknownReason.RESET) if number % 3 == 1 else outcome

        store.delete = unsure  # type: ignore[method-assign]
        await world.run(plan)
        await world.run(plan)
        check_end(store, orphans)
        assert all([await world.has(digest) for digest in kept])


async def test_late_delete_does_not_affect_a_new_version() -> None:
    """A delete that takes effect after a new write of the blob affects only the old version."""
    async with memory_world() as (world, store):
        plan, orphans, _ = await planned(world)
        await world.run(plan)
        key, old = store.deleted[0]
        await world.store.overwrite(key, old.body)
        await world.store.delete(key, old.incarnation)
        assert await world.has(parse_blob_key(key))
        assert parse_blob_key(key) in orphans


async def test_unread_evidence_keeps_the_blob_until_the_next_run() -> None:
    """A failed read keeps the candidate, and its batch is not marked as done."""
    async with memory_world() as (world, store):
        plan, orphans, _ = await planned(world)
        store.hooks["get", blob_key(orphans[0])] = refuse_reads
        first = await world.run(plan)
        assert first.facts.deleted == ORPHANS - 1
        assert sum(first.facts.kept.values()) == 1
        told = await explain_blob(world.store, KEYS.trusted, orphans[0])
        assert told.proofs[0].verdict == "keep"
        again = await world.run(plan)
        assert (first.facts.unread, again.facts.unread, again.facts.deleted) == (1, 0, 1)
        assert not await world.has(orphans[0])


def test_run_resumes_after_kill_9(tmp_path: Path) -> None:
    """After a process is killed while it deletes, a second one completes the plan."""
    root = tmp_path / "store"

    async def prepare() -> tuple[str, list[Digest], list[Digest]]:
        async with open_world(root) as world:
            world.clock.at_ns = SystemClock().now_ns() - (HORIZON_S + 60) * 1_000_000_000
            kept = [await world.accept(start) for start in range(0, 30, 3)]
            orphans = [await world.orphan(100 + 3 * number) for number in range(ORPHANS)]
        async with open_local_store(root) as store:
            engine, clock, ids = LocalTaskEngine(store), SystemClock(), SystemIds()
            await Auditor(store, engine, KEYS, clock, ids).audit(AUDIT)
            plan = await Planner(store, engine, KEYS, clock, ids).plan(PLAN)
            return plan.plan_id, orphans, kept

    plan_id, orphans, kept = asyncio.run(prepare())
    command = [sys.executable, "-m", "support.gc_slow_run", str(root), plan_id]
    process = subprocess.Popen(command, env=clean_environment(PYTHONPATH=str(TESTS)))
    left = len(orphans)
    while left == len(orphans) and process.poll() is None:
        left = asyncio.run(count(root, orphans))
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 0 < asyncio.run(count(root, orphans)) < len(orphans)

    async def finish() -> None:
        async with open_local_store(root) as store:
            runner = PlanRunner(store, LocalTaskEngine(store), KEYS.trusted, SystemClock())
            await runner.run(plan_id, changed(RUN, batch=2))
            for digest in orphans:
                told = await explain_blob(store, KEYS.trusted, digest)
                assert told.incarnations == ()
                assert "may_go" in {one.verdict for one in told.proofs}

    asyncio.run(finish())
    assert asyncio.run(count(root, orphans)) == 0
    assert asyncio.run(count(root, kept)) == len(kept)


async def count(root: Path, digests: list[Digest]) -> int:
    """Return the number of existing blobs."""
    return sum((root / blob_key(digest)).exists() for digest in digests)
