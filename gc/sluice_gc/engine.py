"""Where the tasks of an audit or plan run: here, or on Spark's executors."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from sluice_store.port import ObjectStore

_Task = TypeVar("_Task")
_Facts = TypeVar("_Facts")

Work = Callable[[ObjectStore, _Task], Awaitable[_Facts]]
"""A task as a module-level function of a store: it is the same wherever it runs."""


class Engine(Protocol):
    """Runs tasks that share nothing."""

    @property
    def tasks_at_once(self) -> int:
        """How many tasks this engine runs at the same time."""
        ...

    async def run(self, work: Work[_Task, _Facts], tasks: Sequence[_Task]) -> Iterable[_Facts]:
        """Runs every task and gives their facts in the order of the tasks.

        Raises:
            SluiceError: What a task raised; the others may or may not have run.
        """
        ...


class LocalEngine:
    """Runs tasks one after the other in this process; each does its own requests concurrently."""

    def __init__(self, store: ObjectStore) -> None:
        """Takes the store that the tasks use."""
        self._store = store

    @property
    def tasks_at_once(self) -> int:
        """One."""
        return 1

    async def run(self, work: Work[_Task, _Facts], tasks: Sequence[_Task]) -> Iterable[_Facts]:
        """Runs every task here."""
        return [await work(self._store, task) for task in tasks]
