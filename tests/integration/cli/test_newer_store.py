"""A store that a newer version of sluice wrote: each command ends with one line and the remedy."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import sluice
from support.local_deployment import clean_environment

REMEDY = "a newer version of sluice wrote it: upgrade this process"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("newer")
    assert sluice("init", folder=folder).returncode == 0
    assert sluice("doctor", folder=folder).returncode == 0
    (settings,) = (folder / ".sluice" / "authority").rglob("settings.json")
    settings.write_bytes(settings.read_bytes().replace(b"authority.v1", b"authority.v9"))
    (folder / "principals.toml").touch()
    return folder


@pytest.mark.parametrize(
    "command",
    [
        *("reconciler --once", "query -q x", "status", "rebuild", "init", "audit run"),
        *("queue status", "switch local_spool --spool-writer x"),
        *("gaps", "batches", "conflicts list", "doctor", "explain host-1/b1/0-1"),
        *("delete --older-than-days 30", "audit show", "gc noncurrent --dry-run"),
        *("gc stop 01M7X2Z6Q0000000000000000A --reason x",),
    ],
)
def test_a_command_reports_it_in_one_line(folder: Path, command: str) -> None:
    done = sluice(*command.split(), folder=folder)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("sluice: ")
    assert REMEDY in done.stderr
    assert "schema=`sluice.authority.v9`" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "gateway --listen 127.0.0.1:0 --principals principals.toml",
        "maintain --once",
        "console --listen 127.0.0.1:0",
    ],
)
def test_a_service_reports_it_and_ends(folder: Path, command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sluice_cli", *command.split()],
        cwd=folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert REMEDY in done.stderr.splitlines()[-1]
