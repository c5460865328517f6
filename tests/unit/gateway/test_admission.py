import random

import pytest

from sluice_gateway.metrics import GatewayMetrics
from sluice_gateway.uploads.admission import (
    HIGH_MARK,
    NOTICE_S_MAX,
    SETTLE_S,
    BodyBudget,
    ModeWatch,
    RunningUploads,
    memory_cost,
)
from sluice_protocol.clock import machine_now
from sluice_protocol.errors import ErrorCode
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_web.problems import HttpRefusal

BUDGET_BYTES = 1_000_000
RESPONSES = 1000


def budget() -> BodyBudget:
    return BodyBudget(BUDGET_BYTES, GatewayMetrics(), random.Random(7))


def test_a_body_costs_a_quarter_more_than_its_length() -> None:
    assert (memory_cost(0), memory_cost(100)) == (0, 125)


def test_the_budget_refuses_a_body_above_its_limit_and_releases_every_body() -> None:
    bodies = budget()
    with bodies.take(BUDGET_BYTES // 2):
        assert bodies.held_bytes == memory_cost(BUDGET_BYTES // 2)
        with pytest.raises(HttpRefusal) as refused, bodies.take(BUDGET_BYTES // 2):
            pass
        assert refused.value.code is ErrorCode.OVERLOADED
    assert bodies.held_bytes == 0


def test_a_share_of_connections_is_shed_only_above_the_high_mark() -> None:
    bodies = budget()
    assert not any(bodies.sheds() for _ in range(RESPONSES))
    with bodies.take(int(BUDGET_BYTES * HIGH_MARK / 1.25)):
        assert not any(bodies.sheds() for _ in range(RESPONSES))
    with bodies.take(int(BUDGET_BYTES * (HIGH_MARK + 0.05) / 1.25)):
        assert RESPONSES // 20 < sum(bodies.sheds() for _ in range(RESPONSES)) < RESPONSES // 5


async def test_draining_refuses_new_uploads_and_waits_for_running_ones() -> None:
    running = RunningUploads(GatewayMetrics())
    with running:
        running.drain()
        assert not await running.wait_idle(0.0)
        with pytest.raises(HttpRefusal) as refused, running:
            pass
        assert refused.value.code is ErrorCode.DRAINING
    assert await running.wait_idle(1.0)


class SetClock(SystemClock):
    """A clock that a test sets."""

    now_s = 100.0
    paused_s = 0.0

    def boottime_ns(self) -> int:
        return int(self.now_s * NS_PER_S)

    def now_ns(self) -> UnixNs:
        return UnixNs(int((self.now_s + self.paused_s) * NS_PER_S))


def test_a_mode_is_known_for_a_bounded_time_after_its_check() -> None:
    clock = SetClock()
    mode = ModeWatch(clock, machine_now(clock))
    clock.now_s += NOTICE_S_MAX - 1
    mode.require_known()
    clock.now_s += 1
    assert not mode.known
    with pytest.raises(HttpRefusal) as refused:
        mode.require_known()
    assert refused.value.code is ErrorCode.STORE_UNAVAILABLE
    mode.checked_at = mode.now()
    assert mode.known


def test_a_paused_machine_does_not_know_the_mode_any_more() -> None:
    """Its monotonic clock stops. A gateway of another mode may have begun in the meantime."""
    clock = SetClock()
    mode = ModeWatch(clock, machine_now(clock))
    mode.require_unsettled()
    clock.paused_s = NOTICE_S_MAX
    assert not mode.known
    mode.require_unsettled()
    clock.paused_s = SETTLE_S
    with pytest.raises(HttpRefusal) as refused:
        mode.require_unsettled()
    assert refused.value.code is ErrorCode.OUTCOME_UNKNOWN


def test_a_switched_mode_is_never_known_again() -> None:
    clock = SetClock()
    for mode in (ModeWatch(clock), ModeWatch(clock, machine_now(clock))):
        assert mode.known
        mode.switched = True
        assert not mode.known
