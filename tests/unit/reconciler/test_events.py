"""When a message of an event queue is removed: after its keys were processed, never before."""

import asyncio
import contextlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.dying_store import Died, DyingStore
from support.queue_store import SimClock, SimIds, SimStore
from support.reconciler_seed import accept, enqueued

from sluice_protocol.authority import Authority
from sluice_protocol.errors import StoreUnavailable
from sluice_protocol.keys import accepted_key
from sluice_protocol.outcomes import GetOutcome
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_queue.lane import Runtime
from sluice_reconciler.events import (
    BUFFER_MAX,
    FAILURES_MAX,
    LEFT_MAX,
    EventReceiver,
    ProcessKeys,
    delay_s,
)
from sluice_reconciler.metrics import ReconcilerMetrics
from sluice_reconciler.pipeline import PipelineResult
from sluice_reconciler.service import Reconciler
from sluice_store.s3.events import EventMessage

KEY = "accepted/v1/agent=61/boot=62/00000000000000000000-"


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen")


class Messages:
    """An event queue in memory: a received message is hidden, and kept until it is removed."""

    def __init__(self, *bodies: bytes, receives: int = 0) -> None:
        self.left = [
            EventMessage(body=body, receipt=str(number), receives=receives)
            for number, body in enumerate(bodies)
        ]
        self.hidden: set[str] = set()
        self.delays: dict[str, int] = {}
        self.waiting = self.most_waiting = 0

    async def receive(self) -> list[EventMessage]:
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        try:
            await until(lambda: any(one.receipt not in self.hidden for one in self.left))
        finally:
            self.waiting -= 1
        return self.take()

    def take(self) -> list[EventMessage]:
        found = [one for one in self.left if one.receipt not in self.hidden][:10]
        for one in found:
            self.left[self.left.index(one)] = replace(one, receives=one.receives + 1)
        self.hidden |= {one.receipt for one in found}
        return [replace(one, receives=one.receives + 1) for one in found]

    async def done(self, messages: Sequence[EventMessage]) -> None:
        removed = {one.receipt for one in messages}
        self.left = [one for one in self.left if one.receipt not in removed]

    async def release(self, messages: Sequence[EventMessage], delay_s: int) -> None:
        for one in messages:
            self.hidden.discard(one.receipt)
            self.delays[one.receipt] = delay_s


def receiver(source: Messages, process: ProcessKeys, polls: int = 3) -> EventReceiver:
    return EventReceiver(source, process, ReconcilerMetrics(), SystemClock(), polls)


async def one_round(source: Messages, reconciler: Reconciler) -> None:
    await receiver(source, reconciler.pipeline.process_new_in_steps).process(source.take())


class Unreadable(SimStore):
    """A store that fails reads of manifests while `down` is set."""

    down = False

    async def get(self, key: ObjectKey, *, first: int = 0, last: int | None = None) -> GetOutcome:
        if self.down and key.startswith("accepted/"):
            raise StoreUnavailable("get", key, "is down")
        return await super().get(key, first=first, last=last)


def event(key: str) -> bytes:
    return json.dumps(
        {"Records": [{"eventName": "ObjectCreated:Put", "s3": {"object": {"key": key}}}]}
    ).encode()


def make(store: SimStore) -> Reconciler:
    runtime = Runtime(clock=store.clock, ids=SimIds(1), rng=random.Random(1))
    return Reconciler(store, Authority(authority_id="A", lanes=2), runtime=runtime)


def test_messages_are_removed_once_their_batches_are_enqueued() -> None:
    """Valid, repeated, foreign and invalid messages are all removed."""

    async def run() -> None:
        store = SimStore(clock=SimClock())
        keys = [accepted_key((await accept(store, seq)).identity) for seq in range(0, 100, 10)]
        source = Messages(*map(event, keys), event(keys[0]), event("other/key"), b"no event")
        reconciler = make(store)
        for left in (3, 0):
            await one_round(source, reconciler)
            assert len(source.left) == left
        assert len(await enqueued(store)) == 10

    asyncio.run(run())


def test_messages_stay_until_the_store_can_be_read() -> None:
    """Except an invalid one. An outage of the store never removes a message."""

    async def run() -> None:
        store = Unreadable(clock=SimClock())
        body = event(accepted_key((await accept(store, 0)).identity))
        source = Messages(body, b"no event", receives=FAILURES_MAX)
        reconciler = make(store)
        store.down = True
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await one_round(source, reconciler)
            assert [one.body for one in source.left] == [body]
        store.down = False
        await one_round(source, reconciler)
        assert source.left == []
        assert len(await enqueued(store)) == 1

    asyncio.run(run())


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_no_message_is_removed_before_its_batch_is_durable(after: bool) -> None:
    """A crash at each write of the pipeline, before or after it takes effect."""

    async def run() -> None:
        for at in range(40):
            store = SimStore(clock=SimClock())
            key = accepted_key((await accept(store, 0)).identity)
            source = Messages(event(key))
            dying: Any = DyingStore(store, at, after)
            with contextlib.suppress(Died):
                await one_round(source, make(dying))
            if not source.left:
                assert len(await enqueued(store)) == 1
            if not dying.died:
                return
            source.hidden.clear()
            await one_round(source, make(store))
            again = 2 if source.left else 1  # the lane of the dead process is taken over later
            for _ in range(again - 1):
                store.clock.at_ns += 3600 * NS_PER_S
                source.hidden.clear()
                await one_round(source, make(store))
            assert source.left == []
            assert len(await enqueued(store)) == 1
        raise AssertionError("the pipeline has more writes than were tested")

    asyncio.run(run())


