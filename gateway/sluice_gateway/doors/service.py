"""The steps of one request to a door: authenticate, receive, decode, make frames, accept.

The response is a success only after every record is accepted. A request that was accepted in part
is answered "later"; its retry finds the accepted part as duplicates. Records are decoded in one of
two threads, one of them for large bodies. A large body also reserves the memory that its records
take, so the in-flight budget bounds all of it, whatever its compression.

The memory that decoders have freed is returned to the operating system. After a body of 20 MiB the
allocators keep 5 to 100 MB of free pieces: glibc in the arena of the thread, Arrow in its pool.
They do not reuse each other's, so bodies of several doors in a row add up, also smaller ones.
Returning the pieces takes some milliseconds, so it is done once for several of them.

A repetition of a large request is a duplicate everywhere: the identity of a batch follows from the
request (`identity`), the bytes from the canonical records. A gateway with another version of the
encoder may compress differently. The frame therefore names its encoder in the resource, and the
identity proves that other bytes have the same records.
"""

import asyncio
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
from aiohttp import web

from sluice_doors.content_coding import decompress
from sluice_doors.decoded import BodyTooLarge, DecodedRecords
from sluice_doors.requests import (
    DoorRequest,
    DoorResult,
    RequestOrigin,
    canonical_records,
    identity_of,
    identity_of_lines,
)
from sluice_doors.table import DoorName
from sluice_gateway.doors.combined_frames import SmallRequest, combined_bytes
from sluice_gateway.doors.combiner import Combiner, FlushLimits
from sluice_gateway.metrics import UploadPhases
from sluice_gateway.uploads.acceptor import AcceptedResponse, Upload
from sluice_gateway.uploads.principals import VerifiedSender, authenticate_door
from sluice_gateway.uploads.service import UploadService
from sluice_protocol.columns import Columns, slice_columns
from sluice_protocol.compression import LARGE_TABLES, ZSTD_VERSION
from sluice_protocol.errors import ErrorCode, TooLarge
from sluice_protocol.frame import ENCODER_KEY, Envelope, decode_head, encode_frame
from sluice_protocol.identity import IdentitySource, RequestIdentity, format_identity
from sluice_protocol.keys import accepted_key, blob_key, digest_of
from sluice_protocol.manifests import decode_accepted
from sluice_protocol.outcomes import Found
from sluice_protocol.units import NS_PER_S, Digest, UnixNs
from sluice_store.port import ObjectStore
from sluice_web.problems import HttpRefusal, Problem
from sluice_web.process_limits import MMAP_THRESHOLD, set_allocator_options, trim_heaps

_TABLES: Final = f"{LARGE_TABLES.long_log}-{LARGE_TABLES.short_log}"
ENCODER: Final = f"c1 zstd-{ZSTD_VERSION} tables-{_TABLES}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeFrame:
    """A frame made from records; `reproducible` unless the records have the time of receipt."""

    frame: bytes
    digest: Digest
    envelope: Envelope
    source: IdentitySource
    reproducible: bool

    @property
    def count(self) -> int:
        """Number of records."""
        return self.envelope.count


def make_frames(
    records: DecodedRecords,
    named: DecodedRecords,
    origin: RequestOrigin,
    *,
    own_frame_bytes: int = 0,
) -> tuple[MadeFrame | SmallRequest, ...]:
    """Return the frames of the records of one kind: one, unless it would be too large.

    A request with less than `own_frame_bytes` is returned as it is, to be combined with others.
    `named` are the same records with a constant in place of the time of receipt. A record that is
    larger than a frame is `TooLarge`.
    """
    identity = identity_of(named, origin)
    size_bytes = combined_bytes(records) if own_frame_bytes else 0
    if size_bytes < own_frame_bytes:
        return (SmallRequest(records=records, identity=identity, size_bytes=size_bytes),)
    resource = (*records.resource, (ENCODER_KEY, ENCODER))
    return tuple(
        MadeFrame(
            frame=frame,
            digest=digest_of(frame),
            envelope=decode_head(frame).envelope,
            source=identity.source,
            reproducible=records.timed,
        )
        for frame in _encode(identity, records.columns, resource, 0)
    )


def _encode(
    identity: RequestIdentity,
    columns: Columns,
    resource: tuple[tuple[str, str], ...],
    seq_start: int,
) -> Iterator[bytes]:
    """Yield one frame, or the frames of both halves where one would be too large."""
    count = len(columns)
    batch = identity.batch(seq_start, count)
    try:
        yield encode_frame(identity=batch, columns=columns, resource=resource)
    except TooLarge:
        if count == 1:
            raise
        half = count // 2
        yield from _encode(identity, slice_columns(columns, 0, half), resource, seq_start)
        yield from _encode(
            identity, slice_columns(columns, half, count), resource, seq_start + half
        )


