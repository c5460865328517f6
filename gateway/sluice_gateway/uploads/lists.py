"""Uploads of several batches in one request, each accepted or refused as a single upload is.

The request is authenticated, bounded and read as a whole: its digest covers every frame, so a
request that is cut off accepts nothing. Then each frame has its own verdict. Frames are stored
concurrently, at most `FRAMES_AT_ONCE` of a request; frames of one identity are stored in the order
of the list, so that the first one owns it. Source: ADR 4.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec
from aiohttp import web

from sluice_gateway.metrics import UploadPhases
from sluice_gateway.uploads.acceptor import AcceptedResponse, ConflictProblem, Upload
from sluice_gateway.uploads.admission import check_head
from sluice_gateway.uploads.frame_reader import ReceivedBody
from sluice_gateway.uploads.principals import VerifiedSender
from sluice_gateway.uploads.service import AcceptedFrame, UploadService
from sluice_protocol.errors import ErrorCode, InvariantViolated
from sluice_protocol.identity import Identity
from sluice_protocol.keys import digest_of
from sluice_protocol.units import NS_PER_S
from sluice_protocol.upload_http import (
    FRAME_LIST_MEDIA_TYPE,
    LIST_OVERHEAD_BYTES_MAX,
    parse_frame_list,
)
from sluice_web.problems import HttpRefusal, Problem, describe_error

FRAMES_AT_ONCE: Final = 16
TURN_NS: Final = NS_PER_S // 1000
"""Time for which frames of a list are decoded before other requests have a turn."""
INLINE_BYTES_MAX: Final = 256 * 1024
"""Bytes of a list that are split and hashed without a thread."""
COPIES: Final = 2
"""A list is in memory as a whole and as its frames while it is split."""


class FrameResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one frame: the status and body that a single upload of it would get.

    One of the bodies is set: `accepted` for a 200, `conflict` for a 409, and `problem` for any
    other status.
    """

    status: int
    accepted: AcceptedResponse | None = None
    conflict: ConflictProblem | None = None
    problem: Problem | None = None


class FrameResults(msgspec.Struct, frozen=True, kw_only=True):
    """The body of the response to a list: one result for each frame, in the order of the list."""

    results: tuple[FrameResult, ...]


@dataclass(slots=True, kw_only=True)
class _Listed:
    """One frame on its way: what was received, and its upload once it is validated."""

    received: ReceivedBody
    phases: UploadPhases
    prepared: Upload | AcceptedFrame | None = None
    result: FrameResult | None = None

    def known_result(self) -> FrameResult:
        """Return the result, after the frame was stored or refused."""
        if self.result is None:
            raise InvariantViolated("each frame of a list has a result")
        return self.result


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedUploads:
    """Accepts lists of frames; after `time_s_max` seconds no further frame is begun."""

    uploads: UploadService
    time_s_max: float

    async def accept(self, request: web.Request, phases: UploadPhases) -> FrameResults:
        """Accept the frames of one request, and return the result of each.

        Raises:
            SluiceError: The request as a whole is refused; no frame of it had an effect.
        """
        uploads = self.uploads
        with uploads.running:
            sender = uploads.sender_of(request)
            bytes_max = uploads.frame_bytes_max + LIST_OVERHEAD_BYTES_MAX
            length_bytes = check_head(request, bytes_max, FRAME_LIST_MEDIA_TYPE)
            with uploads.budget.take(COPIES * length_bytes):
                with phases.phase("receive"):
                    received = await uploads.frames.read_body(request, length_bytes)
                batches = _ListedBatches(self, request, sender, await _split(received.body))
                return await batches.accept()


