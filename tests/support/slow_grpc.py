"""A gRPC call whose message stalls: frames of HTTP/2, because clients send whole messages."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

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