class OwnBatches:
    """Accepts the frames of large requests."""

    def __init__(self, uploads: UploadService, store: ObjectStore) -> None:
        self._uploads = uploads
        self._store = store

    async def accept(self, made: MadeFrame, sender: VerifiedSender) -> bool:
        """Accept one frame; return whether its records were accepted before."""
        accepted = None if made.reproducible else await self._accepted_frame(made)
        if accepted is None:
            result = await self._upload(made.frame, sender)
            if isinstance(result, AcceptedResponse):
                return result.duplicate
            if result.code is not ErrorCode.IDENTITY_CONFLICT:
                raise HttpRefusal(result.code, result.detail)
            log.error(
                "door_frames_differ",
                identity=format_identity(made.envelope.identity),
                digest=made.digest,
            )
            accepted = await self._accepted_frame(made)
        if accepted is None:
            raise HttpRefusal(ErrorCode.STORE_UNAVAILABLE, "the accepted frame cannot be read")
        again = await self._upload(accepted, sender)
        if not isinstance(again, AcceptedResponse):
            raise HttpRefusal(again.code, again.detail)
        return True

    async def _upload(self, frame: bytes, sender: VerifiedSender) -> AcceptedResponse | Problem:
        envelope = decode_head(frame).envelope
        upload = Upload(
            frame=frame,
            digest=digest_of(frame),
            identity=envelope.identity,
            envelope=envelope,
            principal=sender.principal,
            attempt_id=self._uploads.ids.ulid(),
        )
        return await self._uploads.accept_made(upload, UploadPhases(self._uploads.clock))

    async def _accepted_frame(self, made: MadeFrame) -> bytes | None:
        """Return the frame that owns the identity; None where nothing owns it.

        It has the same records, because the identity follows from them. It is uploaded again in
        place of the new frame, so that the acceptance journal of this gateway names it too.
        """
        key = accepted_key(made.envelope.identity)
        found = await self._store.get(key)
        if not isinstance(found, Found):
            return None
        blob = await self._store.get(blob_key(decode_accepted(key, found.body).digest))
        return blob.body if isinstance(blob, Found) else None


RETURNED_BYTES: Final = 4 * 1024 * 1024
"""Bodies of this size together leave enough free memory to return it."""

LARGE_BLOCK_BYTES: Final = 4 * 1024 * 1024
"""Blocks from this size on are returned to the operating system as soon as they are freed."""


def separate_large_blocks() -> None:
    """Let the allocator of this process keep large blocks out of its heaps.

    Otherwise glibc raises its limit to 32 MiB when the first large block is freed. Bodies of 20 MiB
    are then in the heaps, below small blocks that are still used, and cannot be returned.
    """
    set_allocator_options({MMAP_THRESHOLD: LARGE_BLOCK_BYTES})


class FreedMemory:
    """Counts the bodies that threads have decoded since free memory was returned."""

    def __init__(self) -> None:
        self._decoded_bytes = 0

    def decoded(self, size_bytes: int) -> None:
        """Count a body, and return free memory if the bodies since the last time were large enough.

        Threads may call it concurrently: a lost addition only delays the next return.
        """
        self._decoded_bytes += size_bytes
        if self._decoded_bytes >= RETURNED_BYTES:
            self._decoded_bytes = 0
            _return_freed_memory()


def _return_freed_memory() -> None:
    """Return free pages of this process, as far as its allocators can."""
    arrow = sys.modules.get("pyarrow")  # without it, no decoder has used its pool
    if arrow is not None:
        arrow.default_memory_pool().release_unused()
    trim_heaps()


INLINE_BYTES_MAX: Final = 16 * 1024
"""Bodies up to this size are decoded on the event loop."""
LARGE_BYTES: Final = 256 * 1024
"""Larger bodies are decoded in a separate thread, one at a time, because records take many times
the memory of their body while they are decoded. Smaller requests do not wait for them.
"""
BODY_COPIES: Final = 2
"""Copies of a body in memory: the body, and the frames made of it."""
DECODED_TIMES: Final = 8
"""Memory of a large body while it is decoded, as a multiple of its decompressed size. Measured with
20 MiB: 2.6 (Elasticsearch) to 7.5 (Firehose, whose body is larger than its records, ADR 20).
"""

log = structlog.get_logger()

_Made = tuple[list[MadeFrame | SmallRequest], int]
"""The frames and small requests of a body, and the number of records that were kept raw."""


