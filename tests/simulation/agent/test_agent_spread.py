"""Many agents and gateways that shed a share of their responses: the load becomes even enough."""

import random
from collections import Counter

import pytest
from support.simloop import seeds

from sluice_agent.upload_decisions import GatewaySet, SendAttempts, plan_attempt

AGENTS = 60
ROUNDS = 300
SHED_SHARE = 0.1
HIGH_SHARE = 0.4
"""Share of all agents above which a gateway sheds."""


@pytest.mark.parametrize("seed", seeds(20))
@pytest.mark.parametrize("count", [3, 5])
def test_agents_that_began_on_one_gateway_spread(seed: int, count: int) -> None:
    """No gateway stays above its mark, every gateway is used, and then the agents stay."""
    rng = random.Random(seed)
    urls = tuple(f"http://g{number}" for number in range(count))
    agents = [GatewaySet.of(urls) for _ in range(AGENTS)]
    moved_late = 0
    load = Counter({urls[0]: AGENTS})
    for now_s in range(ROUNDS):
        chosen = [plan_attempt(one, SendAttempts(), now_s=now_s, rng=rng).url for one in agents]
        load = Counter(chosen)
        for number, url in enumerate(chosen):
            if load[url] > HIGH_SHARE * AGENTS and rng.random() < SHED_SHARE:
                agents[number] = agents[number].shed(url, now_s=now_s, rng=rng)
                moved_late += now_s > ROUNDS * 2 // 3
    assert max(load.values()) <= HIGH_SHARE * AGENTS
    assert set(load) == set(urls)
    assert moved_late == 0
