"""A store or spool of a newer version of sluice: each command ends with one line and the remedy."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.commands import sluice
from support.local_deployment import clean_environment

from sluice_agent.spool_format import EntryHeader, SpoolState, encode_entry, encode_state
from sluice_protocol.keys import digest_of

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


def _write_state(spool: Path) -> None:
    (spool / "state.json").write_bytes(encode_state(SpoolState(version=2, through=7)))


def _write_batch(spool: Path) -> None:
    frame = b"x"
    header = EntryHeader(
        version=2, order=7, agent_id="a", boot_id="b", seq_start=0, seq_end=0, kind="logs",
        frame_bytes=1, frame_sha256=digest_of(frame), sealed_at_unix_ns=1,
    )  # fmt: skip
    (spool / "ready" / header.name).write_bytes(b"".join(encode_entry(header, frame)))


@pytest.mark.parametrize("write", [_write_state, _write_batch])
def test_an_agent_leaves_a_newer_spool_as_it_is(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    """After a downgrade of the agent, it must neither park batches nor read files again."""
    (tmp_path / "spool" / "ready").mkdir(parents=True)
    write(tmp_path / "spool")
    before = contents(tmp_path / "spool")
    run = ("agent", "run", "--gateway", "http://127.0.0.1:1", "--agent-id", "a")
    done = sluice(*run, "--spool", "spool", "--paths", "*.log", "--once", folder=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert REMEDY in done.stderr
    assert "version=`2`, path=`spool/" in done.stderr
    assert before.items() <= contents(tmp_path / "spool").items()


def contents(folder: Path) -> dict[Path, bytes]:
    return {one: one.read_bytes() for one in folder.rglob("*") if one.is_file()}
