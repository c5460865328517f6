"""The completion script, used by a real bash."""

import subprocess
import sys
from pathlib import Path

import pytest

COMPLETE = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_sluice
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    command = [sys.executable, "-m", "sluice_cli", "completion", "bash"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    path = tmp_path_factory.mktemp("completion") / "sluice"
    path.write_bytes(done.stdout)
    return path


def complete(script: Path, *words: str) -> list[str]:
    command = ["bash", "-c", COMPLETE, "bash", str(script), "sluice", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "found"),
    [(("quer",), "query"), (("gc", "cyc"), "cycle"), (("gateway", "--coll"), "--collector-id")],
)
def test_bash_completes_commands_and_options(
    script: Path, words: tuple[str, ...], found: str
) -> None:
    assert found in complete(script, *words)
    assert "agent" not in complete(script, *words)


def test_an_unknown_shell_is_refused_with_the_known_ones() -> None:
    command = [sys.executable, "-m", "sluice_cli", "completion", "ksh"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "fish" in done.stdout + done.stderr
