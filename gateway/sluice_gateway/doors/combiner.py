"""Combines small requests into frames: one per lane at a time, a few per second.

    waiting --(a pause, or enough bytes)--> in a frame --(accepted)--> answered "accepted"
                                                       --(else)------> answered "later"

A request is answered when its frame is accepted. After a frame that was not accepted, or whose
outcome is unknown, the lane begins a new boot: no sequence number is missing, and the next frame
cannot meet the bytes of the last one. Requests that arrive while a frame is being accepted are part
of the next one. Source: ADR 6.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import structlog

from sluice_gateway.doors.combined_frames import (
    DoorLane,
    SmallRequest,
    check_records,
    combine,
    decoded,
)
from sluice_gateway.uploads.acceptor import Upload
from sluice_gateway.uploads.admission import BodyBudget, memory_cost
from sluice_protocol.clock import Clock, IdSource
from sluice_protocol.errors import ErrorCode, InvalidFrame, SluiceError, TooLarge, retryable
from sluice_protocol.frame import decode_head
from sluice_protocol.keys import digest_of
from sluice_protocol.manifests import PARTS_MAX
from sluice_protocol.units import NS_PER_S
from sluice_web.problems import HttpRefusal

WAITING_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of waiting requests of one lane from which further ones are refused, at least."""
TAKEN_BYTES_MAX: Final = 12 * 1024 * 1024
"""Bytes of the requests in one frame: less than a frame may have if they cannot be compressed."""
FRAME_INTERVAL_S: Final = 0.25
"""Time between the beginnings of two frames of a lane, at least."""
IDLE_S: Final = 3600
"""Time after which an idle lane is forgotten; its next frame begins a new boot."""

log = structlog.get_logger()

AcceptFrame = Callable[[Upload], Awaitable[None]]
"""Accepts a frame, or raises a `SluiceError` if it is not accepted or its outcome is unknown."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Waiting:
    """A request, and what its senders wait for: None when it is accepted, or why it is not."""

    request: SmallRequest
    answers: list[asyncio.Future[SluiceError | None]]


@dataclass(slots=True, kw_only=True)
class _OpenLane:
    """The requests of one lane, and where its numbers continue."""

    boot_id: str
    seq_next: int = 0
    waiting: list[_Waiting] = field(default_factory=list)
    waiting_bytes: int = 0
    frame_bytes: int = 0
    known: dict[bytes, _Waiting] = field(default_factory=dict)
    is_due: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    began_ns: int = 0
    """When the last frame began, by the monotonic clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushLimits:
    """When a frame is made: `age_s` after its first request, or earlier from `bytes_least` on."""

    age_s: float
    bytes_least: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FramePause:
    """A pause before a frame: `least_s`, then `unless_due_s` or until enough bytes wait."""

    least_s: float
    unless_due_s: float


def decide_pause(since_s: float | None, flush_s: float) -> FramePause:
    """Decide how long a lane waits before its next frame.

    A request that waits arrived after the last frame began. So none waits longer than `flush_s`, or
    `FRAME_INTERVAL_S` if that is more. `since_s` is the time since the last frame of the lane
    began; None if it has made none. `flush_s` is `FlushLimits.age_s`.
    """
    interval_s = max(FRAME_INTERVAL_S, flush_s)
    if since_s is None or since_s >= interval_s:
        return FramePause(least_s=0.0, unless_due_s=flush_s)
    least_s = max(0.0, FRAME_INTERVAL_S - since_s)
    return FramePause(least_s=least_s, unless_due_s=max(0.0, interval_s - since_s - least_s))


def count_fitting(sizes_bytes: Sequence[int]) -> int:
    """Return how many of the requests that wait fit into one frame, at least one."""
    total_bytes = 0
    for number, size_bytes in enumerate(sizes_bytes[:PARTS_MAX]):
        total_bytes += size_bytes
        if total_bytes > TAKEN_BYTES_MAX and number:
            return number
    return min(len(sizes_bytes), PARTS_MAX)


