"""Slow and hostile clients: each is stopped within its limit and affects no other client."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from support.gateway import Running, TestKey, frame_of, running, upload_fields

HOST = TestKey("host-1", ("host-1",))
LIMIT_S = 0.3
SLACK_S = 1.5
Script = Callable[[asyncio.StreamWriter, str], Awaitable[None]]


def head(authority: str, frame: bytes, **extra: str) -> bytes:
    fields = HOST.sign(upload_fields(frame, **extra), authority)
    lines = [f"{name}: {value}" for name, value in fields.items()]
    return "\r\n".join(["POST /v1/batches HTTP/1.1", f"Host: {authority}", *lines, "", ""]).encode()


async def say_nothing(writer: asyncio.StreamWriter, authority: str) -> None:
    """Connect and send nothing."""


async def partial_line(writer: asyncio.StreamWriter, authority: str) -> None:
    """Send half a request line."""
    writer.write(b"POST /v1/ba")


async def partial_headers(writer: asyncio.StreamWriter, authority: str) -> None:
    """Send headers without their end."""
    writer.write(head(authority, b"x")[:-2])


async def drip_headers(writer: asyncio.StreamWriter, authority: str) -> None:
    """Send another header every moment, without end."""
    writer.write(b"POST /v1/batches HTTP/1.1\r\n")
    for number in range(1000):
        writer.write(f"x-{number}: y\r\n".encode())
        await writer.drain()
        await asyncio.sleep(0.05)


async def stalled_body(writer: asyncio.StreamWriter, authority: str) -> None:
    """Send half a body, then nothing."""
    frame = frame_of(size=4000)
    writer.write(head(authority, frame) + frame[:2000])


async def drip_body(writer: asyncio.StreamWriter, authority: str) -> None:
    """Send a body byte by byte."""
    frame = frame_of(size=4000)
    writer.write(head(authority, frame))
    for byte in frame:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.05)


async def drip_chunks(writer: asyncio.StreamWriter, authority: str) -> None:
    """Send a chunk every moment, without end."""
    fields = head(authority, b"x").replace(
        b"Content-Length: 1\r\n", b"Transfer-Encoding: chunked\r\n"
    )
    writer.write(fields)
    for _ in range(1000):
        writer.write(b"1\r\nx\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)


async def second_head(writer: asyncio.StreamWriter, authority: str) -> None:
    """Send a valid request, then half a head on the same connection."""
    writer.write(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\nGET /liv")


PATTERNS: list[Script] = [
    say_nothing,
    partial_line,
    partial_headers,
    drip_headers,
    stalled_body,
    drip_body,
    drip_chunks,
    second_head,
]


async def seconds_until_closed(port: int, script: Script) -> tuple[float, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    started = time.monotonic()
    sending = asyncio.create_task(_quietly(script(writer, f"127.0.0.1:{port}")))
    try:
        said = await _read_to_end(reader)
        elapsed = time.monotonic() - started
        # The gateway has closed the connection: a write must fail now or soon.
        return elapsed, said
    finally:
        sending.cancel()
        writer.close()
        await _quietly(writer.wait_closed())


async def _quietly(what: Awaitable[None]) -> None:
    with contextlib.suppress(ConnectionError, asyncio.CancelledError):
        await what


async def _read_to_end(reader: asyncio.StreamReader) -> bytes:
    said = b""
    try:
        async with asyncio.timeout(10):
            while chunk := await reader.read(65536):
                said += chunk
    except ConnectionError:
        pass
    return said


@pytest.mark.parametrize("script", PATTERNS, ids=lambda script: script.__name__)
async def test_a_slow_client_is_stopped(tmp_path: Path, script: Script) -> None:
    """The connection is closed within its limit, no budget stays reserved, and a valid upload
    succeeds.
    """
    async with running(
        tmp_path,
        HOST,
        head_timeout_s=LIMIT_S,
        idle_timeout_s=LIMIT_S,
        body_grace_s=LIMIT_S,
    ) as served:
        elapsed, said = await seconds_until_closed(served.port, script)
        assert elapsed < LIMIT_S + SLACK_S
        if script in (stalled_body, drip_body):
            assert b"503" in said.split(b"\r\n")[0]
            assert b"too slowly" in said
        await _until_empty(served)
        assert (await served.client.upload(frame_of())).status == 200


async def _until_empty(served: Running) -> None:
    async with asyncio.timeout(5):
        uploads = served.gateway.uploads
        while uploads.budget.held_bytes or uploads.running.count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_refusal_reaches_a_client_that_still_sends(tmp_path: Path) -> None:
    """401 while a large body is being sent: the client reads the response, not a reset."""
    async with running(tmp_path, HOST) as served:
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(b"POST /v1/batches HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n")
            for _ in range(10):
                writer.write(b"x" * 20_000)
                await asyncio.sleep(0)
            said = await _read_to_end(reader)
            assert said.startswith(b"HTTP/1.1 401 ")
            assert b"unauthenticated" in said
            writer.close()
            await _quietly(writer.wait_closed())


async def test_a_refused_body_is_discarded_within_bounds(tmp_path: Path) -> None:
    """A client that continues to send after a refusal is stopped after 256 KiB or 2 s."""
    async with running(tmp_path, HOST) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"POST /v1/batches HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n")
        started = time.monotonic()
        sent = 0
        try:
            while time.monotonic() - started < 8:
                writer.write(b"x" * 65536)
                await writer.drain()
                sent += 65536
        except ConnectionError:
            pass
        assert time.monotonic() - started < 4
        assert sent < 64 * 1024 * 1024
        del reader
        writer.close()
        await _quietly(writer.wait_closed())


async def test_100_continue_is_sent_only_for_an_upload_that_is_not_refused(tmp_path: Path) -> None:
    """A refused upload gets its refusal instead of 100 Continue; an accepted one gets 100, then
    200.
    """
    async with running(tmp_path, HOST) as served:
        authority = f"127.0.0.1:{served.port}"
        frame = frame_of()
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(head(authority, frame)[:-2] + b"Expect: 100-continue\r\n\r\n")
        assert await reader.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert await reader.readline() == b"\r\n"
        writer.write(frame)
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        writer.close()
        await writer.wait_closed()
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(
            b"POST /v1/batches HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n"
            b"Expect: 100-continue\r\n\r\n"
        )
        assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")
        writer.close()
        await writer.wait_closed()


async def test_a_client_of_http_1_0_gets_no_100_continue(tmp_path: Path) -> None:
    """It would take the interim response for the final one."""
    async with running(tmp_path, HOST) as served:
        frame = frame_of()
        sent = head(f"127.0.0.1:{served.port}", frame)[:-2].replace(b"HTTP/1.1", b"HTTP/1.0", 1)
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(sent + b"Expect: 100-continue\r\n\r\n")
        await asyncio.sleep(0.1)
        writer.write(frame)
        assert await reader.readline() == b"HTTP/1.0 200 OK\r\n"
        writer.close()
        await _quietly(writer.wait_closed())


async def test_connection_caps(tmp_path: Path) -> None:
    """Of connections above the limit the longest idle one is closed, and none with a request."""
    async with running(tmp_path, HOST, connections_per_address_max=2) as served:
        first = await asyncio.open_connection("127.0.0.1", served.port)
        second = await asyncio.open_connection("127.0.0.1", served.port)
        third = await asyncio.open_connection("127.0.0.1", served.port)
        assert await _read_to_end(first[0]) == b""
        for _, writer in (second, third):
            writer.write(b"GET /livez HTTP/1.1\r\n")
        await asyncio.sleep(0.05)
        fourth = await asyncio.open_connection("127.0.0.1", served.port)
        assert await _read_to_end(fourth[0]) == b""
        for reader, writer in (second, third):
            writer.write(b"Host: a\r\nConnection: close\r\n\r\n")
            assert (await _read_to_end(reader)).startswith(b"HTTP/1.1 200 ")
        closed = {"reason": "displaced"}
        assert served.count("sluice_connections_closed_total", **closed) == 1
        for _, other in (first, second, third, fourth):
            other.close()
            await _quietly(other.wait_closed())
        await asyncio.sleep(0.05)
        assert (await served.client.upload(frame_of())).status == 200


@pytest.mark.parametrize(
    "head_lines",
    [
        b"Content-Length: -1\r\n",
        b"Content-Length: " + b"9" * 30 + b"\r\n",
        b"Content-Length: 1\r\nContent-Length: 2\r\n",
        b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
        b"".join(b"x-%d: y\r\n" % n for n in range(2000)),
        b"x: " + b"y" * 100_000 + b"\r\n",
    ],
)
async def test_malformed_heads(tmp_path: Path, head_lines: bytes) -> None:
    """Negative, huge and repeated lengths and endless headers are a 4xx, never a 5xx."""
    async with running(tmp_path, HOST) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"POST /v1/batches HTTP/1.1\r\nHost: a\r\n" + head_lines + b"\r\n")
        said = await _read_to_end(reader)
        assert said.startswith(b"HTTP/1.") is False or said[9:10] == b"4", said[:100]
        writer.close()
        await _quietly(writer.wait_closed())
        assert served.store.calls == []
        assert (await served.client.upload(frame_of())).status == 200
