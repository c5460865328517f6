"""Start the services, restart those that end, and stop all of them.

The functions `after_…` are pure: what follows the start, the readiness and the end of a process.

The states of a process: `starting` until its health check succeeds, then `ready`. Its end leads to
`waiting`, and after a pause to `starting` again; or to `refused`, if it rejected its settings
before it was ever ready, because another start would fail in the same way.
"""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from sluice_cli.up.child import DescendantRecord
from sluice_cli.up.service_log import LINE_BYTES_MAX, ServiceLog
from sluice_cli.up.services import LocalService
from sluice_protocol.clock import Clock
from sluice_protocol.errors import BadUsage, ExitCode
from sluice_protocol.units import NS_PER_S

PAUSE_S: Final = 0.5
PAUSE_S_MAX: Final = 30.0
STABLE_S: Final = 60.0
"""A process that was ready for this long has recovered: the next pause is short again."""
_DOUBLINGS_MAX: Final = 16


class ServicePhase(StrEnum):
    """The state of a supervised process."""

    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedRun:
    """What the supervisor knows of one service.

    Attributes:
        ready_since_ns: The monotonic time of its readiness; None if it is not ready.
        failures: Ends since it was last stable.
        pause_s: In `waiting`, the time to the next start.
    """

    phase: ServicePhase = ServicePhase.WAITING
    ready_since_ns: int | None = None
    was_ready: bool = False
    failures: int = 0
    starts: int = 0
    pause_s: float = 0.0


def after_start(run: SupervisedRun) -> SupervisedRun:
    """Return the state after a process was started."""
    return replace(run, phase=ServicePhase.STARTING, starts=run.starts + 1, ready_since_ns=None)


def after_ready(run: SupervisedRun, now_ns: int) -> SupervisedRun:
    """Return the state after a health check succeeded."""
    if run.phase is ServicePhase.READY:
        return run
    return replace(run, phase=ServicePhase.READY, ready_since_ns=now_ns, was_ready=True)


def after_exit(run: SupervisedRun, exit_code: int, now_ns: int) -> SupervisedRun:
    """Return the state after the process ended without a request to stop.

    `exit_code` is negative for a signal; `now_ns` is monotonic.
    """
    ready_ns = 0 if run.ready_since_ns is None else now_ns - run.ready_since_ns
    failures = 1 if ready_ns >= STABLE_S * NS_PER_S else run.failures + 1
    refused = exit_code == ExitCode.BAD_USAGE.value and not run.was_ready
    pause_s = min(PAUSE_S_MAX, PAUSE_S * 2.0 ** min(failures - 1, _DOUBLINGS_MAX))
    return replace(
        run,
        phase=ServicePhase.REFUSED if refused else ServicePhase.WAITING,
        ready_since_ns=None,
        failures=failures,
        pause_s=pause_s,
    )


STOP_S: Final = 5.0
"""Time after SIGTERM before a service is killed; with the rest all have stopped after 10 s."""
_POLL_S: Final = 0.1
_LOOK_S: Final = 0.25
_HEALTH_S: Final = 5.0
_PROBE_TIMEOUT_S: Final = 2.0
_OUTPUT_END_S: Final = 1.0


