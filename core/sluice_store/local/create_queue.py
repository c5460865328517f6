"""Decides which creates of a process are written together, and which in separate threads.

A few creates run in separate threads, so that none waits for another. Further ones wait, and are
written as a group in one thread. Two groups are written at the same time: one uses the processor
while the other waits for the disk. So the groups grow with the number of callers and with the time
that a sync takes, and no timer is needed.
"""

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Final

from sluice_protocol.outcomes import CreateOutcome
from sluice_store.local.files import LocalFiles
from sluice_store.local.group_writes import GroupOutcome, split_groups
from sluice_store.local.threads import StoreThreads
from sluice_store.port import NewObject

GROUP_BODY_MAX: Final = 2 * 2**20
"""Larger bodies are written in separate threads: a few of them would be a whole group."""
RETRY_S: Final = 0.5
"""How long creates run in separate threads after a group could not be written."""

_Waiting = tuple[NewObject, asyncio.Future[CreateOutcome]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """Bounds of grouping.

    Attributes:
        separate_max: Creates that run in separate threads before others wait.
        group_min: Waiting creates from which a group is written.
        groups_max: Groups that are written at the same time.
    """

    separate_max: int = 3
    group_min: int = 4
    groups_max: int = 2


class CreateQueue:
    """The creates of one store that have not begun. It belongs to one event loop."""

    def __init__(self, files: LocalFiles, threads: StoreThreads, limits: GroupLimits) -> None:
        self._files = files
        self._threads = threads
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._waiting: list[_Waiting] = []
        self._separate = 0
        self._groups: set[asyncio.Future[list[GroupOutcome] | None]] = set()
        self._due = False
        self._no_group_before_s = 0.0
        self._closed = False

    async def create(self, new: NewObject) -> CreateOutcome:
        """Create one object, in a group if others wait.

        If the caller is cancelled before it begins, it is skipped.

        Raises:
            StoreError: The request was refused; nothing was written.
        """
        future: asyncio.Future[CreateOutcome] = self._loop.create_future()
        if len(new.body) > GROUP_BODY_MAX or self._closed:
            self._start_separate(new, future)
        else:
            self._waiting.append((new, future))
            self._start_soon()
        return await future

    async def close(self) -> None:
        """Begin every create that waits, and return when no group is being written."""
        self._closed = True
        self._separate_up_to(len(self._waiting))
        if self._groups:
            await asyncio.wait(self._groups)
            self._separate_up_to(len(self._waiting))

    def _start_soon(self) -> None:
        """Start creates after every task that is ready now had its turn, so that they share."""
        if not self._due:
            self._due = True
            self._loop.call_soon(self._start)

    def _start(self) -> None:
        self._due = False
        self._waiting = [one for one in self._waiting if not one[1].done()]
        if self._loop.time() < self._no_group_before_s:
            self._separate_up_to(len(self._waiting))
        elif len(self._groups) >= self._limits.groups_max:
            return
        elif len(self._waiting) >= self._limits.group_min:
            self._start_group()
        elif not self._groups:
            self._separate_up_to(self._limits.separate_max - self._separate)

    def _separate_up_to(self, count: int) -> None:
        begun = self._waiting[: max(count, 0)]
        del self._waiting[: len(begun)]
        for new, future in begun:
            self._separate += 1
            future.add_done_callback(self._separate_done)
            self._start_separate(new, future)

    def _start_separate(self, new: NewObject, future: asyncio.Future[CreateOutcome]) -> None:
        work = partial(self._files.create, new.key, new.body, new.sha256)
        self._threads.submit(work, future)

    def _separate_done(self, _: asyncio.Future[CreateOutcome]) -> None:
        self._separate -= 1
        if self._waiting:
            self._start_soon()

    def _start_group(self) -> None:
        count = len(next(split_groups([new for new, _ in self._waiting])))
        group = self._waiting[:count]
        del self._waiting[:count]
        written: asyncio.Future[list[GroupOutcome] | None] = self._loop.create_future()
        written.add_done_callback(partial(self._group_done, group))
        self._groups.add(written)
        objects = [new for new, _ in group]
        self._threads.submit(partial(self._files.create_group, objects), written)

    def _group_done(
        self, group: list[_Waiting], written: asyncio.Future[list[GroupOutcome] | None]
    ) -> None:
        self._groups.discard(written)
        failure = written.exception()
        outcomes = [failure] * len(group) if failure else written.result()
        if outcomes is None:
            self._no_group_before_s = self._loop.time() + RETRY_S
            self._waiting = [*group, *self._waiting]
        else:
            for (_, future), outcome in zip(group, outcomes, strict=True):
                _complete(future, outcome)
        if self._waiting:
            self._start_soon()


def _complete(
    future: asyncio.Future[CreateOutcome], outcome: CreateOutcome | BaseException
) -> None:
    if future.done():  # the caller was cancelled
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
