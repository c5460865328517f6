"""Readiness over a store in memory: writes decide it, reads alone never do."""

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from support.memory_bucket import Fault, open_memory_store
from support.memory_bucket.faults import Call

from sluice_gateway.journal import AcceptanceJournal, JournalOwner, StoreRules
from sluice_gateway.metrics import (
    PROBE_AFTER_S,
    PROBE_AGAIN_S,
    PROBE_BYTES,
    WRITE_AGE_S_MAX,
    GatewayMetrics,
    ObservedStore,
    StoreHealth,
)
from sluice_gateway.process.readiness import (
    AUTHORITY_INTERVAL_S,
    Readiness,
    WorkerConditions,
    WriteProbe,
)
from sluice_gateway.process.worker import DOCTOR_AGAIN_S, DOCTOR_INTERVAL_S, follow_doctor
from sluice_gateway.uploads.admission import ModeWatch, RunningUploads
from sluice_protocol.errors import ChecksumRefused, StoreDenied, StoreMisconfigured
from sluice_protocol.keys import AUTHORITY_SETTINGS
from sluice_protocol.outcomes import Applied, Unknown, UnknownReason
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import NS_PER_S, ETag, ObjectKey, UnixNs
from sluice_store import create_authority
from sluice_store.doctor import examine, seal_result, write_result
from sluice_store.port import ObjectStore

KEY = ObjectKey("raw-blobs/v1/any")


class SetClock(SystemClock):
    """A clock that a test sets."""

    now_s = 100.0

    def monotonic_ns(self) -> int:
        return int(self.now_s * NS_PER_S)

    def boottime_ns(self) -> int:
        return 0


@dataclass
class Failing:
    """Every call of these methods fails, until the test changes it."""

    methods: set[str] = field(default_factory=set)
    fault: Fault = Fault.DENIED
    seen: list[tuple[str, str]] = field(default_factory=list)

    def fault_of(self, call: Call) -> Fault | None:
        self.seen.append((call.method, call.key))
        return self.fault if call.method in self.methods else None

    def writes(self) -> int:
        return sum(method == "PUT" for method, _ in self.seen)


@dataclass
class Watched:
    """The readiness of one worker, and what a test changes around it."""

    store: ObservedStore
    inner: ObjectStore
    readiness: Readiness
    clock: SetClock
    plan: Failing

    @property
    def ready(self) -> bool:
        return self.readiness.problem() is None

    async def left(self) -> list[str]:
        return [item.key async for page in self.inner.list("doctor/") for item in page.objects]


async def watched(*, authority: bool = True, skip_probe: bool = True) -> Watched:
    plan, clock, metrics = Failing(), SetClock(), GatewayMetrics()
    inner, _ = open_memory_store(plan=plan)
    if authority:
        await create_authority(inner)
    store = ObservedStore(inner, metrics, clock)
    owner = JournalOwner(collector_id="gw", acceptance="s3_manifest")
    # Over another store: its writes would count as those of the worker.
    elsewhere = ObservedStore(open_memory_store()[0], metrics, clock)
    journal = AcceptanceJournal(
        elsewhere, owner, rules=StoreRules(SystemIds()), clock=clock, metrics=metrics
    )
    await journal.open()
    readiness = Readiness(
        store=store,
        conditions=WorkerConditions(
            running=RunningUploads(metrics), mode=ModeWatch(clock), journal=journal
        ),
        clock=clock,
        skip_probe=skip_probe,
        name="gw",
    )
    plan.seen.clear()
    return Watched(store, inner, readiness, clock, plan)


async def test_a_worker_is_ready_after_its_first_probe_and_leaves_nothing() -> None:
    seen = await watched()
    assert not seen.ready
    await seen.readiness.check_store()
    assert seen.ready
    assert await seen.left() == []


async def test_reads_that_succeed_do_not_make_a_worker_ready() -> None:
    """Every write is refused and every read succeeds: not ready; ready once writes succeed."""
    seen = await watched()
    await seen.readiness.check_store()
    seen.plan.methods = {"PUT"}
    with pytest.raises(StoreDenied):
        await seen.store.create(KEY, b"x" * PROBE_BYTES)
    for _ in range(3):
        await seen.store.head(AUTHORITY_SETTINGS)
        assert not seen.ready
    seen.plan.methods = set()
    seen.clock.now_s += PROBE_AGAIN_S
    await seen.readiness.check_store()
    assert seen.ready


async def test_an_idle_worker_finds_that_writes_fail() -> None:
    seen = await watched()
    await seen.readiness.check_store()
    seen.plan.methods = {"PUT"}
    seen.clock.now_s += PROBE_AFTER_S
    await seen.readiness.check_store()
    assert not seen.ready


async def test_a_missing_authority_record_is_not_ready() -> None:
    seen = await watched(authority=False)
    await seen.readiness.check_store()
    await seen.store.create(KEY, b"x" * PROBE_BYTES)
    problem = seen.readiness.problem()
    assert "authority record is missing" in problem.detail
    await create_authority(seen.inner)
    seen.clock.now_s += AUTHORITY_INTERVAL_S
    await seen.readiness.check_store()
    assert seen.ready


