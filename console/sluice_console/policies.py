"""The denials of the bucket's policies, proved in a separate process and kept for some minutes."""

import asyncio
import shlex
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog
from aiohttp import web

from sluice_console.attention import PolicyTotals
from sluice_console.metrics import ConsoleMetrics
from sluice_console.settings import PolicySettings
from sluice_policies.denial_job import DenialAnswer, DenialRequest
from sluice_policies.denials import (
    OTHER_CALLERS,
    DenialOutcome,
    DenialReport,
    check_role,
    describe_denial,
)
from sluice_policies.settings import RoleName
from sluice_protocol.clock import Clock
from sluice_protocol.errors import UNREADABLE_JSON
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_web.endpoints import Endpoint
from sluice_web.json_bodies import json_response
from sluice_web.parameters import TextParameter

PROOF_S_MAX: Final = 300.0
"""Longest time of a proof; it needs some seconds of processor time."""
RETRY_S: Final = 60.0
"""Time after a problem until the next proof."""
_REASON_CHARS_MAX: Final = 300

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyProof:
    """The result of one proof.

    `report` is None after a problem.
    """

    at_ns: UnixNs
    report: DenialReport | None
    command: str
    problem: str = ""

    def totals(self) -> PolicyTotals:
        """Return what the overview shows."""
        if self.report is None:
            return PolicyTotals(problem=self.problem, command=self.command)
        first = ""
        for one in self.report.denials[:1]:
            if one.outcome is DenialOutcome.ALLOWED:
                lost = f"; missing or changed: {', '.join(one.missing)}" if one.missing else ""
                first = f"{describe_denial(one)}{lost}"
        return PolicyTotals(
            denied=self.report.denied,
            allowed=self.report.allowed,
            undecided=self.report.undecided,
            first=first,
            command=self.command,
        )


def denials_command(settings: PolicySettings) -> str:
    """Return the command that proves what the console proves, in the same environment."""
    words = ["--settings", settings.file] if settings.file else []
    live = ["--live"] if settings.live else []
    return shlex.join(["sluice", "policies", "denials", *words, *live])


class PolicyProofs:
    """Keeps the newest proof, and begins another one if a reader finds it old."""

    def __init__(self, settings: PolicySettings, clock: Clock, metrics: ConsoleMetrics) -> None:
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._newest: PolicyProof | None = None
        self._began_ns: int | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def newest(self) -> PolicyProof | None:
        """The newest proof; None before the first one."""
        return self._newest

    def refresh(self) -> None:
        """Begin a proof if it is due; its result replaces the newest one."""
        if self._settings.file and self._task is None and self._is_due():
            self._began_ns = self._clock.monotonic_ns()
            self._task = asyncio.create_task(self._run())

    def _is_due(self) -> bool:
        if self._began_ns is None:
            return True
        failed = self._newest is not None and self._newest.report is None
        pause_s = min(RETRY_S, self._settings.prove_s) if failed else self._settings.prove_s
        return self._clock.monotonic_ns() - self._began_ns >= pause_s * NS_PER_S

    async def settled(self) -> None:
        """Wait for the proof that is running."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def close(self) -> None:
        """End a proof that is running."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        try:
            answer = await self._prove()
            if answer.problem:
                log.warning("policies_unproved", reason=answer.problem)
            self._newest = PolicyProof(
                at_ns=self._clock.now_ns(),
                report=answer.report,
                command=denials_command(self._settings),
                problem=answer.problem,
            )
            self._metrics.show_proof(self._newest.totals())
        finally:
            self._task = None

    async def _prove(self) -> DenialAnswer:
        request = DenialRequest(settings=self._settings.file, live=self._settings.live)
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "sluice_policies.denial_job"),
                msgspec.json.encode(request).decode(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            return DenialAnswer(problem=f"cannot start a process for the proof: {error}")
        return await _read_answer(process)


async def _read_answer(process: asyncio.subprocess.Process) -> DenialAnswer:
    """Return the answer of a process; it is ended if it takes too long or the task is cancelled."""
    try:
        async with asyncio.timeout(PROOF_S_MAX):
            out, error = await process.communicate()
    except TimeoutError:
        return DenialAnswer(problem=f"no proof within {PROOF_S_MAX:g} s: is the CPU overloaded?")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    try:
        return msgspec.json.decode(out, type=DenialAnswer)
    except UNREADABLE_JSON:
        lines = error.decode(errors="replace").strip().splitlines()
        reason = lines[-1][:_REASON_CHARS_MAX] if lines else "no message"
        return DenialAnswer(
            problem=f"the proof ended without a result: {reason}; status={process.returncode}"
        )


_ROLE: Final = TextParameter(name="role", chars_max=40)
_ACTION: Final = TextParameter(name="action", chars_max=100)


class PolicyView(msgspec.Struct, frozen=True, kw_only=True):
    """What the policies of the bucket deny.

    Attributes:
        file: The settings file of the policies; empty if the console has none.
        live: Whether the documents of the bucket were proved, or those that sluice renders.
        command: The command that proves the same documents.
        proved_at_unix_ns: When the proof ended; None before the first one.
        problem: Why nothing is proved, and what to do; empty if it is.
        roles: The names that `role` may have.
        total: Number of denials before `role` and `action` select some.
        report: The denials; None before the first proof and after a problem.
    """

    file: str
    live: bool
    command: str
    proved_at_unix_ns: int | None
    problem: str
    roles: tuple[str, ...]
    actions: tuple[str, ...]
    total: int
    report: DenialReport | None


class PolicyPages:
    """The endpoint of the policies."""

    def __init__(self, settings: PolicySettings, proofs: PolicyProofs) -> None:
        self._settings = settings
        self._proofs = proofs

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints."""
        return (
            Endpoint(
                method="GET",
                path="/v1/policies",
                handler=self._view,
                summary="Return each request that the policies must deny, with the proof",
                parameters=(_ROLE, _ACTION),
                result=PolicyView,
            ),
        )

    async def _view(self, request: web.Request) -> web.Response:
        role = check_role(_ROLE.read(request.query) or "")
        action = (_ACTION.read(request.query) or "").strip()
        self._proofs.refresh()
        newest = self._proofs.newest
        report = None if newest is None else newest.report
        denials = () if report is None else report.denials
        view = PolicyView(
            file=self._settings.file,
            live=self._settings.live,
            command=denials_command(self._settings),
            proved_at_unix_ns=None if newest is None else newest.at_ns,
            problem="" if newest is None else newest.problem,
            roles=(*RoleName, OTHER_CALLERS),
            actions=tuple(sorted({name for one in denials for name in one.actions})),
            total=len(denials),
            report=None if report is None else report.matching(role, action),
        )
        return json_response(view)
