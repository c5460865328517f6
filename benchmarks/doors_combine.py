"""Benchmark `doors_combine`: small requests in common batches, compared with one batch each.

There are four processes: a minimal S3 server, two gateways that differ in `door_own_frame_bytes`,
and this process, the client. Both gateways receive the same number of requests of 1 KiB in turn.

    python -m benchmarks.doors_combine [REQUESTS] [ROUNDS] [CONNECTIONS]
"""

import asyncio
import hashlib
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import aiohttp
import uvloop

from benchmarks.accept_servers import (
    child,
    cpu_of,
    environment,
    free_port,
    store_url,
    stub,
    until_live,
)
from benchmarks.measure import Sample, ratio, report
from sluice_console.gateway_health import samples_of
from sluice_gateway.doors.combined_frames import DOOR_LANES
from sluice_store import StoreMode, create_authority, open_store

TOKEN: Final = "slt_bench"  # noqa: S105 - of this run only
FORMS: Final = {"combined": 256 * 1024, "one batch each": 0}
SERIAL: Final = itertools.count()
FRAMES_PER_S: Final = 4


def body(size_bytes: int = 1024) -> bytes:
    """Return lines of JSON that no other request has."""
    rows: list[bytes] = []
    while sum(map(len, rows)) + 150 < size_bytes:
        number = next(SERIAL)
        rows.append(
            b'{"time":"2026-01-01T00:00:00.%09dZ","message":"order %d shipped to the warehouse'
            b' after payment","level":"info","service":"shop","host":"web-%d","status":"200"}\n'
            % (number % 10**9, number, number % 7)
        )
    return b"".join(rows)


@contextmanager
def door_gateway(endpoint: str, folder: Path, own_frame_bytes: int) -> Iterator[tuple[int, int]]:
    """Run a gateway with the JSON door; yield its process id and port."""
    folder.mkdir()
    principals = folder / "principals.toml"
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    principals.write_text(
        '[[principals]]\nname = "bench"\nagents = []\ndoors = ["json"]\n'
        f'tokens = [{{ id = "t", sha256 = "{digest}" }}]\n'
    )
    with gateway_process(endpoint, principals, own_frame_bytes) as found:
        yield found


@contextmanager
def gateway_process(
    endpoint: str, principals: Path, own_frame_bytes: int
) -> Iterator[tuple[int, int]]:
    """Run `sluice gateway` until the end of the block; yield its process id and port."""
    port = free_port()
    command = (
        *(sys.executable, "-c", "from sluice_cli.main import main; main()", "gateway"),
        *("--store", store_url(endpoint), "--listen", f"127.0.0.1:{port}", "--skip-probe"),
        *("--principals", str(principals), "--doors", "json"),
        *("--door-own-frame-bytes", str(own_frame_bytes)),
    )
    with child(*command) as process:
        until_live(port)
        yield process.pid, port


async def drive(port: int, bodies: list[bytes], connections: int) -> None:
    """Send every body, at most `connections` concurrently."""
    left = iter(bodies)
    url = f"http://127.0.0.1:{port}/v1/ingest?time=time&message=message"
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/x-ndjson"}
    connector = aiohttp.TCPConnector(limit=connections)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:

        async def client() -> None:
            for one in left:
                async with session.post(url, data=one) as answer:
                    if answer.status != 200:
                        raise RuntimeError(await answer.text())
                    await answer.read()

        await asyncio.gather(*(client() for _ in range(connections)))


async def batches(port: int) -> float:
    """Return how many combined batches a gateway has accepted."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/metrics") as answer,
    ):
        found = samples_of(await answer.text(), "sluice_door_combined_batches_total")
        return sum(one.value for one in found)


async def measure(
    gateways: dict[str, tuple[int, int]], requests: int, rounds: int, connections: int
) -> tuple[dict[str, list[Sample]], list[float]]:
    """Return the samples of each form, and the batches per lane and second."""
    samples: dict[str, list[Sample]] = {name: [] for name in gateways}
    rates: list[float] = []
    for number in range(rounds + 1):
        for name, (pid, port) in gateways.items():
            bodies = [body() for _ in range(requests)]
            before = await batches(port)
            started, spent = time.perf_counter(), cpu_of(pid)
            await drive(port, bodies, connections)
            wall_s = time.perf_counter() - started
            cpu_s = max(0.01, cpu_of(pid) - spent)
            if not number:
                continue  # imports the decoders
            samples[name].append(Sample(wall_s=wall_s, cpu_s=cpu_s, units=requests))
            if name == "combined":
                rates.append((await batches(port) - before) / DOOR_LANES / wall_s)
    return samples, rates


def main(requests: int = 4000, rounds: int = 5, connections: int = 256) -> None:
    """Measure and report."""
    with tempfile.TemporaryDirectory() as folder, stub(0) as endpoint:
        asyncio.run(_init(endpoint))
        place = Path(folder)
        with (
            door_gateway(endpoint, place / "a", FORMS["combined"]) as combined,
            door_gateway(endpoint, place / "b", FORMS["one batch each"]) as single,
        ):
            gateways = {"combined": combined, "one batch each": single}
            samples, rates = uvloop.run(measure(gateways, requests, rounds, connections))
    low, median, high = ratio(
        samples["combined"], samples["one batch each"], lambda one: 1 / one.cpu_per_unit
    )
    ms = {
        name: 1e3 * statistics.median(one.cpu_per_unit for one in found)
        for name, found in samples.items()
    }
    lines = [
        f"accepts per CPU s, ratio: {median:.2f} ({low:.2f}-{high:.2f}), target >= 3",
        f"batches per lane and second: {max(rates):.2f}, target <= {FRAMES_PER_S}",
        "CPU ms per request: " + ", ".join(f"{name} {value:.2f}" for name, value in ms.items()),
    ]
    report("doors_combine", lines, samples)


async def _init(endpoint: str) -> None:
    async with open_store(store_url(endpoint), StoreMode.CREATE) as store:
        await create_authority(store)


if __name__ == "__main__":
    os.environ.update(environment())
    main(*map(int, sys.argv[1:]))
