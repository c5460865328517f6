"""A port with TLS counts its connections from the start, and ends as one without TLS does."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvloop
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge
from structlog.testing import capture_logs
from support.gateway_tls import SERVER, TestAuthority

from sluice_web.connection_guard import ConnectionLimits, listening_on, watch_connection
from sluice_web.listening import ServerOptions, TlsFiles, bind_shared, server_tls

PLACES = 3
HANDSHAKE_S = 0.3
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


@dataclass
class Served:
    """A server with TLS whose request `/wait` lasts until `may_end`."""

    authority: TestAuthority
    port: int
    opened: Gauge
    closed: Counter
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    may_end: asyncio.Event = field(default_factory=asyncio.Event)
    errors: list[dict[str, Any]] = field(default_factory=list)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection; the handshake succeeds."""
        context = self.authority.client_context(None)
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=context)

    async def get(self, path: str = "/") -> int:
        """Send a request on a separate connection; return the status."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(
                f"https://127.0.0.1:{self.port}{path}", ssl=self.authority.client_context(None)
            ) as response,
        ):
            return response.status


@contextlib.asynccontextmanager
async def serving(
    folder: Path, *, handshake_s: float = HANDSHAKE_S, per_address_max: int = PLACES
) -> AsyncIterator[Served]:
    authority = TestAuthority(folder)
    pem = authority.issue("server", usage=SERVER)
    sock = bind_shared("127.0.0.1", 0)
    registry = CollectorRegistry()
    served = Served(
        authority,
        sock.getsockname()[1],
        Gauge("opened", "Open connections.", registry=registry),
        Counter("closed", "Closed connections.", ["reason"], registry=registry),
    )
    asyncio.get_running_loop().set_exception_handler(lambda _, found: served.errors.append(found))

    async def wait(_: web.Request) -> web.Response:
        served.begun.set()
        await served.may_end.wait()
        return web.Response()

    async def respond(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application(middlewares=[watch_connection])
    app.add_routes([web.get("/", respond), web.get("/wait", wait)])
    limits = ConnectionLimits(
        connections_max=PLACES,
        per_address_max=per_address_max,
        head_timeout_s=handshake_s,
        idle_timeout_s=60.0,
        opened=served.opened,
        closed=served.closed,
    )
    tls = server_tls(TlsFiles(certificate=pem.certificate, key=pem.key))
    options = ServerOptions(shutdown_s=20.0)
    async with listening_on(app, sock, options, limits, tls=tls):
        yield served
    assert served.errors == []


def run(new_loop: Callable[[], asyncio.AbstractEventLoop], body: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(body, 30))


async def refuses(port: int) -> None:
    """Wait until a port accepts no further client."""
    with contextlib.suppress(ConnectionRefusedError):
        while True:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            await asyncio.sleep(0.05)


async def ends(reader: asyncio.StreamReader) -> bool:
    """Return whether the server closes a connection without a byte."""
    with contextlib.suppress(ConnectionError):
        return await reader.read(1) == b""
    return True


@pytest.mark.parametrize("new_loop", LOOPS, ids=["asyncio", "uvloop"])
def test_an_open_request_ends_before_the_server_does(
    tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """No further client is accepted meanwhile; an unfinished handshake is ended last."""

    async def body() -> None:
        leave = asyncio.Event()
        started: asyncio.Future[Served] = asyncio.get_running_loop().create_future()

        async def serve() -> None:
            async with serving(tmp_path, handshake_s=60.0) as served:
                started.set_result(served)
                await leave.wait()

        task = asyncio.create_task(serve())
        served = await started
        request = asyncio.create_task(served.get("/wait"))
        await served.begun.wait()
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        leave.set()
        await refuses(served.port)
        assert not task.done()
        served.may_end.set()
        assert await request == 200
        await task
        assert await ends(reader)
        writer.close()

    run(new_loop, body())


@pytest.mark.parametrize("new_loop", LOOPS, ids=["asyncio", "uvloop"])
def test_failed_handshakes_end_only_their_connections(
    tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """Each place is free again, and nothing is logged."""

    async def fail(port: int, sent: bytes, *, reset: bool) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        if reset:
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        else:
            writer.write(sent)
            writer.write_eof()
            with contextlib.suppress(ConnectionError):
                await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def body() -> None:
        async with serving(tmp_path, handshake_s=60.0) as served:
            stranger = TestAuthority(tmp_path / "other").client_context(None)
            for _ in range(PLACES + 1):
                await fail(served.port, b"GET / HTTP/1.1\r\n\r\n", reset=False)
                await fail(served.port, b"\x16\x03\x01\x02", reset=False)
                await fail(served.port, b"", reset=False)
                await fail(served.port, b"", reset=True)
                with pytest.raises(OSError, match="certificate"):
                    await asyncio.open_connection("127.0.0.1", served.port, ssl=stranger)
            assert await served.get() == 200

    with capture_logs() as logs:
        run(new_loop, body())
    assert logs == []


@pytest.mark.parametrize("new_loop", LOOPS, ids=["asyncio", "uvloop"])
def test_a_place_is_free_after_the_connection_of_a_greedy_address(
    tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def body() -> None:
        async with serving(tmp_path, handshake_s=60.0, per_address_max=1) as served:
            request = asyncio.create_task(served.get("/wait"))
            await served.begun.wait()
            for _ in range(2 * PLACES):
                reader, writer = await served.connect()
                assert await ends(reader)
                writer.close()
            served.may_end.set()
            assert await request == 200
            assert served.closed.labels("too_many")._value.get() == 2 * PLACES

    run(new_loop, body())


def test_silent_clients_time_out_and_idle_ones_make_room(tmp_path: Path) -> None:
    """While all places are handshakes, a client waits; one event reports it."""

    async def body() -> None:
        async with serving(tmp_path) as served:
            silent = [
                await asyncio.open_connection("127.0.0.1", served.port) for _ in range(3 * PLACES)
            ]
            started_s = asyncio.get_running_loop().time()
            assert await served.get() == 200
            waited_s = asyncio.get_running_loop().time() - started_s
            assert waited_s >= HANDSHAKE_S, "it did not wait for a place"
            for reader, writer in silent:
                assert await ends(reader)
                writer.close()
            kept = []
            for _ in range(2 * PLACES):
                reader, writer = await served.connect()
                writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
                kept.append(writer)
            assert served.opened._value.get() == PLACES
            assert served.closed.labels("displaced")._value.get() == PLACES
            for writer in kept:
                writer.close()

    with capture_logs() as logs:
        run(uvloop.new_event_loop, body())
    assert [one["event"] for one in logs] == ["connections_full"]


def test_an_error_of_the_block_is_raised_as_it_is(tmp_path: Path) -> None:
    """It is not in a group, and the server has ended."""

    async def body() -> None:
        async with serving(tmp_path) as served:
            assert await served.get() == 200
            raise LookupError("of the block")

    with pytest.raises(LookupError, match="of the block"):
        run(uvloop.new_event_loop, body())


def test_a_cancelled_server_ends(tmp_path: Path) -> None:
    ended: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def serve(started: asyncio.Event) -> None:
        async with serving(tmp_path, handshake_s=60.0) as served:
            silent = await asyncio.open_connection("127.0.0.1", served.port)
            assert await served.get() == 200
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(silent)

    async def body() -> None:
        started = asyncio.Event()
        task = asyncio.create_task(serve(started))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        ((reader, writer),) = ended
        assert await ends(reader)
        writer.close()

    run(uvloop.new_event_loop, body())
