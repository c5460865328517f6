"""Connections of OTLP over gRPC: their number, slow handshakes, and calls of one connection."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from support.agent_doors import PREFACE, SETTINGS, frame
from support.door_client import TestSender, otlp_logs
from support.gateway import TestKey, running

from sluice_doors.otlp import grpc as grpc_server
from sluice_gateway.process.worker import serving_grpc

HOST = TestKey("host-1", ("host-1",))
SHOP = TestSender("shop", ())
LOGS = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
CONNECTIONS = 3
MAX_CONCURRENT_STREAMS = 3


@asynccontextmanager
async def serving(tmp_path: Path, **settings: Any) -> AsyncIterator[int]:
    async with (
        running(
            tmp_path, HOST, SHOP, doors=("otlp",), otlp_grpc_listen="127.0.0.1:0",
            connections_max=CONNECTIONS, **settings,
        ) as served,
        serving_grpc(served.gateway) as port,
    ):  # fmt: skip
        yield port


@asynccontextmanager
async def connected(port: int, sent: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """Open a connection, and send its first bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        yield reader
    finally:
        writer.close()


async def is_open(reader: asyncio.StreamReader, timeout_s: float) -> bool:
    """Return whether the server has not closed the connection within a time."""
    try:
        async with asyncio.timeout(timeout_s):
            while await reader.read(4096):
                pass
    except TimeoutError:
        return True
    except ConnectionError:
        return False
    return False


async def export(port: int) -> grpc.StatusCode:
    """Send a record on a new connection."""
    async with aio.insecure_channel(
        f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        metadata = (("authorization", f"Bearer {SHOP.token.token}"),)
        try:
            await channel.unary_unary(LOGS)(otlp_logs("one"), metadata=metadata, timeout=10)
        except aio.AioRpcError as error:
            return error.code()
        return grpc.StatusCode.OK


async def test_a_connection_above_the_limit_is_closed(tmp_path: Path) -> None:
    """Exporters retry what they receive then, and a connection that ends makes room."""
    begun = PREFACE + frame(SETTINGS, 0, 0, b"")
    async with serving(tmp_path) as port, connected(port, begun), connected(port, begun):
        async with connected(port, begun) as last:
            assert await is_open(last, 0.5)
            async with connected(port, begun) as further:
                assert not await is_open(further, 5)
            assert await export(port) is grpc.StatusCode.UNAVAILABLE
            assert await is_open(last, 0.1)
        for _ in range(100):
            if await export(port) is grpc.StatusCode.OK:
                break
            await asyncio.sleep(0.05)
        else:
            raise AssertionError("a connection that ended makes no room")


async def test_a_connection_without_a_handshake_is_closed(tmp_path: Path) -> None:
    """It would otherwise keep a place for two minutes."""
    async with (
        serving(tmp_path, head_timeout_s=0.5) as port,
        connected(port, b"") as silent,
        connected(port, PREFACE) as half,
    ):
        assert not await is_open(silent, 5)
        assert not await is_open(half, 5)


async def test_a_connection_has_a_limit_of_calls(tmp_path: Path) -> None:
    """The server announces it (RFC 9113, 6.5.2), and clients wait with further calls."""
    begun = PREFACE + frame(SETTINGS, 0, 0, b"")
    async with serving(tmp_path) as port, connected(port, begun) as reader:
        head = await reader.readexactly(9)
        assert head[3] == SETTINGS
        found = await reader.readexactly(int.from_bytes(head[:3], "big"))
        pairs = [found[at : at + 6] for at in range(0, len(found), 6)]
        announced = {
            int.from_bytes(one[:2], "big"): int.from_bytes(one[2:], "big") for one in pairs
        }
        assert announced[MAX_CONCURRENT_STREAMS] == grpc_server.STREAMS_MAX


async def test_an_idle_connection_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_server, "IDLE_S", 1.0)

    begun = PREFACE + frame(SETTINGS, 0, 0, b"") + frame(SETTINGS, 1, 0, b"")
    async with serving(tmp_path) as port, connected(port, begun) as idle:
        assert await is_open(idle, 0.5)
        assert not await is_open(idle, 10)
