"""A proxy before an S3 server whose reads, writes or both can fail for a while."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web
from yarl import URL

READS = frozenset({"GET", "HEAD"})
REFUSAL = b"<?xml version='1.0'?><Error><Code>ServiceUnavailable</Code><Message>m</Message></Error>"
BODY_BYTES_MAX = 128 << 20


@dataclass
class OutageProxy:
    """Forwards requests, signatures included, and refuses some while an outage lasts.

    Attributes:
        target: The URL of the server.
        fails: Methods that get 503 at present; empty if none do.
        swallows: Methods that get 200 and an error document without an ETag, and never arrive.
        url: Where the proxy listens.
        refused: How many requests did not arrive.
    """

    target: str
    fails: frozenset[str] = frozenset()
    swallows: frozenset[str] = frozenset()
    url: str = ""
    refused: int = 0
    _session: aiohttp.ClientSession | None = None
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        if request.method in self.fails:
            self.refused += 1
            return web.Response(status=503, body=REFUSAL, content_type="application/xml")
        if request.method in self.swallows:
            self.refused += 1
            return web.Response(status=200, body=REFUSAL, content_type="application/xml")
        assert self._session is not None
        async with self._session.request(
            request.method,
            URL(self.target + request.raw_path, encoded=True),
            headers=request.headers,
            data=body,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            allow_redirects=False,
        ) as found:
            content = await found.read()
            response = web.Response(status=found.status, body=content)
            for name, value in found.headers.items():
                if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                    response.headers[name] = value
            if request.method == "HEAD":
                response.headers["Content-Length"] = found.headers.get("Content-Length", "0")
            return response

    async def serve(self, ready: threading.Event, loop_of: list[asyncio.AbstractEventLoop]) -> None:
        """Serve until `stop` is called from another thread."""
        loop_of.append(asyncio.get_running_loop())
        async with aiohttp.ClientSession(auto_decompress=False) as session:
            self._session = session
            runner = web.ServerRunner(web.Server(self.handle))
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            ready.set()
            await self._stop.wait()
            await runner.cleanup()

    def stop(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_soon_threadsafe(self._stop.set)


@contextmanager
def outage_proxy(target: str) -> Iterator[OutageProxy]:
    """Run a proxy in a thread until the end of the block."""
    proxy, ready = OutageProxy(target), threading.Event()
    loop_of: list[asyncio.AbstractEventLoop] = []
    thread = threading.Thread(target=lambda: asyncio.run(proxy.serve(ready, loop_of)))
    thread.start()
    assert ready.wait(30)
    try:
        yield proxy
    finally:
        proxy.stop(loop_of[0])
        thread.join(30)
