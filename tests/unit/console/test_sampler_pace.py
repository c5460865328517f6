"""How often samples are taken: rarely while no page is open, and soon when one is opened."""

import asyncio
import itertools
from typing import Any

import pytest
from support.queue_store import SimClock

from sluice_console.metrics import ConsoleMetrics
from sluice_console.sampler import IDLE_S, IDLE_SAMPLE_S, VISIT_S, Sampler
from sluice_protocol.units import NS_PER_S

SAMPLE_S = 10.0


class Ended(Exception):
    """The end of the observed time."""


def taken_at(visits_s: set[int], end_s: float, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return when samples are taken, if a page requests one at these times."""
    clock, taken = SimClock(), list[float]()
    began_ns = clock.at_ns
    sources: Any = None  # the samples are not read
    sampler = Sampler(sources, clock, ConsoleMetrics(), SAMPLE_S)

    def now_s() -> float:
        return (clock.at_ns - began_ns) / NS_PER_S

    async def take(_: Sampler) -> None:
        taken.append(now_s())

    async def sleep(seconds: float) -> None:
        for _ in range(int(seconds)):
            clock.at_ns += NS_PER_S
            if int(now_s()) in visits_s:
                await sampler.wait(0, 0.0)
            if now_s() > end_s:
                raise Ended

    monkeypatch.setattr(Sampler, "take", take)
    clock.sleep = sleep
    with pytest.raises(Ended):
        asyncio.run(sampler.run())
    return taken


def test_samples_are_rare_without_a_visitor(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = taken_at(set(), 2 * IDLE_S, monkeypatch)
    pauses = [later - earlier for earlier, later in itertools.pairwise(taken)]
    assert pauses[0] == SAMPLE_S
    assert pauses[-1] == IDLE_SAMPLE_S


@pytest.mark.parametrize("after_s", [12, 30, 59])
def test_a_visitor_gets_a_new_sample_soon(after_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    idle = taken_at(set(), 2 * IDLE_S, monkeypatch)[-2]
    visit_s = int(idle) + after_s
    taken = taken_at({visit_s}, 2 * IDLE_S, monkeypatch)
    next_s = min(one for one in taken if one >= visit_s)
    assert next_s - visit_s <= VISIT_S
