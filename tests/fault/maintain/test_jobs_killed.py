"""Each task without Spark, killed at every read and write of an object; alone, and two together.

| task | what must be true after the next run |
|---|---|
| retention | the deletes are those of an undisturbed run |
| queue | the old work lists are deleted, and no other |
| noncurrent | one version of each key is left, the current one |
| audit | the chain of certificates and its evidence are valid |
| gc | the orphan is deleted, every accepted blob exists, the chain is valid |

Tasks with Spark are killed as processes in `tests/integration/maintain`.
"""

import asyncio
import contextlib
from pathlib import Path

import pytest
from support.dying_store import WRITES, Died, DyingStore
from support.gc_store import VersionedStore
from support.gc_world import HORIZON_S, GcWorld, memory_world
from support.repetitions import times

from sluice_gc.signing_keys import load_trusted, make_key_file
from sluice_gc.store_verification import verify_store
from sluice_maintain.settings import (
    GcOptions,
    MaintainSettings,
    NoncurrentOptions,
)
from sluice_maintain.tasks import TaskName
from sluice_maintain.worker import StoreJobs
from sluice_protocol.keys import DELETES, ROLLUP, WORK_LISTS, work_list_key
from sluice_protocol.system_clock import SystemIds
from sluice_protocol.units import Digest, ObjectKey, UnixNs
from sluice_store.port import ObjectStore

VERBS = WRITES | {"get", "head"}
RUNS_MAX = 4
ROLLUP_KEY = ObjectKey(f"{ROLLUP}x")


class Scene:
    """A deployment in which each task has work."""

    def __init__(self, world: GcWorld, store: VersionedStore, folder: Path) -> None:
        self.world = world
        self.store = store
        self.trusted = load_trusted(folder / "auditor.pem")
        self.settings = MaintainSettings(
            retention_days={"logs": 30, "metrics": 90},
            noncurrent=NoncurrentOptions(retention_s=60),
            gc=GcOptions(
                key_file=folder / "auditor.pem",
                shards=4,
                plan=True,
                grace_s=0.0,
                max_delete_ratio=0.9,
            ),
        )
        self.kept: list[Digest] = []
        self.orphan = Digest("")

    async def fill(self) -> "Scene":
        self.orphan = await self.world.orphan(900)
        for number in range(2):
            self.kept.append(await self.world.accept(10 * number))
            await self.store.overwrite(ROLLUP_KEY, str(number).encode())
            self.world.clock.pass_s(1)
        await self._add_list("0")
        self.world.clock.pass_s(HORIZON_S + 10)
        await self._add_list("1")
        await self.jobs().run(TaskName.GC, self.settings)  # there are a certificate and a plan
        self.world.clock.pass_s(10)
        return self

    async def _add_list(self, letter: str) -> None:
        at_ns = UnixNs(self.world.clock.now_ns())
        await self.store.create(work_list_key("spark", 0, letter * 26, at_ns), b"{}")

    def jobs(self, store: ObjectStore | None = None) -> StoreJobs:
        return StoreJobs(store or self.store, self.world.clock, SystemIds(), collect_grace_s=1)

    async def killed(self, task: TaskName, left: int, *, after: bool, together: int) -> bool:
        """Run a task in processes that die at a call; return False if none of them died."""
        stores = [
            DyingStore(inner=self.store, left=left + number, after=after, verbs=VERBS)
            for number in range(together)
        ]

        async def run(store: DyingStore) -> None:
            with contextlib.suppress(Died, BaseExceptionGroup):
                await self.jobs(store).run(task, self.settings)  # type: ignore[arg-type]

        await asyncio.gather(*(run(store) for store in stores))
        return any(store.died for store in stores)

    async def finished(self, task: TaskName) -> bool:
        """Return True if the work of a task is done; assert that nothing else is."""
        for digest in self.kept:
            assert await self.world.has(digest)
        names = [str(key) for key, versions in self.store.versions.items() if versions]
        match task:
            case TaskName.RETENTION:
                return sum(name.startswith(DELETES) for name in names) == 2
            case TaskName.QUEUE:
                lists = [name for name in names if name.startswith(WORK_LISTS)]
                assert any("1" * 26 in name for name in lists)
                return len(lists) == 1
            case TaskName.NONCURRENT:
                assert self.store.versions[ROLLUP_KEY][0].body == b"1"
                return len(self.store.versions[ROLLUP_KEY]) == 1
            case _:
                report = await verify_store(self.store, self.trusted, evidence=True)
                gone = not await self.world.has(self.orphan)
                return report.certificates > 1 and (task is TaskName.AUDIT or gone)


def key_file(folder: Path) -> Path:
    make_key_file(folder / "auditor.pem")
    return folder


async def kill_everywhere(task: TaskName, folder: Path, *, together: int, step: int) -> int:
    """Kill a task at every call, or at every `step`-th; return the number of kills."""
    kills, left, died = 0, 0, True
    while died:
        for after in (False, True):
            async with memory_world() as (world, store):
                scene = await Scene(world, store, folder).fill()
                died = await scene.killed(task, left, after=after, together=together)
                for _ in range(RUNS_MAX):
                    world.clock.pass_s(1)
                    await scene.jobs().run(task, scene.settings)
                    if await scene.finished(task):
                        break
                assert await scene.finished(task), f"killed at call {left}, after={after}"
                kills += died
        left += step
    return kills


LIGHT = (TaskName.RETENTION, TaskName.QUEUE, TaskName.NONCURRENT)
CHAIN = (TaskName.AUDIT, TaskName.GC)


@pytest.mark.daily(3)
@pytest.mark.parametrize("together", [1, 2])
@pytest.mark.parametrize("task", LIGHT)
def test_a_task_killed_at_any_call_is_finished_by_the_next_run(
    task: TaskName, together: int, tmp_path: Path
) -> None:
    folder = key_file(tmp_path)
    assert asyncio.run(kill_everywhere(task, folder, together=together, step=1)) >= 4


@pytest.mark.daily(1)
@pytest.mark.parametrize("task", CHAIN)
def test_an_audit_or_collection_killed_at_some_calls_loses_nothing(
    task: TaskName, tmp_path: Path
) -> None:
    folder = key_file(tmp_path)
    assert asyncio.run(kill_everywhere(task, folder, together=2, step=29)) >= 4


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("together", [1, 2])
@pytest.mark.parametrize("task", CHAIN)
def test_an_audit_or_collection_killed_at_any_call_loses_nothing(
    task: TaskName, together: int, tmp_path: Path
) -> None:
    """At every seventh call; `SLUICE_LONG_TIMES=7` kills at every call."""
    folder, step = key_file(tmp_path), max(1, 7 // times(1))
    assert asyncio.run(kill_everywhere(task, folder, together=together, step=step)) >= 60 // step


def test_every_task_is_killed_somewhere() -> None:
    """A run of expiry is killed at every write in `tests/integration/gc/test_expiry_run.py`."""
    from integration.maintain.test_two_processes import SPARK_KILLS  # noqa: PLC0415

    with_spark = {TaskName.EXPIRE, *(TaskName(task) for task, _, _ in SPARK_KILLS)}
    assert {*LIGHT, *CHAIN, *with_spark} == set(TaskName)
