"""One worker process: opens the store, serves, drains on SIGTERM, exits with a code.

It serves the HTTP port, its health port, and the ports of doors.
"""

import asyncio
import gc
import logging
import multiprocessing
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

import structlog
import uvloop
from structlog.typing import EventDict, WrappedLogger

from sluice_gateway.metrics import GatewayMetrics
from sluice_gateway.process.app import Gateway, body_pace, build_gateway, check_authority_fits
from sluice_gateway.process.readiness import require_proof
from sluice_gateway.settings import GatewaySettings
from sluice_gateway.spool.claim import lock_spool, mirror_authority
from sluice_gateway.spool.mode_switch import adopt_records
from sluice_gateway.uploads.admission import memory_cost
from sluice_gateway.uploads.service import FLUSH_INTERVAL_S, flush_guarded
from sluice_protocol.authority import mode_switch_key
from sluice_protocol.clock import machine_now
from sluice_protocol.errors import BadUsage, InvalidRecord, SluiceError, StoreError
from sluice_protocol.outcomes import ObjectInfo
from sluice_protocol.system_clock import SystemClock
from sluice_store import StoreMode, open_store
from sluice_store.authority import read_history
from sluice_web.connection_guard import SERVER_IDLE_S, ConnectionLimits, listening, listening_on
from sluice_web.library_logs import send_library_logs
from sluice_web.listening import ServerOptions, TlsFiles, bind_shared, server_tls, stop_event
from sluice_web.log_output import last_processors, log_stream
from sluice_web.process_limits import port_connections_max

GRPC_END_S: Final = 5.0
"""Time that running calls of gRPC have to end when the gateway stops."""
FORWARD_RETRY_S_MAX: Final = 600.0
"""Time for which messages of Fluent without a name are tried again; after it they are lost."""


@asynccontextmanager
async def serving(gateway: Gateway, sock: socket.socket) -> AsyncIterator[None]:
    """Serve on a bound socket until the block ends; open requests have a second to end."""
    settings = gateway.settings
    limits = _connection_limits(settings, gateway.metrics, settings.idle_timeout_s)
    try:
        async with listening_on(
            gateway.api.application(),
            sock,
            _server_options(SERVER_IDLE_S),
            limits,
            tls=server_tls(_tls_files(settings)),
        ):
            yield
    finally:
        gateway.uploads.frames.close()
        if gateway.doors is not None:
            await gateway.doors.close()


@asynccontextmanager
async def serving_health(gateway: Gateway, host: str, port: int) -> AsyncIterator[None]:
    """Serve the health checks and metrics of this worker on a separate port."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    application = gateway.api.health_application()
    options = _server_options(2 * gateway.settings.idle_timeout_s)
    async with listening(application, address, options):
        yield


@asynccontextmanager
async def serving_grpc(gateway: Gateway) -> AsyncIterator[int]:
    """Serve OTLP over gRPC until the block ends; yield the port."""
    from sluice_doors.otlp.grpc import (  # noqa: PLC0415 - an extra  # noqa: PLC0415
        GrpcRules,
        MessageReader,
        OtlpMethods,
        serving_otlp_grpc,
        slow_max,
    )
    from sluice_gateway.doors.senders import DoorSenders  # noqa: PLC0415

    settings, doors = gateway.settings, gateway.doors
    if doors is None:
        raise BadUsage("otlp_grpc_listen needs otlp in doors")
    cost_bytes = memory_cost(settings.door_body_bytes_max)
    messages = MessageReader(
        doors.budget,
        body_pace(settings),
        message_bytes_max=settings.door_body_bytes_max,
        slow_max=slow_max(cost_bytes, settings.inflight_bytes_max),
    )
    senders = DoorSenders(gateway.uploads.principals, doors.clock)
    rules = GrpcRules(
        connections_max=port_connections_max(settings.connections_max),
        handshake_s=settings.head_timeout_s,
        end_s=GRPC_END_S,
    )
    async with serving_otlp_grpc(
        OtlpMethods(doors, senders, messages),
        settings.otlp_grpc_listen,
        rules,
        tls=_grpc_tls_files(settings),
        is_shared=True,
    ) as port:
        yield port


@asynccontextmanager
async def serving_forward_port(gateway: Gateway) -> AsyncIterator[int]:
    """Serve Fluent's forward protocol until the block ends; yield the port."""
    from sluice_doors.forward.server import (  # noqa: PLC0415 - an extra
        ForwardRules,
        ForwardServer,
        serving_forward,
    )
    from sluice_gateway.doors.senders import DoorSenders  # noqa: PLC0415

    settings, doors = gateway.settings, gateway.doors
    if doors is None:
        raise BadUsage("forward_listen needs forward in doors")
    rules = ForwardRules(
        hostname=f"sluice/{gateway.uploads.collector_id}",  # clients refuse their host name
        message_bytes_max=settings.door_body_bytes_max,
        login_s=settings.head_timeout_s,
        pace=body_pace(settings),
        retry_s_max=FORWARD_RETRY_S_MAX,
    )
    senders = DoorSenders(
        gateway.uploads.principals, doors.clock, forward_principal=settings.forward_principal
    )
    async with serving_forward(
        ForwardServer(doors=doors, senders=senders, rules=rules),
        settings.forward_listen,
        _connection_limits(settings, gateway.metrics, settings.forward_idle_timeout_s),
        tls=_tls_files(settings),
        is_shared=True,
    ) as port:
        yield port


