"""Send every batch of the spool to a gateway and perform the reaction to its response.

Several workers send concurrently unless the settings require order. A worker keeps its batches
until they are forgotten or parked. With a backlog of small batches it sends several in one request.
A batch for which a worker is free is sent from memory; all others are read from the spool.
`decide_reaction` decides the reaction and `Gateways` the gateway; this module only performs them.

A list of batches is sent once; batches that it does not settle are then sent one by one, so every
reaction is to a single upload (ADR 4).

Batches that all gateways refuse, although they accept others, are delayed: no gateway reads their
version, a proxy refuses them, or what the store contains for their identity is damaged. They would
occupy every worker until an operator acts. One of them is tried again after a pause. When a gateway
accepts it, all of them are sent (ADR 3 and 18).
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import structlog

from sluice_agent.errors import GatewaysUnreachable, SendingRefused
from sluice_agent.metrics import AgentMetrics
from sluice_agent.sending.foreign_responses import ForeignResponses
from sluice_agent.sending.gateway_addresses import Gateways
from sluice_agent.sending.gateway_choice import GatewayTarget, SendAttempts
from sluice_agent.sending.transport import UploadRequest, UploadResult, UploadTransport
from sluice_agent.sending.upload_decisions import (
    NOT_A_GATEWAY,
    DropResolved,
    Forget,
    GatewayResponse,
    NoGatewayResponse,
    Park,
    Reaction,
    SendAgain,
    StopSending,
    decide_reaction,
)
from sluice_agent.settings import UploaderSettings
from sluice_agent.spool.format import ParkedReason
from sluice_agent.spool.retries import RetriedSpool
from sluice_agent.spool.spool import Spool, SpooledBatch
from sluice_protocol.clock import Clock
from sluice_protocol.errors import ErrorCode
from sluice_protocol.units import NS_PER_S
from sluice_protocol.upload_http import FRAMES_MAX, LIST_OVERHEAD_BYTES_MAX, listed_bytes

LIST_BYTES_MAX: Final = 256 * 1024 - LIST_OVERHEAD_BYTES_MAX
"""A longer list saves no more."""
SMALL_BYTES_MAX: Final = 64 * 1024
"""Size of a frame up to which sharing a request saves more than it delays."""
BACKLOG_MIN: Final = 4
"""Batches share requests if at least this many are waiting; fewer are faster in separate ones."""


@dataclass(slots=True)
class ListPlan:
    """The frames that one request can still take."""

    frames: int = 0
    size_bytes: int = 0

    def add(self, frame_bytes: int) -> bool:
        """Add a frame if it still fits; return whether it does."""
        size_bytes = self.size_bytes + listed_bytes(frame_bytes)
        if (
            frame_bytes > SMALL_BYTES_MAX
            or self.frames >= FRAMES_MAX
            or size_bytes > LIST_BYTES_MAX
        ):
            return False
        self.frames, self.size_bytes = self.frames + 1, size_bytes
        return True


class WaitingBatches:
    """The batches that no worker has taken, in the order of sealing."""

    def __init__(self) -> None:
        self._batches: deque[SpooledBatch] = deque()
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, batch: SpooledBatch) -> None:
        """Add a batch at the end."""
        self._batches.append(batch)
        self._filled.set()

    def put_back(self, batches: Iterable[SpooledBatch]) -> None:
        """Add batches that were taken before, at their places."""
        if taken := list(batches):
            ordered = sorted([*self._batches, *taken], key=lambda one: one.header.order)
            self._batches = deque(ordered)
            self._filled.set()

    async def wait(self) -> None:
        """Return once there is a batch."""
        while not self._batches:
            self._filled.clear()
            await self._filled.wait()

    def take(self, *, newest: bool = False) -> SpooledBatch:
        """Remove and return the oldest batch, or the newest one."""
        return self._batches.pop() if newest else self._batches.popleft()


RETRY_S: Final = 30.0


_OF_THE_BATCH: Final = frozenset(
    {
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.CORRUPT_OBJECT,
        ErrorCode.INTERNAL,
        ErrorCode.DIGEST_MISMATCH,
    }
)
"""Codes that refuse this batch until an operator acts, although others may be accepted."""


def concerns_batch(reaction: Reaction) -> bool:
    """Return True if the last gateway of a round refused this batch, and not every upload."""
    return isinstance(reaction, SendAgain) and reaction.reason in _OF_THE_BATCH


class DelayedBatches:
    """The batches, oldest first."""

    def __init__(self, clock: Clock, retry_s: float) -> None:
        self._clock = clock
        self._retry_s = retry_s
        self._batches: deque[SpooledBatch] = deque()
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, batch: SpooledBatch) -> None:
        """Keep a batch apart; it was sent before, which its next upload states."""
        self._batches.append(replace(batch, recovered=True))
        self._filled.set()

    async def next(self) -> SpooledBatch:
        """Wait for a batch and the pause, and remove the batch."""
        await self._filled.wait()
        await self._clock.sleep(self._retry_s)
        return self._remove()

    def remove_all(self) -> list[SpooledBatch]:
        """Remove and return every batch."""
        return [self._remove() for _ in range(len(self._batches))]

    def _remove(self) -> SpooledBatch:
        batch = self._batches.popleft()
        if not self._batches:
            self._filled.clear()
        return batch


FAILURES_LOGGED: Final = 5
"""Failed uploads of one outage that are logged one by one; a summary follows."""
SUMMARY_S: Final = 30.0
"""Time between two summaries of an outage, seconds."""
_log: Final = structlog.get_logger("sluice.agent.uploader")


@dataclass(slots=True, kw_only=True)
class _Outage:
    """Uploads that failed since the last one that succeeded, on the monotonic clock."""

    since_s: float
    logged_s: float
    failures: int = 0


class OutageLog:
    """Logs failed uploads, and ends the agent after `give_up_s` of them, unless that is 0."""

    def __init__(self, give_up_s: float) -> None:
        self._give_up_s = give_up_s
        self._outage: _Outage | None = None
        self.last_failure = ""

    def failed(
        self,
        batch: SpooledBatch,
        *,
        reason: str,
        gateway: str,
        waiting: int,
        now_s: float,
        detail: str = "",
    ) -> None:
        """Record a failed upload; `waiting` counts the batches that are not settled.

        After `give_up_s` of failures, raise `GatewaysUnreachable`.
        """
        outage = self._outage = self._outage or _Outage(since_s=now_s, logged_s=now_s)
        outage.failures += 1
        self.last_failure = f"{reason} at {gateway}" + (f": {detail}" if detail else "")
        failing_s = now_s - outage.since_s
        if self._give_up_s and failing_s >= self._give_up_s:
            raise GatewaysUnreachable(self._give_up_s, reason, gateway, detail)
        if outage.failures <= FAILURES_LOGGED:
            if reason == NOT_A_GATEWAY:
                return  # logged with the response by `foreign_responses`
            known = {"detail": detail} if detail else {}
            _log.warning(
                "upload_failed", name=batch.header.name, reason=reason, gateway=gateway, **known
            )
        elif now_s - outage.logged_s >= SUMMARY_S:
            outage.logged_s = now_s
            _log.warning(
                "uploads_failing",
                failures=outage.failures,
                failing_s=round(failing_s),
                waiting=waiting,
                reason=reason,
                gateway=gateway,
            )

    def ended(self) -> None:
        """Record a successful upload."""
        self._outage = None
        self.last_failure = ""


REFUSED_RETRY_S: Final = 1.0
"""Pause after the first refusal; doubled per further one, so a key added just now works soon."""
REFUSED_RETRY_S_MAX: Final = 60.0
RESPONSE_CHARS_MAX: Final = 4096
"""Text of a response that is kept with a parked batch."""


class Uploader:
    """Sends the batches of a spool."""

    def __init__(
        self,
        settings: UploaderSettings,
        spool: Spool,
        transport: UploadTransport,
        gateways: Gateways,
        *,
        clock: Clock,
        metrics: AgentMetrics,
    ) -> None:
        self._settings = settings
        self._spool = spool
        self._spooled = RetriedSpool(spool, clock=clock, metrics=metrics)
        self._transport = transport
        self._clock = clock
        self._metrics = metrics
        self._gateways = gateways
        self.foreign = ForeignResponses(clock, metrics)
        self._waiting = WaitingBatches()
        self._left = 0
        self._delayed = DelayedBatches(clock, min(RETRY_S, settings.give_up_s or RETRY_S))
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._sending_allowed = asyncio.Event()
        self._sending_allowed.set()
        self._prober: asyncio.Task[None] | None = None
        self._refused_retry_s = REFUSED_RETRY_S
        self._outage = OutageLog(settings.give_up_s)
        for batch in spool.ready():
            self.add(batch)

    def add(self, batch: SpooledBatch, frame: bytes | None = None) -> None:
        """Add a durable batch; `frame` is used if a worker is free, so memory stays bounded."""
        self._open += 1
        if frame is not None and self._open - len(self._delayed) <= self._settings.uploads_max:
            self._spooled.keep(batch, frame)
        self._idle.clear()
        self._waiting.add(batch)

    @property
    def parked(self) -> int:
        """Batches that this uploader parked."""
        return self._spooled.parked

    @property
    def is_refused(self) -> bool:
        """Whether gateways refuse this agent, which an operator must resolve."""
        return not self._sending_allowed.is_set()

    async def drained(self) -> None:
        """Return once every batch is forgotten or parked."""
        await self._idle.wait()

    async def run(self) -> None:
        """Send batches until cancelled.

        Raises:
            NotAGateway: Only other servers respond, and `stop_when_refused` is set.
        """
        async with asyncio.TaskGroup() as group:
            for _ in range(self._settings.uploads_max):
                group.create_task(self._work())
            group.create_task(self._retry_delayed())

    async def _work(self) -> None:
        while True:
            await self._waiting.wait()
            listed, others = self._take()
            left = await self._deliver_list(listed)
            unsettled = deque([*left, *((one, SendAttempts()) for one in others)])
            while unsettled:
                if not await self._deliver(*unsettled.popleft()):
                    self._left += 1
                    self._waiting.put_back(
                        replace(one, recovered=one.recovered or tried != SendAttempts())
                        for one, tried in unsettled
                    )
                    await self._clock.sleep(self._gateways.backoff_s(self._left))
                    break

    async def _retry_delayed(self) -> None:
        while True:
            if await self._deliver(await self._delayed.next(), SendAttempts()):
                self._waiting.put_back(self._delayed.remove_all())

    def _end_one(self, batch: SpooledBatch) -> None:
        self.foreign.forget(batch)
        self._open -= 1
        if not self._open:
            self._idle.set()

    def _take(self) -> tuple[list[SpooledBatch], list[SpooledBatch]]:
        """Return the batches of the next request, and one that was taken and does not fit."""
        plan, others = ListPlan(), self._waiting
        ordered = self._settings.uploads_max == 1
        if self._left and not ordered:
            # The oldest ones may all be refused; a gateway may accept the newest.
            return [others.take(newest=True)], []
        first = others.take()
        if ordered or len(others) < BACKLOG_MIN or not plan.add(first.header.frame_bytes):
            return [first], []
        listed = [first]
        while others:
            batch = others.take()
            if not plan.add(batch.header.frame_bytes):
                return listed, [batch]
            listed.append(batch)
        return listed, []

    async def _deliver_list(
        self, batches: list[SpooledBatch]
    ) -> list[tuple[SpooledBatch, SendAttempts]]:
        """Send batches in one request, once; return those that are not settled."""
        fresh = [(batch, SendAttempts()) for batch in batches]
        if len(batches) == 1:
            return fresh
        target = await self._next_gateway(SendAttempts())
        sent = await self._read_list(batches)
        if not sent:
            return []
        sent_s = self._now_s()
        results = await self._transport.send_list(target, [upload for _, upload in sent])
        tried = self._gateways.after(SendAttempts(), target)
        if isinstance(results, UploadResult):
            return [(batch, tried) for batch, _ in sent]
        unsettled = await self._settle(sent, target, results, self._now_s() - sent_s)
        return [(batch, tried) for batch in unsettled]

    async def _settle(
        self,
        sent: list[tuple[SpooledBatch, UploadRequest]],
        target: GatewayTarget,
        results: tuple[UploadResult, ...],
        latency_s: float,
    ) -> list[SpooledBatch]:
        """Perform the reactions to the results of a list; return the batches to send again."""
        accepted: list[SpooledBatch] = []
        left: list[SpooledBatch] = []
        for (batch, upload), received in zip(sent, results, strict=True):
            reaction = decide_reaction(received.response, sent=upload.digest)
            if isinstance(reaction, SendAgain | StopSending):
                left.append(batch)
                continue
            self._count(reaction)
            self._record_success(target, received, latency_s)
            if isinstance(reaction, Forget):
                accepted.append(batch)
                continue
            await self._react(reaction, batch, target, received)
            self._end_one(batch)
        await self._spooled.forget_accepted(*accepted)
        for batch in accepted:
            self._end_one(batch)
        return left

    async def _read_list(
        self, batches: list[SpooledBatch]
    ) -> list[tuple[SpooledBatch, UploadRequest]]:
        sent: list[tuple[SpooledBatch, UploadRequest]] = []
        for batch, frame in zip(batches, await self._spooled.read(*batches), strict=True):
            if frame is None:
                self._end_one(batch)
            else:
                sent.append((batch, self._request(batch, frame, SendAttempts())))
        return sent

    async def _deliver(self, batch: SpooledBatch, attempts: SendAttempts) -> bool:
        """Send a batch until a gateway settles it; return False if it is tried later, or given up.

        It is tried later if the gateways refuse this batch, or if every response was foreign.
        """
        (frame,) = await self._spooled.read(batch)
        foreign_only = True
        while frame is not None:
            target = await self._next_gateway(attempts)
            upload = self._request(batch, frame, attempts)
            sent_s = self._now_s()
            received = await self._transport.send(target, upload)
            latency_s = self._now_s() - sent_s
            reaction = decide_reaction(received.response, sent=upload.digest)
            self._count(reaction)
            if not isinstance(reaction, SendAgain | StopSending):
                self._record_success(target, received, latency_s)
            if await self._react(reaction, batch, target, received):
                break
            attempts = self._gateways.after(attempts, target)
            foreign_only = foreign_only and isinstance(reaction, SendAgain) and reaction.is_foreign
            if attempts.used:
                continue
            if await self._end_round(reaction, batch, target, received, foreign_only=foreign_only):
                return False
            foreign_only = True
        self._end_one(batch)
        return True

    async def _end_round(
        self,
        reaction: Reaction,
        batch: SpooledBatch,
        target: GatewayTarget,
        received: UploadResult,
        *,
        foreign_only: bool,
    ) -> bool:
        """Decide what to do after every gateway was tried; return True to leave the batch."""
        if foreign_only and isinstance(received.response, GatewayResponse):
            refusals = self.foreign.refuse(batch, target, received.response)
            if self._settings.stop_when_refused:
                self.foreign.check_route()
            if self._settings.uploads_max > 1 and refusals.is_final(self._now_s()):
                await self._park(batch, NOT_A_GATEWAY, target, received)
                self._end_one(batch)
                return True
        else:
            self.foreign.responded()
        if self._settings.uploads_max > 1 and (foreign_only or concerns_batch(reaction)):
            self._delayed.add(batch)
            return True
        return False

    def _request(self, batch: SpooledBatch, frame: bytes, attempts: SendAttempts) -> UploadRequest:
        return UploadRequest(
            frame=frame,
            digest=batch.header.frame_sha256,
            retry=batch.recovered or attempts != SendAttempts(),
            high_water=self._spool.high_water(batch.header.boot_id),
        )

    @property
    def last_failure(self) -> str:
        """Why the last upload failed; empty if it succeeded."""
        return self._outage.last_failure

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / NS_PER_S

    async def _next_gateway(self, attempts: SendAttempts) -> GatewayTarget:
        """Wait until the batch may be sent; while uploads are stopped, only the prober runs."""
        if self._prober is not asyncio.current_task():
            await self._sending_allowed.wait()
        attempt = await self._gateways.choose(attempts)
        if attempt.wait_s:
            await self._clock.sleep(attempt.wait_s)
        return attempt.target

    async def _react(
        self, reaction: Reaction, batch: SpooledBatch, target: GatewayTarget, received: UploadResult
    ) -> bool:
        """Perform a reaction; False if the batch has to be sent again."""
        match reaction:
            case Forget():
                await self._spooled.forget_accepted(batch)
                return True
            case Park(reason=reason):
                await self._park(batch, reason, target, received)
                return True
            case DropResolved(reason=reason):
                self._metrics.resolved.labels(reason).inc()
                _log.info(
                    "batch_resolved",
                    name=batch.header.name,
                    resolution=reason,
                    gateway=str(target),
                )
                await self._spooled.forget(batch)
                return True
            case SendAgain(pause_s=pause_s, reason=reason, is_foreign=is_foreign):
                response = received.response
                self._outage.failed(
                    batch,
                    reason=reason,
                    gateway=str(target),
                    waiting=self._open,
                    now_s=self._now_s(),
                    detail=response.detail if isinstance(response, NoGatewayResponse) else "",
                )
                self._gateways.failed(target, pause_s)
                if is_foreign and isinstance(received.response, GatewayResponse):
                    self.foreign.report(target, received.response)
                return False
            case StopSending():
                await self._stop_sending(str(target), received)
                return False

    async def _park(
        self, batch: SpooledBatch, reason: str, target: GatewayTarget, received: UploadResult
    ) -> None:
        response = received.response
        parked = ParkedReason(
            reason=reason,
            gateway=str(target),
            status=response.status if isinstance(response, GatewayResponse) else 0,
            parked_at_unix_ns=self._clock.now_ns(),
            answer=received.body.decode(errors="replace")[:RESPONSE_CHARS_MAX],
        )
        await self._spooled.park(batch, parked)

    def _record_success(
        self, target: GatewayTarget, received: UploadResult, latency_s: float
    ) -> None:
        self._outage.ended()
        self._left = 0
        self.foreign.decided()
        self._gateways.succeeded(target, latency_s)
        if isinstance(received.response, GatewayResponse) and received.response.sheds:
            self._gateways.shed(target)
        if self.is_refused:
            _log.info("uploads_resumed", gateway=str(target))
        self._prober = None
        self._refused_retry_s = REFUSED_RETRY_S
        self._metrics.refused.set(0)
        self._sending_allowed.set()

    async def _stop_sending(self, url: str, received: UploadResult) -> None:
        """Stop all workers; one tries again, and its success resumes the others."""
        response = (
            received.response
            if isinstance(received.response, GatewayResponse)
            else GatewayResponse(status=0)
        )
        if self._settings.stop_when_refused:
            raise SendingRefused(url, response.status, response.code)
        self._sending_allowed.clear()
        self._metrics.refused.set(1)
        _log.error("agent_refused", gateway=url, status=response.status, code=response.code)
        self._prober = self._prober or asyncio.current_task()
        if self._prober is asyncio.current_task():
            pause_s = self._refused_retry_s
            self._refused_retry_s = min(REFUSED_RETRY_S_MAX, 2 * pause_s)
            await self._clock.sleep(pause_s)

    def _count(self, reaction: Reaction) -> None:
        reason = "" if isinstance(reaction, Forget) else reaction.reason
        self._metrics.answers.labels(reaction.name, reason).inc()
