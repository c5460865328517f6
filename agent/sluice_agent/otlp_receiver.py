"""The OTLP/HTTP receiver: respond with 200 once the records are durable in the spool.

A client keeps its records until then, so a crash of the agent loses nothing. While the inputs are
blocked, the receiver responds with 503 and Retry-After, which OTLP clients obey.

Source: OpenTelemetry protocol, OTLP/HTTP; ADR 0034, ADR 0150.
"""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from aiohttp import web

from sluice_agent.batching import RECORD_COST_BYTES, Batcher, RecordBlock
from sluice_agent.metrics import AgentMetrics
from sluice_doors.content_coding import decompress
from sluice_doors.decoded import BodyTooLarge, BodyUnreadable, DecodedRecords
from sluice_doors.otlp import JSON, PROTOBUF, decode_otlp_logs, decode_otlp_metrics
from sluice_doors.outer_attributes import with_resource_in_records
from sluice_protocol.clock import Clock
from sluice_protocol.columns import LogColumns, MetricColumns
from sluice_protocol.errors import InvalidFrame
from sluice_protocol.units import PAYLOAD_RAW_BYTES_MAX, UnixNs
from sluice_web.application import make_application
from sluice_web.endpoints import Endpoint
from sluice_web.listening import ServerOptions, listening
from sluice_web.problems import problem_middleware

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
COST_BYTES_MAX: Final = PAYLOAD_RAW_BYTES_MAX // 2
"""Limit of the records of a request: they are sealed into one frame."""
REQUESTS_MAX: Final = 64
_PROBLEMS: Final = {
    "400": "The body is not OTLP",
    "413": "The body is too large after decompression",
    "415": "The media type is neither JSON nor protobuf",
    "503": "Inputs are blocked: send the same records later",
}
_BUSY_HEADERS: Final = {"Retry-After": "1"}


class _Decode(Protocol):
    """A decoder of one kind of OTLP requests."""

    def __call__(
        self, body: bytes, content_type: str, *, received_ns: int
    ) -> tuple[DecodedRecords, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _BodyHeaders:
    """What the headers of a request state about its body."""

    content_type: str
    coding: str


class OtlpReceiver:
    """Accepts OTLP requests and passes their records to the batcher."""

    def __init__(self, batcher: Batcher, metrics: AgentMetrics, clock: Clock) -> None:
        self._batcher = batcher
        self._metrics = metrics
        self._clock = clock
        self._running = 0

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return `POST /v1/logs` and `POST /v1/metrics`."""
        return (
            Endpoint(
                method="POST",
                path="/v1/logs",
                handler=self._accept_logs,
                summary="Accept log records",
                body=dict[str, Any],
                problems=_PROBLEMS,
            ),
            Endpoint(
                method="POST",
                path="/v1/metrics",
                handler=self._accept_metrics,
                summary="Accept metric points",
                body=dict[str, Any],
                problems=_PROBLEMS,
            ),
        )

    async def _accept_logs(self, request: web.Request) -> web.Response:
        return await self._accept(request, decode_otlp_logs)

    async def _accept_metrics(self, request: web.Request) -> web.Response:
        return await self._accept(request, decode_otlp_metrics)

    async def _accept(self, request: web.Request, decode: _Decode) -> web.Response:
        if request.content_type not in (JSON, PROTOBUF):
            return _refusal(415, f"OTLP must be sent as {PROTOBUF} or {JSON}")
        if self._metrics.is_blocked or self._running >= REQUESTS_MAX:
            return _refusal(503, "inputs are blocked: retry later", _BUSY_HEADERS)
        self._running += 1
        try:
            headers = _BodyHeaders(
                content_type=request.content_type,
                coding=request.headers.get("Content-Encoding", ""),
            )
            body = await request.read()
            block = await asyncio.to_thread(_block, body, headers, decode, self._clock.now_ns())
            if block is not None and not await self._seal(block):
                return _refusal(503, "spool is full: retry later", _BUSY_HEADERS)
        except BodyTooLarge as error:
            return _refusal(413, str(error))
        except (BodyUnreadable, InvalidFrame) as error:
            return _refusal(400, str(error))
        finally:
            self._running -= 1
        return _response(request.content_type)

    async def _seal(self, block: RecordBlock) -> bool:
        """Wait until the records are sealed or dropped; return True if they are durable."""
        durability: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def report(durable: bool) -> None:  # noqa: FBT001 - the only value of the callback
            if not durability.done():
                durability.set_result(durable)

        await self._batcher.put(replace(block, sealed=report))
        return await durability


@asynccontextmanager
async def serve_otlp(
    address: str, receiver: OtlpReceiver, allowed_hosts: Collection[str] = ()
) -> AsyncIterator[None]:
    """Serve OTLP while the context is active; an empty address serves nothing.

    Raises:
        BadUsage: The address is not `HOST:PORT`, or cannot be bound.
    """
    if not address:
        yield
        return
    app = make_application(
        receiver.endpoints(),
        middlewares=[problem_middleware()],
        title="sluice agent: OTLP",
        allowed_hosts=allowed_hosts,
        body_bytes_max=BODY_BYTES_MAX,
    )
    async with listening(app, address, ServerOptions(shutdown_s=2.0)):
        yield


def _response(content_type: str) -> web.Response:
    """Return OTLP's full success in the encoding of the request: an empty message."""
    if content_type == PROTOBUF:
        return web.Response(body=b"", content_type=PROTOBUF)
    return web.json_response({})


def _block(
    body: bytes, headers: _BodyHeaders, decode: _Decode, received_ns: UnixNs
) -> RecordBlock | None:
    """Return the records of a body; None if it has none.

    Raises:
        BodyUnreadable: It is not OTLP.
        BodyTooLarge: It exceeds a limit after decompression.
    """
    plain = decompress(body, headers.coding, bytes_max=BODY_BYTES_MAX)
    for found in decode(plain, headers.content_type, received_ns=received_ns):
        columns = with_resource_in_records(found).columns
        cost_bytes = _cost_bytes(columns)
        if cost_bytes > COST_BYTES_MAX:
            raise BodyTooLarge(
                f"body is too large: its records expand to more than {COST_BYTES_MAX} bytes;"
                " send smaller requests"
            )
        return RecordBlock(columns=columns, cost_bytes=cost_bytes)
    return None


def _cost_bytes(columns: LogColumns | MetricColumns) -> int:
    text = len(columns.body.data) if isinstance(columns, LogColumns) else 0
    if columns.attributes is not None:
        text += len(columns.attributes.values.data) + 8 * len(columns.attributes.keys)
    return text + RECORD_COST_BYTES * len(columns)


def _refusal(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response({"message": message}, status=status, headers=headers)
