"""Real spooling processes: what a stop has transferred, and a start on a full disk."""

import asyncio
import os
from pathlib import Path

import aiohttp
import pytest
from support.gateway import (
    Client,
    GatewayProcess,
    bodies_under,
    frame_of,
    identity,
    start_gateway,
    write_principals,
)
from support.spool_process import AGREED, HOST, WRITER

from sluice_protocol.keys import ACCEPTED, QUARANTINE_CONFLICTS, RAW_BLOBS
from sluice_store import StoreMode, create_authority, open_store

BATCHES = 8


def start(tmp_path: Path, spool: Path, interval_ms: int = 60_000, *flags: str) -> GatewayProcess:
    principals = write_principals(tmp_path / "principals.toml", HOST)
    return start_gateway(
        tmp_path,
        f"file://{tmp_path}/store",
        principals,
        *("--spool", f"file://{spool}"),
        *("--collector-id", WRITER, "--object-landing-interval-ms", str(interval_ms)),
        *("--spool-free-bytes-min", "0"),
        *flags,
    )


async def init(tmp_path: Path) -> None:
    async with open_store(f"file://{tmp_path}/store", StoreMode.CREATE) as store:
        await create_authority(store, AGREED)


async def upload(port: int, *, size: int = 0) -> list[int]:
    """Upload batches and, for each, other bytes with the same identity; return the statuses."""
    async with aiohttp.ClientSession() as session:
        client = Client(session, port, HOST)
        frames = [
            frame_of(identity(seq=seq), text, size=size)
            for seq in range(BATCHES)
            for text in ("owner", "other")
        ]
        return [(await client.upload(frame)).status for frame in frames]


def counts(tmp_path: Path, place: str) -> tuple[int, int, int]:
    """Return the numbers of accepted batches, conflicts and blobs."""
    url = f"file://{tmp_path}/{place}"
    prefixes = (ACCEPTED, QUARANTINE_CONFLICTS, RAW_BLOBS)
    accepted, conflicts, blobs = (len(asyncio.run(bodies_under(url, one))) for one in prefixes)
    return accepted, conflicts, blobs


def test_a_stopped_spool_has_transferred_every_batch_and_conflict(tmp_path: Path) -> None:
    """Exit code 0 means that nothing is left; a code above 0 that something is."""
    asyncio.run(init(tmp_path))
    first = start(tmp_path, tmp_path / "spool")
    blocked = tmp_path / "store" / "quarantine"
    blocked.write_text("a file where a folder is required")
    try:
        assert asyncio.run(upload(first.port)) == [200, 409] * BATCHES
        assert first.stop() == 1
    finally:
        first.kill()
    assert counts(tmp_path, "store")[:2] == (BATCHES, 0)
    blocked.unlink()
    second = start(tmp_path, tmp_path / "spool")
    try:
        assert second.stop() == 0
    finally:
        second.kill()
    assert counts(tmp_path, "store") == (BATCHES, BATCHES, 2 * BATCHES)
    assert counts(tmp_path, "spool") == (BATCHES, BATCHES, 0)


@pytest.mark.long
def test_a_spool_on_a_full_disk_starts_and_transfers(tmp_path: Path, small_disk: Path) -> None:
    """A gateway is killed, its disk has no free byte: the next one transfers and frees it."""
    asyncio.run(init(tmp_path))
    spool = small_disk / "spool"
    first = start(tmp_path, spool)
    try:
        assert asyncio.run(upload(first.port, size=50_000)) == [200, 409] * BATCHES
    finally:
        first.kill()
    free = os.statvfs(small_disk)
    (small_disk / "ballast").write_bytes(b"x" * (free.f_bavail * free.f_frsize))
    assert os.statvfs(small_disk).f_bavail == 0
    second = start(tmp_path, spool, interval_ms=50)
    try:
        assert second.stop() == 0, second.log.read_text()
    finally:
        second.kill()
    assert counts(tmp_path, "store") == (BATCHES, BATCHES, 2 * BATCHES)
    assert counts(small_disk, "spool") == (BATCHES, BATCHES, 0)


def test_a_full_spool_refuses_uploads_until_batches_are_transferred(tmp_path: Path) -> None:
    """Above `--spool-bytes-max` the response is 503; the metrics show the size and the refusals."""
    asyncio.run(init(tmp_path))
    gateway = start(tmp_path, tmp_path / "spool", 500, "--spool-bytes-max", "150000")

    async def main() -> None:
        async with aiohttp.ClientSession() as session:
            client = Client(session, gateway.port, HOST)
            first = await client.upload(frame_of(identity(seq=0), size=100_000))
            assert first.status == 200
            statuses = []
            async with asyncio.timeout(60):
                while 200 not in statuses:
                    frame = frame_of(identity(seq=1), size=100_000)
                    statuses.append((await client.upload(frame)).status)
                    await asyncio.sleep(0.05)
            assert statuses[0] == 503
            _, metrics = await client.get("/metrics")
            assert f"sluice_spool_full_total {len(statuses) - 1}.0" in metrics
            assert "sluice_spool_capacity_bytes 150000.0" in metrics
            assert "sluice_spool_free_bytes 0.0" not in metrics

    try:
        asyncio.run(main())
        assert gateway.stop() == 0
    finally:
        gateway.kill()
    assert counts(tmp_path, "store") == (2, 0, 2)
