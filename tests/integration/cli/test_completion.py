"""The completion script, used by a real bash; `make test-package` uses zsh and fish too."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.completion_shells import complete_in_bash


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    command = [sys.executable, "-m", "sluice_cli", "completion", "bash"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    path = tmp_path_factory.mktemp("completion") / "sluice"
    path.write_bytes(done.stdout)
    return path


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("words", "found"),
    [(("quer",), "query"), (("gc", "cyc"), "cycle"), (("gateway", "--coll"), "--collector-id")],
)
def test_bash_completes_commands_and_options(
    script: Path, words: tuple[str, ...], found: str
) -> None:
    assert found in complete_in_bash(script, "sluice", *words)
    assert "agent" not in complete_in_bash(script, "sluice", *words)


def test_an_unknown_shell_is_refused_with_the_known_ones() -> None:
    command = [sys.executable, "-m", "sluice_cli", "completion", "ksh"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "fish" in done.stdout + done.stderr
