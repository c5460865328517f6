"""Processes of this machine: only one that is known to have ended counts as ended."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from sluice_reconciler.lanes.membership import HostProcess, SystemProcesses

PROCESSES = SystemProcesses()

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")


def running_child() -> tuple[subprocess.Popen[bytes], HostProcess]:
    """Start a process; return it with its identity."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    mine = PROCESSES.current()
    assert mine is not None
    fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    return child, replace(mine, pid=child.pid, started=int(fields[19]))


def test_a_process_has_ended_when_it_is_killed_and_not_before() -> None:
    child, process = running_child()
    try:
        assert not PROCESSES.has_ended(process)
        os.kill(child.pid, signal.SIGSTOP)
        assert not PROCESSES.has_ended(process)
        child.kill()
        until_s = time.monotonic() + 20
        while not PROCESSES.has_ended(process):  # a zombie, until it is waited for
            assert time.monotonic() < until_s
            time.sleep(0.01)
    finally:
        child.kill()
        child.wait()
    assert PROCESSES.has_ended(process)


def test_a_pid_that_another_process_has_now_shows_that_the_process_has_ended() -> None:
    mine = PROCESSES.current()
    assert not PROCESSES.has_ended(mine)
    assert PROCESSES.has_ended(replace(mine, started=mine.started - 1))


def test_nothing_is_known_of_processes_of_another_boot_or_namespace() -> None:
    child, process = running_child()
    child.kill()
    child.wait()
    assert PROCESSES.has_ended(process)
    for other in (replace(process, boot="another"), replace(process, namespace=1)):
        assert not PROCESSES.has_ended(other)


def test_a_process_of_another_user_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    mine = PROCESSES.current()
    assert mine is not None
    monkeypatch.setattr(os, "kill", refuse)
    assert not PROCESSES.has_ended(mine)
    assert not PROCESSES.has_ended(replace(mine, pid=2**31 - 1))