class Combiner:
    """Combines the small requests of one worker."""

    def __init__(
        self,
        accept: AcceptFrame,
        budget: BodyBudget,
        threads: Executor,
        clock: Clock,
        ids: IdSource,
        *,
        flush: FlushLimits,
    ) -> None:
        """Bind the acceptance of this worker; frames are made in `threads`."""
        self._accept = accept
        self._budget = budget
        self._threads = threads
        self._clock = clock
        self._ids = ids
        self._flush = flush
        self._lanes: dict[DoorLane, _OpenLane] = {}

    async def accept(self, request: SmallRequest) -> bool:
        """Wait until the frame with a request is accepted.

        The request is stored also if its client goes away. Return True if the same request was
        waiting already, so that it is stored once.
        """
        answer: asyncio.Future[SluiceError | None] = asyncio.get_running_loop().create_future()
        duplicate = self._add(request, answer)
        failure = await answer
        if failure is not None:
            raise failure.with_traceback(None)  # other senders raise the same object
        return duplicate

    def _add(self, request: SmallRequest, answer: asyncio.Future[SluiceError | None]) -> bool:
        """Let a request wait for its frame; return whether the same one was waiting already."""
        place, name = request.lane, request.request
        lane = self._open(place)
        known = None if name is None else lane.known.get(name)
        if known is not None:
            known.answers.append(answer)
            return True
        waiting_bytes_max = max(WAITING_BYTES_MAX, 2 * self._flush.bytes_least)
        if lane.waiting_bytes + request.size_bytes > waiting_bytes_max:
            raise HttpRefusal(ErrorCode.OVERLOADED, "this gateway is full: try another gateway")
        self._budget.reserve(memory_cost(request.size_bytes))
        waiting = _Waiting(request=request, answers=[answer])
        lane.waiting.append(waiting)
        lane.waiting_bytes += request.size_bytes
        lane.frame_bytes += request.frame_bytes
        if name is not None:
            lane.known[name] = waiting
        if (
            lane.frame_bytes >= self._flush.bytes_least
            or lane.waiting_bytes >= waiting_bytes_max // 2
            or len(lane.waiting) >= PARTS_MAX
        ):
            lane.is_due.set()
        if lane.task is None:
            lane.task = asyncio.create_task(self._run(place, lane))
        return False

    async def close(self) -> None:
        """Stop; requests that wait are not answered."""
        tasks = [one.task for one in self._lanes.values() if one.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _open(self, name: DoorLane) -> _OpenLane:
        lane = self._lanes.get(name)
        if lane is None:
            self._forget_idle()
            lane = self._lanes[name] = _OpenLane(boot_id=self._ids.ulid())
        return lane

    def _forget_idle(self) -> None:
        edge_ns = self._clock.monotonic_ns() - IDLE_S * NS_PER_S
        for name, lane in list(self._lanes.items()):
            if lane.task is None and lane.began_ns < edge_ns:
                del self._lanes[name]

    async def _run(self, name: DoorLane, lane: _OpenLane) -> None:
        """Make frames until no request waits."""
        try:
            while lane.waiting:
                await self._pause(lane)
                await self._make_frame(name, lane)
        finally:
            lane.task = None

    async def _pause(self, lane: _OpenLane) -> None:
        """Wait for more requests, and for the next frame of the lane to be due."""
        pause = decide_pause(
            (self._clock.monotonic_ns() - lane.began_ns) / NS_PER_S if lane.began_ns else None,
            self._flush.age_s,
        )
        if pause.least_s:
            await self._clock.sleep(pause.least_s)
        if pause.unless_due_s:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause.unless_due_s):
                    await lane.is_due.wait()

    async def _make_frame(self, name: DoorLane, lane: _OpenLane) -> None:
        lane.began_ns = self._clock.monotonic_ns()
        count = count_fitting([one.request.size_bytes for one in lane.waiting])
        taken, lane.waiting = lane.waiting[:count], lane.waiting[count:]
        lane.waiting_bytes -= sum(one.request.size_bytes for one in taken)
        lane.frame_bytes -= sum(one.request.frame_bytes for one in taken)
        if not lane.waiting:  # else the next frame is due: these have waited for this one
            lane.is_due.clear()
        failure: SluiceError | None = None
        try:
            try:
                upload = await self._make(name, lane, [one.request for one in taken])
            except (InvalidFrame, TooLarge):
                taken = self._refuse_invalid(lane, taken)
                if not taken:
                    return
                upload = await self._make(name, lane, [one.request for one in taken])
            await self._accept(upload)
            lane.seq_next += sum(one.request.count for one in taken)
        except SluiceError as error:
            failure = error
        except Exception:
            log.exception("combined_frame_failed", agent_id=name.agent_id, requests=len(taken))
            failure = HttpRefusal(ErrorCode.OUTCOME_UNKNOWN, "send the same request again")
        if failure is not None:
            lane.boot_id, lane.seq_next = self._ids.ulid(), 0
        for one in taken:
            self._answer(lane, one, failure)

    async def _make(
        self, name: DoorLane, lane: _OpenLane, requests: Sequence[SmallRequest]
    ) -> Upload:
        make = partial(combine, name, lane.boot_id, lane.seq_next, requests)
        frame, parts = await asyncio.get_running_loop().run_in_executor(self._threads, make)
        envelope = decode_head(frame).envelope
        return Upload(
            frame=frame,
            digest=digest_of(frame),
            identity=envelope.identity,
            envelope=envelope,
            principal=name.principal,
            attempt_id=self._ids.ulid(),
            parts=parts,
        )

    def _refuse_invalid(self, lane: _OpenLane, taken: list[_Waiting]) -> list[_Waiting]:
        """Refuse the requests that break a rule of frames; return the others.

        The rules are checked for whole frames, and only then for each request: decoders break none.
        """
        valid = []
        for one in taken:
            try:
                check_records(decoded(one.request.records))
            except InvalidFrame as error:
                self._answer(lane, one, error)
            else:
                valid.append(one)
        return valid

    def _answer(self, lane: _OpenLane, one: _Waiting, failure: SluiceError | None) -> None:
        if one.request.request is not None:
            del lane.known[one.request.request]
        self._budget.release(memory_cost(one.request.size_bytes))
        stated = None if failure is None else _stated(failure)
        for answer in one.answers:
            if not answer.done():  # its client may have gone away
                answer.set_result(stated)


def _stated(failure: SluiceError) -> SluiceError:
    """Return the error that the sender of a request gets for its frame."""
    if isinstance(failure, InvalidFrame):
        return failure  # never: the request itself breaks a rule
    return later(failure)


def later(failure: SluiceError) -> HttpRefusal:
    """Return the answer "later" to a request whose frame was not accepted."""
    code = failure.code if retryable(failure.code) else ErrorCode.OUTCOME_UNKNOWN
    return HttpRefusal(code, f"the frame with this request was not accepted: {failure}")
