"""The threads of a directory store return every result once, whatever becomes of the caller."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest

from sluice_store.local.store import NAME, THREADS_MAX, StoreThreads


class Broken(Exception):
    """The failure of a call."""


@asynccontextmanager
async def opened() -> AsyncIterator[StoreThreads]:
    threads = StoreThreads()
    try:
        yield threads
    finally:
        await asyncio.to_thread(threads.close)


def fail() -> None:
    raise Broken


async def test_many_concurrent_calls_return_their_own_results() -> None:
    """More calls than threads, some of which fail."""
    async with opened() as threads:

        def call(number: int) -> int:
            if number % 7 == 0:
                raise Broken(number)
            return number

        made = (threads.run(partial(call, number)) for number in range(5000))
        for number, found in enumerate(await asyncio.gather(*made, return_exceptions=True)):
            if number % 7 == 0:
                assert isinstance(found, Broken)
                assert found.args == (number,)
            else:
                assert found == number


async def test_as_many_calls_as_threads_run_at_the_same_time() -> None:
    """A call that waits for the others would otherwise never return."""
    async with opened() as threads:
        meeting = threading.Barrier(THREADS_MAX, timeout=30)
        await asyncio.gather(*(threads.run(meeting.wait) for _ in range(THREADS_MAX)))
        names = await asyncio.gather(
            *(threads.run(lambda: threading.current_thread().name) for _ in range(10))
        )
        assert all(name.startswith(NAME) for name in names)


async def test_one_call_after_the_other_uses_one_thread() -> None:
    async with opened() as threads:
        idents = {await threads.run(threading.get_ident) for _ in range(50)}
        assert len(idents) == 1


async def test_a_cancelled_call_that_has_not_begun_is_skipped() -> None:
    """The calls of a caller that is gone are not made; one that has begun is completed."""
    async with opened() as threads:
        gate, made = threading.Event(), []
        begun = [asyncio.ensure_future(threads.run(gate.wait)) for _ in range(THREADS_MAX)]
        late = asyncio.ensure_future(threads.run(lambda: made.append("late")))
        await asyncio.sleep(0)
        late.cancel()
        begun[0].cancel()
        gate.set()
        found = await asyncio.gather(*begun, late, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError)
        assert found[1:-1] == [True] * (THREADS_MAX - 1)
        assert isinstance(found[-1], asyncio.CancelledError)
        assert await threads.run(lambda: made) == []


async def test_closing_waits_for_calls_that_have_begun() -> None:
    """The files of a store are closed after the last call."""
    ended = threading.Event()
    async with opened() as threads:
        begun, gate = threading.Event(), threading.Event()

        def call() -> None:
            begun.set()
            gate.wait(30)
            ended.set()

        task = asyncio.ensure_future(threads.run(call))
        await asyncio.to_thread(begun.wait, 30)
        task.cancel()
        gate.set()
    assert ended.is_set()


async def test_a_failure_is_raised_in_the_caller() -> None:
    """And the thread serves the next call."""
    async with opened() as threads:
        with pytest.raises(Broken):
            await threads.run(fail)
        assert await threads.run(lambda: 1) == 1


class HeldDeque(deque[tuple[object, ...]]):
    """Calls `when_empty` once, between the test that it is empty and what follows the test."""

    when_empty: Callable[[], None] | None = None

    def __bool__(self) -> bool:
        found = len(self) > 0
        if not found and self.when_empty is not None:
            hook, self.when_empty = self.when_empty, None
            hook()
        return found


async def test_a_result_that_is_ready_while_the_loop_stops_looking_is_delivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has no other call behind it that would wake the loop."""
    async with opened() as threads:
        done, gate = HeldDeque(), threading.Event()

        def finish_second() -> None:
            gate.set()
            while not len(done):
                time.sleep(0.001)

        monkeypatch.setattr(threads, "_done", done)
        second = asyncio.ensure_future(threads.run(gate.wait))
        await asyncio.sleep(0)
        done.when_empty = finish_second
        await threads.run(lambda: None)
        assert await asyncio.wait_for(second, 10)


async def test_a_call_made_while_the_store_closes_starts_no_thread_that_stays() -> None:
    """Such calls are made by tasks that a failed query has left."""
    threads, begun, released = StoreThreads(), threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        released.wait(10)

    first = asyncio.create_task(threads.run(wait))
    await asyncio.to_thread(begun.wait, 10)
    closing = threading.Thread(target=threads.close, daemon=True)
    closing.start()
    late = asyncio.create_task(threads.run(list))
    await asyncio.sleep(0.05)
    released.set()
    await first
    await asyncio.to_thread(closing.join, 5)
    assert not closing.is_alive()
    late.cancel()
