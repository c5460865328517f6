"""The agent's composition root: create inputs, batcher, spool and uploader, and run them.

inputs ──put──> batcher ──commit──> spool ──> uploader ──> any gateway
   ^── blocked while the spool is full ──┘
"""

import asyncio
import random  # noqa: TID251 - jitter of a running agent
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from sluice_agent.errors import SpoolLocked
from sluice_agent.inputs.line_readers import PipeInput
from sluice_agent.memory import keep_freed_memory
from sluice_agent.metrics import AgentMetrics
from sluice_agent.sending.gateway_addresses import Gateways, resolve_name
from sluice_agent.sending.parked_inquiry import ParkedInquiry
from sluice_agent.sending.signing_key import read_key
from sluice_agent.sending.transport import HttpTransport, client_tls, open_upload_session
from sluice_agent.sending.uploader import Uploader
from sluice_agent.settings import (
    ONCE_GIVE_UP_S,
    AgentSettings,
    Durability,
    SpoolSettings,
    UploaderSettings,
    check_agent_settings,
)
from sluice_agent.spool.batching import Batcher
from sluice_agent.spool.disk import RealDisk
from sluice_agent.spool.spool import Spool
from sluice_agent.tasks import Agent, AgentRunResult, run_with_background, ship_files, ship_pipe
from sluice_protocol.clock import Clock
from sluice_protocol.errors import BadUsage
from sluice_protocol.settings_checks import check_number
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_web.addresses import parse_allowed_hosts
from sluice_web.process_limits import raise_open_files_limit

CONNECT_S: Final = 5.0
SLOTS: Final = 64
_log: Final = structlog.get_logger("sluice.agent")


async def run_agent(settings: AgentSettings, *, stop: asyncio.Event) -> AgentRunResult:
    """Ship files and host metrics until `stop`, or with `once` until every batch is accepted."""
    check_agent_settings(settings)  # before anything is opened
    receives = settings.for_doors().doors or settings.for_syslog().addresses or settings.journal
    if not settings.paths and not settings.host_metrics_s and not receives:
        raise BadUsage(
            "nothing to ship: set --paths, --journal, --doors, --syslog or --host-metrics-s"
        )
    raise_open_files_limit()
    give_up_s = ONCE_GIVE_UP_S if settings.once else 0.0
    async with _opened(
        settings, settings.for_spool(), stop_when_refused=settings.once, give_up_s=give_up_s
    ) as agent:
        await run_with_background(ship_files(agent, stop), agent)
        return await agent.result()


async def run_forward(
    settings: AgentSettings,
    *,
    durability: Durability,
    descriptor: int,
    stop: asyncio.Event,
    give_up_s: float = 0.0,
) -> AgentRunResult:
    """Ship the lines of a pipe until its end, with the guarantee of `durability`."""
    check_agent_settings(settings)
    check_number("give_up_s", give_up_s, 0)
    accepted = durability is Durability.ACCEPTED
    spool = settings.for_spool(sync=durability is not Durability.FAST)
    async with _opened(
        settings, spool, stop_when_refused=accepted, slots=SLOTS, give_up_s=give_up_s
    ) as agent:
        pipe = PipeInput(descriptor, zone=settings.zone(), limits=settings.for_blocks())
        await run_with_background(ship_pipe(agent, pipe, stop, wait_for_all=accepted), agent)
        return await agent.result()


@asynccontextmanager
async def _opened(
    settings: AgentSettings,
    spool_settings: SpoolSettings,
    *,
    stop_when_refused: bool,
    slots: int = 0,
    give_up_s: float = 0.0,
) -> AsyncIterator[Agent]:
    keep_freed_memory()
    clock, metrics = SystemClock(), AgentMetrics()
    key = read_key(settings.key) if settings.key is not None else None
    spool = await asyncio.to_thread(_open_spool, spool_settings, slots)
    for name, reason in spool.corrupt_files:
        metrics.corrupt.inc()
        _log.error("spool_file_corrupt", name=name, reason=reason)
    metrics.watch(spool)
    session = open_upload_session(
        tls=client_tls(settings.tls_ca, settings.tls_cert, settings.tls_key),
        connections_max=settings.uploads + 1,  # one for a question about a parked batch
        total_s=settings.upload_s,
        connect_s=CONNECT_S,
    )
    uploading = settings.for_uploader(stop_when_refused=stop_when_refused, give_up_s=give_up_s)
    transport = HttpTransport(session, key=key, clock=clock)
    agent = _build(settings, uploading, spool, transport, metrics, clock)
    _log.info("agent_started", agent_id=settings.agent_id, boot_id=spool.boot_id)
    try:
        async with session, _served_health(agent):
            yield agent
    finally:
        await asyncio.to_thread(spool.close)


@asynccontextmanager
async def _served_health(agent: Agent) -> AsyncIterator[None]:
    hosts = parse_allowed_hosts(agent.settings.allowed_hosts)  # wrong ones are reported always
    if not agent.settings.health:
        yield
        return
    # The server and the Prometheus client are not needed otherwise.
    from sluice_agent.health import serve_health  # noqa: PLC0415 - rarely needed

    async with serve_health(agent.settings.health, agent.metrics, agent.problem, hosts):
        yield


def _build(
    settings: AgentSettings,
    uploading: UploaderSettings,
    spool: Spool,
    transport: HttpTransport,
    metrics: AgentMetrics,
    clock: Clock,
) -> Agent:
    rng = random.Random()  # noqa: S311 - jitter, not a secret
    gateways = Gateways(settings.gateways, resolve_name, clock=clock, rng=rng)
    batcher = Batcher(
        spool,
        settings.for_batching(),
        clock=clock,
        metrics=metrics,
        when_full=settings.when_full,
    )
    uploader = Uploader(uploading, spool, transport, gateways, clock=clock, metrics=metrics)
    inquiry = ParkedInquiry(
        directory=spool.settings.directory,
        disk=RealDisk(),
        transport=transport,
        gateways=gateways,
        clock=clock,
        rng=rng,
        metrics=metrics,
        is_refused=lambda: uploader.is_refused,
    )
    batcher.on_sealed = uploader.add
    return Agent(
        settings=settings,
        clock=clock,
        metrics=metrics,
        spool=spool,
        batcher=batcher,
        uploader=uploader,
        inquiry=inquiry,
    )


def _open_spool(settings: SpoolSettings, slots: int) -> Spool:
    """Open the spool; with `slots`, open the first of its numbered slots that is not locked.

    Slots that contain batches are tried first, so that the next `forward` sends what a killed one
    left in its slot.
    """
    boot_id = SystemIds().ulid()
    if not slots:
        return Spool(settings, RealDisk(), boot_id=boot_id)
    slot_paths = [settings.directory / f"{slot:02d}" for slot in range(slots)]
    for slot_path in sorted(slot_paths, key=_is_empty):
        try:
            return Spool(replace(settings, directory=slot_path), RealDisk(), boot_id=boot_id)
        except SpoolLocked:
            continue
    raise SpoolLocked(str(settings.directory))


def _is_empty(slot_path: Path) -> bool:
    return not any(next(slot_path.glob(f"{folder}/*.batch"), None) for folder in ("ready", "again"))
