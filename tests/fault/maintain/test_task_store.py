"""Every swap of a task's record under lost, late and refused calls."""

import asyncio
import random
from functools import partial

import pytest
from support.memory_bucket import Fault, MemoryBucket, Scripted, open_memory_store
from support.queue_store import SimClock, SimIds

from sluice_maintain.lease_rules import RunResult, acquire, end_run, renew
from sluice_maintain.task_store import TaskStore
from sluice_protocol.errors import StoreDenied
from sluice_protocol.maintenance import RunOutcome, TaskRecord

FAULTS = [
    Fault.TIMEOUT_BEFORE,
    Fault.TIMEOUT_AFTER,
    Fault.RESET_AFTER,
    Fault.CONFLICT,
    Fault.ERROR_AFTER,
    Fault.APPLIED_LATE,
]


def process(bucket: MemoryBucket, owner: str, clock: SimClock, **faults: Fault) -> TaskStore:
    plan = Scripted({int(number.removeprefix("call_")): fault for number, fault in faults.items()})
    store, _ = open_memory_store(bucket, plan=plan, clock=clock)
    return TaskStore(store, clock, SimIds(hash(owner) % 1000), owner)


def a_bucket(clock: SimClock) -> MemoryBucket:
    return MemoryBucket(clock=clock, rng=random.Random(0))


async def take(tasks: TaskStore, lease_s: float = 60) -> TaskRecord | None:
    change = await tasks.change("gc", partial(acquire, task="gc", lease_s=lease_s))
    return change.record if change is not None else None


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("call", [1, 3])
def test_an_unknown_swap_is_settled_and_one_process_has_the_lease(fault: Fault, call: int) -> None:
    async def main() -> None:
        clock = SimClock()
        bucket = a_bucket(clock)
        first = await take(process(bucket, "a", clock, **{f"call_{call}": fault}))
        second = await take(process(bucket, "b", clock))
        assert [one.lease.owner for one in (first, second) if one and one.lease] == ["a"]

    asyncio.run(main())


def test_of_many_processes_one_acquires_a_task() -> None:
    async def main() -> None:
        clock = SimClock()
        bucket = a_bucket(clock)
        found = await asyncio.gather(
            *(take(process(bucket, f"p{number}", clock)) for number in range(8))
        )
        assert sum(one is not None for one in found) == 1

    asyncio.run(main())


def test_a_process_that_was_suspended_can_neither_renew_nor_record() -> None:
    async def main() -> None:
        clock = SimClock()
        bucket = a_bucket(clock)
        slow = process(bucket, "a", clock)
        record = await take(slow)
        assert record is not None
        assert record.lease is not None
        lease = record.lease.nonce
        await clock.sleep(120)
        assert await take(process(bucket, "b", clock)) is not None
        result = RunResult(outcome=RunOutcome.DONE, figures={})
        assert await slow.change("gc", partial(renew, lease=lease, lease_s=60)) is None
        assert await slow.change("gc", partial(end_run, lease=lease, result=result)) is None
        stored = await slow.read("gc")
        assert stored.record is not None
        assert [run.outcome for run in stored.record.runs] == ["lost"]

    asyncio.run(main())


def test_a_role_without_rights_is_refused_by_name() -> None:
    async def main() -> None:
        clock = SimClock()
        with pytest.raises(StoreDenied, match=r"maintain/v1/tasks/gc\.json"):
            await take(process(a_bucket(clock), "a", clock, call_1=Fault.DENIED))

    asyncio.run(main())
