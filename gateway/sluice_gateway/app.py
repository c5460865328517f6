"""The composition root: every part of one worker is made here and nowhere else."""

import asyncio
import random  # noqa: TID251 - where the seeded source is made
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import structlog

from sluice_gateway.accept import Acceptor
from sluice_gateway.admit import Budget
from sluice_gateway.api import make_app, make_health_app
from sluice_gateway.cache import AcceptedCache
from sluice_gateway.decode import FrameDecoder
from sluice_gateway.gateway import Gateway
from sluice_gateway.guard import ConnectionGuard, Gate
from sluice_gateway.high_water import HIGH_WATER_AFTER_S, HighWaterMarks, flush_guarded
from sluice_gateway.lander import Lander, Spool
from sluice_gateway.lifecycle import Lifecycle
from sluice_gateway.metrics import GatewayMetrics
from sluice_gateway.observe import ObservedStore
from sluice_gateway.principals import PrincipalsFile
from sluice_gateway.readiness import ask_doctor, ask_store
from sluice_gateway.settings import GatewaySettings
from sluice_gateway.spool import claim
from sluice_protocol.authority import Authority, mode_switch_key
from sluice_protocol.errors import BadUsage, InvalidRecord, StoreError
from sluice_protocol.outcomes import ObjectInfo
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_store.conflicts import DecisionsReader
from sluice_store.port import ObjectStore
from sluice_web.listening import ServerOptions, TlsFiles, listening, listening_on, server_tls

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


@asynccontextmanager
async def serving(gateway: Gateway, sock: socket.socket) -> AsyncIterator[None]:
    """Serve on a bound socket until the block ends; open requests have a second to end."""
    settings = gateway.settings
    gate = Gate(
        connections_max=settings.connections_max,
        per_address_max=settings.connections_per_address_max,
        head_timeout_s=settings.head_timeout_s,
        idle_timeout_s=settings.idle_timeout_s,
        metrics=gateway.metrics,
    )
    try:
        async with listening_on(
            make_app(gateway),
            sock,
            _server_options(settings),
            wrap=lambda protocol: ConnectionGuard(protocol, gate),
            tls=server_tls(_tls_files(settings)),
            handshake_s=settings.head_timeout_s,
        ):
            yield
    finally:
        gateway.decoder.close()


@asynccontextmanager
async def serving_health(gateway: Gateway, host: str, port: int) -> AsyncIterator[None]:
    """Serve the health checks and metrics of this worker on a separate port."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    async with listening(make_health_app(gateway), address, _server_options(gateway.settings)):
        yield


def _server_options(settings: GatewaySettings) -> ServerOptions:
    return ServerOptions(
        decompress=False,  # the digest is over the bytes as they are sent
        keepalive_s=2 * settings.idle_timeout_s,  # the timer of the guard fires first
        lingering_s=0.0,  # `send_before_body` discards, with a bound on bytes too
        shutdown_s=1.0,
    )


def _tls_files(settings: GatewaySettings) -> TlsFiles | None:
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return TlsFiles(
        certificate=settings.tls_certificate,
        key=settings.tls_key,
        client_ca=settings.tls_client_ca,
    )


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
