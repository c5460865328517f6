"""A fork of the prepared interpreter behaves as a start of the command."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.constants import command_with_constants
from support.sluice_process import SluiceProcess, run_process

SLUICE = (sys.executable, "-m", "sluice_cli")


@pytest.mark.daily(2)
@pytest.mark.parametrize("words", [("--version",), ("nosuch",), ("init", "--json"), ("gaps",)])
def test_output_and_exit_code_are_those_of_a_start(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A deployment that another test runs would be found.
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    started, forked = tmp_path / "started", tmp_path / "forked"
    for folder in (started, forked):
        folder.mkdir()
    usual = subprocess.run(
        (*SLUICE, *words), cwd=started, capture_output=True, text=True, check=False, timeout=60
    )
    other = run_process((*SLUICE, *words), cwd=forked, text=True)
    assert other.returncode == usual.returncode
    for found, expected in ((other.stdout, usual.stdout), (other.stderr, usual.stderr)):
        assert len(found.splitlines()) == len(expected.splitlines()), found
    assert sorted(map(str, forked.iterdir())) == [
        str(forked / path.name) for path in sorted(started.iterdir())
    ]


def test_it_is_a_child_of_the_test_with_its_own_environment_and_constants(tmp_path: Path) -> None:
    command = command_with_constants("sluice_agent.settings:AgentSettings.pipe_drain_s=0.2")
    words = ("forward", "--gateway", "http://127.0.0.1:9", "--json")
    with SluiceProcess(
        [*command, *words], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=tmp_path
    ) as process:
        found = psutil.Process(process.pid)
        assert found.ppid() == os.getpid()
        assert "sluice_process.py" in " ".join(found.cmdline())
        process.kill()
        assert process.wait(20) == -signal.SIGKILL
    environment = {**os.environ, "SLUICE_STORE": f"file://{tmp_path}/other"}
    assert run_process((*SLUICE, "init"), cwd=tmp_path, env=environment).returncode == 0
    assert (tmp_path / "other").is_dir()


def test_an_interpreter_with_other_variables_is_started(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONVERBOSE": "1"}
    done = run_process((*SLUICE, "--version"), cwd=tmp_path, env=environment, text=True)
    assert "import 'site'" in done.stderr
