"""The channel with a server that sends arbitrary bytes: one request, one response or a typed
failure.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest

from sluice_store.s3 import connection
from sluice_store.s3.connection import ERROR_BYTES_MAX, Channel, ConnectionBroken, NotConnected

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
LARGE = b"x" * (8 * 1024 * 1024)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nETag: e\r\n\r\nok"


@asynccontextmanager
async def channel_to(
    serve: Serve, total_s: float = 5.0, connections_max: int = 100
) -> AsyncIterator[tuple[Channel, list[int]]]:
    """Yield a channel to a server of one function, and the connections that it had."""
    connections: list[int] = []

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        try:
            await serve(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    host = "{}:{}".format(*server.sockets[0].getsockname())
    timeout = aiohttp.ClientTimeout(total=total_s, connect=1)
    async with server, aiohttp.TCPConnector(limit=connections_max) as connector:
        channel = Channel(connector, f"http://{host}", host, timeout)
        try:
            yield channel, connections
        finally:
            channel.close()


async def head_of(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


async def test_exchange_two_requests_share_a_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not reader.at_eof():
            head = await head_of(reader)
            assert head.startswith(b"PUT /b/k HTTP/1.1\r\nHost: 127.0.0.1:")
            assert await reader.readexactly(3) == b"abc"
            writer.write(OK)

    async with channel_to(serve) as (channel, connections):
        for _ in range(2):
            response = await channel.exchange("PUT", "/b/k", {"If-None-Match": "*"}, b"abc")
            assert (response.status, response.headers["etag"], response.body) == (200, "e", b"ok")
        assert len(connections) == 1


async def test_exchanges_above_the_limit_wait_for_a_connection() -> None:
    """A connection that is free goes to a caller that waits, and not to the connections kept."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not reader.at_eof():
            await head_of(reader)
            await asyncio.sleep(0.01)
            writer.write(OK)

    async with channel_to(serve, connections_max=2) as (channel, connections):
        for _ in range(2):
            found = await asyncio.gather(
                *(channel.exchange("GET", "/b/k", {}, b"") for _ in range(8))
            )
            assert [one.status for one in found] == [200] * 8
        assert len(connections) == 2


async def test_bytes_after_a_response_are_not_the_next_response() -> None:
    """A second response without a request is discarded with its connection."""

    sent = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(OK)
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(b"HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        sent.set()
        await reader.read()

    async with channel_to(serve) as (channel, connections):
        for number in (1, 2):
            assert (await channel.exchange("PUT", "/b/k", {}, b"abc")).status == 200
            assert len(connections) == number
            await sent.wait()
            await asyncio.sleep(0.1)
            sent.clear()


async def test_a_connection_that_was_unused_for_too_long_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "KEEP_ALIVE_S", 0.05)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not reader.at_eof():
            await head_of(reader)
            writer.write(OK)

    async with channel_to(serve) as (channel, connections):
        for pause_s in (0, 0.1, 0):
            await channel.exchange("GET", "/b/k", {}, b"")
            await asyncio.sleep(pause_s)
        assert len(connections) == 2


async def test_exchange_early_response_is_returned_and_the_connection_closed() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.2)

    async with channel_to(serve) as (channel, connections):
        for _ in range(2):
            assert (await channel.exchange("PUT", "/b/k", {}, LARGE)).status == 503
        assert len(connections) == 2


async def test_exchange_large_body_arrives_whole() -> None:
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not reader.at_eof():
            assert f"Content-Length: {len(LARGE)}".encode() in await head_of(reader)
            seen.append(await reader.readexactly(len(LARGE)))
            writer.write(OK)

    async with channel_to(serve) as (channel, connections):
        for _ in range(2):
            assert (await channel.exchange("PUT", "/b/k", {}, LARGE)).status == 200
        assert (seen, len(connections)) == ([LARGE, LARGE], 1)


async def test_exchange_interim_responses_are_ignored() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(b"HTTP/1.1 102 Processing\r\n\r\n" + OK)

    async with channel_to(serve) as (channel, _):
        assert (await channel.exchange("GET", "/b/k", {}, b"")).body == b"ok"


async def test_exchange_error_body_is_truncated() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        size = 4 * ERROR_BYTES_MAX
        writer.write(f"HTTP/1.1 500 No\r\nContent-Length: {size}\r\n\r\n".encode() + b"e" * size)
        await writer.drain()

    async with channel_to(serve) as (channel, _):
        response = await channel.exchange("GET", "/b/k", {}, b"")
        assert response.status == 500
        assert 0 < len(response.body) <= ERROR_BYTES_MAX


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"SMTP 220 hello\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-",
    ],
    ids=["nothing", "no http", "cut body", "bad length", "cut head"],
)
async def test_exchange_without_a_complete_response_is_broken_and_not_repeated(said: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(said)
        await writer.drain()

    async with channel_to(serve) as (channel, connections):
        with pytest.raises(ConnectionBroken):
            await channel.exchange("PUT", "/b/k", {}, b"abc")
        assert len(connections) == 1


async def test_exchange_without_a_response_times_out() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with channel_to(serve, total_s=0.1) as (channel, connections):
        with pytest.raises(TimeoutError):
            await channel.exchange("PUT", "/b/k", {}, b"abc")
        assert len(connections) == 1


async def test_exchange_line_break_in_a_header_sends_nothing() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise AssertionError

    async with channel_to(serve) as (channel, connections):
        with pytest.raises(NotConnected, match="line break"):
            await channel.exchange("PUT", "/b/k", {"If-Match": "e\r\nX-Evil: 1"}, b"abc")
        assert connections == []


async def test_exchange_unreachable_is_not_connected() -> None:
    async with aiohttp.TCPConnector() as connector:
        timeout = aiohttp.ClientTimeout(total=1, connect=1)
        channel = Channel(connector, "http://127.0.0.1:1", "127.0.0.1:1", timeout)
        with pytest.raises(NotConnected):
            await channel.exchange("GET", "/b/k", {}, b"")
