"""Reads one body: hashed while it comes, held to its announced length and to a lowest rate."""

import asyncio
import hashlib
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from sluice_protocol.errors import DigestMismatch, ErrorCode
from sluice_protocol.keys import digest_of
from sluice_protocol.signatures import parse_content_digest
from sluice_protocol.units import Digest
from sluice_web.problems import HttpRefusal

BLOCK_BYTES_MIN: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A body as it came, and its sha256."""

    body: bytes
    digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How slow a body may be: `grace_s` for nothing at all, then `rate_min` bytes per second."""

    grace_s: float
    rate_min: int


async def receive(request: web.Request, length_bytes: int, pace: Pace) -> Received:
    """Reads the body.

    The deadline moves with each chunk: whoever stalls is out after the grace, whoever keeps the
    lowest rate is never out.

    Raises:
        HttpRefusal: The body came too slowly; the same bytes may be sent again.
        DigestMismatch: The body is not what Content-Digest says.
    """
    announced = request.headers.get("Content-Digest")
    expected = None if announced is None else parse_content_digest(announced)
    await _say_continue(request)
    try:
        received = await _read(request, length_bytes, pace)
    except TimeoutError as error:
        raise HttpRefusal(
            ErrorCode.OVERLOADED, "the body came too slowly: send it again on a new connection"
        ) from error
    if expected is not None and expected != received.digest:
        raise DigestMismatch(expected, received.digest)
    return received


async def _read(request: web.Request, length_bytes: int, pace: Pace) -> Received:
    if request.content.is_eof():  # a small body comes with its head: nothing to wait for
        body = request.content.read_nowait()
        return Received(body=body, digest=digest_of(body))
    return await _read_pieces(request, length_bytes, pace)


async def _read_pieces(request: web.Request, length_bytes: int, pace: Pace) -> Received:
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    hasher, body = hashlib.sha256(), Assembly(length_bytes)
    async with asyncio.timeout_at(started_s + pace.grace_s) as limit:
        while body.size_bytes < length_bytes:
            chunk = await request.content.readany()
            if not chunk:
                break
            hasher.update(chunk)
            body.add(chunk)
            limit.reschedule(started_s + pace.grace_s + body.size_bytes / pace.rate_min)
    return Received(body=body.whole(), digest=Digest(hasher.hexdigest()))


class Assembly:
    """A body in the making.

    A large one is laid into one block of its announced size: kept as chunks, many bodies at once
    leave the heap in pieces that the allocator can neither use for whole bodies nor give back, and
    memory goes to twice the budget (measured: 622 MB for a budget of 268 MB).
    """

    def __init__(self, length_bytes: int) -> None:
        """Takes the announced length."""
        self._block = bytearray(length_bytes) if length_bytes > BLOCK_BYTES_MIN else None
        self._chunks: list[bytes] = []
        self.size_bytes = 0

    def add(self, chunk: bytes) -> None:
        """Adds what came; more than was announced never comes, the HTTP parser sees to it."""
        if self._block is None:
            self._chunks.append(chunk)
        else:
            self._block[self.size_bytes : self.size_bytes + len(chunk)] = chunk
        self.size_bytes += len(chunk)

    def whole(self) -> bytes:
        """Gives the body and lets go of everything else."""
        block, self._block = self._block, None
        if block is not None:
            return bytes(memoryview(block)[: self.size_bytes])
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)


async def _say_continue(request: web.Request) -> None:
    """Asks for a body that waits for it; a refused upload never gets this far."""
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
