"""The doors of the agent: a success means that the records are durable in the spool.

A client keeps its records until then, so a crash of the agent loses nothing. While the inputs are
blocked, the answer is "later" in the form of each protocol. A request that is repeated after a lost
response is a duplicate as long as the spool knows it (`request_window`), also while the first one
is not durable yet: both then wait for the same records.

Records of many requests share a frame, so each has the pairs of its resource as attributes. A large
request becomes several parts, cut at the same places in every retry: a crash may make only some of
them durable, and the retry adds the others.

Source: ADR 20, 17 and 5.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from aiohttp import web

from sluice_agent.metrics import AgentMetrics
from sluice_agent.settings import BATCH_BYTES_MAX
from sluice_agent.spool.batching import Batcher, RecordBlock, cost_bytes
from sluice_agent.spool.request_window import part_digest
from sluice_agent.spool.spool import Spool
from sluice_doors.attributes import with_resource_in_records
from sluice_doors.content_coding import decompress
from sluice_doors.decoded import BodyTooLarge, DecodedRecords
from sluice_doors.requests import (
    DoorRequest,
    DoorResult,
    RequestOrigin,
    canonical_records,
    identity_of,
    sent_token,
)
from sluice_doors.table import DoorName
from sluice_protocol.clock import Clock
from sluice_protocol.columns import SignalColumns, slice_columns
from sluice_protocol.errors import ErrorCode, TooLarge, Unauthenticated
from sluice_protocol.identity import IdentitySource
from sluice_protocol.units import UnixNs
from sluice_web.application import send_continue
from sluice_web.problems import HttpRefusal, Problem
from sluice_web.refused_clients import RefusedClients
from sluice_web.tokens import Operator, name_of_token

BODIES_BYTES_MAX: Final = 64 * 1024 * 1024
"""Limit of all bodies that are in memory, as announced; more requests get "later"."""
REQUESTS_MAX: Final = 256
"""Limit of requests that wait to become durable."""
BODY_S_MAX: Final = 60.0
INLINE_BYTES_MAX: Final = 16 * 1024
"""Bodies up to this size are decoded on the event loop."""
THREADS: Final = 2
PART_BYTES_MAX: Final = BATCH_BYTES_MAX // 2
"""A constant and no setting: parts of a request must not change between two runs."""
LOCAL_SENDER: Final = "local"
"""The sender of all requests to a listener that requires no proof."""


class TokenSenders:
    """The senders of requests over HTTP and of gRPC calls (`CallSenders`)."""

    def __init__(self, tokens: Collection[Operator]) -> None:
        """Bind the known tokens; without any, every request is accepted."""
        self._tokens = tuple(tokens)

    def of_token(self, token: str | None) -> str:
        """Return the owner of a token."""
        if not self._tokens:
            return LOCAL_SENDER
        name = name_of_token(token or "", self._tokens)
        if name is None:
            raise Unauthenticated("the request does not contain a known token")
        return name

    def of_call(self, token: str | None, spiffe: str | None) -> str:
        """Return the owner of a token; an agent knows no client certificates."""
        del spiffe
        return self.of_token(token)


class DoorBudget:
    """The requests of all doors of one agent."""

    def __init__(self, body_bytes_max: int, is_full: Callable[[], bool]) -> None:
        """Start without a request; one body of `body_bytes_max` always fits alone."""
        self.bytes_max = max(BODIES_BYTES_MAX, body_bytes_max)
        self._is_full = is_full
        self.held_bytes = 0
        self._requests = 0

    @contextmanager
    def take(self, length_bytes: int) -> Iterator[None]:
        """Reserve memory; raise `HttpRefusal` if there is no room."""
        if self.held_bytes + length_bytes > self.bytes_max:
            raise HttpRefusal(ErrorCode.OVERLOADED, "too many requests: send it again later")
        self.held_bytes += length_bytes
        try:
            yield
        finally:
            self.held_bytes -= length_bytes

    @contextmanager
    def request(self, length_bytes: int) -> Iterator[None]:
        """Reserve memory for a request and count it; raise `HttpRefusal` without room."""
        if self._is_full():
            raise HttpRefusal(ErrorCode.OVERLOADED, "the spool is full: send it again later")
        if self._requests >= REQUESTS_MAX:
            raise HttpRefusal(ErrorCode.OVERLOADED, "too many requests: send it again later")
        with self.take(length_bytes):
            self._requests += 1
            try:
                yield
            finally:
                self._requests -= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorPorts:
    """What the doors use of the agent."""

    batcher: Batcher
    spool: Spool
    metrics: AgentMetrics
    clock: Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """What the body of a request contains.

    Attributes:
        blocks: The records, each block with the digest of its part of the request.
        unreadable: Records that were kept raw.
    """

    blocks: tuple[RecordBlock, ...]
    records: int
    unreadable: int
    source: IdentitySource


class AgentDoors:
    """Accepts requests into the spool, over HTTP (`DoorAcceptance`) and as messages.

    Attributes:
        body_bytes_max: Largest body, compressed and decompressed.
    """

    def __init__(self, ports: DoorPorts, senders: TokenSenders, *, body_bytes_max: int) -> None:
        self.budget = DoorBudget(body_bytes_max, self.is_full)
        self.clock = ports.clock
        self.body_bytes_max = body_bytes_max
        self.refused = RefusedClients(ports.clock)
        self._ports = ports
        self._senders = senders
        self._stopping = False
        self._unsealed: dict[bytes, asyncio.Future[bool]] = {}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="door")

    def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def stop(self) -> None:
        """Report from now on that what cannot be accepted is not tried again."""
        self._stopping = True

    def is_stopping(self) -> bool:
        """Return whether the agent is shutting down."""
        return self._stopping

    def now_ns(self) -> UnixNs:
        """Return the time."""
        return self.clock.now_ns()

    def sheds(self) -> bool:
        """Return False: a client of an agent cannot use another agent."""
        return False

    def is_full(self) -> bool:
        """Return whether the spool is full."""
        return self._ports.metrics.is_blocked

    def count_accepted(self, door: DoorName, result: DoorResult) -> None:
        """Count a request whose records are durable."""
        metrics = self._ports.metrics
        metrics.door_requests.labels(door, "duplicate" if result.duplicate else "new").inc()
        metrics.door_records.labels(door).inc(result.records)
        metrics.door_unreadable.labels(door).inc(result.unreadable)

    def count_refused(self, door: DoorName, problem: Problem) -> None:
        """Count a request that was refused, or not accepted yet."""
        self._ports.metrics.door_requests.labels(door, problem.code.value).inc()

    async def accept(self, request: web.Request, wanted: DoorRequest) -> DoorResult:
        """Return once every record of an HTTP request is durable in the spool."""
        sender = self._senders.of_token(sent_token(request.headers))
        announced = request.content_length
        size_bytes = self.body_bytes_max if announced is None else announced
        if size_bytes > self.body_bytes_max:
            raise TooLarge("Content-Length", size_bytes, self.body_bytes_max)
        with self.budget.request(size_bytes):
            return await self._accept_body(await self._body(request), sender, wanted)

    async def accept_message(self, body: bytes, sender: str, wanted: DoorRequest) -> DoorResult:
        """Return once every record of a message is durable in the spool."""
        with self.budget.request(len(body)):
            return await self._accept_body(body, sender, wanted)

    async def _accept_body(self, body: bytes, sender: str, wanted: DoorRequest) -> DoorResult:
        found = await self._read(body, wanted, sender)
        blocks = map(self._seal, found.blocks)
        known = await asyncio.gather(*blocks, return_exceptions=True)
        for one in known:
            if isinstance(one, BaseException):
                raise one
        return DoorResult(
            records=found.records,
            unreadable=found.unreadable,
            duplicate=bool(known) and all(known),
            source=found.source,
            combined=True,
        )

    async def _body(self, request: web.Request) -> bytes:
        await send_continue(request)
        try:
            async with asyncio.timeout(BODY_S_MAX):
                return await request.read()
        except TimeoutError as error:
            raise HttpRefusal(
                ErrorCode.OVERLOADED, "the body arrived too slowly: send it again"
            ) from error

    async def _read(self, body: bytes, wanted: DoorRequest, sender: str) -> ReadRequest:
        read = partial(
            read_request,
            body,
            wanted,
            sender=sender,
            received_ns=self.clock.now_ns(),
            bytes_max=self.body_bytes_max,
        )
        if len(body) <= INLINE_BYTES_MAX:
            return read()
        return await asyncio.get_running_loop().run_in_executor(self._threads, read)

    async def _seal(self, block: RecordBlock) -> bool:
        """Wait until the records are durable; return whether another request brought them.

        Raise `HttpRefusal` if they were dropped or sealing was interrupted.
        """
        if block.request and self._ports.spool.knows_request(block.request):
            return True
        sealed = self._unsealed.get(block.request) if block.request else None
        duplicate = sealed is not None
        if sealed is None:
            sealed = await self._put(block)
        if not await asyncio.shield(sealed):
            raise HttpRefusal(ErrorCode.OVERLOADED, "the spool is full: send it again later")
        return duplicate

    async def _put(self, block: RecordBlock) -> asyncio.Future[bool]:
        """Pass records to the batcher; the result becomes True once they are durable."""
        sealed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def report(durable: bool) -> None:  # noqa: FBT001 - the only value of the callback
            self._unsealed.pop(block.request, None)
            if not sealed.done():
                sealed.set_result(durable)

        if block.request:
            self._unsealed[block.request] = sealed
        try:
            await self._ports.batcher.put(replace(block, sealed=report))
        except BaseException:
            report(durable=False)
            raise
        return sealed


def read_request(
    body: bytes, wanted: DoorRequest, *, sender: str, received_ns: UnixNs, bytes_max: int
) -> ReadRequest:
    """Return the blocks of a body.

    Requests of two senders are different requests even if their bytes are equal. `bytes_max` limits
    the body after decompression.

    Raises:
        BodyUnreadable: No record can be read.
        BodyTooLarge: The limit after decompression is exceeded.
    """
    plain = decompress(body, wanted.coding, bytes_max=bytes_max)
    origin = RequestOrigin(principal=sender, door=wanted.door, key=wanted.key, unique=b"")
    blocks: list[RecordBlock] = []
    source: IdentitySource = "none"
    records = unreadable = 0
    for found in canonical_records(plain, wanted, received_ns):
        identity = identity_of(found.named, origin)
        source = identity.source
        request = b"" if source == "none" else identity.digest
        blocks += _blocks(found.records, request)
        records += len(found.records.columns)
        unreadable += found.records.unreadable
    return ReadRequest(blocks=tuple(blocks), records=records, unreadable=unreadable, source=source)


def _blocks(records: DecodedRecords, request: bytes) -> Iterator[RecordBlock]:
    columns = with_resource_in_records(records).columns
    for start, part in _parts(columns, 0):
        yield RecordBlock(
            columns=part,
            cost_bytes=cost_bytes(part),
            request=part_digest(request, start, len(part)) if request else b"",
        )


def _parts(columns: SignalColumns, start: int) -> Iterator[tuple[int, SignalColumns]]:
    """Yield the records with the number of the first, in halves where they are too large."""
    cost, count = cost_bytes(columns), len(columns)
    if cost <= PART_BYTES_MAX or (count == 1 and cost <= BATCH_BYTES_MAX):
        yield start, columns
        return
    if count == 1:
        raise BodyTooLarge(
            f"record is too large: it has more than {BATCH_BYTES_MAX} bytes; send smaller records"
        )
    half = count // 2
    yield from _parts(slice_columns(columns, 0, half), start)
    yield from _parts(slice_columns(columns, half, count), start + half)
