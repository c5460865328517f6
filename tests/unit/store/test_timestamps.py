"""Timestamps of the local store rise whatever happens to the clock, its file and its machine."""

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice_protocol.errors import StoreMisconfigured
from sluice_protocol.outcomes import NotFound
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_store.local import open_local_store
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
    clock = _Clock(BASE_NS)
    with _opened(tmp_path / "clock", clock) as stamps:
        told = stamps.now_ns()
        clock.at_ns -= NS_PER_S
        assert stamps.next_ns() > told


@given(steps=st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=30))
def test_timestamps_rise_strictly(steps: list[int], tmp_path_factory: object) -> None:
    folder = tmp_path_factory.mktemp("stamps")
    clock, given_so_far = _Clock(BASE_NS), [0]
    with _opened(folder / "clock", clock) as stamps:
        for step in steps:
            clock.at_ns += step
            given_so_far.append(stamps.next_ns())
    assert given_so_far == sorted(set(given_so_far))


DAY_NS = 86_400 * NS_PER_S
A, B = ObjectKey("accepted/v1/a"), ObjectKey("deep/er/b")


def clock_file(root: Path) -> Path:
    return root / ".sluice" / "clock"


def fill(root: Path) -> int:
    """Write an object and three states of another; return the highest time that was given."""

    async def run() -> int:
        async with open_local_store(root, clock=_Clock(BASE_NS)) as store:
            await store.create(A, b"a")
            for body in (b"1", b"2", b"3"):
                await store.overwrite(B, body)
            seen = await store.get(B)
            return seen.info.date_ns

    return asyncio.run(run())


def times_after(root: Path, wall_ns: int, key: str = "new") -> list[int]:
    """Return the time of the store and the timestamps of two writes, after opening it again."""

    async def run() -> list[int]:
        async with open_local_store(root, clock=_Clock(wall_ns)) as store:
            missing = await store.get(ObjectKey("none"))
            created = await store.create(ObjectKey(key), b"c")
            replaced = await store.overwrite(A, b"again")
            assert isinstance(missing, NotFound)
            return [missing.date_ns, created.date_ns, replaced.date_ns]

    return asyncio.run(run())


def lose(root: Path, how: str) -> None:
    clock = clock_file(root)
    match how:
        case "missing":
            clock.unlink()
        case "empty":
            clock.write_bytes(b"")
        case "cut short":
            clock.write_bytes(clock.read_bytes()[:11])
        case "other bytes":
            clock.write_bytes(b"\x00" * 4096)
        case "whole hidden folder":
            shutil.rmtree(root / ".sluice")


LOSSES = ("missing", "empty", "cut short", "other bytes", "whole hidden folder")


@pytest.mark.parametrize("how", LOSSES)
def test_times_continue_after_the_clock_file_is_lost_and_the_wall_clock_moved_back(
    tmp_path: Path, how: str
) -> None:
    given = fill(tmp_path)
    lose(tmp_path, how)
    times = times_after(tmp_path, BASE_NS - DAY_NS)
    assert [given, *times] == sorted({given, *times})
    # The rebuilt file is a normal one: the next open continues from it.
    assert times_after(tmp_path, BASE_NS - DAY_NS, "newer")[0] >= times[-1]


@pytest.mark.parametrize("kind", ["noncurrent", "hidden file"])
def test_timestamps_of_files_that_no_listing_shows_count_too(tmp_path: Path, kind: str) -> None:
    """A hidden file may be linked by a writer that is still running; a deletion makes a noncurrent
    state current.
    """
    fill(tmp_path)
    highest = BASE_NS + 3600 * NS_PER_S
    folder = tmp_path / ".sluice" / ("tmp" if kind == "hidden file" else "generations")
    late = folder / "late"
    late.write_bytes(b"x")
    os.utime(late, ns=(highest, highest))
    lose(tmp_path, "missing")
    assert min(times_after(tmp_path, BASE_NS - DAY_NS)) > highest


def test_new_store_starts_at_the_wall_clock(tmp_path: Path) -> None:
    assert times_after(tmp_path / "new", BASE_NS)[0] == BASE_NS


@pytest.mark.parametrize(("version", "writer"), [(0, "an unreleased"), (2, "a newer")])
def test_clock_file_of_another_version_is_refused(
    tmp_path: Path, version: int, writer: str
) -> None:
    fill(tmp_path)
    other = b"SLUICEC%d" % version + bytes(60)
    clock_file(tmp_path).write_bytes(other)
    with pytest.raises(StoreMisconfigured, match=f"clock file: {writer} version of sluice"):
        times_after(tmp_path, BASE_NS)
    assert clock_file(tmp_path).read_bytes() == other


@pytest.mark.parametrize("how", ["missing", "replaced"])
async def test_open_store_refuses_to_continue_on_a_clock_file_that_was_removed(
    tmp_path: Path, how: str
) -> None:
    """Otherwise two processes would assign timestamps from two files."""
    async with open_local_store(tmp_path, clock=_Clock(BASE_NS)) as old:
        await old.create(A, b"a")
        lose(tmp_path, "missing")
        if how == "replaced":
            async with open_local_store(tmp_path, clock=_Clock(BASE_NS - DAY_NS)) as new:
                await new.create(B, b"b")
        with pytest.raises(StoreMisconfigured, match="restart"):
            await old.create(ObjectKey("late"), b"late")
        with pytest.raises(StoreMisconfigured, match="restart"):
            await old.head(A)
