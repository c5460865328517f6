"""Commands that read find the store of a deployment that runs on this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import sluice

from sluice_cli.shell.running import RunningDeployment, announce, find_running


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    return tmp_path


def _deployment(store: Path, pid: int = 0) -> RunningDeployment:
    return RunningDeployment(
        pid=pid or os.getpid(), store=f"file://{store}", addresses={"query": "127.0.0.1:1"}
    )


def test_a_reading_command_states_the_store_that_it_found(runtime: Path) -> None:
    """Commands that write need `--store`, and a store of the folder is used before another."""
    store, elsewhere = runtime / "store", runtime / "elsewhere"
    elsewhere.mkdir()
    assert sluice("init", "--store", f"file://{store}").returncode == 0
    assert sluice("gaps", folder=elsewhere).returncode == 2
    path = announce(_deployment(store))
    assert path.stat().st_mode & 0o777 == 0o600
    done = sluice("gaps", folder=elsewhere)
    assert done.returncode == 0, done.stderr
    said = f"store of the running deployment: file://{store}, pid={os.getpid()}\n"
    assert done.stderr.startswith(said)
    assert sluice("rebuild", folder=elsewhere).returncode == 2
    assert sluice("init", folder=elsewhere).returncode == 0
    assert said not in sluice("gaps", folder=elsewhere).stderr


def test_the_file_of_a_process_that_ended_is_removed(runtime: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    path = announce(_deployment(runtime / "a", ended.pid))
    assert [one.pid for one in find_running()] == [ended.pid]
    ended.communicate(b"\n")
    assert find_running() == []
    assert not path.exists()
    again = announce(_deployment(runtime / "a"))
    state = json.loads(again.read_text())
    again.write_text(json.dumps({**state, "started": "1"}))  # another process has the number now
    assert find_running() == []
    announce(_deployment(runtime / "a")).write_text("{")
    assert find_running() == []


def test_of_several_stores_one_must_be_chosen(runtime: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        announce(_deployment(runtime / "a", other.pid))
        announce(_deployment(runtime / "b"))
        done = sluice("gaps", folder=runtime)
    finally:
        other.communicate(b"\n")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "several deployments run on this machine: choose one with `--store`" in done.stderr
