"""The removal of index chunks is interrupted at every request; the next run completes it."""

import asyncio
import random
from contextlib import suppress

import pytest
from support.index_store import IndexedTable, log_file
from support.memory_bucket import Crashed, Fault, MemoryBucket, Scripted, open_memory_store
from support.queue_store import SimClock

from sluice_protocol.errors import StoreError
from sluice_protocol.units import ObjectKey
from sluice_spark import index

DAY, OTHER = "2026-09-21", "2026-09-22"
NEEDED = [log_file(DAY, "kept"), log_file(OTHER, "kept")]
GONE = [log_file(DAY, f"gone{number}") for number in range(4)]


async def prepared() -> tuple[MemoryBucket, IndexedTable, set[str]]:
    """Return a bucket with chunks of files that exist and of files that were vacuumed."""
    bucket = MemoryBucket(clock=SimClock(), rng=random.Random(0))
    store, _ = open_memory_store(bucket, clock=SimClock())
    table = IndexedTable(store=store)
    needed: set[str] = {await table.write(one) for one in NEEDED}
    for one in GONE:
        await table.write(one)
    table.replace(*GONE)
    await table.vacuum()
    return bucket, table, needed


async def calls_of_a_run() -> int:
    bucket, table, _ = await prepared()
    store, transport = open_memory_store(bucket, clock=SimClock())
    await table.run(DAY, OTHER, store=store)
    return transport.calls


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "STEP_CHUNKS", 2)


FAULTS = (
    Fault.CRASH_BEFORE,
    Fault.CRASH_AFTER,
    Fault.TIMEOUT_BEFORE,
    Fault.TIMEOUT_AFTER,
    Fault.APPLIED_LATE,
    Fault.DENIED,
)


@pytest.mark.daily(2)
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_run_that_is_interrupted_at_any_request_is_completed_by_the_next(
    fault: Fault,
) -> None:
    """No needed chunk is removed, and no other one stays."""
    calls = await calls_of_a_run()
    assert calls > 15
    for number in range(calls):
        bucket, table, needed = await prepared()
        store, _ = open_memory_store(bucket, plan=Scripted({number: fault}), clock=SimClock())
        with suppress(Crashed, StoreError):
            await table.run(DAY, OTHER, store=store)
        assert needed <= await table.chunks()
        await table.run(*([] if await is_recorded(table) else [DAY, OTHER]))
        waiting = await table.waiting()
        if waiting:  # a deletion had an unknown outcome
            await table.run(now_ns=max(one.due_unix_ns for one in waiting))
        assert await table.chunks() == needed, f"call {number}"
        assert await table.waiting() == []


async def is_recorded(table: IndexedTable) -> bool:
    progress = await table.store.head(ObjectKey("index/v1/logs/progress.json"))
    return hasattr(progress, "size_bytes")


async def test_two_concurrent_runs_remove_the_same_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The later record may name dates that the other run has checked; they are checked again."""
    monkeypatch.setattr(index, "STEP_CHUNKS", 100)

    bucket, table, needed = await prepared()
    stores = [open_memory_store(bucket, clock=SimClock())[0] for _ in range(2)]
    removed = await asyncio.gather(*(table.run(DAY, OTHER, store=one) for one in stores))
    assert sum(removed) >= len(GONE)
    assert await table.chunks() == needed
    await table.run()
    assert await table.waiting() == []
    assert await table.chunks() == needed
