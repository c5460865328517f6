"""The composition root: every part of one worker is made here and nowhere else."""

import asyncio
import random  # noqa: TID251 - where the seeded source is made
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, cast

import structlog
from aiohttp import web

from sluice_gateway.accept import Acceptor
from sluice_gateway.admit import Budget
from sluice_gateway.cache import AcceptedCache
from sluice_gateway.decode import FrameDecoder
from sluice_gateway.gateway import Gateway
from sluice_gateway.guard import ConnectionGuard, Gate
from sluice_gateway.handlers import (
    GATEWAY,
    answer_errors,
    health_routes,
    routes,
    watch_connection,
)
from sluice_gateway.health import ask_doctor, ask_store
from sluice_gateway.high_water import HIGH_WATER_AFTER_S, HighWaterMarks, flush_guarded
from sluice_gateway.lander import Lander, Spool
from sluice_gateway.lifecycle import Lifecycle
from sluice_gateway.metrics import GatewayMetrics
from sluice_gateway.observe import ObservedStore
from sluice_gateway.principals import PrincipalsFile
from sluice_gateway.settings import GatewaySettings
from sluice_gateway.spool import claim
from sluice_protocol.authority import Authority, mode_switch_key
from sluice_protocol.errors import BadUsage, InvalidRecord, StoreError
from sluice_protocol.outcomes import ObjectInfo
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_store.conflicts import DecisionsReader
from sluice_store.port import ObjectStore

BACKLOG: Final = 1024
READ_BYTES: Final = 64 * 1024
"""Half of what a connection may hold unread before it is told to wait."""
DECISIONS_AFTER_S: Final = 5.0
DOCTOR_AFTER_S: Final = 60.0
MODE_AFTER_S: Final = 5.0
LOOK_AFTER_S: Final = 1.0
"""How often a worker looks at its principals file and at a silent store."""


log = structlog.get_logger()


def check_authority_fits(
    authority: Authority, settings: GatewaySettings, collector_id: str
) -> None:
    """Refuses to serve against what the deployment agreed on.

    Raises:
        BadUsage: The acceptance mode differs, or another gateway is the one spool writer.
    """
    if authority.acceptance != settings.acceptance:
        raise BadUsage(
            "the authority accepts elsewhere: set acceptance to what it says,"
            f" authority=`{authority.acceptance}`, settings=`{settings.acceptance}`"
        )
    if authority.acceptance == "local_spool" and authority.spool_writer != collector_id:
        raise BadUsage(
            "the authority has another spool writer: stop this gateway,"
            f" spool_writer=`{authority.spool_writer}`, collector_id=`{collector_id}`"
        )


def build_gateway(
    store: ObjectStore, authority: Authority, settings: GatewaySettings, collector_id: str
) -> Gateway:
    """Makes one worker's parts on an open store.

    Raises:
        BadUsage: The principals file is not valid, or settings and authority differ.
    """
    check_authority_fits(authority, settings, collector_id)
    clock, metrics = SystemClock(), GatewayMetrics()
    rng = random.Random()  # noqa: S311 - jitter, not a secret
    observed = ObservedStore(store, metrics, clock)
    return Gateway(
        settings=settings,
        collector_id=collector_id,
        clock=clock,
        ids=SystemIds(),
        metrics=metrics,
        store=observed,
        principals=PrincipalsFile(settings.principals),
        lifecycle=Lifecycle(metrics),
        budget=Budget(settings.inflight_bytes_max, metrics, rng),
        decoder=FrameDecoder(settings.frame_bytes_max),
        cache=AcceptedCache(settings.cache_entries_max),
        acceptor=Acceptor(
            store=observed,
            authority=authority,
            collector_id=collector_id,
            clock=clock,
            rng=rng,
            time_s_max=settings.upload_time_s_max,
        ),
        decisions=DecisionsReader(observed),
        comparing=asyncio.Lock(),
        high_water=HighWaterMarks(observed),
    )


def attach_lander(
    gateway: Gateway, local: ObjectStore, remote: ObjectStore, authority: Authority
) -> None:
    """Gives a spooling gateway what carries its batches to the authority."""
    settings, collector_id = gateway.settings, gateway.collector_id
    acceptor = Acceptor(
        store=remote,
        authority=authority,
        collector_id=collector_id,
        clock=gateway.clock,
        rng=random.Random(),  # noqa: S311 - jitter, not a secret
        time_s_max=settings.upload_time_s_max,
    )
    spool = Spool(
        local=local,
        remote=remote,
        acceptor=acceptor,
        clock=gateway.clock,
        ids=gateway.ids,
        claim=partial(claim, local, remote, gateway.ids, collector_id),
    )
    interval_s = settings.object_landing_interval_ms / 1000
    gateway.high_water = HighWaterMarks(remote)
    gateway.lander = Lander(spool, gateway.metrics, interval_s)