async def test_probes_are_rare_and_replaced_by_uploads() -> None:
    """One probe per interval while idle; none while uploads write."""
    seen = await watched()
    for _ in range(int(10 * PROBE_AFTER_S)):
        await seen.readiness.check_store()
        seen.clock.now_s += 1
    assert seen.plan.writes() == 10
    for number in range(100):
        await seen.store.create(ObjectKey(f"{KEY}/{number}"), b"x" * PROBE_BYTES)
        seen.clock.now_s += 1
        await seen.readiness.check_store()
    assert seen.plan.writes() == 10 + 100
    assert await seen.left() == []


async def test_failing_probes_are_bounded_too() -> None:
    seen = await watched()
    seen.plan.methods = {"PUT"}
    for _ in range(100):
        await seen.readiness.check_store()
        seen.clock.now_s += 1
    assert seen.plan.writes() == 100 / PROBE_AGAIN_S


async def test_a_worker_without_checks_does_not_stay_ready() -> None:
    seen = await watched()
    await seen.readiness.check_store()
    seen.clock.now_s += WRITE_AGE_S_MAX + 1
    assert not seen.ready


async def test_a_probe_that_a_killed_process_left_is_replaced() -> None:
    seen = await watched()
    await seen.inner.create(WriteProbe(seen.inner, "gw").key, b"left")
    await seen.readiness.check_store()
    assert seen.ready
    assert await seen.left() == []


async def test_a_probe_that_cannot_be_deleted_neither_grows_nor_hides_a_fault() -> None:
    """Without the right to delete there is one object, and idle workers stay ready."""
    seen = await watched()
    seen.plan.methods = {"DELETE"}
    for _ in range(5):
        await seen.readiness.check_store()
        assert seen.ready
        seen.clock.now_s += PROBE_AFTER_S
    assert len(await seen.left()) == 1
    seen.plan.methods = {"DELETE", "PUT"}
    with pytest.raises(StoreDenied):
        await seen.store.create(KEY, b"x")
    seen.clock.now_s += PROBE_AFTER_S
    await seen.readiness.check_store()
    assert not seen.ready


def test_a_small_write_does_not_prove_space_for_a_large_one() -> None:
    health, full = StoreHealth(), StoreMisconfigured("create", KEY, "the disk is full")
    health.write_failed(full, 1_000_000, overwrites=False)
    assert health.probe_bytes == 1_000_000
    applied = _applied()
    health.wrote(applied, 400, 0)
    assert health.problem(0)
    health.wrote(applied, 1_000_000, 0)
    assert not health.problem(0)
    assert health.probe_bytes == PROBE_BYTES


def test_refusals_of_a_body_or_of_an_overwrite_are_no_fault_of_the_store() -> None:
    health = StoreHealth()
    health.wrote(_applied(), PROBE_BYTES, 0)
    health.write_failed(ChecksumRefused("create", KEY, "damaged"), 10, overwrites=False)
    health.write_failed(StoreDenied("overwrite", KEY, "policy"), 10, overwrites=True)
    assert not health.problem(0)
    health.wrote(Unknown(reason=UnknownReason.TIMEOUT), 10, 0)
    assert health.problem(0)


def _applied() -> Applied:
    return Applied(etag=ETag("1"), incarnation=None, date_ns=UnixNs(0))


async def prove(store: ObjectStore) -> None:
    """Store a good result of the doctor."""
    result = await examine([store], ["memory"], SystemIds())
    await write_result(store, result, seal_result(result), SystemClock())


async def test_a_result_of_the_doctor_that_an_outage_hid_is_read_again_soon() -> None:
    """The directory was unreachable: the authority and the result were missing together."""
    seen = await watched(skip_probe=False)
    pauses: list[float] = []

    class Recorded(SetClock):
        async def sleep(self, seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) > 1:
                raise asyncio.CancelledError

    gateway = SimpleNamespace(clock=Recorded(), readiness=seen.readiness)
    await seen.readiness.check_store()
    assert seen.ready
    with pytest.raises(asyncio.CancelledError):
        await follow_doctor(gateway)
    assert not seen.ready
    assert pauses == [DOCTOR_INTERVAL_S, DOCTOR_AGAIN_S]
    assert DOCTOR_AGAIN_S < 5.0
    await prove(seen.inner)
    await seen.readiness.check_doctor()
    assert seen.ready


async def test_a_missing_result_shows_nothing_while_the_authority_is_missing() -> None:
    seen = await watched(authority=False, skip_probe=False)
    await seen.readiness.check_store()
    await seen.readiness.check_doctor()
    assert seen.readiness.is_proved
    await create_authority(seen.inner)
    seen.clock.now_s += AUTHORITY_INTERVAL_S
    await prove(seen.inner)
    await seen.readiness.check_store()
    assert seen.ready
