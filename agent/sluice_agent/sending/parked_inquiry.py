"""Request the decisions about parked conflicts: send the same bytes again, and act on the response.

A gateway responds to the bytes of a conflict with 409. Once an operator has decided, the response
contains the decision:

| response | action |
|---|---|
| 409 with `resolution: accept_existing` for these bytes, or 200 | the local copy is removed |
| 403 `identity_quarantined` | it stays parked, without further questions in this run |
| 409 without a decision, or with an unknown one | the request is repeated later |
| anything else | the request is repeated later |

The 409 itself proves that the bytes are stored in quarantine, so removing the copy loses nothing.
Only conflicts are sent again: after other refusals the bytes exist only here.

The schedule needs no stored state. The first request is sent about a minute after the batch was
parked or the agent was started. Then the interval is a quarter of the time since parking, at most
an hour. Every interval has jitter, one request is sent at a time, and the bytes per second have a
limit, so that many parked batches do not compete with new ones.
"""

import asyncio
import random  # noqa: TID251 - the type of the seeded argument
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from sluice_agent.errors import CorruptEntry
from sluice_agent.metrics import AgentMetrics
from sluice_agent.sending.gateway_addresses import Gateways
from sluice_agent.sending.gateway_choice import SendAttempts
from sluice_agent.sending.transport import UploadRequest, UploadTransport
from sluice_agent.sending.upload_decisions import (
    DropResolved,
    Forget,
    Park,
    Reaction,
    SendAgain,
    StopSending,
    decide_reaction,
)
from sluice_agent.spool.disk import Disk
from sluice_agent.spool.format import decode_spool_entry, is_entry
from sluice_agent.spool.parked import read_reason
from sluice_protocol.clock import Clock
from sluice_protocol.errors import ErrorCode
from sluice_protocol.units import NS_PER_S

FIRST_S: Final = 60.0
"""About how long after parking or starting the first request is sent."""
INTERVAL_S_MIN: Final = 60.0
INTERVAL_S_MAX: Final = 3600.0
AGE_SHARE: Final = 0.25
POLL_S: Final = 10.0
"""Minimum time between two questions of an agent."""
BYTES_PER_S: Final = 256 * 1024
"""Maximum rate of questions."""
ACCEPTED: Final = "accepted"

_log: Final = structlog.get_logger("sluice.agent.parked")


def question_interval_s(age_s: float, rng: random.Random) -> float:
    """Return the time until the next question about a batch that was parked `age_s` ago."""
    return min(max(age_s * AGE_SHARE, INTERVAL_S_MIN), INTERVAL_S_MAX) * rng.uniform(0.5, 1.5)


@dataclass(slots=True, kw_only=True)
class _Question:
    """When to ask about a batch; `due_s` is None if it is not asked about."""

    due_s: float | None
    parked_at_ns: int = 0


@dataclass(slots=True, kw_only=True)
class ParkedInquiry:
    """Requests the decisions about the parked conflicts of one spool.

    Attributes:
        is_refused: Whether gateways refuse this agent; then nothing is sent.
    """

    directory: Path
    disk: Disk
    transport: UploadTransport
    gateways: Gateways
    clock: Clock
    rng: random.Random
    metrics: AgentMetrics
    is_refused: Callable[[], bool] = lambda: False
    _questions: dict[str, _Question] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The directory of the parked batches."""
        return self.directory / "parked"

    async def run(self) -> None:
        """Ask until cancelled; errors of the disk are tried again."""
        while True:
            try:
                sent_bytes = await self._ask_next()
            except OSError as error:
                sent_bytes = 0
                self.metrics.spool_errors.inc()
                _log.error("spool_unwritable", path=str(self.folder), reason=str(error))
            await self.clock.sleep(max(POLL_S, sent_bytes / BYTES_PER_S))

    async def _ask_next(self) -> int:
        """Ask about the batch that is due first, if any; return the number of bytes sent."""
        names = [name for name, _ in await asyncio.to_thread(self.disk.list, self.folder)]
        await self._plan(name for name in names if is_entry(name))
        now_s = self._now_s()
        due = [
            (question.due_s, name)
            for name, question in self._questions.items()
            if question.due_s is not None and question.due_s <= now_s
        ]
        return 0 if not due or self.is_refused() else await self._ask(min(due)[1])

    async def _plan(self, parked: Iterable[str]) -> None:
        """Plan a question about each conflict that was not known before."""
        known, self._questions = self._questions, {}
        for name in parked:
            question = known.get(name)
            if question is None:
                path = self.folder / f"{name}.json"
                reason = await asyncio.to_thread(read_reason, self.disk, path)
                is_conflict = reason.reason == ErrorCode.IDENTITY_CONFLICT
                due_s = self._now_s() + FIRST_S * self.rng.uniform(0.5, 1.5)
                question = _Question(
                    due_s=due_s if is_conflict else None, parked_at_ns=reason.parked_at_unix_ns
                )
            self._questions[name] = question

    async def _ask(self, name: str) -> int:
        question = self._questions[name]
        age_s = (self.clock.now_ns() - question.parked_at_ns) / NS_PER_S
        question.due_s = self._now_s() + question_interval_s(age_s, self.rng)
        attempt = await self.gateways.choose(SendAttempts())
        if attempt.wait_s:
            return 0
        try:
            body = await asyncio.to_thread(self.disk.read, self.folder / name)
            header, frame = decode_spool_entry(body)
        except FileNotFoundError:  # an operator retried or dropped it
            return 0
        except CorruptEntry as error:
            question.due_s = None
            _log.error("parked_file_corrupt", name=name, reason=error.reason)
            return 0
        upload = UploadRequest(frame=frame, digest=header.frame_sha256, retry=True)
        sent_ns = self.clock.monotonic_ns()
        received = await self.transport.send(attempt.target, upload)
        latency_s = (self.clock.monotonic_ns() - sent_ns) / NS_PER_S
        reaction = decide_reaction(received.response, sent=upload.digest)
        self.metrics.parked_questions.labels(reaction.name).inc()
        if isinstance(reaction, SendAgain):
            self.gateways.failed(attempt.target, reaction.pause_s)
        elif not isinstance(reaction, StopSending):
            self.gateways.succeeded(attempt.target, latency_s)
        await self._perform(reaction, name, str(attempt.target))
        return len(frame)

    async def _perform(self, reaction: Reaction, name: str, gateway: str) -> None:
        match reaction:
            case Forget():
                await self._remove(name, ACCEPTED, gateway)
            case DropResolved(reason=resolution):
                await self._remove(name, resolution, gateway)
            case Park(reason=ErrorCode.IDENTITY_QUARANTINED):
                self._questions[name].due_s = None
                _log.info("parked_batch_quarantined", name=name, gateway=gateway)
            case Park() | SendAgain() | StopSending():
                _log.debug("parked_batch_undecided", name=name, gateway=gateway)

    async def _remove(self, name: str, resolution: str, gateway: str) -> None:
        """Remove the batch, then its reason; its checkpoints were durable before it was parked."""
        await asyncio.to_thread(self.disk.remove, self.folder / name)
        await asyncio.to_thread(self.disk.remove, self.folder / f"{name}.json")
        self._questions.pop(name, None)
        self.metrics.resolved.labels(resolution).inc()
        _log.info("batch_resolved", name=name, resolution=resolution, gateway=gateway)

    def _now_s(self) -> float:
        return self.clock.monotonic_ns() / NS_PER_S
