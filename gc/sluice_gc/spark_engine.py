"""Runs tasks on Spark's executors: each opens the store itself, and only facts come back.

A task is pickled into a partition of its own, so that an executor receives nothing that is not its
own. An error of sluice comes back as a value and is raised on the driver as what it was; any other
one fails the job, and Spark may try the task again: tasks write under keys that their own bytes
name, so that a second try does no harm.
"""

import asyncio
import pickle
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, cast

from sluice_gc.engine import Work
from sluice_protocol.errors import SluiceError
from sluice_store import open_store

_Task = TypeVar("_Task")
_Facts = TypeVar("_Facts")


class SparkEngine:
    """Runs tasks as one Spark job; the same on one machine and on a cluster."""

    def __init__(self, session: Any, store_url: str) -> None:  # noqa: ANN401 - pyspark has no types
        """Takes a session and the URL under which executors open the store."""
        self._context = session.sparkContext
        self._store_url = store_url

    @property
    def tasks_at_once(self) -> int:
        """As many as the executors have cores."""
        return int(self._context.defaultParallelism)

    async def run(self, work: Work[_Task, _Facts], tasks: Sequence[_Task]) -> Iterable[_Facts]:
        """Runs every task on some executor.

        Raises:
            SluiceError: What the first failed task raised.
        """
        if not tasks:
            return []
        answers = await asyncio.to_thread(self._collect, work, tasks)
        for answer in answers:
            if isinstance(answer, SluiceError):
                raise answer
        return [cast("_Facts", answer) for answer in answers]

    def _collect(self, work: Work[_Task, _Facts], tasks: Sequence[_Task]) -> list[object]:
        url = self._store_url
        bodies = [pickle.dumps((work, task)) for task in tasks]

        def one(body: bytes) -> bytes:
            return pickle.dumps(run_pickled(url, body))

        found = self._context.parallelize(bodies, len(bodies)).map(one).collect()
        return [pickle.loads(answer) for answer in found]  # noqa: S301 - our own executors' bytes


def run_pickled(store_url: str, body: bytes) -> object:
    """Runs one pickled task against a store; gives its facts, or the error that it raised."""
    work, task = pickle.loads(body)  # noqa: S301 - the driver's own bytes

    async def run() -> object:
        async with open_store(store_url) as store:
            return await work(store, task)

    try:
        return asyncio.run(run())
    except SluiceError as error:
        return error
