"""The queue consumers of the ingest job: one fenced consumer per lane.

Spark calls the driver's Python from several threads. The consumers run on one event loop in a
separate thread.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, Self, TypeVar

from sluice_protocol.authority import Authority
from sluice_protocol.errors import SluiceError
from sluice_protocol.system_clock import SystemClock
from sluice_queue.consumer import Consumer
from sluice_queue.errors import LayoutChanged
from sluice_queue.register import SEALED
from sluice_spark.ingest.committed_positions import enter_layout
from sluice_store import open_store, read_authority
from sluice_store.port import ObjectStore

CALL_TIMEOUT_S: Final = 120
LAYOUT_TRIES: Final = 60
LAYOUT_PAUSE_S: Final = 1.0
"""How often, and with which pause, an open waits for the end of a change of the number of lanes."""

_Result = TypeVar("_Result")


class FencedConsumers:
    """The consumers of every lane of a queue; opening them fences older jobs."""

    def __init__(self, store_url: str, queue: str) -> None:
        self._url = store_url
        self._queue = queue
        self._clock = SystemClock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._stack = AsyncExitStack()
        self._consumers: dict[int, Consumer] = {}
        self.authority_id = ""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._call(self._stack.aclose())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _call(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_TIMEOUT_S)

    def open(self, resume_after: Callable[[Sequence[int]], Mapping[int, int]]) -> tuple[int, ...]:
        """Acquire the next epoch of every lane and acknowledge what is already in the lake.

        Return the lanes. `resume_after` returns the last sequence of each lane that is committed to
        the lake; `ResumeRefused` means that these positions and the queue do not match.
        """
        return self._call(self._open(resume_after))

    async def _open(
        self, resume_after: Callable[[Sequence[int]], Mapping[int, int]]
    ) -> tuple[int, ...]:
        await self._stack.aclose()
        store = await self._stack.enter_async_context(open_store(self._url))
        tries = LAYOUT_TRIES
        while True:
            authority = await read_authority(store)
            self.authority_id = authority.authority_id
            ends = resume_after(range(authority.lanes))
            ends = await enter_layout(store, self._url, authority, ends)
            self._consumers.clear()
            try:
                return await self._open_lanes(store, authority, ends)
            except LayoutChanged:
                # A change of the number of lanes is about to end: it has sealed every register.
                tries -= 1
                if not tries:
                    raise
            await self._clock.sleep(LAYOUT_PAUSE_S)

    async def _open_lanes(
        self, store: ObjectStore, authority: Authority, ends: Mapping[int, int]
    ) -> tuple[int, ...]:
        """Open every lane, except those that a change of the number of lanes has sealed.

        Nothing is pending in a sealed lane, and the job is fenced in the others before it ends.
        Raise `LayoutChanged` if no lane is left, or the number was changed.
        """
        sealed: LayoutChanged | None = None
        for lane, end in ends.items():
            try:
                self._consumers[lane] = await Consumer.open(
                    store,
                    queue=self._queue,
                    lane=lane,
                    layout=authority.layout,
                    after=authority.after_sequence,
                    resume_after=end,
                )
            except LayoutChanged as changed:
                sealed = changed
                if changed.current != SEALED:
                    raise
        if sealed is not None and not self._consumers:
            raise sealed
        return tuple(self._consumers)

    def check(self) -> None:
        """Check that every register still names this job, or raise `Fenced`."""
        self._call(self._check())

    def run(self, work: Callable[[ObjectStore], Coroutine[Any, Any, _Result]]) -> _Result:
        """Run requests to the store; raise `TimeoutError` if they take longer than a call may."""

        async def call() -> _Result:
            async with open_store(self._url) as store:
                return await work(store)

        return self._call(call())

    def store_answers(self) -> bool:
        """Return True if the settings of the store can be read."""
        try:
            self.run(read_authority)
        except (SluiceError, TimeoutError):
            return False
        return True

    async def _check(self) -> None:
        for consumer in self._consumers.values():
            await consumer.next_descriptors(0)

    def acknowledge(self, ends: Mapping[int, int]) -> None:
        """Advance the acknowledged sequence of lanes; it never moves back."""
        self._call(self._acknowledge(ends))

    async def _acknowledge(self, ends: Mapping[int, int]) -> None:
        for lane, end in ends.items():
            if end > self._consumers[lane].acked_through:
                await self._consumers[lane].ack_through(end)