def make_app(gateway: Gateway, *, health_only: bool = False) -> web.Application:
    """Gives the HTTP application over a gateway."""
    app = web.Application(
        middlewares=[watch_connection, answer_errors],
        client_max_size=gateway.settings.frame_bytes_max,
    )
    app[GATEWAY] = gateway
    app.add_routes(health_routes() if health_only else routes())
    return app


@asynccontextmanager
async def serving(gateway: Gateway, sock: socket.socket) -> AsyncIterator[None]:
    """Serves on a bound socket until the block ends; running requests get a second to end."""
    settings = gateway.settings
    gate = Gate(
        connections_max=settings.connections_max,
        per_address_max=settings.connections_per_address_max,
        head_timeout_s=settings.head_timeout_s,
        idle_timeout_s=settings.idle_timeout_s,
        metrics=gateway.metrics,
    )
    runner = _runner(make_app(gateway), settings)
    await runner.setup()
    protocols = cast(Callable[[], asyncio.Protocol], runner.server)
    server = await asyncio.get_running_loop().create_server(
        lambda: ConnectionGuard(protocols(), gate),
        sock=sock,
        backlog=BACKLOG,
        ssl=tls_context(settings),
        ssl_handshake_timeout=None if settings.tls_key is None else settings.head_timeout_s,
    )
    try:
        yield
    finally:
        server.close()
        await runner.cleanup()
        gateway.decoder.close()


@asynccontextmanager
async def serving_health(gateway: Gateway, host: str, port: int) -> AsyncIterator[None]:
    """Serves this worker's health and metrics on a port of its own."""
    runner = _runner(make_app(gateway, health_only=True), gateway.settings)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    try:
        yield
    finally:
        await runner.cleanup()


def _runner(app: web.Application, settings: GatewaySettings) -> web.AppRunner:
    return web.AppRunner(
        app,
        access_log=None,
        auto_decompress=False,  # the digest is over the bytes of the wire
        keepalive_timeout=2 * settings.idle_timeout_s,  # the guard's own timer comes first
        read_bufsize=READ_BYTES,
        lingering_time=0.0,  # `refuse` discards, with a bound on bytes too
        shutdown_timeout=1.0,
    )


def tls_context(settings: GatewaySettings) -> ssl.SSLContext | None:
    """Gives the TLS context, or None for plain HTTP.

    A client certificate is asked for and verified where one is shown; who shows none must sign.

    Raises:
        BadUsage: A file cannot be read.
    """
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
        if settings.tls_client_ca is not None:
            context.load_verify_locations(settings.tls_client_ca)
            context.verify_mode = ssl.CERT_OPTIONAL
    except (OSError, ssl.SSLError) as error:
        raise BadUsage(f"TLS files cannot be used: {error}") from error
    return context


async def look_after(gateway: Gateway) -> None:
    """Reloads principals and asks a silent store, for as long as the worker lives."""
    while True:
        await gateway.clock.sleep(LOOK_AFTER_S)
        gateway.principals.reload()
        gateway.metrics.principals_stale.set(gateway.principals.failed)
        await ask_store(gateway)


async def follow_doctor(gateway: Gateway) -> None:
    """Reads the newest result of a probe now and then, for `/readyz`."""
    while True:
        await gateway.clock.sleep(DOCTOR_AFTER_S)
        await ask_doctor(gateway)


async def follow_decisions(gateway: Gateway) -> None:
    """Reads what people decided, often enough that a quarantine holds within 30 s everywhere."""
    while True:
        await gateway.clock.sleep(DECISIONS_AFTER_S)
        try:
            async with asyncio.timeout(DECISIONS_AFTER_S):
                await gateway.decisions.refresh()
        except (StoreError, InvalidRecord, TimeoutError) as error:
            log.warning("decisions not read, the known ones hold", reason=str(error))


async def follow_mode(gateway: Gateway, next_number: int, stop: asyncio.Event) -> None:
    """Looks for a switch of the acceptance mode; stops this gateway when there is one."""
    while True:
        await gateway.clock.sleep(MODE_AFTER_S)
        asked_at_ns = gateway.clock.monotonic_ns()
        try:
            async with asyncio.timeout(MODE_AFTER_S):
                found = await gateway.store.head(mode_switch_key(next_number))
        except (StoreError, TimeoutError) as error:
            log.warning("authority not read", reason=str(error))
            continue
        if isinstance(found, ObjectInfo):
            log.error("the authority was switched: this gateway leaves", key=found.key)
            gateway.switched = True
            stop.set()
            return
        gateway.looked_at_ns = asked_at_ns


async def keep_high_water(gateway: Gateway) -> None:
    """Writes what agents say they have made, beside the uploads."""
    while True:
        await gateway.clock.sleep(HIGH_WATER_AFTER_S)
        await flush_guarded(gateway.high_water)
