"""The gateway and the time of the next attempt."""

import random
from collections import Counter

from sluice_agent.upload_decisions import (
    BACKOFF_S_MAX,
    PROBE_AFTER_S,
    SHED_S,
    GatewaySet,
    SendAttempts,
    plan_attempt,
)

A, B, C = "http://a", "http://b", "http://c"


def test_after_a_failure_the_next_gateway_is_tried_immediately() -> None:
    """Within a round there is no pause, and no gateway is tried twice."""
    gateways, attempts, used = GatewaySet.of((A, B, C)), SendAttempts(), []
    for _ in range(3):
        attempt = plan_attempt(gateways, attempts, now_s=0, rng=random.Random(0))
        assert attempt.wait_s == 0
        used.append(attempt.url)
        gateways = gateways.failed(attempt.url, now_s=0, pause_s=None)
        attempts = attempts.after(attempt.url, gateways=3)
    assert sorted(used) == [A, B, C]
    assert attempts == SendAttempts(rounds=1)


def test_the_pause_after_a_failed_round_grows_to_a_limit() -> None:
    """Pauses grow, differ between agents, and never exceed the maximum."""
    pauses = {
        rounds: [
            plan_attempt(
                GatewaySet.of((A,)), SendAttempts(rounds=rounds), now_s=0, rng=random.Random(n)
            ).wait_s
            for n in range(50)
        ]
        for rounds in (1, 4, 1000)
    }
    assert all(wait > 0 for waits in pauses.values() for wait in waits)
    assert max(pauses[1]) < max(pauses[4]) < max(pauses[1000]) <= BACKOFF_S_MAX
    assert len(set(pauses[4])) == 50


def test_a_failed_gateway_is_last_until_it_is_probed() -> None:
    """A new batch is sent to a healthy gateway; later the failed one is tried again."""
    gateways = GatewaySet.of((A, B)).failed(A, now_s=100, pause_s=None)
    rng = random.Random(0)
    assert plan_attempt(gateways, SendAttempts(), now_s=101, rng=rng).url == B
    assert plan_attempt(gateways, SendAttempts(), now_s=100 + PROBE_AFTER_S, rng=rng).url == A
    assert plan_attempt(gateways.succeeded(A), SendAttempts(), now_s=101, rng=rng).url == A


def test_retry_after_prefers_another_gateway_and_otherwise_waits() -> None:
    """A gateway that requested a pause is not used while another is available."""
    rng = random.Random(0)
    gateways = GatewaySet.of((A, B)).failed(A, now_s=0, pause_s=20)
    assert plan_attempt(gateways, SendAttempts(), now_s=5, rng=rng).url == B
    both = gateways.failed(B, now_s=0, pause_s=50)
    attempt = plan_attempt(both, SendAttempts(), now_s=5, rng=rng)
    assert (attempt.url, attempt.wait_s) == (A, 15)


def test_agents_start_with_different_gateways() -> None:
    """The order is rotated by a number that differs between agents."""
    rng = random.Random(0)
    first = [
        plan_attempt(GatewaySet.of((A, B, C), first=n), SendAttempts(), now_s=0, rng=rng).url
        for n in range(6)
    ]
    assert first == [A, B, C, A, B, C]


def test_a_gateway_that_shed_is_left_and_remembered_for_a_while() -> None:
    """The agent moves and stays; the gateway is tried after the others until it is forgotten."""
    rng = random.Random(0)
    gateways = GatewaySet.of((A, B, C)).succeeded(A).shed(A, now_s=100, rng=rng)
    moved = plan_attempt(gateways, SendAttempts(), now_s=101, rng=rng).url
    assert moved != A
    gateways = gateways.succeeded(moved).succeeded(A)  # an earlier upload to A ends
    later = plan_attempt(gateways, SendAttempts(), now_s=100 + 2 * SHED_S, rng=rng)
    assert (later.url, later.wait_s) == (moved, 0)
    other = ({B, C} - {moved}).pop()
    gateways = gateways.failed(moved, now_s=110, pause_s=None)
    assert plan_attempt(gateways, SendAttempts(), now_s=111, rng=rng).url == other


def test_concurrent_responses_move_an_agent_once() -> None:
    """Three uploads to A end with a shed connection: the choice after the first one remains."""
    for seed in range(20):
        rng = random.Random(seed)
        once = GatewaySet.of((A, B, C)).shed(A, now_s=100, rng=rng)
        again = once.shed(A, now_s=101, rng=rng).shed(A, now_s=102, rng=rng)
        assert [state.url for state in again.states] == [state.url for state in once.states]


def test_among_gateways_that_all_shed_the_first_one_is_tried_first() -> None:
    rng = random.Random(0)
    gateways = GatewaySet.of((A, B))
    gateways = gateways.shed(A, now_s=100, rng=rng).shed(B, now_s=101, rng=rng)
    assert plan_attempt(gateways, SendAttempts(), now_s=102, rng=rng).url == A
    assert plan_attempt(GatewaySet.of((A,)).shed(A, now_s=1, rng=rng), SendAttempts(), now_s=2,
                        rng=rng).wait_s == 0  # fmt: skip


def test_a_gateway_that_shed_is_preferred_to_one_that_fails() -> None:
    rng = random.Random(0)
    gateways = GatewaySet.of((A, B)).shed(A, now_s=100, rng=rng).failed(B, now_s=100, pause_s=None)
    assert plan_attempt(gateways, SendAttempts(), now_s=101, rng=rng).url == A


def test_the_agents_of_one_gateway_spread_over_all_others() -> None:
    rng = random.Random(0)
    counts = Counter(
        plan_attempt(
            GatewaySet.of((A, B, C)).shed(A, now_s=100, rng=rng),
            SendAttempts(),
            now_s=101,
            rng=rng,
        ).url
        for _ in range(1000)
    )
    assert set(counts) == {B, C}
    assert min(counts.values()) > 400
