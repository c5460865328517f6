"""A gateway lists the doors that refused clients without a valid key, and why, for each door."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from grpc import aio
from support.door_bodies import S, pack
from support.door_client import TestSender
from support.forward_door import close_clients, connect
from support.gateway import Running, TestKey, running

from sluice_gateway.process.worker import serving_forward_port, serving_grpc

HOST = TestKey("host-1", ("host-1",))
SHOP = TestSender("shop", ())
JSON = "application/json"
NO_KEY = "it sent no key"
WRONG_KEY = "its key is not valid"
NO_HANDSHAKE = "it did not complete the handshake in time"
PATHS = {
    "otlp": "/v1/logs",
    "json": "/v1/ingest",
    "loki": "/loki/api/v1/push",
    "prometheus": "/api/v1/write",
    "elasticsearch": "/_bulk",
    "hec": "/services/collector/event",
    "firehose": "/v1/firehose",
    "uploads": "/v1/batches",
}
Refused = tuple[str, int, str, str]
Send = Callable[[int], Awaitable[None]]


async def refused(served: Running) -> list[Refused]:
    status, text = await served.client.get("/v1/refused-clients")
    assert status == 200
    return [
        (one["door"], one["refusals"], one["reason"], one["peer"].rpartition(":")[0] or one["peer"])
        for one in json.loads(text)
    ]


async def post(served: Running, path: str, **fields: str) -> None:
    url = f"http://127.0.0.1:{served.port}{path}"
    kind = "application/x-protobuf" if path in (PATHS["otlp"], PATHS["prometheus"]) else JSON
    headers = {"Content-Type": kind, **fields}
    async with served.client.session.post(url, data=b"{}", headers=headers) as response:
        await response.read()


async def test_each_door_over_http_is_listed_with_its_reason(tmp_path: Path) -> None:
    doors = tuple(door for door in PATHS if door != "uploads")
    async with running(tmp_path, HOST, SHOP, doors=doors) as served:
        assert await refused(served) == []
        for path in PATHS.values():
            await post(served, path, Authorization="Bearer wrong")
            await post(served, path)
        expected = [(door, 2, NO_KEY, "127.0.0.1") for door in sorted(PATHS)]
        assert await refused(served) == expected
        await post(served, PATHS["json"], Authorization="Bearer wrong")
        assert ("json", 3, WRONG_KEY, "127.0.0.1") in await refused(served)


async def test_a_call_of_grpc_is_listed(tmp_path: Path) -> None:
    async with (
        running(tmp_path, HOST, SHOP, doors=("otlp",), otlp_grpc_listen="127.0.0.1:0") as served,
        serving_grpc(served.gateway) as port,
        aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        call = channel.unary_unary("/opentelemetry.proto.collector.logs.v1.LogsService/Export")
        for metadata, reason in (((), NO_KEY), ((("authorization", "Bearer x"),), WRONG_KEY)):
            with pytest.raises(aio.AioRpcError):
                await call(b"", metadata=metadata)
            assert [one[2] for one in await refused(served)] == [reason]


async def plain(port: int) -> None:
    client = await connect(port)
    await client.send(pack(["t", S, {"log": "lost"}]))
    while await client.receive() is not None:
        pass


async def large(port: int) -> None:
    client = await connect(port)
    await client.send(pack(["t", S, {"log": "lost" * 50_000}]))
    with suppress(ConnectionResetError):  # the server does not read the rest
        while await client.receive() is not None:
            pass


async def wrong_key(port: int) -> None:
    assert (await (await connect(port)).log_in("a-key-that-nobody-has"))[1] is False  # type: ignore[index]


async def silent(port: int) -> None:
    client = await connect(port)
    while await client.receive() is not None:
        pass


async def half_a_ping(port: int) -> None:
    client = await connect(port)
    await client.send(b"\x96\xa4PING")
    while await client.receive() is not None:
        pass


async def probe(port: int) -> None:
    """Connect and close, as the health check of a load balancer does."""
    (await connect(port)).close()
    await asyncio.sleep(0.2)


@pytest.mark.parametrize(
    ("send", "reason"),
    [
        (plain, NO_KEY),
        (large, NO_KEY),
        (wrong_key, WRONG_KEY),
        (silent, NO_HANDSHAKE),
        (half_a_ping, NO_HANDSHAKE),
        (probe, ""),
    ],
)
async def test_a_connection_of_forward_is_listed(tmp_path: Path, send: Send, reason: str) -> None:
    async with (
        running(
            tmp_path,
            HOST,
            SHOP,
            doors=("forward",),
            forward_listen="127.0.0.1:0",
            head_timeout_s=1.0,
            body_grace_s=0.3,
        ) as served,
        serving_forward_port(served.gateway) as port,
    ):
        await send(port)
        expected = [("forward", 1, reason, "127.0.0.1")] if reason else []
        assert await refused(served) == expected
        counted = {"door": "forward", "outcome": "unauthenticated"}
        assert served.count("sluice_door_requests_total", **counted) == len(expected)
        await close_clients()
