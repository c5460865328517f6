"""Reads the frame of an upload from its body and validates it.

The body is hashed while it arrives, compared with its announced length and digest, and has a
minimum rate. Validation must not block the event loop for more than a few milliseconds: a frame
that cannot take longer is decoded inline, another in one of two threads. Only one thread at a time
decodes columns above `LARGE_RAW_BYTES`, because a frame of 16 MiB may decompress to 64 MiB and
memory must stay bounded.
"""

import asyncio
import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec
from aiohttp import web

from sluice_protocol.column_codings import NAMES
from sluice_protocol.errors import DigestMismatch, ErrorCode, TooLarge
from sluice_protocol.frame import HEAD_BYTES_MAX, Envelope, FrameHead, decode_body, decode_head
from sluice_protocol.keys import digest_of
from sluice_protocol.signatures import parse_content_digest
from sluice_protocol.units import Digest
from sluice_protocol.upload_http import HIGH_WATER_HEADER, RETRY_HEADER, parse_high_water
from sluice_web.application import send_continue
from sluice_web.connection_guard import BodyPace
from sluice_web.problems import HttpRefusal

BLOCK_BYTES_MIN: Final = 4 * 1024 * 1024
INLINE_PLAIN_BYTES_MAX: Final = 1024 * 1024 + HEAD_BYTES_MAX
INLINE_COMPRESSED_BYTES_MAX: Final = 64 * 1024
INLINE_RAW_BYTES_MAX: Final = 256 * 1024
"""Limits of frames that are decoded on the event loop: about 4 ms in the worst case (ADR 15)."""
INLINE_NAMES_BYTES_MAX: Final = 16 * 1024
"""Each name of a metric or attribute becomes a separate string, so names cost more time than any
other bytes of a frame.
"""
LARGE_RAW_BYTES: Final = 8 * 1024 * 1024
THREADS: Final = 2


class ReceivedBody(msgspec.Struct, frozen=True, kw_only=True):
    """A body as sent, its sha256, and what the sender reports: a retry and its highest number."""

    body: bytes
    digest: Digest
    sent_before: bool = False
    high_water: int | None = None


class FrameReader:
    """Reads bodies and validates the frames in them."""

    def __init__(self, *, frame_bytes_max: int, pace: BodyPace) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._pace = pace
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="decode")
        self._large = asyncio.Lock()

    async def read_body(self, request: web.Request, length_bytes: int) -> ReceivedBody:
        """Read the body of a request.

        The deadline moves with each chunk: a client that stalls is refused after the grace period,
        a client that keeps the minimum rate is never refused.
        """
        announced = request.headers.get("Content-Digest")
        expected = None if announced is None else parse_content_digest(announced)
        await send_continue(request)  # a refused upload never gets here
        try:
            if request.content.is_eof():  # a small body arrives with its header fields
                body = request.content.read_nowait()
                digest = digest_of(body)
            else:
                body, digest = await _read_chunks(request, length_bytes, self._pace)
        except TimeoutError as error:
            raise HttpRefusal(
                ErrorCode.OVERLOADED,
                "the body arrived too slowly: send it again on a new connection",
            ) from error
        if expected is not None and expected != digest:
            raise DigestMismatch(expected, digest)
        return ReceivedBody(
            body=body,
            digest=digest,
            sent_before=request.headers.get(RETRY_HEADER) == "1",
            high_water=parse_high_water(request.headers.get(HIGH_WATER_HEADER)),
        )

    async def read_plain(self, request: web.Request, length_bytes: int) -> bytes:
        """Read the body of a request; without its digest where the request announces none."""
        if request.content.is_eof() and "Content-Digest" not in request.headers:
            return request.content.read_nowait()  # most small bodies arrive with their head
        return (await self.read_body(request, length_bytes)).body

    async def decode(self, frame: bytes) -> Envelope:
        """Check every rule of a frame and return its envelope."""
        if len(frame) > self._frame_bytes_max:
            raise TooLarge("frame", len(frame), self._frame_bytes_max)
        head = decode_head(frame)
        if decodes_inline(head):
            return decode_body(head, frame).envelope
        if max(head.raw_bytes, len(frame)) <= LARGE_RAW_BYTES:
            return await self._decode_in_thread(head, frame)
        async with self._large:
            return await self._decode_in_thread(head, frame)

    def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _decode_in_thread(self, head: FrameHead, frame: bytes) -> Envelope:
        loop = asyncio.get_running_loop()
        decoded = await loop.run_in_executor(self._threads, decode_body, head, frame)
        return decoded.envelope


def decodes_inline(head: FrameHead) -> bool:
    """Return True if the sizes of columns bound their decoding enough for the event loop."""
    names = sum(one.raw_length for one in head.columns if one.type in NAMES.types)
    if names > INLINE_NAMES_BYTES_MAX:
        return False
    if not head.is_compressed:
        return head.frame_bytes <= INLINE_PLAIN_BYTES_MAX
    return (
        head.frame_bytes <= INLINE_COMPRESSED_BYTES_MAX and head.raw_bytes <= INLINE_RAW_BYTES_MAX
    )


class BodyBuffer:
    """A body that is being read.

    A large body is written into one block of its announced size. Kept as chunks, many concurrent
    bodies fragment the heap: the allocator can neither reuse the pieces for whole bodies nor
    return them, and memory grows to twice the budget (measured: 622 MB for a budget of 268 MB).
    """

    def __init__(self, length_bytes: int) -> None:
        self._block = bytearray(length_bytes) if length_bytes > BLOCK_BYTES_MIN else None
        self._chunks: list[bytes] = []
        self.size_bytes = 0

    def add(self, chunk: bytes) -> None:
        """Add a chunk; the HTTP parser ensures that no more arrives than was announced."""
        if self._block is None:
            self._chunks.append(chunk)
        else:
            self._block[self.size_bytes : self.size_bytes + len(chunk)] = chunk
        self.size_bytes += len(chunk)

    def whole(self) -> bytes:
        """Return the body and release everything else."""
        block, self._block = self._block, None
        if block is not None:
            return bytes(memoryview(block)[: self.size_bytes])
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)


async def _read_chunks(
    request: web.Request, length_bytes: int, pace: BodyPace
) -> tuple[bytes, Digest]:
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    hasher, body = hashlib.sha256(), BodyBuffer(length_bytes)
    async with asyncio.timeout_at(started_s + pace.grace_s) as limit:
        while body.size_bytes < length_bytes:
            chunk = await request.content.readany()
            if not chunk:
                break
            hasher.update(chunk)
            body.add(chunk)
            limit.reschedule(started_s + pace.grace_s + body.size_bytes / pace.rate_min)
    return body.whole(), Digest(hasher.hexdigest())