async def probe_ready(address: str, path: str) -> bool:
    """Return True if an HTTP service responds with 200 to this path."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                head = f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
                writer.write(head.encode())
                status = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError):
        return False
    return b" 200 " in status


@dataclass(slots=True, kw_only=True)
class Supervisor:
    """All services of one deployment.

    Attributes:
        places: What the command lines contain: the store, the home, and each address.
        on_processes: Called when a process was started or has ended.
    """

    services: tuple[LocalService, ...]
    places: Mapping[str, str]
    environment: Mapping[str, str]
    log: ServiceLog
    show: Callable[[str], None]
    clock: Clock
    runs: dict[str, SupervisedRun] = field(default_factory=dict)
    processes: dict[str, Process] = field(default_factory=dict)
    on_processes: Callable[[], None] = lambda: None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _below: DescendantRecord = field(default_factory=DescendantRecord)

    @property
    def stopping(self) -> bool:
        """Whether a stop was requested."""
        return self._stopping.is_set()

    def start(self) -> None:
        """Start running every service."""
        for service in self.services:
            self.runs[service.name] = SupervisedRun()
            task = asyncio.create_task(self._keep(service))
            self._tasks.add(task)

    async def wait_ready(self) -> None:
        """Wait until every required service was ready, or a stop is requested."""
        needed = [one.name for one in self.services if not one.optional]
        while not self.stopping and not all(self.runs[name].was_ready for name in needed):
            self.check_refused()
            self._changed.clear()
            await self._changed.wait()
        self.check_refused()

    def check_refused(self) -> None:
        """Raise an error with the last line of a service that rejected its settings."""
        for name, run in self.runs.items():
            if run.phase is ServicePhase.REFUSED:
                last = self.log.last_line(name).removeprefix("sluice: ")
                raise BadUsage(f"{name} cannot start: {last}")

    def request_stop(self) -> None:
        """Request every service to end; a second request kills them."""
        again = self._stopping.is_set()
        self._look_below()
        self._stopping.set()
        self._changed.set()
        self.log.hide()
        for process in self.processes.values():
            _signal(process, signal.SIGKILL if again else signal.SIGTERM)

    async def wait_stop(self) -> None:
        """Wait for a request to stop, or refuse settings that a service rejects after a change."""
        while not self._stopping.is_set():
            self.check_refused()
            self._changed.clear()
            await self._changed.wait()

    async def stop(self) -> None:
        """Stop every service, and kill what has not ended after `STOP_S`."""
        if not self._stopping.is_set():
            self.request_stop()
        late = self._tasks
        for _ in range(int(STOP_S / _LOOK_S)):
            _, late = await asyncio.wait(self._tasks, timeout=_LOOK_S)
            if not late:
                break
            self._look_below()
        for name, process in self.processes.items():
            self.show(f"{name} did not stop within {STOP_S:.0f} s and is killed")
            _signal(process, signal.SIGKILL)
        self._below.kill()
        if late:
            await asyncio.wait(late)

    def _look_below(self) -> None:
        self._below.add_below(one.pid for one in self.processes.values())

    async def _keep(self, service: LocalService) -> None:
        name = service.name
        while not self._stopping.is_set():
            code = await self._run_process(service)
            if self._stopping.is_set():
                return
            run = after_exit(self.runs[name], code, self.clock.monotonic_ns())
            self._change(name, run)
            if run.phase is ServicePhase.REFUSED:
                return
            self.show(f"{name} ended, exit_code={code}; it is started again in {run.pause_s:g} s")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), run.pause_s)

    async def _run_process(self, service: LocalService) -> int:
        """Run one process of a service and return its exit code."""
        name = service.name
        self._change(name, after_start(self.runs[name]))
        try:
            process, output = await self._spawn(service)
        except OSError as error:
            self.show(f"{name} cannot be started: {error.strerror}")
            return ExitCode.FOUND_WRONG.value
        self.processes[name] = process
        self.on_processes()
        if self._stopping.is_set():  # it was requested while the process was started
            _signal(process, signal.SIGTERM)
        try:
            return await self._follow(service, process, output)
        finally:
            del self.processes[name]
            if not self._stopping.is_set():
                self.on_processes()

    async def _spawn(self, service: LocalService) -> tuple[Process, int]:
        """Start a service; return its process and the descriptor from which its output is read."""
        # Not a pipe of asyncio: waiting for the process would wait for every process that
        # inherited the pipe.
        output, inherited = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "sluice_cli.up.child", str(STOP_S)),
                *service.command(self.places),
                stdin=PIPE,  # its end is the sign that this process has ended
                stdout=inherited,
                stderr=inherited,
                env=dict(self.environment),
                start_new_session=True,  # Ctrl-C reaches the supervisor only
            )
        except OSError:
            os.close(output)
            raise
        finally:
            os.close(inherited)
        return process, output

    async def _follow(self, service: LocalService, process: Process, output: int) -> int:
        """Copy the output and check the health until the process ends; return its exit code."""
        copying = asyncio.create_task(self._copy_output(service.name, output))
        health = asyncio.create_task(self._check_health(service))
        code = await process.wait()
        health.cancel()
        # A process of the service may have inherited the pipe and still be running.
        await asyncio.wait((copying,), timeout=_OUTPUT_END_S)
        copying.cancel()
        await asyncio.gather(copying, health, return_exceptions=True)
        return code

    async def _copy_output(self, name: str, output: int) -> None:
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(output, "rb", 0)
        )
        rest = b""
        try:
            while chunk := await reader.read(LINE_BYTES_MAX):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self.log.add(name, line)
                rest = rest[:LINE_BYTES_MAX]
        finally:
            self.log.add(name, rest)
            transport.close()

    async def _check_health(self, service: LocalService) -> None:
        address = self.places[next(iter(service.ports))]
        while True:
            if await probe_ready(address, service.ready_path):
                run = after_ready(self.runs[service.name], self.clock.monotonic_ns())
                self._change(service.name, run)
            ready = self.runs[service.name].phase is ServicePhase.READY
            await self.clock.sleep(_HEALTH_S if ready else _POLL_S)

    def _change(self, name: str, run: SupervisedRun) -> None:
        self.runs[name] = run
        self._changed.set()


def _signal(process: Process, number: signal.Signals) -> None:
    """Send a signal to a service; SIGKILL also to the rest of its process group."""
    with suppress(ProcessLookupError, PermissionError):
        if number is signal.SIGKILL:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
