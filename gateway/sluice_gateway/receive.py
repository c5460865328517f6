"""Reads one body: hashed while it comes, held to its announced length and to a lowest rate."""

import asyncio
import hashlib
from dataclasses import dataclass

from aiohttp import web

from sluice_gateway.problems import Refusal
from sluice_protocol.errors import DigestMismatch, ErrorCode
from sluice_protocol.signatures import parse_content_digest
from sluice_protocol.units import Digest


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
        Refusal: The body came too slowly; the same bytes may be sent again.
        DigestMismatch: The body is not what Content-Digest says.
    """
    announced = request.headers.get("Content-Digest")
    expected = None if announced is None else parse_content_digest(announced)
    await _say_continue(request)
    try:
        received = await _read(request, length_bytes, pace)
    except TimeoutError as error:
        raise Refusal(
            ErrorCode.OVERLOADED, "the body came too slowly: send it again on a new connection"
        ) from error
    if expected is not None and expected != received.digest:
        raise DigestMismatch(expected, received.digest)
    return received


async def _read(request: web.Request, length_bytes: int, pace: Pace) -> Received:
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    hasher, chunks, size_bytes = hashlib.sha256(), [], 0
    async with asyncio.timeout_at(started_s + pace.grace_s) as limit:
        while size_bytes < length_bytes:
            chunk = await request.content.readany()
            if not chunk:
                break
            hasher.update(chunk)
            chunks.append(chunk)
            size_bytes += len(chunk)
            limit.reschedule(started_s + pace.grace_s + size_bytes / pace.rate_min)
    body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
    return Received(body=body, digest=Digest(hasher.hexdigest()))


async def _say_continue(request: web.Request) -> None:
    """Asks for a body that waits for it; a refused upload never gets this far."""
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
