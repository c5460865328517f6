"""Benchmark `agent`: ship a log file until every batch is accepted and removed from the spool.

The control does the minimum with the same durability for the same bytes. It reads blocks of 4 MiB,
compresses them with the level of zstd that frames have, writes each to a file, and syncs file and
directory. Then it sends the block with POST and its digest, and removes the file; one block after
the other. It has no lines, times, columns, positions, signatures or failover. Both send to the same
server, a separate process that hashes the body and responds; its CPU is not counted.

Frames have smaller tables than this level (ADR 3). A second control compresses with them, so the
ratio to it is that of everything except compression.
"""

import asyncio
import hashlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import aiohttp

from benchmarks.measure import Sample, interleave, ratio, report, timed
from sluice_agent.app import run_agent
from sluice_agent.sending.signing_key import make_key
from sluice_agent.settings import AgentSettings
from sluice_protocol.compression import COMPRESSION_LEVEL, compress_column, compress_zstd

FILE_BYTES: Final = 64 * 1024 * 1024
BLOCK_BYTES: Final = 4 * 1024 * 1024
MIB: Final = 1024 * 1024
SERVER: Final = """
import hashlib, sys
from aiohttp import web
async def post(request):
    digest = hashlib.sha256(await request.read()).hexdigest()
    return web.json_response({"status": "accepted", "frame_sha256": digest})
async def main():
    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/v1/batches", post)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()
import asyncio
asyncio.run(main())
"""


def write_log(path: Path) -> int:
    """Write unique log lines of a typical form; return their number."""
    start = datetime(2026, 11, 21, tzinfo=UTC)
    size_bytes = count = 0
    with path.open("w", encoding="utf-8") as file:
        while size_bytes < FILE_BYTES:
            at = (start + timedelta(milliseconds=37 * count)).isoformat(timespec="microseconds")
            ident = hashlib.md5(b"%d" % count, usedforsecurity=False).hexdigest()
            size_bytes += file.write(
                f"{at} host-1 shop[{count % 9000}]: GET /cart/{ident} 200 {count % 977} ms\n"
            )
            count += 1
    return count


def ship(folder: Path, log: Path, url: str, *, records: int, key: Path | None) -> float:
    """Run the agent once over the file."""
    spool = Path(tempfile.mkdtemp(dir=folder))
    settings = AgentSettings(
        gateway=url, spool=spool, agent_id="bench", paths=(str(log),), once=True, host_metrics_s=0,
        key=key,
    )  # fmt: skip
    outcome = asyncio.run(run_agent(settings, stop=asyncio.Event()))
    if (outcome.sealed_records, outcome.waiting, outcome.parked) != (records, 0, 0):
        raise RuntimeError(outcome)
    shutil.rmtree(spool)
    return FILE_BYTES / MIB


async def send_blocks(
    folder: Path, log: Path, url: str, compress: Callable[[bytes], bytes]
) -> float:
    """Send the file in blocks, as the control."""
    place = Path(tempfile.mkdtemp(dir=folder)) / "block"
    async with aiohttp.ClientSession() as session:
        with log.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                await asyncio.to_thread(keep, place, body := compress(block))
                digest = hashlib.sha256(body).hexdigest()
                async with session.post(f"{url}/v1/batches", data=aiohttp.BytesPayload(body)) as r:
                    if (await r.json())["frame_sha256"] != digest:
                        raise RuntimeError(url)
                place.unlink()
    return FILE_BYTES / MIB


def compress_as_level(block: bytes) -> bytes:
    """Compress a block as the level does, whatever its size."""
    return compress_zstd(block, COMPRESSION_LEVEL)


def keep(path: Path, body: bytes) -> None:
    """Write a file and make it durable."""
    with path.open("wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    number = os.open(path.parent, os.O_RDONLY)
    os.fsync(number)
    os.close(number)


@contextmanager
def discarding_server() -> Iterator[str]:
    """Run the server that hashes and discards; yield its URL."""
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE)
    try:
        if server.stdout is None:
            raise RuntimeError(SERVER)
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    """Run the agent and the control in turn."""
    with tempfile.TemporaryDirectory(prefix="agent-bench-") as name, discarding_server() as url:
        folder = Path(name)
        records = write_log(folder / "app.log")
        make_key(folder / "key.pem")
        measure(folder, url, records)


def measure(folder: Path, url: str, records: int) -> None:
    """Measure and report the ratios."""
    log = folder / "app.log"

    def agent() -> float:
        key = folder / "key.pem"
        return ship(folder, log, url, records=records, key=key)

    def control(compress: Callable[[bytes], bytes]) -> float:
        return asyncio.run(send_blocks(folder, log, url, compress))

    subjects: dict[str, Callable[[], Sample]] = {
        "agent": lambda: timed(agent),
        "control": lambda: timed(lambda: control(compress_as_level)),
        "control, tables of frames": lambda: timed(lambda: control(compress_column)),
    }
    samples = interleave(subjects)
    lines = [f"{records} lines, {log.stat().st_size / MIB:.0f} MiB, until all is accepted"]
    for who, taken in samples.items():
        speeds = sorted(sample.per_second for sample in taken)
        cpu = sorted(sample.cpu_per_unit * 1000 for sample in taken)
        lines.append(
            f"{who}: {speeds[len(speeds) // 2]:.1f} MiB/s ({speeds[0]:.1f} to {speeds[-1]:.1f}),"
            f" {cpu[len(cpu) // 2]:.1f} ms CPU per MiB"
        )
    for subject, other in itertools.product(["agent"], list(samples)[1:]):
        for what, value in (
            ("throughput", lambda s: s.per_second),
            ("CPU per MiB", lambda s: s.cpu_per_unit),
        ):
            low, middle, high = ratio(samples[subject], samples[other], value)
            lines.append(f"{what}, {subject} to {other}: {middle:.2f} ({low:.2f} to {high:.2f})")
    report("agent", lines, samples)


if __name__ == "__main__":
    main()
