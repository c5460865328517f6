"""Messages of an event queue and the keys that they name: kept until they were processed."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.dying_store import Died, DyingStore
from support.queue_store import SimClock, SimStore
from support.reconciler_seed import accept, enqueued
from support.reconciler_world import make

from sluice_protocol.errors import StoreUnavailable
from sluice_protocol.keys import accepted_key
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_reconciler import events
from sluice_reconciler.events import (
    BUFFER_MAX,
    FAILURES_MAX,
    HINT_ATTEMPTS_MAX,
    HINT_PAUSE_S_MAX,
    LEFT_MAX,
    EventReceiver,
    HintQueue,
    ProcessKeys,
    delay_s,
    hint_delay_s,
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


def refuse_manifests(verb: str, key: str) -> None:
    if verb == "get" and key.startswith("accepted/"):
        raise StoreUnavailable(verb, key, "is down")


def event(key: str) -> bytes:
    return json.dumps(
        {"Records": [{"eventName": "ObjectCreated:Put", "s3": {"object": {"key": key}}}]}
    ).encode()


async def test_messages_are_removed_once_their_batches_are_enqueued(store: SimStore) -> None:
    """Valid, repeated, foreign and invalid messages are all removed."""
    keys = [accepted_key((await accept(store, seq)).identity) for seq in range(0, 100, 10)]
    source = Messages(*map(event, keys), event(keys[0]), event("other/key"), b"no event")
    reconciler = make(store)
    for left in (3, 0):
        await one_round(source, reconciler)
        assert len(source.left) == left
    assert len(await enqueued(store)) == 10


async def test_messages_stay_until_the_store_can_be_read() -> None:
    """Except an invalid one. An outage of the store never removes a message."""
    store = SimStore()
    body = event(accepted_key((await accept(store, 0)).identity))
    source = Messages(body, b"no event", receives=FAILURES_MAX)
    reconciler = make(store)
    plain, store.before = store.before, refuse_manifests
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await one_round(source, reconciler)
        assert [one.body for one in source.left] == [body]
    store.before = plain
    await one_round(source, reconciler)
    assert source.left == []
    assert len(await enqueued(store)) == 1


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_no_message_is_removed_before_its_batch_is_durable(after: bool) -> None:
    """A crash at each write of the pipeline, before or after it takes effect."""
    for at in range(40):
        store = SimStore()
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


async def test_many_messages_are_one_call_of_the_pipeline() -> None:
    """While one call runs, several polls fill the buffer for the next one."""
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


async def test_a_slow_pipeline_bounds_the_messages_in_memory() -> None:
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


async def test_a_message_whose_batch_was_left_becomes_visible_again() -> None:
    """Another reconciler may own its lane. After many receptions other routes have it."""
    mine, other = (ObjectKey(f"{KEY}{number:020d}.json") for number in (0, 10))

    async def process(named: Sequence[ObjectKey]) -> PipelineResult:
        return PipelineResult(left=1, left_keys=frozenset({other}))

    source = Messages(event(mine), event(other))
    await receiver(source, process).process(source.take())
    assert [one.body for one in source.left] == [event(other)]
    assert source.delays == {"1": 1}
    source = Messages(event(other), receives=LEFT_MAX - 1)
    await receiver(source, process).process(source.take())
    assert source.left == []


async def test_a_poison_message_stops_no_other_and_is_removed_in_the_end() -> None:
    good, poison = (ObjectKey(f"{KEY}{number:020d}.json") for number in (0, 10))
    processed: list[ObjectKey] = []

    async def process(named: Sequence[ObjectKey]) -> PipelineResult:
        if poison in named:
            raise ValueError("a defect")
        processed.extend(named)
        return PipelineResult()

    source = Messages(event(poison), event(good))
    with capture_logs() as logs:
        for reception in range(1, FAILURES_MAX + 1):
            await receiver(source, process).process(source.take())
            assert processed == [good]
            assert [one.body for one in source.left] == [event(poison)] * (reception < FAILURES_MAX)
    assert [one["event"] for one in logs if one["log_level"] == "error"] == ["event_abandoned"]


async def test_failures_of_the_queue_are_retried(store: SimStore) -> None:
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

    source = Failing(event(accepted_key((await accept(store, 0)).identity)))
    reconciler = make(store)
    process = reconciler.pipeline.process_new_in_steps
    one = EventReceiver(source, process, ReconcilerMetrics(), store.clock, 1)
    task = asyncio.create_task(one.run())
    await until(lambda: not source.left)
    task.cancel()
    assert source.left == []
    assert len(await enqueued(store)) == 1


def test_the_delay_of_a_message_grows_to_a_minute() -> None:
    assert [delay_s(count) for count in (0, 1, 2, 3, 6, 7, 100)] == [1, 1, 2, 4, 32, 60, 60]


@dataclass
class FailingPipeline:
    """Fails while the store is unreachable, and always for some keys."""

    clock: SimClock
    until_ns: int = 0
    poison: frozenset[ObjectKey] = frozenset()
    done: list[ObjectKey] = field(default_factory=list)
    calls: int = 0

    async def process_new(self, keys: Sequence[ObjectKey]) -> PipelineResult:
        self.calls += 1
        if self.clock.monotonic_ns() < self.until_ns or self.poison.intersection(keys):
            raise StoreUnavailable("get", keys[0], "no response")
        self.done += keys
        return PipelineResult()


def keys(count: int) -> list[ObjectKey]:
    return [ObjectKey(f"accepted/v1/{number}") for number in range(count)]


def dropped(metrics: ReconcilerMetrics) -> float:
    value = metrics.registry.get_sample_value("sluice_reconciler_hints_dropped_total")
    return 0.0 if value is None else value


def run_for(
    pipeline: FailingPipeline,
    found: Sequence[ObjectKey],
    seconds: float,
    then: Sequence[ObjectKey] = (),
) -> float:
    """Queue keys twice, let time pass after each, and return the number of dropped keys."""

    async def scene() -> float:
        metrics = ReconcilerMetrics()
        queue = HintQueue(pipeline, metrics, pipeline.clock, 64)
        running = asyncio.create_task(queue.run())
        for some in (found, then):
            assert queue.add(some) == len(some)
            end_ns = pipeline.clock.monotonic_ns() + int(seconds * NS_PER_S)
            while pipeline.clock.monotonic_ns() < end_ns:
                for _ in range(4):
                    await asyncio.sleep(0)
                pipeline.clock.at_ns += NS_PER_S // 4
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return dropped(metrics)

    return asyncio.run(scene())


def test_keys_of_a_failed_call_are_processed_when_the_store_is_back() -> None:
    clock = SimClock()
    pipeline = FailingPipeline(clock, until_ns=clock.monotonic_ns() + 300 * NS_PER_S)
    assert run_for(pipeline, keys(200), 500) == 0
    assert sorted(pipeline.done) == sorted(keys(200))


def test_a_key_that_always_fails_stops_no_other_and_is_abandoned() -> None:
    clock = SimClock()
    pipeline = FailingPipeline(clock, poison=frozenset(keys(200)[70:71]))
    assert run_for(pipeline, keys(200), 1000) == 1
    assert set(keys(200)) - set(pipeline.done) == pipeline.poison
    assert len(pipeline.done) == 199
    assert pipeline.calls < 300


def test_the_number_of_failed_keys_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 of them are kept; the next 26 would be more than the bound."""
    clock = SimClock()
    pipeline = FailingPipeline(clock, until_ns=clock.monotonic_ns() + 10**6 * NS_PER_S)
    monkeypatch.setattr(events, "HINTS_MAX", 89)
    assert run_for(pipeline, keys(64), 0.25, then=keys(26)) == 26


def test_the_pause_doubles_up_to_a_minute() -> None:
    pauses = [hint_delay_s(attempts) for attempts in range(1, HINT_ATTEMPTS_MAX)]
    assert pauses[:3] == [1.0, 2.0, 4.0]
    assert max(pauses) == HINT_PAUSE_S_MAX
    assert 600 < sum(pauses) < 700