def _connection_limits(
    settings: GatewaySettings, metrics: GatewayMetrics, idle_timeout_s: float
) -> ConnectionLimits:
    return ConnectionLimits(
        connections_max=port_connections_max(settings.connections_max),
        per_address_max=settings.connections_per_address_max,
        head_timeout_s=settings.head_timeout_s,
        idle_timeout_s=idle_timeout_s,
        opened=metrics.connections,
        closed=metrics.closed,
    )


def _server_options(keepalive_s: float) -> ServerOptions:
    return ServerOptions(
        decompress=False,  # the digest is over the bytes as they are sent
        keepalive_s=keepalive_s,
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


def _grpc_tls_files(settings: GatewaySettings) -> TlsFiles | None:
    files = _tls_files(settings)
    if files is None or settings.otlp_grpc_client_certificates:
        return files
    return replace(files, client_ca=None)


GC_THRESHOLD: Final = 20_000
"""Allocations between two collections of the youngest objects; an upload makes some hundred."""
LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}
DECISIONS_INTERVAL_S: Final = 5.0
DOCTOR_INTERVAL_S: Final = 60.0
DOCTOR_AGAIN_S: Final = 2.0
"""Time between two reads of the doctor's result while it is no good one: an outage may hide it."""
MODE_INTERVAL_S: Final = 5.0
PRINCIPALS_INTERVAL_S: Final = 1.0
"""Time between two checks of the principals file, and whether a check of the store is due."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """The arguments of one worker process; `index` counts from 0, and `port` is never 0."""

    settings: GatewaySettings
    store_url: str
    collector_id: str
    host: str
    port: int
    index: int = 0


def run_worker(plan: WorkerPlan) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    configure_logs(worker=plan.index, skip_probe=plan.settings.skip_probe)
    code, drained = 0, False
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            drained = runner.run(_serve(plan))
    except* SluiceError as group:
        error = _first(group)
        code = error.exit_code.value
        log.error("gateway_stopped", reason=str(error))  # noqa: TRY400 - the reason is complete
    return code or int(not drained)


def _first(group: BaseExceptionGroup[SluiceError]) -> SluiceError:
    found = group.exceptions[0]
    return found if isinstance(found, SluiceError) else _first(found)


def worker_main(plan: WorkerPlan) -> None:
    """Run a worker as the main function of a child process."""
    sys.exit(run_worker(plan))


async def _serve(plan: WorkerPlan) -> bool:
    stop = _stop_event()
    async with AsyncExitStack() as stack:
        gateway, next_number = await _open(plan, stack)
        await gateway.uploads.decisions.refresh()
        await gateway.readiness.check_store()
        await gateway.uploads.journal.open()
        await stack.enter_async_context(serving(gateway, bind_shared(plan.host, plan.port)))
        if plan.settings.otlp_grpc_listen:
            await stack.enter_async_context(serving_grpc(gateway))
        if plan.settings.forward_listen:
            await stack.enter_async_context(serving_forward_port(gateway))
        if plan.settings.metrics_port:
            port = plan.settings.metrics_port + plan.index
            await stack.enter_async_context(serving_health(gateway, plan.host, port))
        settle_memory()
        log.info(
            "gateway_listening", host=plan.host, port=plan.port, collector_id=plan.collector_id
        )
        return await _until_drained(gateway, next_number, stop)


def settle_memory() -> None:
    """Exclude the objects of the start from garbage collection.

    Modules and the models of the SDK live as long as the process; scanning them frees nothing. A
    collection before that is not worth it: of 71 000 objects 300 were unreachable, and finding them
    took a tenth of a start.
    """
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


async def _open(plan: WorkerPlan, stack: AsyncExitStack) -> tuple[Gateway, int]:
    """Open the stores and build the gateway; return it with the number of the next mode switch."""
    if plan.settings.acceptance == "local_spool":
        return await _open_spool(plan, stack)
    store = await stack.enter_async_context(open_store(plan.store_url))
    asked_at = machine_now(SystemClock())
    history = await read_history(store)
    check_authority_fits(history.current, plan.settings, plan.collector_id)
    await require_proof(store, plan.store_url, plan.settings)
    gateway = build_gateway(
        store,
        history.current,
        plan.settings,
        plan.collector_id,
        mode_checked_at=asked_at,
    )
    return gateway, history.next_number


async def _open_spool(plan: WorkerPlan, stack: AsyncExitStack) -> tuple[Gateway, int]:
    stack.enter_context(lock_spool(plan.settings.spool))
    local = await stack.enter_async_context(open_store(plan.settings.spool, StoreMode.CREATE))
    remote = await stack.enter_async_context(open_store(plan.store_url))
    history = await mirror_authority(local, remote, SystemClock())
    # First: the doctor examines a new spool with hundreds of synced writes, which take half a
    # minute on a busy disk.
    check_authority_fits(history.current, plan.settings, plan.collector_id)
    await require_proof(local, plan.settings.spool, plan.settings)
    gateway = build_gateway(
        local, history.current, plan.settings, plan.collector_id, transfers_to=remote
    )
    await adopt_records(local, remote, history, gateway.clock, plan.settings.switch_settle_s)
    return gateway, history.next_number


async def _until_drained(gateway: Gateway, next_number: int, stop: asyncio.Event) -> bool:
    """Wait for the signal, then drain.

    Return True if all running uploads ended in time and nothing is left to transfer.
    """
    async with asyncio.TaskGroup() as group:
        tasks = start_background_tasks(group, gateway, next_number, stop)
        await stop.wait()
        running = gateway.uploads.running
        running.drain()
        log.info("gateway_draining", running=running.count)
        drained = await running.wait_idle(gateway.settings.drain_time_s_max)
        for task in tasks:
            task.cancel()
    transferred = await _transfer_rest(gateway)
    # A worker without a spool refuses what still runs; a spool may still accept it.
    is_complete = transferred and (drained or gateway.transfer is None)
    await gateway.uploads.journal.close(transferred=is_complete)
    log.info("gateway_drained", complete=drained, transferred=transferred)
    return drained and transferred


async def _transfer_rest(gateway: Gateway) -> bool:
    """Transfer the last records, so that a stopped spool can be switched away from."""
    transfer = gateway.transfer
    if transfer is None:
        return True
    reason = "the authority did not accept them"
    try:
        async with asyncio.timeout(gateway.settings.drain_time_s_max / 4):
            if await transfer.finish():
                return True
    except (SluiceError, TimeoutError) as error:
        if transfer.is_empty:
            return True
        reason = str(error) or "no time is left"
    log.warning("spool_transfer_incomplete", reason=reason, pending=transfer.pending)
    return False


def _stop_event() -> asyncio.Event:
    """Return an event that a signal sets, or the end of the parent process."""
    stop, loop = stop_event(), asyncio.get_running_loop()
    parent = multiprocessing.parent_process()
    if parent is not None:
        loop.add_reader(parent.sentinel, _orphaned, loop, parent.sentinel, stop)
    return stop


def _orphaned(loop: asyncio.AbstractEventLoop, sentinel: int, stop: asyncio.Event) -> None:
    loop.remove_reader(sentinel)
    stop.set()


def configure_logs(*, worker: int, skip_probe: bool) -> None:
    """Configure the logs of this process; each line reports a store whose probe was skipped."""

    def bind(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
        del logger, name
        event["worker"] = worker
        if skip_probe:
            event["store_probe"] = "skipped"
        return event

    structlog.configure(
        processors=[bind, *last_processors()],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS["info"]),
        logger_factory=structlog.WriteLoggerFactory(log_stream()),
        cache_logger_on_first_use=True,
    )
    send_library_logs()


def start_background_tasks(
    group: asyncio.TaskGroup, gateway: Gateway, next_number: int, stop: asyncio.Event
) -> list[asyncio.Task[None]]:
    """Start every background task; each runs until cancelled. A mode switch sets `stop`."""
    tasks = [
        follow_principals(gateway),
        follow_decisions(gateway),
        follow_doctor(gateway),
        write_high_water(gateway),
        gateway.uploads.journal.run(),
    ]
    if gateway.transfer is not None:
        tasks.append(gateway.transfer.run())
    else:  # a spool is locked while it runs: no command can switch away from it
        tasks.append(follow_mode(gateway, next_number, stop))
    return [group.create_task(task) for task in tasks]


async def follow_principals(gateway: Gateway) -> None:
    """Reload the principals file, and check the store where that is due."""
    principals = gateway.uploads.principals
    while True:
        await gateway.clock.sleep(PRINCIPALS_INTERVAL_S)
        principals.reload()
        gateway.metrics.principals_stale.set(principals.failed)
        await gateway.readiness.check_store()


async def follow_doctor(gateway: Gateway) -> None:
    """Read the newest result of the doctor for `/readyz`."""
    readiness = gateway.readiness
    while True:
        await gateway.clock.sleep(DOCTOR_INTERVAL_S if readiness.is_proved else DOCTOR_AGAIN_S)
        await readiness.check_doctor()


async def follow_decisions(gateway: Gateway) -> None:
    """Read the decisions of operators, so that a quarantine is in effect everywhere within 30 s."""
    while True:
        await gateway.clock.sleep(DECISIONS_INTERVAL_S)
        try:
            async with asyncio.timeout(DECISIONS_INTERVAL_S):
                await gateway.uploads.decisions.refresh()
        except (StoreError, InvalidRecord, TimeoutError) as error:
            log.warning("decisions_not_read", reason=str(error))


async def follow_mode(gateway: Gateway, next_number: int, stop: asyncio.Event) -> None:
    """Check for a switch of the acceptance mode; set `stop` when one is found."""
    while True:
        await gateway.clock.sleep(MODE_INTERVAL_S)
        asked_at = gateway.mode.now()
        try:
            async with asyncio.timeout(MODE_INTERVAL_S):
                found = await gateway.store.head(mode_switch_key(next_number))
        except (StoreError, TimeoutError) as error:
            log.warning("authority_not_read", reason=str(error))
            continue
        if isinstance(found, ObjectInfo):
            log.error("authority_switched", key=found.key)
            gateway.mode.switched = True
            stop.set()
            return
        gateway.mode.checked_at = asked_at


async def write_high_water(gateway: Gateway) -> None:
    """Write the high-water marks that agents report."""
    while True:
        await gateway.clock.sleep(FLUSH_INTERVAL_S)
        await flush_guarded(gateway.uploads.high_water)
