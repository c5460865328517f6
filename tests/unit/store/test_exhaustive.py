"""The type checker rejects a caller that does not handle every outcome."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CALLER = """
from sluice_protocol.outcomes import Applied, CreateOutcome, Exists, Unknown

def accepted(outcome: CreateOutcome) -> bool:
    match outcome:
        case Applied():
            return True
        case Exists():
            return False
"""
COMPLETE = (
    CALLER
    + """        case Unknown():
            return False
"""
)


def _mypy(source: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / "caller.py"
    path.write_text(source)
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    command += ["--cache-dir", str(folder / "cache"), str(path)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_forgotten_unknown_is_a_type_error(tmp_path: Path) -> None:
    forgotten = _mypy(CALLER, tmp_path)
    assert forgotten.returncode == 1
    assert "Unknown" in forgotten.stdout
    assert _mypy(COMPLETE, tmp_path).returncode == 0, "complete"