@dataclass(slots=True)
class _ListedBatches:
    """The frames of one request."""

    service: ListedUploads
    request: web.Request
    sender: VerifiedSender
    bodies: tuple[ReceivedBody, ...]
    frames: list[_Listed] = field(default_factory=list)

    async def accept(self) -> FrameResults:
        clock = self.service.uploads.clock
        until_ns = clock.monotonic_ns() + int(self.service.time_s_max * NS_PER_S)
        self.frames = [_Listed(received=body, phases=UploadPhases(clock)) for body in self.bodies]
        turn_ns = clock.monotonic_ns()
        for one in self.frames:
            await self._prepare(one, until_ns)
            if clock.monotonic_ns() - turn_ns >= TURN_NS:
                await clock.sleep(0)  # decoding a full list takes longer than the loop may wait
                turn_ns = clock.monotonic_ns()
        groups = iter(self._by_identity())
        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(FRAMES_AT_ONCE, len(self.frames))):
                tasks.create_task(self._work(groups, until_ns))
        return FrameResults(results=tuple(one.known_result() for one in self.frames))

    def _by_identity(self) -> list[list[_Listed]]:
        groups: dict[Identity, list[_Listed]] = {}
        for one in self.frames:
            if one.prepared is not None and one.result is None:
                groups.setdefault(one.prepared.identity, []).append(one)
        return list(groups.values())

    async def _work(self, groups: Iterator[list[_Listed]], until_ns: int) -> None:
        for group in groups:
            for one in group:
                await self._store(one, until_ns)

    async def _prepare(self, one: _Listed, until_ns: int) -> None:
        uploads = self.service.uploads
        try:
            one.prepared = await uploads.prepare(self.sender, one.received, one.phases)
        except Exception as error:  # noqa: BLE001 - the result of this frame, not of the request
            self._fail(one, error)
        if isinstance(one.prepared, AcceptedFrame):  # an entry of the cache is valid only now
            await self._store(one, until_ns)

    async def _store(self, one: _Listed, until_ns: int) -> None:
        uploads, prepared = self.service.uploads, one.prepared
        if prepared is None:
            return
        try:
            self._require_begin(until_ns)
            answer = await uploads.finish(one.received, prepared, one.phases)
        except Exception as error:  # noqa: BLE001 - the result of this frame, not of the request
            self._fail(one, error)
        else:
            self._end(one, answer)

    def _require_begin(self, until_ns: int) -> None:
        """Refuse a frame that may not be begun, so that a list does not delay a stop."""
        if self.service.uploads.running.draining:
            raise HttpRefusal(ErrorCode.DRAINING, "this gateway is stopping: try another gateway")
        if self.service.uploads.clock.monotonic_ns() >= until_ns:
            raise HttpRefusal(
                ErrorCode.OVERLOADED, "no time is left in this request: send the frame again"
            )

    def _fail(self, one: _Listed, error: Exception) -> None:
        path, peer = self.request.path, self.request.remote
        self._end(one, describe_error(error, path=path, peer=peer))

    def _end(self, one: _Listed, answer: AcceptedResponse | Problem) -> None:
        outcome, one.result = _result_of(answer)
        self.service.uploads.metrics.finish_upload(one.phases, outcome)


def _result_of(answer: AcceptedResponse | Problem) -> tuple[str, FrameResult]:
    match answer:
        case AcceptedResponse():
            return answer.outcome, FrameResult(status=200, accepted=answer)
        case ConflictProblem():
            return answer.code.value, FrameResult(status=answer.status, conflict=answer)
        case _:
            return answer.code.value, FrameResult(status=answer.status, problem=answer)


async def _split(body: bytes) -> tuple[ReceivedBody, ...]:
    if len(body) <= INLINE_BYTES_MAX:
        return _split_now(body)
    return await asyncio.to_thread(_split_now, body)


def _split_now(body: bytes) -> tuple[ReceivedBody, ...]:
    return tuple(
        ReceivedBody(
            body=one.frame,
            digest=digest_of(one.frame),
            sent_before=one.sent_before,
            high_water=one.high_water,
        )
        for one in parse_frame_list(body)
    )
