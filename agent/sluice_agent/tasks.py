"""The tasks of a running agent: the loops of its inputs, draining, and sweeping the spool."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from sluice_agent.errors import SpoolUnwritable
from sluice_agent.inputs.file_report import FileCounts, make_file_report, read_report, write_report
from sluice_agent.inputs.files import FileInput, PollResult
from sluice_agent.inputs.host_metrics import HostMetricsInput
from sluice_agent.inputs.line_readers import PipeInput
from sluice_agent.memory import IdleRelease
from sluice_agent.metrics import AgentMetrics
from sluice_agent.sending.parked_inquiry import ParkedInquiry
from sluice_agent.sending.uploader import Uploader
from sluice_agent.settings import AgentSettings
from sluice_agent.spool.batching import Batcher
from sluice_agent.spool.format import JOURNAL_SOURCE, FileCheckpoint
from sluice_agent.spool.retries import until_done
from sluice_agent.spool.spool import Spool
from sluice_protocol.clock import Clock
from sluice_protocol.errors import SluiceError
from sluice_protocol.units import NS_PER_S
from sluice_web.process_limits import trim_heaps

if TYPE_CHECKING:
    from sluice_agent.doors.syslog import SyslogInput

POLL_S: Final = 0.25
SWEEP_S: Final = 0.5
_log: Final = structlog.get_logger("sluice.agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRunResult:
    """The result of one run of an agent.

    Attributes:
        sealed_batches: Batches made durable.
        parked: Batches that gateways rejected permanently, by now.
        waiting: Batches in the spool that are not accepted yet.
        dropped_records: Records dropped because `when_full` is `drop_newest`.
    """

    agent_id: str
    boot_id: str
    sealed_records: int
    sealed_batches: int
    parked: int
    waiting: int
    dropped_records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """The components of one running agent."""

    settings: AgentSettings
    clock: Clock
    metrics: AgentMetrics
    spool: Spool
    batcher: Batcher
    uploader: Uploader
    inquiry: ParkedInquiry

    def problem(self) -> str:
        """Return the condition that an operator must resolve; empty if there is none."""
        if self.uploader.is_refused:
            return "gateways refuse this agent: check its key, its clock and the principals file"
        if self.uploader.foreign.problem:
            return self.uploader.foreign.problem
        if self.metrics.failing:
            return next(iter(self.metrics.failing.values()))
        if self.spool.is_full():
            return (
                "spool is full and inputs are held back: check the gateways, or drop parked batches"
            )
        return ""

    def what_waits(self) -> str:
        """Return why records or batches are not settled yet, for the log."""
        waiting = len(self.spool.ready())
        failed = self.uploader.last_failure
        reasons = [self.problem()]
        if waiting:
            reasons.append(
                f"{waiting} batches are not accepted and stay in the spool for the next start"
                + (f": the last upload failed with {failed}" if failed else "")
            )
        return "; ".join(filter(None, reasons)) or "records that were read are not sealed yet"

    async def result(self) -> AgentRunResult:
        """Return what this run has done, with the batch that is being committed."""
        await asyncio.to_thread(self.spool.settle)
        return AgentRunResult(
            agent_id=self.settings.agent_id,
            boot_id=self.spool.boot_id,
            sealed_records=self.metrics.sealed_records,
            sealed_batches=self.metrics.sealed_batches,
            parked=self.uploader.parked,
            waiting=len(self.spool.ready()),
            dropped_records=self.metrics.dropped_records,
        )


# -- input loops -------------------------------------------------------------------------


async def ship_files(agent: Agent, stop: asyncio.Event) -> None:
    """Ship files, host metrics and what other programs send until `stop`, then drain."""
    settings = agent.settings
    known = agent.spool.checkpoints()
    journal = known.pop(JOURNAL_SOURCE, None)
    files = FileInput(settings.for_files(), known)
    try:
        async with _opened_syslog(agent) as syslog, _open_doors(agent):
            reading = [_follow(agent, files, stop)]
            if settings.host_metrics_s:
                reading.append(_sample(agent, stop))
            if syslog is not None:
                reading.append(syslog.run(stop))
            if settings.journal:
                reading.append(_read_journal(agent, "" if journal is None else journal.path, stop))
            complete = await _within(stop, settings.drain_s, agent.what_waits, *reading)
    finally:
        files.close()
    if complete:
        await _drain(agent, stop, settings.drain_s, wait_for_all=settings.once)


async def _read_journal(agent: Agent, cursor: str, stop: asyncio.Event) -> None:
    from sluice_agent.inputs.journal import JournalInput, JournalPorts  # noqa: PLC0415 - rarely needed

    async def save(checkpoint: FileCheckpoint) -> None:
        await _write(agent, partial(agent.spool.save_checkpoints, (checkpoint,)))

    ports = JournalPorts(put=agent.batcher.put, save=save, clock=agent.clock)
    settings = agent.settings
    journal = JournalInput(cursor, ports, only_new=settings.from_end, once=settings.once)
    await journal.run(stop)


@contextlib.asynccontextmanager
async def _opened_syslog(agent: Agent) -> AsyncIterator["SyslogInput | None"]:
    settings = agent.settings.for_syslog()
    if not settings.addresses:
        yield None
        return
    from sluice_agent.doors.syslog import opened_syslog  # noqa: PLC0415 - rarely needed

    async with opened_syslog(
        settings, batcher=agent.batcher, metrics=agent.metrics, clock=agent.clock
    ) as syslog:
        yield syslog


@contextlib.asynccontextmanager
async def _open_doors(agent: Agent) -> AsyncIterator[None]:
    settings = agent.settings.for_doors()
    if not settings.doors:
        yield
        return
    # The decoders are as large as the rest of the agent.
    from sluice_agent.doors.servers import serve_doors  # noqa: PLC0415 - rarely needed
    from sluice_agent.doors.service import DoorPorts  # noqa: PLC0415

    ports = DoorPorts(
        batcher=agent.batcher, spool=agent.spool, metrics=agent.metrics, clock=agent.clock
    )
    async with serve_doors(settings, ports):
        yield


async def _follow(agent: Agent, files: FileInput, stop: asyncio.Event) -> None:
    """Read files until `stop`, or with `once` until every file is at its end.

    While blocks are sealed, the next poll runs in a thread. A cancelled poll is lost and is read
    again at the next start, because no checkpoint covers it.
    """
    polling: asyncio.Task[PollResult] | None = None
    reported: FileCounts | None = None
    agent.metrics.watch_files(files.counts)
    try:
        while polling is not None or not stop.is_set():
            polling = polling or asyncio.create_task(_poll(agent, files))
            polled = await asyncio.shield(polling)
            more = bool(polled.blocks or polled.busy) and not stop.is_set()
            polling = asyncio.create_task(_poll(agent, files)) if more else None
            reported = await _report(agent, files.counts, reported)
            await _put_polled(agent, polled)
            if not polled.blocks and not polled.busy and agent.settings.once:
                return
            if not polled.blocks and not polled.busy:
                await _pause(stop, POLL_S)
    finally:
        if polling is not None:  # it uses the files, which are closed next
            await asyncio.gather(polling, return_exceptions=True)


async def _report(agent: Agent, counts: FileCounts, before: FileCounts | None) -> FileCounts:
    """Write the report of the files if it has changed; return what was written."""
    now = replace(counts)
    if now != before and not (before is None and now == FileCounts() and not _reported(agent)):
        report = make_file_report(
            now, agent_id=agent.settings.agent_id, now_ns=agent.clock.now_ns()
        )
        await asyncio.to_thread(write_report, agent.spool.settings.directory, report)
    return now


def _reported(agent: Agent) -> bool:
    return read_report(agent.spool.settings.directory) is not None


async def _poll(agent: Agent, files: FileInput) -> PollResult:
    return await asyncio.to_thread(
        files.poll,
        now_s=agent.clock.monotonic_ns() / NS_PER_S,
        now_ns=agent.clock.now_ns(),
        sealed=agent.spool.checkpoints(),
        final=agent.settings.once,
    )


async def _put_polled(agent: Agent, polled: PollResult) -> None:
    if polled.new_checkpoints:
        await _write(agent, partial(agent.spool.save_checkpoints, polled.new_checkpoints))
    for block in polled.blocks:
        await agent.batcher.put(block)
    if polled.finished:
        await _write(agent, partial(agent.spool.sweep, finished_sources=polled.finished))


async def _write(agent: Agent, write: Callable[[], None]) -> None:
    """Write the state of the spool; while the disk is full or fails, nothing more is read."""
    await until_done(write, agent.spool, clock=agent.clock, metrics=agent.metrics)


async def _sample(agent: Agent, stop: asyncio.Event) -> None:
    """Sample the host's metrics until `stop`, or once with the setting `once`."""
    host = HostMetricsInput(wait_s=agent.settings.host_metrics_batch_s)
    while not stop.is_set():
        block = await asyncio.to_thread(host.sample, now_ns=agent.clock.now_ns())
        if block is not None:
            await agent.batcher.put(block)
        if agent.settings.once:
            return
        await _pause(stop, agent.settings.host_metrics_s)


