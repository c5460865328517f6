"""Timestamps of the local store rise whatever the clock does, across processes and reboots."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_store.local.durability import LogicalClock

BASE_NS = 1_800_000_000 * NS_PER_S


class _Clock:
    """A clock that tests set to a time."""

    def __init__(self, at_ns: int) -> None:
        self.at_ns = at_ns

    def now_ns(self) -> UnixNs:
        return UnixNs(self.at_ns)

    def monotonic_ns(self) -> int:
        return self.at_ns

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


@contextmanager
def _opened(path: Path, clock: _Clock) -> Iterator[LogicalClock]:
    stamps = LogicalClock(path, clock)
    try:
        yield stamps
    finally:
        stamps.close()


def test_timestamps_rise_while_the_clock_moves_back(tmp_path: Path) -> None:
    """After the clock is set back by an hour, timestamps rise by one ns, and the time does not
    move.
    """
    clock = _Clock(BASE_NS)
    with _opened(tmp_path / "clock", clock) as stamps:
        first = stamps.next_ns()
        clock.at_ns -= 3600 * NS_PER_S
        assert stamps.next_ns() == first + 1
        assert stamps.now_ns() == first + 1
        assert stamps.next_ns() == first + 2


def test_a_range_of_timestamps_is_above_earlier_and_below_later_ones(tmp_path: Path) -> None:
    """The timestamps of a group are as those of its single objects."""
    clock = _Clock(BASE_NS)
    with _opened(tmp_path / "clock", clock) as stamps:
        before = stamps.next_ns()
        first = stamps.next_range_ns(64)
        assert first > before
        assert stamps.next_ns() > first + 63
        assert stamps.now_ns() > first + 63


def test_timestamps_rise_across_two_processes(tmp_path: Path) -> None:
    """Two processes with different clocks share one order."""
    fast, slow = _Clock(BASE_NS + 5 * NS_PER_S), _Clock(BASE_NS)
    with _opened(tmp_path / "clock", fast) as one, _opened(tmp_path / "clock", slow) as other:
        given = [one.next_ns(), other.next_ns(), one.next_ns(), other.next_ns()]
    assert given == sorted(set(given))


def test_timestamps_rise_after_a_lost_page_cache(tmp_path: Path) -> None:
    """After a crash lost everything since the last fsync, a new boot starts after the bound."""
    path, clock = tmp_path / "clock", _Clock(BASE_NS)
    with _opened(path, clock) as stamps:
        stamps.next_ns()
        durable = path.read_bytes()
        last = [stamps.next_ns() for _ in range(100)][-1]
    path.write_bytes(durable[:24] + b"another boot".ljust(36, b"\0"))
    clock.at_ns -= 3600 * NS_PER_S
    with _opened(path, clock) as stamps:
        assert stamps.next_ns() > last


def test_no_timestamp_is_before_a_time_already_returned(tmp_path: Path) -> None:
    """No later timestamp is before a time that a read returned: audits rely on it."""
    clock = _Clock(BASE_NS)
    with _opened(tmp_path / "clock", clock) as stamps:
        told = stamps.now_ns()
        clock.at_ns -= NS_PER_S
        assert stamps.next_ns() > told


@given(steps=st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=30))
def test_timestamps_rise_strictly(steps: list[int], tmp_path_factory: object) -> None:
    """Whatever the clock does between them, timestamps rise strictly."""
    folder = tmp_path_factory.mktemp("stamps")
    clock, given_so_far = _Clock(BASE_NS), [0]
    with _opened(folder / "clock", clock) as stamps:
        for step in steps:
            clock.at_ns += step
            given_so_far.append(stamps.next_ns())
    assert given_so_far == sorted(set(given_so_far))
