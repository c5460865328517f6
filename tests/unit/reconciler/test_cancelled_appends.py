"""An append whose caller is cancelled: another lane failed, or the reconciler stops.

The cancellation comes before or after each call of the store. Whatever the process does next, each
batch is in the queue once.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.queue_store import OneByOne, SimStore
from support.reconciler_seed import accept, enqueued
from support.reconciler_world import runtime_of

from sluice_queue.lane import Lane
from sluice_reconciler.lanes.owner import LaneOwner
from sluice_reconciler.lanes.worker import LaneWorker, Takeover
from sluice_reconciler.metrics import ReconcilerMetrics

LANE = Lane(queue="spark", lane=0)
CALLS_MAX = 40


class CancellingStore(OneByOne):
    """A store whose caller is cancelled in one of its calls.

    Attributes:
        left: Calls before that one; negative for no cancellation.
        is_applied: Whether the call is made before the caller is cancelled.
    """

    def __init__(self, store: SimStore, *, is_applied: bool) -> None:
        self._store = store
        self.is_applied = is_applied
        self.left = -1

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in ("create", "replace", "get", "head", "delete"):
            return found

        async def call(*values: Any, **more: Any) -> Any:
            self.left -= 1
            if self.left != -1:
                return await found(*values, **more)
            if self.is_applied:
                await found(*values, **more)
            raise asyncio.CancelledError

        return call


def worker(store: Any, seed: int) -> LaneWorker:
    return LaneWorker(store, LANE, runtime_of(store, seed), ReconcilerMetrics(), 1)


Next = Callable[[LaneWorker, SimStore], Awaitable[LaneWorker]]


async def same_process(one: LaneWorker, store: SimStore) -> LaneWorker:
    del store
    return one


async def clean_stop(one: LaneWorker, store: SimStore) -> LaneWorker:
    await one.close()
    return worker(store, 9)


async def kill(one: LaneWorker, store: SimStore) -> LaneWorker:
    del one
    return worker(store, 9)


async def play(next_step: Next, calls: int, *, is_applied: bool) -> bool:
    """Cancel the second append; return whether it was long enough to be cancelled."""
    plain = SimStore()
    store = CancellingStore(plain, is_applied=is_applied)
    one = worker(store, 1)
    batches = [await accept(plain, seq) for seq in (0, 10, 20)]
    assert await one.enqueue(batches[:1], takeover=Takeover.ALWAYS) == 1
    store.left = calls
    was_cancelled = False
    try:
        await one.enqueue(batches[1:2], takeover=Takeover.ALWAYS)
    except asyncio.CancelledError:
        was_cancelled = True
    store.left = -1
    other = await next_step(one, plain)
    await other.enqueue(batches, takeover=Takeover.ALWAYS)
    assert [batch.seq_start for batch in await enqueued(plain)] == [0, 10, 20]
    return was_cancelled


def play_all(next_step: Next, *, is_applied: bool) -> int:
    for calls in range(CALLS_MAX):
        if not asyncio.run(play(next_step, calls, is_applied=is_applied)):
            return calls
    raise AssertionError("an append never ended")


@pytest.mark.parametrize("is_applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("next_step", [same_process, clean_stop, kill])
def test_a_cancelled_append_leads_to_one_entry(next_step: Next, is_applied: bool) -> None:
    assert play_all(next_step, is_applied=is_applied) >= 3


@pytest.mark.parametrize("next_step", [same_process, clean_stop])
def test_an_owner_that_is_used_again_is_found(
    next_step: Next, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = property(lambda _: False, lambda _, value: None)
    monkeypatch.setattr(LaneOwner, "in_doubt", never, raising=False)
    with pytest.raises(AssertionError):
        play_all(next_step, is_applied=True)