async def ship_pipe(
    agent: Agent, pipe: PipeInput, stop: asyncio.Event, *, wait_for_all: bool
) -> None:
    """Ship the lines of a pipe until its end or `stop`, then drain."""
    drain_s = agent.settings.pipe_drain_s
    if await _within(stop, drain_s, agent.what_waits, _read_pipe(agent, pipe, stop)):
        await _drain(agent, stop, drain_s, wait_for_all=wait_for_all)


async def _read_pipe(agent: Agent, pipe: PipeInput, stop: asyncio.Event) -> None:
    ended = False
    while not ended and not stop.is_set():
        read_result = await asyncio.to_thread(pipe.read, now_ns=agent.clock.now_ns())
        ended = read_result.ended
        if read_result.block is not None:
            await agent.batcher.put(read_result.block)
    while (rest := pipe.read_rest(now_ns=agent.clock.now_ns())) is not None:
        await agent.batcher.put(rest)


async def _drain(agent: Agent, stop: asyncio.Event, drain_s: float, *, wait_for_all: bool) -> None:
    """Seal the remaining records and send for `drain_s`; unsent batches remain in the spool."""
    if not await _within(stop, drain_s, agent.what_waits, agent.batcher.flush()):
        return
    if wait_for_all:
        await _within(stop, drain_s, agent.what_waits, agent.uploader.drained())
    else:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(agent.uploader.drained(), drain_s)
    await _sweep_once(agent)


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    """Wait for `stop`, at most for `seconds`."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)


async def _within(
    stop: asyncio.Event,
    grace_s: float,
    why: Callable[[], str],
    *work: Coroutine[None, None, None],
) -> bool:
    """Run all of `work`; after `stop` it has `grace_s` to finish before it is cancelled.

    Return True if the work finished: after a cancellation nothing may be sealed any more. The grace
    period is needed because a batch that is sealed and not committed leaves a gap in the sequence
    that looks like a loss.
    """
    stopped: asyncio.Task[object] = asyncio.create_task(stop.wait())
    working: asyncio.Task[object] = asyncio.create_task(_all(*work))
    try:
        await asyncio.wait({stopped, working}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({working}, timeout=grace_s)
        if working.done():
            working.result()
            return True
        _log.warning("shutdown_incomplete", reason=why())
        return False
    finally:
        stopped.cancel()
        working.cancel()
        await asyncio.gather(stopped, working, return_exceptions=True)


async def _all(*work: Coroutine[None, None, None]) -> None:
    async with asyncio.TaskGroup() as group:
        for each in work:
            group.create_task(each)


# -- background tasks --------------------------------------------------------------------


async def _sweep(agent: Agent) -> None:
    memory = IdleRelease(metrics=agent.metrics)
    while True:
        await agent.clock.sleep(SWEEP_S)
        await _sweep_once(agent)
        if memory.is_due(now_s=agent.clock.monotonic_ns() / NS_PER_S):
            await asyncio.to_thread(trim_heaps)


async def _sweep_once(agent: Agent) -> None:
    """Remove accepted batches and reclaim the parked batches that an operator chose to retry."""
    try:
        await asyncio.to_thread(agent.spool.sweep)
        for batch in await asyncio.to_thread(agent.spool.reclaim_retried):
            agent.uploader.add(batch)
    except SpoolUnwritable as error:
        agent.metrics.spool_errors.inc()
        agent.metrics.failing[_sweep_once] = str(error)
        _log.error("spool_unwritable", path=error.path, reason=error.reason)
    else:
        agent.metrics.failing.pop(_sweep_once, None)


async def run_with_background(main: Coroutine[None, None, None], agent: Agent) -> None:
    """Run `main` with uploader, batcher and sweeper; the first error of any of them ends all."""
    try:
        async with asyncio.TaskGroup() as group:
            background = [
                group.create_task(task)
                for task in (
                    agent.uploader.run(),
                    agent.batcher.run(),
                    agent.inquiry.run(),
                    _sweep(agent),
                )
            ]
            await main
            for task in background:
                task.cancel()
    except BaseExceptionGroup as errors:
        known = errors.subgroup(SluiceError)
        while known is not None and isinstance(known.exceptions[0], BaseExceptionGroup):
            known = known.exceptions[0]
        if known is None:
            raise
        raise known.exceptions[0] from errors
