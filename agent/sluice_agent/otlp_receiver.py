"""The OTLP/HTTP receiver: respond with 200 once the records are durable in the spool.

A client keeps its records until then, so a crash of the agent loses nothing. While the inputs are
blocked, the receiver responds with 503 and Retry-After, which OTLP clients obey.

Source: OpenTelemetry protocol, OTLP/HTTP; ADR 0034.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

from aiohttp import web

from sluice_agent.batching import RECORD_COST_BYTES, Batcher, RecordBlock
from sluice_agent.metrics import AgentMetrics
from sluice_agent.otlp import logs_from_otlp, metrics_from_otlp
from sluice_protocol.clock import Clock
from sluice_protocol.errors import BadUsage, InvalidFrame
from sluice_protocol.records import logs_from_records, metrics_from_records
from sluice_protocol.units import UnixNs
from sluice_web.application import make_application
from sluice_web.endpoints import Endpoint
from sluice_web.listening import ServerOptions, listening
from sluice_web.problems import problem_middleware

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
REQUESTS_MAX: Final = 64
_JSON: Final = "application/json"
_PROBLEMS: Final = {
    "400": "The body is not OTLP in JSON",
    "415": "The media type is not JSON",
    "503": "Inputs are blocked: send the same records later",
}
_BUSY_HEADERS: Final = {"Retry-After": "1"}


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
        return await self._accept(request, _logs_block)

    async def _accept_metrics(self, request: web.Request) -> web.Response:
        return await self._accept(request, _metrics_block)

    async def _accept(
        self, request: web.Request, read: Callable[[bytes, UnixNs], tuple[RecordBlock | None, int]]
    ) -> web.Response:
        if request.content_type != _JSON:
            return _refusal(415, f"OTLP must be sent as {_JSON}")
        if self._metrics.is_blocked or self._running >= REQUESTS_MAX:
            return _refusal(503, "inputs are blocked: retry later", _BUSY_HEADERS)
        self._running += 1
        try:
            body = await request.read()
            block, refused = await asyncio.to_thread(read, body, self._clock.now_ns())
            if block is not None and not await self._seal(block):
                return _refusal(503, "spool is full: retry later", _BUSY_HEADERS)
        except (BadUsage, InvalidFrame) as error:
            return _refusal(400, str(error))
        finally:
            self._running -= 1
        return web.json_response(_accepted(refused))

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
    async with listening(app, address, ServerOptions(decompress=True, shutdown_s=2.0)):
        yield


def _logs_block(body: bytes, arrived_ns: UnixNs) -> tuple[RecordBlock | None, int]:
    records = logs_from_otlp(body, arrived_ns=arrived_ns)
    if not records:
        return None, 0
    cost_bytes = len(body) + RECORD_COST_BYTES * len(records)
    return RecordBlock(columns=logs_from_records(records), cost_bytes=cost_bytes), 0


def _metrics_block(body: bytes, arrived_ns: UnixNs) -> tuple[RecordBlock | None, int]:
    read = metrics_from_otlp(body, arrived_ns=arrived_ns)
    if not read.points:
        return None, read.refused
    cost_bytes = len(body) + RECORD_COST_BYTES * len(read.points)
    return RecordBlock(
        columns=metrics_from_records(read.points), cost_bytes=cost_bytes
    ), read.refused


def _accepted(refused: int) -> dict[str, object]:
    """Return the response body: OTLP's partial success if points were rejected."""
    if not refused:
        return {}
    message = "exponential histograms are not supported"
    return {"partialSuccess": {"rejectedDataPoints": str(refused), "errorMessage": message}}


def _refusal(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response({"message": message}, status=status, headers=headers)
