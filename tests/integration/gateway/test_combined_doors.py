"""Doors whose small requests are combined, by real gateways, over each kind of store.

Each request is sent twice, as a client does whose first response was lost, and through another
gateway where there are two. A gateway is killed in between.
"""

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import grpc
import pytest
from grpc import aio
from support.door_bodies import S, firehose
from support.door_client import T0_NS, TestSender, otlp_logs
from support.gateway import GatewayProcess, start_gateway, write_principals
from support.memory_bucket.server import serve_memory
from support.reconciler_seed import queued_bodies
from support.spool_process import AGREED, WRITER
from support.store_versitygw import CREDENTIALS, make_bucket, versitygw

from sluice_protocol.authority import Authority
from sluice_reconciler.service import Reconciler
from sluice_store import StoreMode, create_authority, open_store, read_authority

SHOP = TestSender("shop", (), doors=("otlp", "hec", "firehose"))
REQUESTS = 12
STARTED_S = 240.0
"""A gateway has been replaced by then, also on a busy machine."""
LINES = [f"line {place:02}" for place in range(REQUESTS)]
FLAGS = (
    *("--doors", "otlp", "--doors", "hec", "--doors", "firehose"),
    *("--otlp-grpc-listen", "127.0.0.1:0"),
    *("--door-own-frame-bytes", "4096", "--door-flush-ms", "60"),
)
LOGS = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"


@dataclass
class Place:
    """A store, and the gateways over it."""

    folder: Path
    url: str
    flags: tuple[str, ...]
    gateways: list[GatewayProcess]

    async def start(self) -> None:
        principals = write_principals(self.folder / "principals.toml", SHOP)
        self.gateways.append(
            await asyncio.to_thread(start_gateway, self.folder, self.url, principals, *self.flags)
        )

    async def replace_one(self) -> None:
        """Kill a gateway, and start another one."""
        await asyncio.to_thread(self.gateways.pop(0).kill)
        await self.start()


@asynccontextmanager
async def gateways_over(
    folder: Path, url: str, authority: Authority | None, flags: tuple[str, ...], count: int
) -> AsyncIterator[Place]:
    async with open_store(url, StoreMode.CREATE) as store:
        await create_authority(store, *([authority] if authority else []))
    place = Place(folder, url, (*FLAGS, *flags), [])
    try:
        for _ in range(count):
            await place.start()
        yield place
    finally:
        for one in place.gateways:
            one.kill()


@asynccontextmanager
async def directory(folder: Path) -> AsyncIterator[Place]:
    async with gateways_over(folder, f"file://{folder}/store", None, (), 2) as place:
        yield place


@asynccontextmanager
async def local_spool(folder: Path) -> AsyncIterator[Place]:
    flags = (
        *("--spool", f"file://{folder}/spool"),
        *("--collector-id", WRITER, "--object-landing-interval-ms", "50"),
        *("--spool-free-bytes-min", "0"),
    )
    async with gateways_over(folder, f"file://{folder}/store", AGREED, flags, 1) as place:
        yield place


@asynccontextmanager
async def simulated_s3(folder: Path) -> AsyncIterator[Place]:
    access, secret = CREDENTIALS.values()
    async with serve_memory({access: secret}) as server:
        url = f"s3://doors/run?endpoint={server.endpoint}&region=us-east-1"
        await make_bucket(url)
        async with gateways_over(folder, url, None, ("--skip-probe",), 2) as place:
            yield place


@asynccontextmanager
async def real_s3(folder: Path) -> AsyncIterator[Place]:
    with versitygw(folder / "server") as server:
        url = server.url("doors", "run")
        await make_bucket(url)
        async with gateways_over(folder, url, None, ("--skip-probe",), 2) as place:
            yield place


Kind = Callable[[Path], AbstractAsyncContextManager[Place]]
DOORS = ("hec", "firehose", "grpc")
DAILY = ((local_spool, "hec"), (directory, "grpc"))
"""HTTP and gRPC, with one gateway and with two; `test_races_on_s3` uses the simulated server."""
CASES = [
    *DAILY,
    *(
        pytest.param(kind, door, marks=pytest.mark.long)
        for kind, door in itertools.product((directory, local_spool, simulated_s3), DOORS)
        if (kind, door) not in DAILY
    ),
    *(pytest.param(real_s3, door, marks=pytest.mark.s3) for door in DOORS),
]


async def post(
    session: aiohttp.ClientSession, gateway: GatewayProcess, number: int, line: str, door: str
) -> bool:
    """Send one record; return whether it is accepted, and in a combined batch."""
    token = SHOP.token.token
    if door == "hec":
        path, fields = "/services/collector/event", {"Authorization": f"Splunk {token}"}
        body = json.dumps({"time": S + number, "host": "web-1", "event": line}).encode()
    else:
        path, body = "/v1/firehose", firehose(line.encode())
        fields = {
            "X-Amz-Firehose-Access-Key": token,
            "X-Amz-Firehose-Request-Id": f"request-{number}",
        }
    async with session.post(
        f"http://127.0.0.1:{gateway.port}{path}", data=body, headers=fields
    ) as answer:
        if answer.status == 200:
            assert answer.headers["Sluice-Identity"].endswith("; combined")
        return answer.status == 200


async def export(gateway: GatewayProcess, number: int, line: str) -> bool:
    """Send one record over gRPC; return whether it is accepted."""
    port = gateway.events("otlp_grpc_listening")[0]["port"]
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        metadata = (("authorization", f"Bearer {SHOP.token.token}"),)
        body = otlp_logs(line, at_ns=T0_NS + number)
        try:
            await channel.unary_unary(LOGS)(body, metadata=metadata, timeout=60)
        except aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return False
        return True


Send = Callable[[GatewayProcess, int, str], Awaitable[bool]]


async def send_twice(place: Place, send: Send) -> None:
    """Send each record until two gateways, or one of them twice, have accepted it."""

    async def one(number: int, line: str) -> None:
        accepted, attempt, until_s = 0, number, time.monotonic() + STARTED_S
        while time.monotonic() < until_s:
            if not place.gateways:  # the only one was killed
                await asyncio.sleep(0.1)
                continue
            attempt += 1
            gateway = place.gateways[attempt % len(place.gateways)]
            with suppress(aiohttp.ClientError, TimeoutError):
                accepted += await send(gateway, number, line)
            if accepted == 2:
                return
            await asyncio.sleep(0.1)
        raise AssertionError("the gateways did not accept the request")

    half = REQUESTS // 2
    await asyncio.gather(*(one(n, LINES[n]) for n in range(half)))
    running = asyncio.gather(*(one(n, LINES[n]) for n in range(half, REQUESTS)))
    await place.replace_one()
    await running


async def read_all(url: str) -> Counter[str]:
    """Return what consumers read; a spool transfers its batches within a moment."""
    async with open_store(url) as store:
        authority = await read_authority(store)
        for _ in range(100):
            await Reconciler(store, authority).once()
            found = await queued_bodies(store)
            if len(found) == REQUESTS:
                return found
            await asyncio.sleep(0.1)
        return found


@pytest.mark.daily(1)
@pytest.mark.parametrize(("kind", "door"), CASES)
async def test_combined_requests_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind, door: str
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)

    timeout = aiohttp.ClientTimeout(total=60)
    async with kind(tmp_path) as place, aiohttp.ClientSession(timeout=timeout) as session:

        async def by_http(gateway: GatewayProcess, number: int, line: str) -> bool:
            return await post(session, gateway, number, line, door)

        await send_twice(place, export if door == "grpc" else by_http)
        assert await read_all(place.url) == Counter(dict.fromkeys(LINES, 1))
