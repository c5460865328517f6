"""The tools that check the files of `deploy/`, and the help of each command in them."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sluice" / "deploy-tools"


def tool(name: str) -> str:
    path = next(
        (one for one in (TOOLS / name, TOOLS / "venv" / "bin" / name) if one.exists()), None
    )
    found = str(path) if path is not None else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: run `make test-deploy`")
    return found


def run(*words: str | Path, cwd: Path = ROOT, **env: str) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
