"""Many agents and a few gateways: the load follows the speed of the gateways.

A gateway has a queue. Its latency grows with the work in it, as agents observe it. The load is 70 %
of what all gateways together can do. An even spread would overload the slow ones.
"""

import random
from collections import Counter
from collections.abc import Callable

import pytest
from support.simloop import seeds

from sluice_agent.sending.gateway_choice import (
    GatewaySet,
    GatewayTarget,
    SendAttempts,
    TargetHealth,
    plan_attempt,
)

AGENTS = 40
ROUNDS = 240
SETTLED = 100
LOAD = 0.7
SPEEDS = (1.0, 2.0, 4.0, 8.0)
LATENCY_S = 0.01
"""Latency of an idle gateway of speed 1."""
SHED_SHARE = 0.1
HIGH_SHARE = 0.4
"""Share of all agents above which a gateway sheds."""


def utilization(seed: int) -> tuple[list[float], list[float]]:
    """Return, for each gateway, work per capacity and the mean queue, in seconds, at the end."""
    rng = random.Random(seed)
    targets = [GatewayTarget(url=f"http://g{number}") for number in range(len(SPEEDS))]
    capacity = {
        target: speed * AGENTS / LOAD / sum(SPEEDS)
        for target, speed in zip(targets, SPEEDS, strict=True)
    }
    agents = [GatewaySet.of(rng.sample(targets, len(targets))) for _ in range(AGENTS)]
    queue = dict.fromkeys(targets, 0.0)
    work: Counter[GatewayTarget] = Counter()
    waited: Counter[GatewayTarget] = Counter()
    for second in range(ROUNDS):
        for number in rng.sample(range(AGENTS), AGENTS):
            now_s = second + rng.random()
            agent = agents[number].with_choices(now_s=now_s, rng=rng)
            target = plan_attempt(agent, SendAttempts(), now_s=now_s, rng=rng).target
            queue[target] += 1
            latency_s = LATENCY_S / SPEEDS[targets.index(target)] + queue[target] / capacity[target]
            agents[number] = agent.succeeded(target, now_s=now_s, latency_s=latency_s)
            if second >= SETTLED:
                work[target] += 1
        for target in targets:
            queue[target] = max(0.0, queue[target] - capacity[target])
            if second >= SETTLED:
                waited[target] += queue[target] / capacity[target]
    rounds = ROUNDS - SETTLED
    return (
        [work[target] / capacity[target] / rounds for target in targets],
        [waited[target] / rounds for target in targets],
    )


@pytest.mark.parametrize("seed", seeds(2))
def test_the_load_follows_the_speed_of_the_gateways(seed: int) -> None:
    """No gateway is overloaded, each is used, and queues remain short."""
    used, queues = utilization(seed)
    assert max(used) < 1.0, used
    assert min(used) > LOAD / 3, used
    assert max(queues) < 2.0, queues


def blind(_: TargetHealth, __: float) -> float:
    return 0.0


def backwards(health: TargetHealth, _: float) -> float:
    return -(health.latency_s or 0.0)


@pytest.mark.parametrize("bug", [blind, backwards])
def test_the_simulation_finds_a_choice_without_latency(
    bug: Callable[[TargetHealth, float], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TargetHealth, "expected_s", bug)
    used, queues = utilization(1)
    assert max(used) > 1.0 or max(queues) > 2.0


@pytest.mark.daily(2)
@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize("count", [3, 5])
def test_agents_of_gateways_that_shed_spread(seed: int, count: int) -> None:
    """All agents use one gateway: it sheds until none is above its mark, and each is used."""
    rng = random.Random(seed)
    targets = [GatewayTarget(url=f"http://g{number}") for number in range(count)]
    first, *others = targets
    agents = []
    for _ in range(AGENTS):
        agent = GatewaySet.of(targets).succeeded(first, now_s=0, latency_s=0.01)
        for other in others:
            agent = agent.succeeded(other, now_s=0, latency_s=0.1)
        agents.append(agent)
    shares: Counter[GatewayTarget] = Counter()
    sheds = 0
    for now_s in range(1, ROUNDS):
        load: Counter[GatewayTarget] = Counter()
        for number, before in enumerate(agents):
            agent = before.with_choices(now_s=now_s, rng=rng)
            target = plan_attempt(agent, SendAttempts(), now_s=now_s, rng=rng).target
            load[target] += 1
            agent = agent.succeeded(target, now_s=now_s, latency_s=0.01 if target == first else 0.1)
            if load[target] > HIGH_SHARE * AGENTS and rng.random() < SHED_SHARE:
                agent = agent.shed(target, now_s=now_s)
                sheds += 1
            agents[number] = agent
        if now_s >= SETTLED:
            shares.update(load)
    assert sheds > 0
    assert set(shares) == set(targets)
    assert max(shares.values()) <= 1.5 * HIGH_SHARE * AGENTS * (ROUNDS - SETTLED)
