"""Threads for the blocking calls of one local store, for less than `run_in_executor` costs.

An executor creates two futures for each call and wakes the event loop for each result. Here a call
has one future, and the results that are ready together wake the loop once.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, TypeVar

_T = TypeVar("_T")

THREADS_MAX: Final = 64
NAME: Final = "sluice-store"


class StoreThreads:
    """Runs blocking calls in up to `THREADS_MAX` threads, in the order in which they were made."""

    def __init__(self) -> None:
        """Bind the threads to the running event loop; a thread starts when none is free."""
        self._loop = asyncio.get_running_loop()
        self._calls: SimpleQueue[tuple[Callable[[], object], asyncio.Future[Any]] | None] = (
            SimpleQueue()
        )
        self._done: deque[tuple[asyncio.Future[Any], object, BaseException | None]] = deque()
        self._threads: list[threading.Thread] = []
        self._open = 0
        self._waking = False

    async def run(self, work: Callable[[], _T]) -> _T:
        """Return the result of a call; if its caller is cancelled before it starts, skip it.

        Raises:
            BaseException: Whatever the call raises.
        """
        future: asyncio.Future[_T] = self._loop.create_future()
        self.submit(work, future)
        return await future

    def submit(self, work: Callable[[], _T], future: asyncio.Future[_T]) -> None:
        """Make a call whose result or failure completes a future, as `run` does."""
        self._open += 1
        if self._open > len(self._threads) and len(self._threads) < THREADS_MAX:
            self._start()
        self._calls.put((work, future))

    def _start(self) -> None:
        name = f"{NAME}-{len(self._threads)}"
        thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            work, future = call
            result: object = None
            failure: BaseException | None = None
            if not future.cancelled():
                try:
                    result = work()
                except BaseException as error:  # noqa: BLE001 - raised in the caller
                    failure = error
            self._done.append((future, result, failure))
            if not self._waking:
                self._waking = True
                self._loop.call_soon_threadsafe(self._deliver)
            del call, work, future, result, failure  # not kept alive by an idle thread

    def _deliver(self) -> None:
        """Complete the futures of finished calls.

        The mark is removed first: a result that is appended later wakes the loop again.
        """
        self._waking = False
        while self._done:
            future, result, failure = self._done.popleft()
            self._open -= 1
            if future.done():  # the caller was cancelled
                continue
            if failure is None:
                future.set_result(result)
            else:
                future.set_exception(failure)

    def close(self) -> None:
        """Complete the calls that were made, and end the threads. Blocks until then."""
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()
