"""A gateway serves only on a store that a doctor has proved, or says so in every line."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from support.gateway import TestKey, clean_env, start_gateway, write_principals

from sluice_store import create_authority, open_store

KEY = TestKey("host-1", ("host-1",))


def sluice(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "sluice_cli", *arguments],
        cwd=folder, env=clean_env(), capture_output=True, check=False, timeout=120,
    )  # fmt: skip


async def init(url: str) -> None:
    async with open_store(url) as store:
        await create_authority(store)


def test_gateway_refuses_a_store_that_nobody_proved(tmp_path: Path) -> None:
    """Without a result it ends at once, with exit code 3 and the command to run."""
    store = f"file://{tmp_path}/store"
    asyncio.run(init(store))
    principals = str(write_principals(tmp_path / "principals.toml", KEY))
    serve = ("gateway", "--store", store, "--listen", "127.0.0.1:0", "--principals", principals)
    done = sluice(tmp_path, *serve)
    assert done.returncode == 3
    assert b"sluice doctor" in done.stderr


def test_gateway_serves_a_store_that_was_proved(tmp_path: Path) -> None:
    """After `sluice doctor` it starts, and its log does not speak of a skipped probe."""
    store = f"file://{tmp_path}/store"
    asyncio.run(init(store))
    assert sluice(tmp_path, "doctor", "--store", store).returncode == 0
    principals = write_principals(tmp_path / "principals.toml", KEY)
    server = start_gateway(tmp_path, store, principals, probed=True)
    assert server.stop() == 0
    assert "skipped" not in server.log.read_text()


def test_skipped_probe_is_said_in_every_line(tmp_path: Path) -> None:
    """`--skip-probe` exists for stores proved otherwise, and nobody can forget it."""
    store = f"file://{tmp_path}/store"
    asyncio.run(init(store))
    principals = write_principals(tmp_path / "principals.toml", KEY)
    server = start_gateway(tmp_path, store, principals)
    assert server.stop() == 0
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert lines
    assert all(line["store_probe"] == "skipped" for line in lines)
