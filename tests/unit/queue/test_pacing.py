"""The pause between swaps."""

import random

from sluice_queue.appender import PAUSE_S_MAX, Pacer


def test_a_producer_without_rivals_never_waits() -> None:
    """Without conflicts there is no pause, however many swaps are committed."""
    pacer = Pacer()
    for at in range(100):
        assert pacer.wait_s(at, random.Random(1)) == 0
        pacer.committed(at, 0.005)


def test_conflicts_lengthen_the_pause_to_a_bound_and_commits_end_it() -> None:
    """Each conflict doubles the pause up to a bound; committed swaps reduce it to zero."""
    pacer = Pacer()
    pacer.committed(0, 0.01)
    pacer.conflicted()
    assert pacer.pause_s == 0.1
    for _ in range(10):
        pacer.conflicted()
    assert pacer.pause_s == PAUSE_S_MAX
    rng = random.Random(1)
    waits = [pacer.wait_s(0, rng) for _ in range(200)]
    assert 0.5 <= min(waits) / PAUSE_S_MAX < max(waits) / PAUSE_S_MAX <= 1.5
    for _ in range(700):
        pacer.committed(0, 0.01)
    assert pacer.pause_s == 0


def test_one_swap_in_forty_five_conflicts_in_balance() -> None:
    """If a longer pause means fewer conflicts, their share settles near 2.1 %."""
    pacer, rng, collided = Pacer(), random.Random(7), 0
    pacer.committed(0, 0.005)
    for number in range(20_000):
        if rng.random() < min(1.0, 3 * 0.005 / max(pacer.pause_s, 0.005)):
            pacer.conflicted()
            collided += number >= 10_000
        else:
            pacer.committed(0, 0.005)
    assert 0.015 < collided / 10_000 < 0.05
