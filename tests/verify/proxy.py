"""A proxy for HTTP with faults: the balancer of the gateways, and the way to an S3 server."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import aiohttp
from aiohttp import web
from verify.registers import RegisterRecorder
from yarl import URL

from sluice_cli.verify.recording import Recorder

OPERATION: Final = "X-Operation"
"""Header with the numbers of the operations, so that a repeated request is recorded."""
WRITES: Final = frozenset({"POST", "PUT", "DELETE"})
HOP_BY_HOP: Final = frozenset(
    {"transfer-encoding", "connection", "content-length", "date", "server"}
)
GENERATED: Final = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")


@dataclass
class FaultyProxy:
    """Forwards each request to one of the servers that accept connections.

    `pending` are faults of the next writes. Each counts when it happens, not when it is planned.
    No request is forwarded to the port `cut_off`.
    """

    name: str
    targets: Callable[[], Sequence[int]]
    recorder: Recorder
    rng: random.Random
    pending: Counter[str] = field(default_factory=Counter)
    unreachable: bool = False
    cut_off: int = 0
    port: int = 0
    session: aiohttp.ClientSession | None = None
    registers: RegisterRecorder | None = None

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            body = await request.content.read()  # of any size: `request.read` accepts 1 MiB
        except ConnectionResetError:  # the client was killed while it sent
            return _reset(request)
        fault = self._next_fault() if request.method in WRITES else ""
        if self.unreachable or fault == "reset_before_forwarding":
            return _reset(request)
        if fault == "delay":
            await asyncio.sleep(self.rng.uniform(0.5, 3.0))
        try:
            if fault == "repeat":
                for number in request.headers.get(OPERATION, "0").split(","):
                    self.recorder.repeat(int(number))
                await self._forward(request, body)
            response = await self._forward(request, body)
        except (aiohttp.ClientError, TimeoutError):
            return _reset(request)
        return _reset(request) if fault == "reset_after_forwarding" else response

    def _next_fault(self) -> str:
        due = sorted(self.pending.elements())
        if not due:
            return ""
        fault = self.rng.choice(due)
        self.pending[fault] -= 1
        self.recorder.fired(f"{self.name}_{fault}", self.name)
        return fault

    async def _forward(self, request: web.BaseRequest, body: bytes) -> web.Response:
        assert self.session is not None
        ports = [port for port in self.targets() if port != self.cut_off]
        for port in self.rng.sample(ports, len(ports)):
            try:
                return await self._forward_to(port, request, body)
            except aiohttp.ClientConnectorError:
                continue
        raise aiohttp.ClientError

    async def _forward_to(self, port: int, request: web.BaseRequest, body: bytes) -> web.Response:
        assert self.session is not None
        op = self.registers.begin(request, body) if self.registers else 0
        headers = request.headers.copy()  # the body was read, and is sent with its length
        for name in ("Transfer-Encoding", "Expect"):
            headers.popall(name, None)
        async with self.session.request(
            request.method,
            URL(f"http://127.0.0.1:{port}{request.raw_path}", encoded=True),
            headers=headers,
            data=body,
            skip_auto_headers=GENERATED,
            allow_redirects=False,
        ) as found:
            response = web.Response(status=found.status, body=await found.read())
            for name, value in found.headers.items():
                if name.lower() not in HOP_BY_HOP:
                    response.headers.add(name, value)
            if "Date" in found.headers:  # clients derive the clock of the store from it
                response.headers["Date"] = found.headers["Date"]
            if request.method == "HEAD":
                response.headers["Content-Length"] = found.headers.get("Content-Length", "0")
            if self.registers and op:
                self.registers.end(op, response, body, request)
            return response


def _reset(request: web.BaseRequest) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


@asynccontextmanager
async def serving(proxy: FaultyProxy) -> AsyncIterator[FaultyProxy]:
    """Serve a proxy on a free port until the end of the block."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=20)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, auto_decompress=False
    ) as session:
        proxy.session = session
        runner = web.ServerRunner(web.Server(proxy.handle, access_log=None), shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            proxy.port = runner.addresses[0][1]
            yield proxy
        finally:
            await runner.cleanup()