def test_many_messages_are_one_call_of_the_pipeline() -> None:
    """While one call runs, several polls fill the buffer for the next one."""

    async def run() -> None:
        keys = [ObjectKey(f"{KEY}{number:020d}.json") for number in range(400)]
        source, calls = Messages(*map(event, keys)), list[int]()

        async def process(named: Sequence[ObjectKey]) -> PipelineResult:
            calls.append(len(named))
            await asyncio.sleep(0.05)
            return PipelineResult()

        task = asyncio.create_task(receiver(source, process, polls=3).run())
        await until(lambda: not source.left)
        await asyncio.sleep(0.05)
        assert source.waiting == source.most_waiting == 3
        task.cancel()
        assert sum(calls) == 400
        assert len(calls) <= 3  # one message alone, and what arrived meanwhile

    asyncio.run(run())


def test_a_slow_pipeline_bounds_the_messages_in_memory() -> None:
    async def run() -> None:
        bodies = [event(f"{KEY}{number:020d}.json") for number in range(4 * BUFFER_MAX)]
        source = Messages(*bodies)

        async def process(named: Sequence[ObjectKey]) -> PipelineResult:
            await asyncio.Event().wait()
            raise AssertionError(named)

        task = asyncio.create_task(receiver(source, process, polls=2).run())
        await asyncio.sleep(0.5)
        assert len(source.hidden) <= 2 * BUFFER_MAX + 2 * 10
        assert len(source.left) == len(bodies)
        task.cancel()

    asyncio.run(run())


def test_a_message_whose_batch_was_left_becomes_visible_again() -> None:
    """Another reconciler may own its lane. After many receptions other routes have it."""
    mine, other = (ObjectKey(f"{KEY}{number:020d}.json") for number in (0, 10))

    async def process(named: Sequence[ObjectKey]) -> PipelineResult:
        return PipelineResult(left=1, left_keys=frozenset({other}))

    async def run() -> None:
        source = Messages(event(mine), event(other))
        await receiver(source, process).process(source.take())
        assert [one.body for one in source.left] == [event(other)]
        assert source.delays == {"1": 1}
        source = Messages(event(other), receives=LEFT_MAX - 1)
        await receiver(source, process).process(source.take())
        assert source.left == []

    asyncio.run(run())


def test_a_poison_message_stops_no_other_and_is_removed_in_the_end() -> None:
    good, poison = (ObjectKey(f"{KEY}{number:020d}.json") for number in (0, 10))
    processed: list[ObjectKey] = []

    async def process(named: Sequence[ObjectKey]) -> PipelineResult:
        if poison in named:
            raise ValueError("a defect")
        processed.extend(named)
        return PipelineResult()

    async def run() -> None:
        source = Messages(event(poison), event(good))
        with capture_logs() as logs:
            for reception in range(1, FAILURES_MAX + 1):
                await receiver(source, process).process(source.take())
                assert processed == [good]
                assert [one.body for one in source.left] == [event(poison)] * (
                    reception < FAILURES_MAX
                )
        assert [one["event"] for one in logs if one["log_level"] == "error"] == ["event_abandoned"]

    asyncio.run(run())


def test_failures_of_the_queue_are_retried() -> None:
    """A reception and a removal that fail: the batch is enqueued once, the message removed."""

    class Failing(Messages):
        failures = 2

        async def receive(self) -> list[EventMessage]:
            self.fail()
            return await super().receive()

        async def done(self, messages: Sequence[EventMessage]) -> None:
            if self.failures == 1:
                self.hidden.clear()
            self.fail()
            await super().done(messages)

        def fail(self) -> None:
            if self.failures:
                self.failures -= 1
                raise StoreUnavailable("receive", "queue", "is down")

    async def run() -> None:
        store = SimStore(clock=SimClock())
        source = Failing(event(accepted_key((await accept(store, 0)).identity)))
        reconciler = make(store)
        process = reconciler.pipeline.process_new_in_steps
        one = EventReceiver(source, process, ReconcilerMetrics(), store.clock, 1)
        task = asyncio.create_task(one.run())
        await until(lambda: not source.left)
        task.cancel()
        assert source.left == []
        assert len(await enqueued(store)) == 1

    asyncio.run(run())


def test_the_delay_of_a_message_grows_to_a_minute() -> None:
    assert [delay_s(count) for count in (0, 1, 2, 3, 6, 7, 100)] == [1, 1, 2, 4, 32, 60, 60]
