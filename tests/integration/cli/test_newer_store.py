"""A store or spool of a newer version, or of a fleet that is upgraded by half: one line each."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from support.commands import sluice
from support.local_deployment import clean_environment
from support.reconciler_seed import accept_logs

from sluice_agent.spool_format import EntryHeader, SpoolState, encode_entry, encode_state
from sluice_protocol.keys import digest_of
from sluice_store.local import open_local_store

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


@pytest.fixture(scope="module", params=["lane", "register"])
def half_upgraded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a store whose records of a lane an upgraded process has written."""
    folder = tmp_path_factory.mktemp("half")
    assert sluice("init", "--lanes", "1", folder=folder).returncode == 0

    async def accept(seq: int) -> None:
        async with open_local_store(folder / ".sluice") as store:
            await accept_logs(store, ["a line"], seq=seq, at_ns=time.time_ns())

    asyncio.run(accept(0))
    assert sluice("reconciler", "--once", folder=folder).returncode == 0
    asyncio.run(accept(1))
    if request.param == "lane":
        path = folder / ".sluice" / "reconciler" / "v1" / "lanes" / "spark.000"
        newer = b'{"schema":"sluice.reconciler_lane.v9"}'
        path.write_bytes(zstandard.ZstdCompressor().compress(newer))
    else:
        path = folder / ".sluice" / "queue" / "v1" / "spark.000" / "manifest"
        body = path.read_bytes()
        path.write_bytes(body[:4] + b"\x09\x00" + body[6:])
    return folder


@pytest.mark.parametrize("command", ["reconciler --once", "queue status", "status", "rebuild"])
def test_a_process_that_is_not_upgraded_yet_reports_it_in_one_line(
    half_upgraded: Path, command: str
) -> None:
    done = sluice(*command.split(), folder=half_upgraded)
    assert done.returncode == 1
    (error,) = (line for line in done.stderr.splitlines() if line.startswith("sluice: "))
    assert "unsupported version: upgrade this reader" in error
    assert "found=`" in error
    assert "Traceback" not in done.stderr


def test_a_query_that_is_not_upgraded_yet_reports_what_it_cannot_read(half_upgraded: Path) -> None:
    """One accepted batch is in no lane that it can read, so the answer is partial."""
    done = sluice("query", "-q", "line", folder=half_upgraded)
    assert done.returncode == 0
    assert "partial: " in done.stderr


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
