"""Composition root of the reconciler's process: store, service and operator API."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import suppress

import structlog
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from sluice_protocol.errors import BadUsage
from sluice_reconciler.full_pass import PassReport
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_store.port import ObjectStore
from sluice_store.url import open_store

log = structlog.get_logger()

RECONCILER = web.AppKey("reconciler", Reconciler)


async def run_once(url: str, settings: ReconcilerSettings) -> PassReport:
    """Opens the store, makes one full pass, and closes it.

    Raises:
        SluiceError: As `Reconciler.once`.
    """
    async with open_store(url) as store:
        reconciler = await Reconciler.of(store, settings=settings)
        return await reconciler.once()


async def serve(url: str, settings: ReconcilerSettings) -> None:
    """Runs service and operator API until SIGTERM or SIGINT.

    Raises:
        SluiceError: The store cannot be opened, or the address cannot be used.
    """
    async with open_store(url) as store:
        await _serve(store, settings)


async def _serve(store: ObjectStore, settings: ReconcilerSettings) -> None:
    reconciler = await Reconciler.of(store, settings=settings)
    host, port = parse_listen(settings.listen)
    runner = web.AppRunner(make_app(reconciler))
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        log.info("reconciler serves", addresses=[str(one) for one in runner.addresses])
        await _until_told(asyncio.get_running_loop())
    finally:
        await runner.cleanup()


async def _until_told(loop: asyncio.AbstractEventLoop) -> None:
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    await told.wait()


def parse_listen(listen: str) -> tuple[str, int]:
    """Gives host and port of `host:port`.

    Raises:
        BadUsage: It has another form.
    """
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal():
        raise BadUsage(f"listen must be host:port, listen=`{listen}`")
    return host.strip("[]"), int(port)


def make_app(reconciler: Reconciler) -> web.Application:
    """Gives the operator API around a reconciler that runs as long as the application."""
    app = web.Application()
    app[RECONCILER] = reconciler
    app.cleanup_ctx.append(_runs)
    app.router.add_get("/livez", _livez)
    app.router.add_get("/readyz", _readyz)
    app.router.add_get("/metrics", _metrics)
    return app


async def _runs(app: web.Application) -> AsyncIterator[None]:
    task = asyncio.create_task(app[RECONCILER].run())
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _livez(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def _readyz(request: web.Request) -> web.Response:
    health = request.app[RECONCILER].health
    status = 200 if health.ready else 503
    return web.json_response(
        {"ready": health.ready, "passes": health.passes, "failures": health.failures},
        status=status,
    )


async def _metrics(request: web.Request) -> web.Response:
    body = generate_latest(request.app[RECONCILER].metrics.registry)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})
