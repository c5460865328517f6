"""A running agent with doors, and what clients send to them.

Also here: a gRPC call whose message stalls: frames of HTTP/2, because clients send whole messages;
a system that has no file descriptor for the first connection, and whose second one is reset.
"""

import asyncio
import errno
import io
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from grpc import aio
from support.constants import settings_with
from support.door_bodies import S, pack
from support.door_client import DoorAnswer, otlp_logs
from support.forward_door import close_clients
from support.store_versitygw import free_port

from sluice_agent.app import run_agent
from sluice_agent.settings import AgentSettings, SpoolSettings
from sluice_agent.spool.disk import RealDisk
from sluice_agent.spool.spool import Spool
from sluice_agent.tasks import AgentRunResult
from sluice_doors.table import HTTP_DOORS
from sluice_web import listening

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS = 0, 1, 4
END_HEADERS = 4
STREAM = 1


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a frame of HTTP/2 (RFC 9113, 4.1)."""
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
    return head + payload


def field(name: str, value: str) -> bytes:
    """Return a literal header field that is not indexed (RFC 7541, 6.2.2)."""
    assert max(len(name), len(value)) < 127
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


@asynccontextmanager
async def stalled_call(port: int, method: str, token: str, sent: bytes) -> AsyncIterator[bytearray]:
    """Begin a message of 100 bytes and send the first of them; yield what the server answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "gateway",
        "te": "trailers",
        "content-type": "application/grpc",
        "authorization": f"Bearer {token}",
    }
    block = b"".join(field(name, value) for name, value in fields.items())
    message = b"\0" + (100).to_bytes(4, "big") + sent
    writer.write(
        PREFACE
        + frame(SETTINGS, 0, 0, b"")
        + frame(HEADERS, END_HEADERS, STREAM, block)
        + frame(DATA, 0, STREAM, message)
    )
    answered = bytearray()

    async def receive() -> None:
        while chunk := await reader.read(4096):
            answered.extend(chunk)

    receiving = asyncio.create_task(receive())
    try:
        yield answered
    finally:
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        writer.close()
        await writer.wait_closed()


def fail_accepts(patch: pytest.MonkeyPatch) -> None:
    """Let the first two attempts to accept a connection fail."""
    patch.setattr(listening, "ACCEPT_RETRY_S", 0.01)
    errors = [OSError(errno.EMFILE, "too many open files"), ConnectionAbortedError()]
    accept = asyncio.SelectorEventLoop.sock_accept

    async def failing(loop: asyncio.SelectorEventLoop, sock: socket.socket) -> object:
        if errors:
            raise errors.pop(0)
        return await accept(loop, sock)

    patch.setattr(asyncio.SelectorEventLoop, "sock_accept", failing)


JSON = {"Content-Type": "application/json"}
LOGS = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
BODY = otlp_logs("one", "two")


@dataclass
class Client:
    """A client of one agent."""

    port: int
    session: aiohttp.ClientSession
    settings: AgentSettings
    stop: asyncio.Event
    agent: asyncio.Task[AgentRunResult]

    @property
    def grpc_port(self) -> int:
        return int(self.settings.otlp_grpc_listen.rpartition(":")[2])

    @property
    def forward_port(self) -> int:
        return int(self.settings.forward_listen.rpartition(":")[2])

    async def post(
        self, path: str, body: bytes, headers: Mapping[str, str] = JSON, method: str = "POST"
    ) -> DoorAnswer:
        url = f"http://127.0.0.1:{self.port}{path}"
        async with self.session.request(
            method, url, data=io.BytesIO(body), headers=headers
        ) as answer:
            return DoorAnswer(answer.status, await answer.read(), answer.headers)


async def export(
    client: Client,
    body: bytes = BODY,
    token: str = "",
    credentials: grpc.ChannelCredentials | None = None,
) -> tuple[grpc.StatusCode, bytes]:
    """Send a request over gRPC; return the code, and the response or the details."""
    address = f"127.0.0.1:{client.grpc_port}"
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    options = (("grpc.use_local_subchannel_pool", 1),)
    opened = (
        aio.insecure_channel(address, options=options)
        if credentials is None
        else aio.secure_channel(address, credentials, options=options)
    )
    async with opened as channel:
        try:
            call: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(LOGS)
            answer = await call(body, metadata=metadata, timeout=20)
        except aio.AioRpcError as error:
            return error.code(), (error.details() or "").encode()
    return grpc.StatusCode.OK, answer


def chunk(name: str, **options: Any) -> bytes:
    """Return a message of Fluent that wants an ack."""
    wanted: dict[str, object] = {"chunk": name, **options}
    return pack(["t", [[S, {"log": name}]], wanted])


def settings(tmp_path: Path, port: int, **how: Any) -> AgentSettings:
    given = {
        "gateway": "http://127.0.0.1:9", "doors": HTTP_DOORS, "batch_age_s": 0.05,
        "doors_listen": f"127.0.0.1:{port}", "drain_s": 0.5, **how,
    }  # fmt: skip
    return settings_with(
        AgentSettings, spool=tmp_path / "s", agent_id="host-1", host_metrics_s=0, **given
    )


def served(tmp_path: Path, check: Callable[[Client], Awaitable[None]], **how: Any) -> None:
    """Run an agent until `check` has ended."""

    async def main() -> None:
        port, stop = free_port(), asyncio.Event()
        given = settings(tmp_path, port, **how)
        agent = asyncio.create_task(run_agent(given, stop=stop))
        async with aiohttp.ClientSession() as session:
            listened = (given.otlp_grpc_listen, given.forward_listen)
            for address in (port, *(int(one.rpartition(":")[2]) for one in listened if one)):
                await _connected(address, agent)
            try:
                await check(Client(port, session, given, stop, agent))
            finally:
                await close_clients()
                stop.set()
                await agent

    asyncio.run(main())


async def _connected(port: int, agent: asyncio.Task[AgentRunResult]) -> None:
    """Wait until an agent listens at a port."""
    for _ in range(500):
        if agent.done():
            await agent
        try:
            (await asyncio.open_connection("127.0.0.1", port))[1].close()
        except OSError:
            await asyncio.sleep(0.02)
        else:
            return
    raise AssertionError("the agent does not listen")


def with_ports(**how: Any) -> dict[str, Any]:
    """Return settings with the doors on separate ports, and with those over HTTP."""
    return {
        "doors": (*HTTP_DOORS, "forward"),
        "otlp_grpc_listen": f"127.0.0.1:{free_port()}",
        "forward_listen": f"127.0.0.1:{free_port()}",
        **how,
    }


def spooled(tmp_path: Path) -> int:
    """Return the number of records in the spool, read as the next run reads them."""
    spool = Spool(
        SpoolSettings(directory=tmp_path / "s", agent_id="host-1"), RealDisk(), boot_id="next"
    )
    count = sum(batch.header.identity.count for batch in spool.ready())
    spool.close()
    return count
