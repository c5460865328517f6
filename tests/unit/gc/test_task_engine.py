import asyncio
import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace as copy_with
from support.constants import changed
from support.gc_world import AUDIT, KEYS, memory_world
from support.queue_store import SimIds

from sluice_gc.auditor import Auditor
from sluice_gc.task_engine import LocalTaskEngine, open_task_engine, run_pickled
from sluice_protocol.collection_records import Certificate
from sluice_protocol.errors import BadUsage
from sluice_store import StoreMode, open_store
from sluice_store.port import ObjectStore


@pytest.mark.parametrize("together", [1, 3, 20])
async def test_results_are_in_the_order_of_the_tasks(together: int) -> None:
    running = most = 0

    async def work(_store: ObjectStore, task: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(10 - task):
            await asyncio.sleep(0)
        running -= 1
        return task * task

    async with memory_world() as (_, store):
        engine = LocalTaskEngine(store)
        found = list(await engine.run(work, range(10), together=together))
        assert found == [one * one for one in range(10)]
        assert most == min(together, 10)
        assert list(await engine.run(work, [], together=together)) == []


async def test_the_first_error_ends_the_other_tasks() -> None:
    ended: list[int] = []

    async def work(_store: ObjectStore, task: int) -> None:
        try:
            await asyncio.sleep(0)
            if task == 1:
                raise BadUsage("task 1")
            await asyncio.Event().wait()
        finally:
            ended.append(task)

    async with memory_world() as (_, store):
        with pytest.raises(BadUsage, match="task 1"):
            await LocalTaskEngine(store).run(work, range(6), together=3)
        assert sorted(ended) == [0, 1, 2]


def test_concurrent_tasks_make_the_same_certificate() -> None:
    async def audit(concurrent_tasks: int) -> Certificate:
        async with memory_world() as (world, store):
            for number in range(12):
                await world.accept(3 * number, agent=f"host-{number % 5}")
            await world.orphan(1)
            settings = changed(AUDIT, ranges=3, concurrent_tasks=concurrent_tasks)
            auditor = Auditor(store, LocalTaskEngine(store), KEYS, world.clock, SimIds(1))
            return await auditor.audit(settings)

    alone, together = asyncio.run(audit(1)), asyncio.run(audit(4))
    assert {one.kind for one in alone.evidence} >= {"manifests", "names", "blobs"}
    assert not alone.files("named")
    assert copy_with(together, audit_id=alone.audit_id) == alone


async def create_store(tmp_path: Path) -> None:
    async with open_store(f"file://{tmp_path}/store", StoreMode.CREATE):
        pass


def test_the_local_engine_lets_arrow_allocate_from_the_c_library(tmp_path: Path) -> None:
    async def backend() -> str:
        await create_store(tmp_path)
        async with open_task_engine(f"file://{tmp_path}/store", "local"):
            return str(pa.default_memory_pool().backend_name)

    before = pa.default_memory_pool()
    try:
        assert asyncio.run(backend()) == "system"
    finally:
        pa.set_memory_pool(before)


async def arrow_backend(_store: ObjectStore, _task: int) -> str:
    return str(pa.default_memory_pool().backend_name)


def test_a_task_on_an_executor_lets_arrow_allocate_from_the_c_library(tmp_path: Path) -> None:
    asyncio.run(create_store(tmp_path))
    body = pickle.dumps((arrow_backend, 1))
    before = pa.default_memory_pool()
    try:
        assert run_pickled(f"file://{tmp_path}/store", body) == "system"
    finally:
        pa.set_memory_pool(before)