def check_door_right(sender: VerifiedSender, door: DoorName) -> None:
    """Check that a sender may use a door."""
    if door not in sender.doors:
        raise HttpRefusal(
            ErrorCode.FORBIDDEN,
            f"the principal may not use this door: add it to its entry in the principals file,"
            f" principal=`{sender.principal}` door=`{door}`",
        )


class DoorService:
    """Accepts requests of clients that know no sequence numbers."""

    def __init__(
        self,
        uploads: UploadService,
        store: ObjectStore,
        *,
        body_bytes_max: int,
        own_frame_bytes: int = 0,
        flush_s: float = 0.25,
        flush_bytes: int = 1024 * 1024,
    ) -> None:
        """Bind the acceptance of this worker.

        The store that accepts is read after a conflict. A body is limited both compressed and
        decompressed. Records of at least `own_frame_bytes` become a separate batch; 0 for all. A
        combined batch is made after `flush_s`, or earlier from `flush_bytes` on.
        """
        separate_large_blocks()
        self.uploads = uploads
        self._own = OwnBatches(uploads, store)
        self.budget = uploads.budget
        self.clock = uploads.clock
        self.refused = uploads.refused
        self._body_bytes_max = body_bytes_max
        self._own_frame_bytes = own_frame_bytes
        self._process = uploads.ids.ulid().encode()
        self._requests = itertools.count()
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="door")
        self._large = ThreadPoolExecutor(1, thread_name_prefix="door-large")
        self._large_turn = asyncio.Lock()
        self._freed = FreedMemory()
        self._combiner = Combiner(
            self._accept_combined,
            uploads.budget,
            self._threads,
            uploads.clock,
            uploads.ids,
            flush=FlushLimits(age_s=flush_s, bytes_least=flush_bytes),
        )

    async def close(self) -> None:
        """Stop the threads; requests that wait for others are not answered."""
        await self._combiner.close()
        for threads in (self._threads, self._large):
            threads.shutdown(wait=False, cancel_futures=True)

    def now_ns(self) -> UnixNs:
        """Return the time."""
        return self.uploads.clock.now_ns()

    def is_stopping(self) -> bool:
        """Return whether this gateway is shutting down."""
        return self.uploads.running.draining

    def sheds(self) -> bool:
        """Return whether senders should use another gateway for a while."""
        return self.uploads.running.draining or self.uploads.budget.sheds()

    def is_full(self) -> bool:
        """Return whether this gateway is shutting down or nearly out of memory for bodies."""
        return self.uploads.running.draining or self.uploads.budget.is_nearly_full()

    async def accept(self, request: web.Request, wanted: DoorRequest) -> DoorResult:
        """Accept every record of an HTTP request."""
        uploads = self.uploads
        with uploads.running:
            now_s = uploads.clock.now_ns() // NS_PER_S
            sender = authenticate_door(request, uploads.principals.current, now_s)
            check_door_right(sender, wanted.door)
            length_bytes = self._announced_bytes(request)
            reserved_bytes = BODY_COPIES * length_bytes
            with uploads.budget.take(reserved_bytes):
                body = await self._read(request, length_bytes)
                return await self._accept_body(body, sender, wanted, reserved_bytes)

    async def accept_message(
        self, body: bytes, sender: VerifiedSender, wanted: DoorRequest
    ) -> DoorResult:
        """Accept every record of a message that another protocol than HTTP has received."""
        uploads = self.uploads
        with uploads.running:
            check_door_right(sender, wanted.door)
            reserved_bytes = BODY_COPIES * len(body)
            with uploads.budget.take(reserved_bytes):
                return await self._accept_body(body, sender, wanted, reserved_bytes)

    def count_accepted(self, door: DoorName, result: DoorResult) -> None:
        """Count a request that was accepted."""
        metrics = self.uploads.metrics
        metrics.door_requests_of(door, "duplicate" if result.duplicate else "new").inc()
        metrics.door_records_of(door).inc(result.records)
        metrics.door_unreadable_of(door).inc(result.unreadable)

    def count_refused(self, door: DoorName, problem: Problem) -> None:
        """Count a request that was refused, or not accepted yet."""
        self.uploads.metrics.door_requests_of(door, problem.code.value).inc()

    async def _accept_body(
        self, body: bytes, sender: VerifiedSender, wanted: DoorRequest, reserved_bytes: int
    ) -> DoorResult:
        made, unreadable = await self._make(body, sender, wanted, reserved_bytes)
        small = [one for one in made if isinstance(one, SmallRequest)]
        frames = [one for one in made if isinstance(one, MadeFrame)]
        duplicates = await self._accept_small(small)
        duplicates += [await self._own.accept(one, sender) for one in frames]
        return _result_of(made, unreadable, duplicates)

    async def _accept_small(self, small: Sequence[SmallRequest]) -> list[bool]:
        """Accept the records of each kind; wait for all kinds, even if one fails."""
        if len(small) == 1:  # most requests have one kind
            return [await self._combiner.accept(small[0])]
        found = await asyncio.gather(*map(self._combiner.accept, small), return_exceptions=True)
        for one in found:
            if isinstance(one, BaseException):
                raise one
        return [one for one in found if isinstance(one, bool)]

    async def _accept_combined(self, upload: Upload) -> None:
        uploads = self.uploads
        result = await uploads.accept_made(upload, UploadPhases(uploads.clock))
        if not isinstance(result, AcceptedResponse):
            raise HttpRefusal(result.code, result.detail)
        uploads.metrics.door_combined_batches.inc()

    def _announced_bytes(self, request: web.Request) -> int:
        """Return the length of the body; the largest allowed one where it is not announced."""
        length_bytes = request.content_length
        if length_bytes is None:
            return self._body_bytes_max
        if length_bytes > self._body_bytes_max:
            raise TooLarge("Content-Length", length_bytes, self._body_bytes_max)
        return length_bytes

    async def _read(self, request: web.Request, length_bytes: int) -> bytes:
        announced = request.content_length is not None
        wanted_bytes = length_bytes if announced else length_bytes + 1
        body = await self.uploads.frames.read_plain(request, wanted_bytes)
        if len(body) > self._body_bytes_max:
            raise TooLarge("body", len(body), self._body_bytes_max)
        return body

    async def _make(
        self, body: bytes, sender: VerifiedSender, wanted: DoorRequest, reserved_bytes: int
    ) -> _Made:
        origin = RequestOrigin(
            principal=sender.principal,
            door=wanted.door,
            key=wanted.key,
            unique=b"%s-%d" % (self._process, next(self._requests)),
        )
        make = partial(self._decode, wanted, origin, self.now_ns())
        if len(body) <= INLINE_BYTES_MAX:
            with suppress(BodyTooLarge):
                return make(decompress(body, wanted.coding, bytes_max=2 * INLINE_BYTES_MAX))
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(
            self._threads, self._decode_small, body, wanted.coding, make
        )
        if not isinstance(found, bytes):
            return found
        budget = self.uploads.budget
        extra_bytes = 0 if found is body else len(found)
        with budget.take(extra_bytes):
            async with self._large_turn:
                alone_bytes = budget.room_bytes(reserved_bytes + extra_bytes)
                with budget.take(min(DECODED_TIMES * len(found), alone_bytes)):
                    return await loop.run_in_executor(self._large, self._make_large, make, found)

    def _decode_small(
        self, body: bytes, coding: str, make: Callable[[bytes], _Made]
    ) -> bytes | _Made:
        """Return the frames of a body, or, if it is large, the body without its coding."""
        plain = decompress(body, coding, bytes_max=self._body_bytes_max)
        return make(plain) if len(plain) <= LARGE_BYTES else plain

    def _make_large(self, make: Callable[[bytes], _Made], plain: bytes) -> _Made:
        try:
            return make(plain)
        finally:
            self._freed.decoded(len(plain))

    def _decode(
        self, wanted: DoorRequest, origin: RequestOrigin, received_ns: UnixNs, plain: bytes
    ) -> _Made:
        if wanted.read_lines is not None and self._own_frame_bytes and len(plain) <= LARGE_BYTES:
            lines = wanted.read_lines(plain)
            # The choice follows from the records, so every repetition of a request has one form.
            if lines is not None and lines.size_bytes < self._own_frame_bytes:
                identity = identity_of_lines(lines, origin)
                small = SmallRequest(records=lines, identity=identity, size_bytes=lines.size_bytes)
                return [small], 0
        kinds = canonical_records(plain, wanted, received_ns)
        if len(plain) > INLINE_BYTES_MAX:  # what the decoder used is not needed for frames
            self._freed.decoded(len(plain))
        frames = [
            frame
            for kind in kinds
            for frame in make_frames(
                kind.records, kind.named, origin, own_frame_bytes=self._own_frame_bytes
            )
        ]
        return frames, sum(kind.records.unreadable for kind in kinds)


def _result_of(
    made: Sequence[MadeFrame | SmallRequest], unreadable: int, duplicates: Sequence[bool]
) -> DoorResult:
    return DoorResult(
        records=sum(one.count for one in made),
        unreadable=unreadable,
        duplicate=bool(made) and all(duplicates),
        source=made[0].source if made else "none",
        combined=any(isinstance(one, SmallRequest) for one in made),
    )
