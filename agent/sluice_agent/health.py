"""What can be asked of a running agent: /livez, /readyz and /metrics."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from sluice_agent.metrics import AgentMetrics
from sluice_protocol.errors import BadUsage

Trouble = Callable[[], str]
"""Gives what a person must act on; empty when all is well."""
_METRICS: Final = web.AppKey("metrics", AgentMetrics)
_TROUBLE: Final[web.AppKey[Trouble]] = web.AppKey("trouble")


@asynccontextmanager
async def serve_health(
    address: str, metrics: AgentMetrics, trouble: Trouble
) -> AsyncIterator[None]:
    """Serves while the block runs; an empty address serves nothing.

    Raises:
        BadUsage: The address is not `host:port`, or cannot be listened on.
    """
    if not address:
        yield
        return
    app = web.Application()
    app[_METRICS], app[_TROUBLE] = metrics, trouble
    app.router.add_get("/livez", _livez)
    app.router.add_get("/readyz", _readyz)
    app.router.add_get("/metrics", _metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await listen(runner, address)
        yield
    finally:
        await runner.cleanup()


async def listen(runner: web.AppRunner, address: str) -> None:
    """Starts to listen.

    Raises:
        BadUsage: The address is not `host:port`, or cannot be listened on.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise BadUsage(f"an address is host:port, address=`{address}`")
    try:
        await web.TCPSite(runner, host.strip("[]"), int(port)).start()
    except OSError as error:
        raise BadUsage(f"cannot listen: {error.strerror}, address=`{address}`") from error


async def _livez(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def _readyz(request: web.Request) -> web.Response:
    trouble = request.app[_TROUBLE]()
    return web.Response(text=f"{trouble or 'ok'}\n", status=503 if trouble else 200)


async def _metrics(request: web.Request) -> web.Response:
    body = generate_latest(request.app[_METRICS].registry)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})
