"""When the file system of a store is synced as a whole."""

import ctypes
from pathlib import Path

import pytest
from support.gc_world import MovedClock

from sluice_protocol.system_clock import SystemClock
from sluice_store.local import durability
from sluice_store.local.durability import (
    DIRTY_BYTES_MAX,
    PAUSE_NS,
    SLOW_NS,
    NoFileSystemSync,
    SyncFs,
    SyncPause,
    open_filesystem_sync,
    read_dirty_bytes,
)


def test_no_call_is_made_while_much_is_unwritten() -> None:
    pause = SyncPause()
    assert pause.permits(now_ns=0, dirty_bytes=DIRTY_BYTES_MAX)
    assert not pause.permits(now_ns=0, dirty_bytes=DIRTY_BYTES_MAX + 1)


def test_no_call_is_made_for_some_time_after_a_slow_one() -> None:
    pause = SyncPause()
    assert not pause.ended(now_ns=0, taken_ns=SLOW_NS)
    assert pause.permits(now_ns=0, dirty_bytes=0)
    assert pause.ended(now_ns=7, taken_ns=SLOW_NS + 1)
    assert not pause.permits(now_ns=7 + PAUSE_NS - 1, dirty_bytes=0)
    assert pause.permits(now_ns=7 + PAUSE_NS, dirty_bytes=0)


def test_the_store_counts_unwritten_bytes_and_slow_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, dirty = MovedClock(), [0]
    monkeypatch.setattr(durability, "read_dirty_bytes", lambda: dirty[0])

    def slow(_: int) -> int:
        clock.pass_s(1)
        return 0

    made = SyncFs(tmp_path, clock, slow)
    assert made.is_ready()
    dirty[0] = DIRTY_BYTES_MAX + 1
    clock.pass_s(1)
    assert not made.is_ready()
    dirty[0] = 0
    clock.pass_s(1)
    assert made.is_ready()
    with made.watched() as sync:
        sync()
    assert not made.is_ready()
    clock.pass_s(PAUSE_NS // 10**9)
    assert made.is_ready()


def test_a_system_that_does_not_count_unwritten_bytes_is_never_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> int:
        raise OSError(2, "no such file")

    monkeypatch.setattr(durability, "read_dirty_bytes", fail)
    made = SyncFs(tmp_path, SystemClock(), lambda _: 0)
    assert not made.is_ready()


def test_a_failed_call_raises(tmp_path: Path) -> None:
    def fail(_: int) -> int:
        ctypes.set_errno(5)
        return -1

    made = SyncFs(tmp_path, SystemClock(), fail)
    with made.watched() as sync, pytest.raises(OSError, match="Input/output error"):
        sync()


def test_the_directory_of_a_store_is_synced(tmp_path: Path) -> None:
    """Where the file system is suitable; elsewhere groups are not written."""
    made = open_filesystem_sync(tmp_path, SystemClock())
    if not isinstance(made, NoFileSystemSync):
        with made.watched() as sync:
            sync()
    assert read_dirty_bytes() >= 0


def test_other_file_systems_and_systems_have_no_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(open_filesystem_sync(Path("/proc"), SystemClock()), NoFileSystemSync)
    monkeypatch.setattr(durability, "_release", lambda: (5, 7))
    found = open_filesystem_sync(tmp_path, SystemClock())
    assert isinstance(found, NoFileSystemSync)
    assert not found.is_ready()
    with pytest.raises(OSError, match="as a whole"), found.watched():
        pass


def test_each_group_has_a_descriptor_that_was_opened_before_its_writes(tmp_path: Path) -> None:
    """A failed write is reported once to a descriptor: a shared one could report it to another."""
    used: list[int] = []

    def record(fd: int) -> int:
        used.append(fd)
        return 0

    made = SyncFs(tmp_path, SystemClock(), record)
    with made.watched() as one, made.watched() as other:
        for sync in (one, other, one):
            sync()
    assert used[0] == used[2] != used[1]
