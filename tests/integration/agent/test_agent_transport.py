"""One upload on real sockets: responses that are early, late, broken or missing."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sluice_agent.sending.gateway_choice import GatewayTarget
from sluice_agent.sending.transport import (
    HttpTransport,
    UploadRequest,
    UploadResult,
    open_upload_session,
    parse_response,
    parse_retry_after,
)
from sluice_agent.sending.upload_decisions import (
    ConnectionFailure,
    GatewayResponse,
    NoGatewayResponse,
)
from sluice_protocol.keys import digest_of
from sluice_protocol.system_clock import SystemClock

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
BIG = b"x" * (12 * 1024 * 1024)


def failure_of(result: UploadResult) -> ConnectionFailure:
    assert isinstance(result.response, NoGatewayResponse)
    return result.response.failure


def send(handler: Handler, frame: bytes = BIG, total_s: float = 10) -> UploadResult:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()

    async def main() -> UploadResult:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with (
            server,
            open_upload_session(
                tls=None, connections_max=1, total_s=total_s, connect_s=2
            ) as session,
        ):
            transport = HttpTransport(session, key=None, clock=SystemClock())
            upload = UploadRequest(frame=frame, digest=digest_of(frame))
            received = await transport.send(GatewayTarget(url=f"http://127.0.0.1:{port}"), upload)
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=5)
        return received

    return asyncio.run(main())


def problem(status: str, code: str, more: str = "") -> bytes:
    body = f'{{"code":"{code}","status":{status[:3]},"retryable":true,"effect":"none"}}'
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/problem+json\r\n{more}"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()


@pytest.mark.parametrize("discard_bytes", [0, 256 * 1024])
def test_a_response_before_the_body_was_read_is_read(discard_bytes: int) -> None:
    """The gateway responds, half-closes, discards a little and closes; the response is read."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(problem("503 Service Unavailable", "overloaded", "Retry-After: 7\r\n"))
        await writer.drain()
        writer.write_eof()
        if discard_bytes:
            await reader.read(discard_bytes)
        await asyncio.sleep(0.2)
        writer.transport.abort()

    received = send(refuse)
    assert received.response == GatewayResponse(
        status=503, code="overloaded", retryable=True, retry_after_s=7.0
    )


def test_a_reset_is_no_response() -> None:
    """A connection that is cut during the upload has no response."""

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()

    assert failure_of(send(cut)) is ConnectionFailure.RESET


def test_an_incomplete_response_is_no_response() -> None:
    """An incomplete response is not used."""

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(5)
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"status":"accepted"')
        await writer.drain()
        writer.close()

    assert failure_of(send(cut, b"small")) is ConnectionFailure.RESET


def test_silence_is_a_timeout() -> None:
    """A gateway that never responds costs one upload timeout."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    assert send(silent, b"small", total_s=0.2).response == NoGatewayResponse(
        failure=ConnectionFailure.TIMEOUT
    )


def test_a_redirect_is_not_followed() -> None:
    """A redirect is a response that accepts nothing."""

    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 307 x\r\nLocation: /else\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        await reader.read()

    assert send(redirect, b"small").response == GatewayResponse(status=307)


def test_invalid_bodies_count_as_empty() -> None:
    """HTML, other types, and a 200 whose status is not `accepted`."""
    for body in (b"<html>", b"[]", b'{"code":1}', b'{"frame_sha256":"ab"}', b"", b"\xff"):
        assert parse_response(200, {}, body).frame_sha256 is None
    assert (
        parse_response(200, {}, b'{"status":"accepted","frame_sha256":"ab"}').frame_sha256 == "ab"
    )
    problem_409 = b'{"status":409,"code":"identity_conflict","retryable":false,"effect":"none"}'
    assert parse_response(409, {}, problem_409).code


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(None, None), ("3", 3.0), ("x", None), ("-1", None), ("", None),
     ("Sat, 21 Nov 2026 02:00:30 GMT", 30.0), ("Sat, 21 Nov 2026 01:00:00 GMT", 0.0),
     (f"Sat, 21 Nov {10**20} 02:00:30 GMT", None), (f"Sat, 21 Nov 2026 02:00:30 +{10**20}", None)],
)  # fmt: skip
def test_retry_after(value: str | None, seconds: float | None) -> None:
    """Retry-After is in seconds, or a date compared with the Date of the same response."""
    assert parse_retry_after(value, "Sat, 21 Nov 2026 02:00:00 GMT") == seconds


def test_a_large_response_is_truncated() -> None:
    """At most 64 KiB of a response are kept."""

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 500 x\r\nContent-Length: 99999999\r\n\r\n")
        for _ in range(100):
            writer.write(b"y" * 65536)
            await writer.drain()

    received = send(flood, b"small")
    assert received.response == GatewayResponse(status=500)
    assert len(received.body) == 64 * 1024


def test_unreachable_gateways(tmp_path: Path) -> None:
    """A refused connection is distinguished from a reset."""

    async def main() -> UploadResult:
        async with open_upload_session(
            tls=None, connections_max=1, total_s=5, connect_s=2
        ) as session:
            transport = HttpTransport(session, key=None, clock=SystemClock())
            return await transport.send(
                GatewayTarget(url="http://127.0.0.1:9"),
                UploadRequest(frame=b"x", digest=digest_of(b"x")),
            )

    assert failure_of(asyncio.run(main())) is ConnectionFailure.REFUSED
