"""`/readyz` of a real process on a directory: not ready exactly while uploads fail."""

import os
import shutil
import time
from pathlib import Path

from support.gateway import GatewayProcess, TestKey, frame_of, gateways
from support.local_deployment import run_sluice

from sluice_protocol.keys import AUTHORITY_SETTINGS

HOST = TestKey("host-1", ("host-1",))
NOTICED_S = 12.0


def await_ready(server: GatewayProcess, status: int) -> str:
    """Wait until `/readyz` responds with `status`; return its text."""
    until = time.monotonic() + NOTICED_S
    while time.monotonic() < until:
        found, text = server.get("/readyz")
        if found == status:
            return text
        time.sleep(0.1)
    raise AssertionError(f"/readyz stayed {found}: {text}; {server.log.read_text()}")


def test_a_store_without_its_authority_record_or_directory_is_not_ready(tmp_path: Path) -> None:
    with gateways(tmp_path, HOST) as (server,):
        assert server.get("/readyz")[0] == 200
        record = tmp_path / "store" / AUTHORITY_SETTINGS
        kept = record.rename(tmp_path / "settings.json")
        assert "authority record is missing" in await_ready(server, 503)
        kept.rename(record)
        await_ready(server, 200)
        shutil.rmtree(tmp_path / "store")
        await_ready(server, 503)
        assert server.upload(HOST, frame_of())[0].status == 503
        assert server.get("/readyz")[0] == 503


def test_a_full_disk_is_not_ready_until_there_is_space_again(small_disk: Path) -> None:
    with gateways(small_disk, HOST) as (server,):
        assert server.get("/readyz")[0] == 200
        ballast = small_disk / "ballast"
        free = os.statvfs(small_disk)
        ballast.write_bytes(b"x" * ((free.f_bavail - 32) * free.f_frsize))
        assert server.upload(HOST, frame_of(size=1_000_000))[0].status == 503
        status, reason = server.get("/readyz")
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
        assert server.upload(HOST, frame_of(size=1_000_000))[0].status == 200
