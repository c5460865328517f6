"""What failures of loops mean: the next try clears them, and only time makes them matter."""

from dataclasses import dataclass

import pytest
import structlog

from sluice_protocol.errors import StoreUnavailable
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_reconciler.loop_health import (
    LOG_AGAIN_S,
    NEEDED,
    REASON_CHARS_MAX,
    RECOVERY_S,
    RETRY_S,
    STALLED_S,
    Loop,
    ReconcilerHealth,
)
from sluice_reconciler.passes.loop import FAILED_REST_S, JOURNALED_REST_MAX_S, rest_s, worked_s

DURATIONS_S = (1, 3, 10, 60, 300, 86_400)


@dataclass
class Clock:
    """Virtual time."""

    at_s: float = 0.0

    def now_ns(self) -> int:
        return int(self.at_s * NS_PER_S)


def error(reason: str = "no response") -> StoreUnavailable:
    return StoreUnavailable("get", ObjectKey("k"), reason)


def working(clock: Clock) -> ReconcilerHealth:
    return ReconcilerHealth(now_ns=clock.now_ns, journal_passes=1)


def fail_for(health: ReconcilerHealth, clock: Clock, loop: Loop, seconds: float) -> None:
    """Let a loop fail every second."""
    end_s = clock.at_s + seconds
    while clock.at_s < end_s:
        health.fail(loop, error())
        clock.at_s += RETRY_S


@pytest.mark.parametrize("loop", list(Loop))
@pytest.mark.parametrize("seconds", DURATIONS_S)
def test_one_success_ends_a_failure_of_any_length(loop: Loop, seconds: float) -> None:
    clock = Clock()
    health = working(clock)
    fail_for(health, clock, loop, min(seconds, 400))
    clock.at_s = seconds
    is_stalled = seconds >= STALLED_S
    assert [one.loop for one in health.stalled] == ([loop] if is_stalled else [])
    assert bool(health.why_not_ready()) == (is_stalled and loop in NEEDED)
    health.succeed(loop)
    assert health.stalled == ()
    assert health.why_not_ready() == ""
    assert health.failures(loop) == 0


@pytest.mark.parametrize("loop", list(Loop))
def test_the_success_of_another_loop_hides_no_failure(loop: Loop) -> None:
    clock = Clock()
    health = working(clock)
    fail_for(health, clock, loop, 2 * STALLED_S)
    for other in set(Loop) - {loop}:
        health.succeed(other)
    assert [one.loop for one in health.stalled] == [loop]


def test_the_reason_is_of_the_last_try_and_bounded() -> None:
    clock = Clock()
    health = working(clock)
    fail_for(health, clock, Loop.JOURNALS, 2 * STALLED_S)
    health.fail(Loop.JOURNALS, error("last" + "x" * 10_000))
    (one,) = health.stalled
    assert "last" in one.reason
    assert len(one.reason) == REASON_CHARS_MAX
    assert "loop=`journals`" in health.why_not_ready()


def test_a_failure_that_continues_is_logged_now_and_then() -> None:
    """The scans of a directory fail several times a second; the disk would fill."""
    clock = Clock()
    health = working(clock)
    with structlog.testing.capture_logs() as lines:
        for _ in range(400):
            health.fail(Loop.BOOT_TAILS, error())
            clock.at_s += 0.25
        health.succeed(Loop.BOOT_TAILS)
    failures = [one for one in lines if one["event"] == "route_failed"]
    assert len(failures) == 100 / LOG_AGAIN_S
    assert (failures[0]["tries"], failures[1]["tries"]) == (1, 41)
    assert [one["event"] for one in lines if one not in failures] == ["loop_recovered"]


@pytest.mark.parametrize("journaled", [True, False])
@pytest.mark.parametrize("took_s", DURATIONS_S)
def test_the_pause_after_a_failed_pass_does_not_grow(took_s: float, *, journaled: bool) -> None:
    assert rest_s(None, journaled=journaled, interval_s=1.0) == FAILED_REST_S < RECOVERY_S
    assert rest_s(took_s, journaled=True, interval_s=1.0, wanted=True) <= took_s
    assert rest_s(took_s, journaled=True, interval_s=1.0) <= JOURNALED_REST_MAX_S


@pytest.mark.parametrize("journaled", [True, False])
@pytest.mark.parametrize("took_s", DURATIONS_S)
def test_the_pause_after_a_pass_that_waited_for_the_store_does_not_grow(
    took_s: float, *, journaled: bool
) -> None:
    """Such a pass may succeed: its writes are repeated, or its lanes are lost meanwhile."""
    assert rest_s(worked_s(took_s, 500), journaled=journaled, interval_s=1.0) < RECOVERY_S
    assert worked_s(30.0, 10_000_000) == 30.0
