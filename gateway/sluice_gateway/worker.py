"""One worker process: opens the store, serves, drains on SIGTERM, leaves with an exit code."""

import asyncio
import gc
import multiprocessing
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import structlog
import uvloop

from sluice_gateway.app import (
    attach_lander,
    build_gateway,
    follow_decisions,
    follow_doctor,
    follow_mode,
    keep_high_water,
    look_after,
    serving,
    serving_health,
)
from sluice_gateway.gateway import Gateway
from sluice_gateway.logs import configure_logs
from sluice_gateway.probe import prove
from sluice_gateway.settings import GatewaySettings
from sluice_gateway.spool import agree, claim, locked
from sluice_gateway.switch import adopt
from sluice_protocol.errors import SluiceError, StoreError
from sluice_protocol.system_clock import SystemClock
from sluice_store import open_store
from sluice_store.authority import read_history
from sluice_web.listening import bind_shared, stop_event

GC_THRESHOLD: Final = 20_000
"""Objects made before the youngest are looked through; an upload makes some hundred."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """What one worker is told; it crosses a process boundary.

    Attributes:
        settings: The gateway's settings.
        store_url: The authority.
        collector_id: The gateway's name in manifests.
        host: Address to bind.
        port: Port to bind, never 0.
        index: Number of this worker, from 0.
    """

    settings: GatewaySettings
    store_url: str
    collector_id: str
    host: str
    port: int
    index: int = 0


def run_worker(plan: WorkerPlan) -> int:
    """Serves until SIGTERM or SIGINT; gives the exit code."""
    configure_logs(worker=plan.index, skip_probe=plan.settings.skip_probe)
    code, drained = 0, False
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            drained = runner.run(_serve(plan))
    except* SluiceError as group:
        error = _first(group)
        code = error.exit_code.value
        log.error("gateway stopped", reason=str(error))  # noqa: TRY400 - it says all
    return code or int(not drained)


def _first(group: BaseExceptionGroup[SluiceError]) -> SluiceError:
    found = group.exceptions[0]
    return found if isinstance(found, SluiceError) else _first(found)


def worker_main(plan: WorkerPlan) -> None:
    """Runs a worker as the whole life of a child process."""
    sys.exit(run_worker(plan))


async def _serve(plan: WorkerPlan) -> bool:
    stop = _stop_event()
    async with AsyncExitStack() as stack:
        gateway, next_number = await _open(plan, stack)
        await gateway.decisions.refresh()
        await stack.enter_async_context(serving(gateway, bind_shared(plan.host, plan.port)))
        if plan.settings.metrics_port:
            port = plan.settings.metrics_port + plan.index
            await stack.enter_async_context(serving_health(gateway, plan.host, port))
        settle_memory()
        log.info("listening", host=plan.host, port=plan.port, collector_id=plan.collector_id)
        return await _until_drained(gateway, next_number, stop)


def settle_memory() -> None:
    """Takes what was made at start out of the garbage collector's rounds.

    Modules and the SDK's models live as long as the process; going through them again and again
    frees nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


async def _open(plan: WorkerPlan, stack: AsyncExitStack) -> tuple[Gateway, int]:
    """Opens the stores and makes the gateway's parts; gives the number of the next switch too."""
    if plan.settings.acceptance == "local_spool":
        return await _open_spool(plan, stack)
    store = await stack.enter_async_context(open_store(plan.store_url))
    asked_at_ns = SystemClock().monotonic_ns()
    history = await read_history(store)
    await prove(store, plan.store_url, plan.settings)
    gateway = build_gateway(store, history.current, plan.settings, plan.collector_id)
    gateway.looked_at_ns = asked_at_ns
    return gateway, history.next_number


async def _open_spool(plan: WorkerPlan, stack: AsyncExitStack) -> tuple[Gateway, int]:
    stack.enter_context(locked(plan.settings.spool))
    local = await stack.enter_async_context(open_store(plan.settings.spool))
    remote = await stack.enter_async_context(open_store(plan.store_url))
    history = await agree(local, remote, SystemClock())
    authority = history.current
    await prove(local, plan.settings.spool, plan.settings)
    gateway = build_gateway(local, authority, plan.settings, plan.collector_id)
    attach_lander(gateway, local, remote, authority)
    await adopt(local, remote, history, gateway.clock, plan.settings.switch_settle_s)
    try:
        await claim(local, remote, gateway.ids, plan.collector_id)
    except StoreError as error:
        log.warning("authority not reached, batches wait in the spool", reason=str(error))
    return gateway, history.next_number


async def _until_drained(gateway: Gateway, next_number: int, stop: asyncio.Event) -> bool:
    """Waits for the signal, then for the running uploads; gives whether all ended in time."""
    async with asyncio.TaskGroup() as group:
        keeping = (look_after, follow_decisions, follow_doctor, keep_high_water)
        keepers = [group.create_task(keep(gateway)) for keep in keeping]
        if gateway.lander is not None:
            keepers.append(group.create_task(gateway.lander.run()))
        else:  # a spool is locked while it runs: nobody can switch away from it
            keepers.append(group.create_task(follow_mode(gateway, next_number, stop)))
        await stop.wait()
        gateway.lifecycle.drain()
        log.info("draining", running=gateway.lifecycle.running)
        drained = await gateway.lifecycle.wait_idle(gateway.settings.drain_time_s_max)
        for keeper in keepers:
            keeper.cancel()
    await _land_the_rest(gateway)
    log.info("drained", complete=drained)
    return drained


async def _land_the_rest(gateway: Gateway) -> None:
    """Lands what came in last, so that a spool that was stopped can be switched away from."""
    if gateway.lander is None:
        return
    try:
        async with asyncio.timeout(gateway.settings.drain_time_s_max / 4):
            await gateway.lander.land_once()
    except (SluiceError, TimeoutError) as error:
        log.warning("not all landed", reason=str(error), pending=gateway.lander.pending)


def _stop_event() -> asyncio.Event:
    """Gives an event that a signal sets, or the death of the process that started this one."""
    stop, loop = stop_event(), asyncio.get_running_loop()
    parent = multiprocessing.parent_process()
    if parent is not None:
        loop.add_reader(parent.sentinel, _orphaned, loop, parent.sentinel, stop)
    return stop


def _orphaned(loop: asyncio.AbstractEventLoop, sentinel: int, stop: asyncio.Event) -> None:
    loop.remove_reader(sentinel)
    stop.set()
