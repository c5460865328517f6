"""On the real disk of an agent, the bytes of a file are durable before its name, and then its name.

The simulated disk of the crash tests loses what was not synced; here the system calls are counted.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice_agent.spool.directory import SpoolDirectory
from sluice_agent.spool.disk import RealDisk
from sluice_agent.spool.format import SpoolState

PARTS = (b"first ", b"second")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the syncs, with the size of what is synced, and the renames, in their order."""
    found: list[str] = []
    rename = Path.rename

    def synced(number: int) -> None:
        path = Path(f"/proc/self/fd/{number}").readlink()
        size = "" if path.is_dir() else f" {os.fstat(number).st_size}"
        found.append(f"sync {path.name}{size}")

    def renamed(source: Path, target: Path) -> Path:
        found.append(f"rename {source.name} {target.name}")
        return rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    return found


@pytest.mark.parametrize(
    ("sync", "wanted"),
    [(True, ["sync b.tmp 12", "rename b.tmp b", "sync ready"]), (False, ["rename b.tmp b"])],
)
def test_a_batch_is_durable_when_it_is_published(
    tmp_path: Path, calls: list[str], sync: bool, wanted: list[str]
) -> None:
    spool = SpoolDirectory(tmp_path, RealDisk(), sync=sync)
    spool.open()
    calls.clear()
    spool.publish("b", PARTS)
    spool.close()
    assert calls == wanted
    assert (tmp_path / "ready" / "b").read_bytes() == b"".join(PARTS)


@pytest.mark.parametrize("sync", [True, False])
def test_the_folders_of_a_new_spool_are_durable_when_it_is_open(
    tmp_path: Path, calls: list[str], sync: bool
) -> None:
    """Also the names of the parents that are created with it."""
    spool = SpoolDirectory(tmp_path / "a" / "spool", RealDisk(), sync=sync)
    spool.open()
    spool.close()
    wanted = ["sync a", f"sync {tmp_path.name}", *4 * ["sync spool"]]
    assert calls == (wanted if sync else [])


@pytest.mark.parametrize("sync", [True, False])
def test_the_state_is_durable_also_without_syncs(
    tmp_path: Path, calls: list[str], sync: bool
) -> None:
    SpoolDirectory(tmp_path, RealDisk(), sync=sync).write_state(SpoolState())
    size = (tmp_path / "state.json").stat().st_size
    assert calls == [
        f"sync state.tmp {size}",
        "rename state.tmp state.json",
        f"sync {tmp_path.name}",
    ]


def test_a_write_that_the_system_divides_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write: Callable[[int, memoryview], int] = os.write
    monkeypatch.setattr(os, "write", lambda number, part: write(number, part[:2]))
    RealDisk().write_new(tmp_path / "b", PARTS, sync=False)
    assert (tmp_path / "b").read_bytes() == b"".join(PARTS)
