"""`/readyz` of a real process on a directory: not ready exactly while uploads fail."""

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from support.gateway import Client, GatewayProcess, TestKey, frame_of, gateways, identity
from support.local_deployment import run_sluice

from sluice_protocol.keys import AUTHORITY_SETTINGS

HOST = TestKey("host-1", ("host-1",))
NOTICED_S = 12.0
DISK_BYTES = 4 * 1024 * 1024


async def _get(port: int) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session:
        return await Client(session, port, HOST).get("/readyz")


async def _upload(port: int, seq: int, size: int = 0) -> int:
    async with aiohttp.ClientSession() as session:
        sent = await Client(session, port, HOST).upload(frame_of(identity(seq=seq), size=size))
        return sent.status


def await_ready(server: GatewayProcess, status: int) -> str:
    """Wait until `/readyz` responds with `status`; return its text."""
    until = time.monotonic() + NOTICED_S
    while time.monotonic() < until:
        found, text = asyncio.run(_get(server.port))
        if found == status:
            return text
        time.sleep(0.1)
    raise AssertionError(f"/readyz stayed {found}: {text}; {server.log.read_text()}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 4 MiB, where this user may."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(folder)]
    if os.getuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_store_without_its_authority_record_or_directory_is_not_ready(tmp_path: Path) -> None:
    with gateways(tmp_path, HOST) as (server,):
        assert asyncio.run(_get(server.port))[0] == 200
        record = tmp_path / "store" / AUTHORITY_SETTINGS
        kept = record.rename(tmp_path / "settings.json")
        assert "authority record is missing" in await_ready(server, 503)
        kept.rename(record)
        await_ready(server, 200)
        shutil.rmtree(tmp_path / "store")
        await_ready(server, 503)
        assert asyncio.run(_upload(server.port, 0)) == 503
        assert asyncio.run(_get(server.port))[0] == 503


def test_a_full_disk_is_not_ready_until_there_is_space_again(small_disk: Path) -> None:
    with gateways(small_disk, HOST) as (server,):
        assert asyncio.run(_get(server.port))[0] == 200
        ballast = small_disk / "ballast"
        free = os.statvfs(small_disk)
        ballast.write_bytes(b"x" * ((free.f_bavail - 32) * free.f_frsize))
        assert asyncio.run(_upload(server.port, 0, size=1_000_000)) == 503
        status, reason = asyncio.run(_get(server.port))
        assert status == 503
        assert "the disk is full: free space or move the store" in reason
        seen = run_sluice(small_disk, "status", "--store", f"file://{small_disk}/store")
        assert seen.returncode == 1
        assert "the disk is full: free space or move the store" in seen.stdout
        examined = run_sluice(small_disk, "doctor", "--store", f"file://{small_disk}/store")
        assert examined.returncode == 3
        assert "the disk is full: free space or move the store" in examined.stderr
        ballast.unlink()
        await_ready(server, 200)
        assert asyncio.run(_upload(server.port, 0, size=1_000_000)) == 200
