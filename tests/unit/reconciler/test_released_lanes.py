"""Lanes that an owner released when it stopped, and lanes of an owner that was killed."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from support.queue_store import SimClock, SimIds, SimStore
from support.reconciler_seed import accept

from sluice_protocol.errors import OutcomeUnknown, StoreUnavailable
from sluice_protocol.keys import accepted_key, lane_of
from sluice_queue.lane import Lane, Runtime
from sluice_reconciler.lanes.owner import LaneOwner
from sluice_reconciler.lanes.state import LaneRecord, lane_key, read_lane_state
from sluice_reconciler.lanes.worker import LaneWorker, LaneWorkers, Takeover
from sluice_reconciler.metrics import ReconcilerMetrics

LANE = Lane(queue="spark", lane=0)


def worker(store: SimStore, seed: int) -> LaneWorker:
    runtime = Runtime(clock=store.clock, ids=SimIds(seed), rng=random.Random(seed))
    return LaneWorker(store, LANE, runtime, ReconcilerMetrics(), 1)


async def enqueue(one: LaneWorker, store: SimStore, seq: int) -> int | None:
    """Enqueue a batch as a process that takes only lanes without an owner."""
    await one.refresh()
    batch = await accept(store, seq)
    return await one.enqueue([batch], takeover=Takeover.IF_UNOWNED)


def test_a_released_lane_is_taken_without_a_wait_and_another_is_not() -> None:

    async def run() -> None:
        store = SimStore(clock=SimClock())
        first = worker(store, 1)
        assert await enqueue(first, store, 0) == 1
        # Killed: the state does not show that the owner has ended.
        second = worker(store, 2)
        assert await enqueue(second, store, 10) is None
        assert second.is_of_rival
        await first.close()
        assert await enqueue(second, store, 20) == 1
        stored = await read_lane_state(store, LANE)
        assert stored is not None
        assert stored.record.released is False
        assert await enqueue(worker(store, 3), store, 30) is None
        # The first one returns: it is fenced by the owner term, whatever the record shows.
        assert await first.enqueue([await accept(store, 40)], takeover=Takeover.ALWAYS) == 1
        assert await enqueue(second, store, 50) is None

    asyncio.run(run())


def test_a_lane_that_another_member_works_on_is_given_nothing() -> None:
    """Neither by its last owner, nor by a process that would have to take it."""

    async def run() -> None:
        store = SimStore(clock=SimClock())
        owner, other = worker(store, 1), worker(store, 2)
        assert await enqueue(owner, store, 0) == 1
        for one in (owner, other):
            one.is_allowed = False
            assert await one.enqueue([await accept(store, 10)], takeover=Takeover.ALWAYS) is None
        owner.is_allowed = True
        assert await owner.enqueue([await accept(store, 10)], takeover=Takeover.ALWAYS) == 1

    asyncio.run(run())


def test_a_batch_is_done_when_every_queue_was_given_it() -> None:
    async def run() -> None:
        store = SimStore(clock=SimClock())
        runtime = Runtime(clock=store.clock, ids=SimIds(1), rng=random.Random(1))
        workers = LaneWorkers(store, 1, ("spark", "copy"), runtime, ReconcilerMetrics())
        batch = await accept(store, 0)
        done = []
        for one in workers:
            done.append(workers.has_batch(accepted_key(batch.identity)))
            await one.enqueue([batch], takeover=Takeover.ALWAYS)
        assert [*done, workers.has_batch(accepted_key(batch.identity))] == [False, False, True]

    asyncio.run(run())


def _keeps_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner leaves the mark of the last one in the record."""
    real = LaneOwner._write

    async def write(self: LaneOwner, **fields: Any) -> None:
        await real(self, **{**fields, "released": True})

    monkeypatch.setattr(LaneOwner, "_write", write)


def _never_has_an_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LaneRecord, "has_owner", property(lambda _: False))


def _always_has_an_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LaneRecord, "has_owner", property(lambda self: self.owner_term > 0))


@pytest.mark.parametrize("plant", [_keeps_released, _never_has_an_owner, _always_has_an_owner])
def test_planted_bugs_in_the_release_of_a_lane_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        test_a_released_lane_is_taken_without_a_wait_and_another_is_not()


def test_an_error_of_one_lane_leaves_the_others_released() -> None:

    class Failing:
        """A store without one lane."""

        def __init__(self, store: SimStore) -> None:
            self._store = store
            self.fails = False

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

        async def replace(self, key: str, body: bytes, **more: Any) -> Any:
            if self.fails and key == lane_key(LANE):
                raise PermissionRefused(key)
            return await self._store.replace(key, body, **more)

    class PermissionRefused(StoreUnavailable):
        def __init__(self, key: str) -> None:
            super().__init__("replace", key, "refused")

    async def run() -> None:
        store = SimStore(clock=SimClock())
        failing: Any = Failing(store)
        runtime = Runtime(clock=store.clock, ids=SimIds(1), rng=random.Random(1))
        workers = LaneWorkers(failing, 2, ["spark"], runtime, ReconcilerMetrics())
        for number in range(6):
            batch = await accept(store, agent=f"host-{number}")
            for one in workers.of_agent(batch.agent_id):
                assert await one.enqueue([batch], takeover=Takeover.ALWAYS) == 1
        assert {lane_of(f"host-{number}", 2) for number in range(6)} == {0, 1}
        failing.fails = True
        with pytest.raises(OutcomeUnknown, match="swap"):
            await workers.close()
        found = [await read_lane_state(store, Lane(queue="spark", lane=lane)) for lane in (0, 1)]
        assert [one is not None and one.record.has_owner for one in found] == [True, False]

    asyncio.run(run())
