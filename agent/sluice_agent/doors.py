"""The doors of the agent: a success means that the records are durable in the spool.

A client keeps its records until then, so a crash of the agent loses nothing. While the inputs are
blocked, the answer is "later" in the form of each protocol. A request that is repeated after a lost
response is a duplicate as long as the spool knows it (`request_window`), also while the first one
is not durable yet: both then wait for the same records.

Source: ADR 0034, ADR 0038, ADR 0160.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from aiohttp import web

from sluice_agent.batching import Batcher, RecordBlock
from sluice_agent.door_blocks import ReadRequest, read_request
from sluice_agent.listen_settings import DoorSettings
from sluice_agent.metrics import AgentMetrics
from sluice_agent.spool import Spool
from sluice_door_http.api import DoorsApi
from sluice_door_http.routes import DoorRequest, DoorResult
from sluice_door_http.sent_tokens import sent_token
from sluice_protocol.clock import Clock
from sluice_protocol.errors import ErrorCode, TooLarge, Unauthenticated
from sluice_protocol.request_identity import DoorName
from sluice_protocol.units import UnixNs
from sluice_web.application import make_application, send_continue
from sluice_web.listening import ServerOptions, listening
from sluice_web.problems import HttpRefusal, Problem, problem_middleware
from sluice_web.tokens import Operator, name_of_token, parse_operators

BODIES_BYTES_MAX: Final = 64 * 1024 * 1024
"""Limit of all bodies that are in memory, as announced; more requests get "later"."""
REQUESTS_MAX: Final = 256
"""Limit of requests that wait to become durable."""
BODY_S_MAX: Final = 60.0
SHUTDOWN_S: Final = 2.0
INLINE_BYTES_MAX: Final = 16 * 1024
"""Bodies up to this size are decoded on the event loop."""
THREADS: Final = 2
LOCAL_SENDER: Final = "local"
"""The sender of all requests to an agent without tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorPorts:
    """What the doors use of the agent.

    Attributes:
        batcher: Collects the records and seals them.
        spool: Knows the requests whose records are durable.
        metrics: Counts requests and records.
        clock: The time of receipt.
    """

    batcher: Batcher
    spool: Spool
    metrics: AgentMetrics
    clock: Clock


class AgentDoors:
    """Accepts requests of other clients into the spool (`DoorAcceptance`)."""

    def __init__(
        self, ports: DoorPorts, *, tokens: Collection[Operator], body_bytes_max: int
    ) -> None:
        """Bind the parts of an agent.

        Args:
            ports: The parts.
            tokens: The senders; empty accepts every request.
            body_bytes_max: Largest body, compressed and decompressed.
        """
        self._ports = ports
        self._tokens = tuple(tokens)
        self._body_bytes_max = body_bytes_max
        self._bodies_bytes = 0
        self._requests = 0
        self._unsealed: dict[bytes, asyncio.Future[bool]] = {}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="door")

    def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def now_ns(self) -> UnixNs:
        """Return the time."""
        return self._ports.clock.now_ns()

    def sheds(self) -> bool:
        """Return False: there is no other agent that a client could use."""
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
        """Return once every record of a request is durable in the spool.

        Raises:
            SluiceError: Not every record is durable; the code of the error states why.
        """
        sender = self._sender(request)
        with self._room(request):
            body = await self._body(request)
            found = await self._read(body, wanted, sender)
            durable = [asyncio.ensure_future(self._seal(block)) for block in found.blocks]
            known = await asyncio.gather(*durable)
        return DoorResult(
            records=found.records,
            unreadable=found.unreadable,
            duplicate=bool(known) and all(known),
            source=found.source,
            combined=True,
        )

    def _sender(self, request: web.Request) -> str:
        if not self._tokens:
            return LOCAL_SENDER
        name = name_of_token(sent_token(request.headers) or "", self._tokens)
        if name is None:
            raise Unauthenticated("the request does not contain a known token")
        return name

    @contextmanager
    def _room(self, request: web.Request) -> Iterator[None]:
        """Reserve memory for a body.

        Raises:
            HttpRefusal: Inputs are blocked, or too many requests are waiting.
            TooLarge: The body is too large.
        """
        announced = request.content_length
        size_bytes = self._body_bytes_max if announced is None else announced
        if size_bytes > self._body_bytes_max:
            raise TooLarge("Content-Length", size_bytes, self._body_bytes_max)
        if self.is_full():
            raise HttpRefusal(ErrorCode.OVERLOADED, "the spool is full: send it again later")
        full = self._bodies_bytes + size_bytes > max(BODIES_BYTES_MAX, self._body_bytes_max)
        if full or self._requests >= REQUESTS_MAX:
            raise HttpRefusal(ErrorCode.OVERLOADED, "too many requests: send it again later")
        self._bodies_bytes += size_bytes
        self._requests += 1
        try:
            yield
        finally:
            self._bodies_bytes -= size_bytes
            self._requests -= 1

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
            received_ns=self._ports.clock.now_ns(),
            bytes_max=self._body_bytes_max,
        )
        if len(body) <= INLINE_BYTES_MAX:
            return read()
        return await asyncio.get_running_loop().run_in_executor(self._threads, read)

    async def _seal(self, block: RecordBlock) -> bool:
        """Wait until the records are durable; return whether another request brought them.

        Raises:
            HttpRefusal: The records were dropped, or sealing was interrupted.
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
        """Pass records to the batcher; return what becomes True once they are durable."""
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


@asynccontextmanager
async def serve_doors(settings: DoorSettings, ports: DoorPorts) -> AsyncIterator[tuple[str, ...]]:
    """Serve the open doors while the context is active; yield the URLs, none without doors.

    Raises:
        BadUsage: The address or the tokens have another form, or the address cannot be bound.
    """
    if not settings.doors:
        yield ()
        return
    tokens = parse_operators(settings.tokens)
    acceptance = AgentDoors(ports, tokens=tokens, body_bytes_max=settings.body_bytes_max)
    # With tokens, each request contains something that a page of another origin cannot send.
    doors = DoorsApi(acceptance, settings.doors, open_host=bool(tokens))
    app = make_application(
        list(doors.endpoints()),
        middlewares=[problem_middleware()],
        title="sluice agent: doors",
        allowed_hosts=settings.allowed_hosts,
        body_bytes_max=settings.body_bytes_max,
    )
    try:
        async with listening(app, settings.listen, ServerOptions(shutdown_s=SHUTDOWN_S)) as urls:
            yield urls
    finally:
        acceptance.close()
