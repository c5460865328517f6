"""The gateway and the time of the next attempt."""

import random
from collections import Counter

from sluice_agent.sending.gateway_choice import (
    BACKOFF_S_MAX,
    LATENCY_FADES_S,
    PROBE_AFTER_S,
    REDRAW_S,
    SHED_S,
    GatewaySet,
    GatewayTarget,
    SendAttempts,
    plan_attempt,
)

A, B, C = (GatewayTarget(url=f"http://{name}") for name in "abc")


def chosen(
    gateways: GatewaySet,
    *,
    now_s: float,
    attempts: SendAttempts | None = None,
    rng: random.Random | None = None,
) -> GatewayTarget:
    rng = rng or random.Random(0)
    drawn = gateways.with_choices(now_s=now_s, rng=rng)
    attempt = plan_attempt(drawn, attempts or SendAttempts(), now_s=now_s, rng=rng)
    assert attempt.wait_s == 0
    return attempt.target


def test_after_a_failure_the_next_gateway_is_tried_immediately() -> None:
    """Within a round there is no pause, and no gateway is tried twice."""
    gateways, attempts, used = GatewaySet.of((A, B, C)), SendAttempts(), []
    for _ in range(3):
        target = chosen(gateways, now_s=0, attempts=attempts)
        used.append(target)
        gateways = gateways.failed(target, now_s=0, pause_s=None)
        attempts = attempts.after(target, gateways)
    assert set(used) == {A, B, C}
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
    gateways = GatewaySet.of((A, B)).succeeded(B, now_s=99, latency_s=1.0)
    gateways = gateways.failed(A, now_s=100, pause_s=None)
    assert chosen(gateways, now_s=101) == B
    assert chosen(gateways, now_s=100 + PROBE_AFTER_S) == A
    again = gateways.failed(A, now_s=101 + PROBE_AFTER_S, pause_s=None)
    assert chosen(again, now_s=101 + 2.5 * PROBE_AFTER_S) == B
    assert chosen(again, now_s=101 + 3 * PROBE_AFTER_S) == A


def test_concurrent_failures_count_once() -> None:
    gateways = GatewaySet.of((A, B))
    for moment in range(4):
        gateways = gateways.failed(A, now_s=100 + moment, pause_s=None)
    assert gateways.states[0].failures == 1


def test_retry_after_prefers_another_gateway_and_otherwise_waits() -> None:
    rng = random.Random(0)
    gateways = GatewaySet.of((A, B)).failed(A, now_s=0, pause_s=20)
    assert chosen(gateways, now_s=5) == B
    both = gateways.failed(B, now_s=0, pause_s=50)
    attempt = plan_attempt(both, SendAttempts(), now_s=5, rng=rng)
    assert (attempt.target, attempt.wait_s) == (A, 15)


def test_the_faster_of_two_choices_is_used() -> None:
    """Both are tried, then the faster one is used; a small difference does not move an agent."""
    gateways = GatewaySet.of((A, B)).succeeded(A, now_s=0, latency_s=0.1)
    assert chosen(gateways, now_s=0) == B
    assert chosen(gateways.succeeded(B, now_s=0, latency_s=0.5), now_s=1) == A
    close = gateways.succeeded(B, now_s=1, latency_s=0.105)
    assert chosen(close, now_s=1) == B


def test_a_slow_gateway_is_tried_again_when_its_latency_has_faded() -> None:
    gateways = GatewaySet.of((A, B)).succeeded(A, now_s=0, latency_s=1.0)
    for moment in range(3):
        gateways = gateways.succeeded(B, now_s=moment, latency_s=0.2)
    assert chosen(gateways, now_s=2) == B
    later_s = 3 * LATENCY_FADES_S
    assert chosen(gateways.succeeded(B, now_s=later_s, latency_s=0.2), now_s=later_s) == A


def test_only_two_gateways_are_in_use_and_the_slower_one_is_replaced() -> None:
    rng = random.Random(1)
    targets = tuple(GatewayTarget(url="http://g", address=f"10.0.0.{n}") for n in range(20))
    gateways, used = GatewaySet.of(targets), []
    for second in range(int(10 * REDRAW_S)):
        gateways = gateways.with_choices(now_s=second, rng=rng)
        assert len(gateways.choices) == 2
        target = plan_attempt(gateways, SendAttempts(), now_s=second, rng=rng).target
        gateways = gateways.succeeded(
            target, now_s=second, latency_s=0.1 if target == targets[3] else 1.0
        )
        used.append(target)
    minute = int(REDRAW_S)
    assert all(len(set(used[n : n + minute])) <= 4 for n in range(len(used) - minute))
    assert len(set(used)) > 5


def test_a_gateway_that_shed_is_left_for_a_while() -> None:
    """The agent moves; the gateway is tried after the others until it is forgotten."""
    gateways = GatewaySet.of((A, B)).succeeded(A, now_s=99, latency_s=0.01)
    gateways = gateways.succeeded(B, now_s=99, latency_s=1.0)
    assert chosen(gateways, now_s=100) == A
    gateways = gateways.shed(A, now_s=100).succeeded(A, now_s=101, latency_s=0.01)
    assert chosen(gateways, now_s=100 + SHED_S - 1) == B
    assert chosen(gateways.succeeded(B, now_s=100 + SHED_S, latency_s=1.0), now_s=100 + SHED_S) == A


def test_among_gateways_that_all_shed_the_first_one_is_tried_first() -> None:
    gateways = GatewaySet.of((A, B)).shed(A, now_s=100).shed(B, now_s=101)
    assert chosen(gateways, now_s=102) == A
    assert chosen(GatewaySet.of((A,)).shed(A, now_s=1), now_s=2) == A


def test_a_gateway_that_shed_is_preferred_to_one_that_fails() -> None:
    gateways = GatewaySet.of((A, B)).shed(A, now_s=100).failed(B, now_s=100, pause_s=None)
    assert chosen(gateways, now_s=101) == A


def test_the_agents_of_one_gateway_spread_over_all_others() -> None:
    gateways = GatewaySet.of((A, B, C)).shed(A, now_s=100)
    counts = Counter(chosen(gateways, now_s=101, rng=random.Random(n)) for n in range(1000))
    assert set(counts) == {B, C}
    assert min(counts.values()) > 400


def test_agents_start_with_different_gateways() -> None:
    gateways = GatewaySet.of((A, B, C))
    counts = Counter(chosen(gateways, now_s=0, rng=random.Random(n)) for n in range(300))
    assert min(counts[one] for one in (A, B, C)) > 60


def test_new_addresses_keep_what_is_known_about_the_others() -> None:
    gateways = GatewaySet.of((A, B)).failed(A, now_s=100, pause_s=None).replaced((C, A))
    assert [state.target for state in gateways.states] == [C, A]
    assert chosen(gateways, now_s=101) == C
    attempts = SendAttempts(used=frozenset({B})).after(C, gateways)
    assert attempts.rounds == 0
    assert attempts.after(A, gateways) == SendAttempts(rounds=1)
