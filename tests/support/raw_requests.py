"""Requests as bytes on one connection, cut and joined as a test wants."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

LENGTH = re.compile(rb"content-length: ([0-9]+)", re.IGNORECASE)
CLOCK_FIELD = re.compile(rb"\r\nDate: [^\r]*")


@dataclass(frozen=True)
class RawAnswer:
    """A response as it was sent, without the time."""

    head: bytes
    body: bytes

    @property
    def status(self) -> int:
        return int(self.head.split(b" ", 2)[1])


@dataclass(frozen=True)
class RawConnection:
    """A connection of a client that keeps it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self, time_s: float = 10.0) -> RawAnswer:
        """Return the next response."""
        async with asyncio.timeout(time_s):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = LENGTH.search(head)
            body = await self.reader.readexactly(int(length[1]) if length else 0)
        return RawAnswer(CLOCK_FIELD.sub(b"", head), body)

    async def ask(self, data: bytes) -> RawAnswer:
        self.send(data)
        return await self.answer()

    async def is_closed(self, time_s: float = 10.0) -> bool:
        """Return whether the server closes the connection without sending more."""
        async with asyncio.timeout(time_s):
            try:
                return await self.reader.read() == b""
            except ConnectionError:
                return True


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[RawConnection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.close()


def raw_request(path: str, body: bytes, fields: Sequence[tuple[str, str]]) -> bytes:
    """Return a POST of HTTP/1.1 whose length is between its other fields."""
    lines = [f"POST {path} HTTP/1.1", "Host: gateway", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in fields]
    return "\r\n".join((*lines, "", "")).encode() + body
