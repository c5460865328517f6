"""A lost or damaged clock file is rebuilt from the store, so that no timestamp repeats."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from sluice_protocol.errors import StoreMisconfigured
from sluice_protocol.outcomes import NotFound
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_store.local import open_local_store

BASE_NS = 1_800_000_000 * NS_PER_S
DAY_NS = 86_400 * NS_PER_S
A, B = ObjectKey("accepted/v1/a"), ObjectKey("deep/er/b")


class _WallClock:
    """A wall clock that tests set."""

    def __init__(self, at_ns: int) -> None:
        self.at_ns = at_ns

    def now_ns(self) -> UnixNs:
        return UnixNs(self.at_ns)

    def monotonic_ns(self) -> int:
        return self.at_ns

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


def clock_file(root: Path) -> Path:
    return root / ".sluice" / "clock"


def fill(root: Path) -> int:
    """Write an object and three states of another; return the highest time that was given."""

    async def run() -> int:
        async with open_local_store(root, clock=_WallClock(BASE_NS)) as store:
            await store.create(A, b"a")
            for body in (b"1", b"2", b"3"):
                await store.overwrite(B, body)
            seen = await store.get(B)
            return seen.info.date_ns

    return asyncio.run(run())


def times_after(root: Path, wall_ns: int, key: str = "new") -> list[int]:
    """Return the time of the store and the timestamps of two writes, after opening it again."""

    async def run() -> list[int]:
        async with open_local_store(root, clock=_WallClock(wall_ns)) as store:
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
    async with open_local_store(tmp_path, clock=_WallClock(BASE_NS)) as old:
        await old.create(A, b"a")
        lose(tmp_path, "missing")
        if how == "replaced":
            async with open_local_store(tmp_path, clock=_WallClock(BASE_NS - DAY_NS)) as new:
                await new.create(B, b"b")
        with pytest.raises(StoreMisconfigured, match="restart"):
            await old.create(ObjectKey("late"), b"late")
        with pytest.raises(StoreMisconfigured, match="restart"):
            await old.head(A)
