"""Keys that events named: which of them are processed again after a failed call."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from support.queue_store import SimClock

from sluice_protocol.errors import StoreUnavailable
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_reconciler import events
from sluice_reconciler.events import HINT_ATTEMPTS_MAX, HINT_PAUSE_S_MAX, HintQueue, hint_delay_s
from sluice_reconciler.metrics import ReconcilerMetrics
from sluice_reconciler.pipeline import PipelineResult


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
        queue = HintQueue(pipeline, metrics, pipeline.clock, 64)  # type: ignore[arg-type]
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
