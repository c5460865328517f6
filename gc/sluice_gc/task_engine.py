"""Where the tasks of an audit, plan or run are executed: in this process or on Spark.

On Spark each task is pickled into a separate partition, so that an executor receives only its
tasks. The executor opens the store itself and returns only facts. An error of sluice is returned
as a value and raised on the driver. Any other error fails the job, and Spark may retry the task:
tasks write under keys that contain the hash of the bytes, so that a second attempt is harmless.
"""

import asyncio
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar, cast

import pyarrow as pa

from sluice_gc.settings import EngineName
from sluice_protocol.errors import SluiceError
from sluice_store import open_store
from sluice_store.port import ObjectStore, run_concurrently
from sluice_store.url import absolute_url

_Task = TypeVar("_Task")


_Facts = TypeVar("_Facts")


Work = Callable[[ObjectStore, _Task], Awaitable[_Facts]]
"""The function of a task. It is a module-level function, so that it can be pickled."""


class TaskEngine(Protocol):
    """Executes independent tasks."""

    @property
    def parallelism(self) -> int:
        """Return the number of tasks that run concurrently."""
        ...

    async def run(
        self, work: Work[_Task, _Facts], tasks: Sequence[_Task], *, together: int = 1
    ) -> Iterable[_Facts]:
        """Run every task and return the results in the order of the tasks.

        One process runs at most `together` tasks concurrently. Other tasks may have run when an
        error is raised.
        """
        ...


class LocalTaskEngine:
    """Executes tasks in this process, with concurrent requests in each task."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @property
    def parallelism(self) -> int:
        """Return 1."""
        return 1

    async def run(
        self, work: Work[_Task, _Facts], tasks: Sequence[_Task], *, together: int = 1
    ) -> Iterable[_Facts]:
        """Run every task in this process; the first error cancels the others."""
        found: dict[int, _Facts] = {}

        async def run(number: int) -> None:
            found[number] = await work(self._store, tasks[number])

        await run_concurrently(range(len(tasks)), run, concurrency=together)
        return [found[number] for number in range(len(tasks))]


class SparkTaskEngine:
    """Executes tasks as one Spark job.

    Executors open the store under `store_url`.
    """

    def __init__(self, session: Any, store_url: str) -> None:  # noqa: ANN401 - pyspark has no types
        self._context = session.sparkContext
        self._store_url = store_url

    @property
    def parallelism(self) -> int:
        """Return the number of cores of the executors."""
        return int(self._context.defaultParallelism)

    async def run(
        self, work: Work[_Task, _Facts], tasks: Sequence[_Task], *, together: int = 1
    ) -> Iterable[_Facts]:
        """Run every task on an executor; the number of cores decides how many are concurrent."""
        del together
        if not tasks:
            return []
        results = await asyncio.to_thread(self._collect, work, tasks)
        for result in results:
            if isinstance(result, SluiceError):
                raise result
        return [cast("_Facts", result) for result in results]

    def _collect(self, work: Work[_Task, _Facts], tasks: Sequence[_Task]) -> list[object]:
        url = self._store_url
        bodies = [pickle.dumps((work, task)) for task in tasks]

        def one(body: bytes) -> bytes:
            return pickle.dumps(run_pickled(url, body))

        found = self._context.parallelize(bodies, len(bodies)).map(one).collect()
        return [pickle.loads(result) for result in found]  # noqa: S301 - the bytes were pickled by an executor of this job


def run_pickled(store_url: str, body: bytes) -> object:
    """Run one pickled task on a store; return its result or the error that it raised."""
    reuse_freed_memory()
    work, task = pickle.loads(body)  # noqa: S301 - the bytes were pickled by the driver

    async def run() -> object:
        async with open_store(store_url) as store:
            return await work(store, task)

    try:
        return asyncio.run(run())
    except SluiceError as error:
        return error


def reuse_freed_memory() -> None:
    """Let Arrow allocate from the C library in this process.

    Its default allocator returns freed memory to the kernel within milliseconds, which clears the
    same pages again for the next shard: a third of the time of decoding.
    """
    pa.set_memory_pool(pa.system_memory_pool())


@asynccontextmanager
async def open_task_engine(
    url: str, engine: EngineName
) -> AsyncIterator[tuple[ObjectStore, TaskEngine]]:
    """Open a store and a task engine; a Spark session that this starts is stopped at the end."""
    async with open_store(url) as store:
        if engine == "local":
            reuse_freed_memory()
            yield store, LocalTaskEngine(store)
            return
        # Imported only where it is used, because Spark needs a second and a JVM.
        from sluice_spark.session import SessionSettings, open_session  # noqa: PLC0415

        session = await asyncio.to_thread(open_session, SessionSettings(), delta=False)
        try:
            yield store, SparkTaskEngine(session, absolute_url(url))
        finally:
            await asyncio.to_thread(session.stop)
