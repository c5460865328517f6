"""The memory of a real gateway while clients send bodies of nearly the largest size."""

import asyncio
import io
from pathlib import Path

import aiohttp
import pytest
from benchmarks.doors import Servers, flood
from benchmarks.doors_bodies import OTLP_METRICS, SHAPES, BodyShape, bodies
from support.door_client import TestSender
from support.gateway import GatewayProcess, gateways

from sluice_doors.table import DoorName

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
DOORS: tuple[DoorName, ...] = (
    "otlp",
    "loki",
    "prometheus",
    "hec",
    "firehose",
    "elasticsearch",
    "json",
)
CHOSEN = [*(shape for shape in SHAPES if shape.door in DOORS), OTLP_METRICS]
SHOP = TestSender("shop", (), doors=DOORS)
MIB = 1 << 20
BODY_BYTES = 19 * MIB
BUDGET_BYTES = 256 * MIB  # the default
ABOVE_BUDGET_BYTES = 150_000_000
"""What ADR 20 allows in addition to the in-flight budget."""


def body_of(shape: BodyShape) -> bytes:
    """Return a body of about `BODY_BYTES` before it is packed; base64 makes Firehose's larger."""
    size_bytes = BODY_BYTES * 2 // 3 if shape.door == "firehose" else BODY_BYTES
    return next(bodies(shape, size_bytes)).sent


def peak_bytes(pid: int) -> int:
    """Return the largest resident size of a process so far."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel reports no peak")


def workers_of(pid: int) -> list[int]:
    """Return a process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8")
    return [pid, *map(int, children.split())]


async def send_until_accepted(
    session: aiohttp.ClientSession, port: int, shape: BodyShape, sent: bytes, serial: int
) -> int:
    """Return how often the gateway has answered "later" before."""
    fields = {
        **shape.headers,
        "Authorization": f"Bearer {SHOP.token.token}",
        "X-Amz-Firehose-Request-Id": f"r{serial}",
    }
    for later in range(2000):
        async with session.post(
            f"http://127.0.0.1:{port}{shape.path}", data=io.BytesIO(sent), headers=fields
        ) as answer:
            if answer.status < 300:
                return later
            assert answer.status == 503, await answer.text()
        await asyncio.sleep(0.2)
    raise AssertionError("the gateway accepts no body of this door")


async def send_together(session: aiohttp.ClientSession, port: int) -> None:
    """Send a body to each door at the same time; the budget has no room for all of them."""
    sent = [
        send_until_accepted(session, port, shape, body_of(shape), serial)
        for serial, shape in enumerate(CHOSEN)
    ]
    await asyncio.gather(*sent)


FLAGS = (
    *(part for door in DOORS for part in ("--doors", door)),
    *("--inflight-bytes-max", str(BUDGET_BYTES)),
)


def check_peak(server: GatewayProcess) -> None:
    """Check the largest memory of a gateway and its workers so far."""
    peak = max(peak_bytes(pid) for pid in workers_of(server.process.pid))
    print(f"peak {peak / 1e6:.0f} MB")
    assert peak < BUDGET_BYTES + ABOVE_BUDGET_BYTES


def test_large_bodies_stay_in_the_budget(tmp_path: Path) -> None:
    """Bodies of 19 MiB of all doors (ADR 20); some are a fifth of that when sent."""

    async def main(server: GatewayProcess) -> None:
        timeout = aiohttp.ClientTimeout(total=900)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            await send_together(session, server.port)

    with gateways(tmp_path, SHOP, flags=FLAGS) as (server,):
        asyncio.run(main(server))
        check_peak(server)


def test_a_thousand_slow_connections_stay_in_the_budget(tmp_path: Path) -> None:
    """Bodies of 1 KiB, 256 KiB and 4 MiB of all doors, sent in small pieces (ADR 20)."""
    with gateways(tmp_path, SHOP, flags=FLAGS) as (server,):
        running = Servers(
            gateway=(server.process.pid, server.port),
            grpc_port=0,
            token=SHOP.token.token,
            collectors={},
        )
        statuses = asyncio.run(flood(running))
        assert statuses[200] + statuses[204] > 100, statuses
        check_peak(server)
