"""Admission: which uploads a worker accepts, decided before it reads a byte of a body.

Bodies are counted by their announced length, so memory is bounded by a budget and not by the
number of clients. Over the budget the response is 503 before reading. Above a high mark a share of
keep-alive connections is closed after the response, so that agents spread over the gateways.
"""

import asyncio
import random  # noqa: TID251 - the type of the seeded source, which the caller passes
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from sluice_gateway.metrics import GatewayMetrics
from sluice_protocol.authority import UPLOAD_TIME_S_MAX
from sluice_protocol.clock import MachineInstant, SuspendAwareClock, machine_now
from sluice_protocol.errors import ErrorCode
from sluice_protocol.upload_http import FRAME_MEDIA_TYPE
from sluice_web.json_bodies import check_length
from sluice_web.problems import HttpRefusal

HIGH_MARK: Final = 0.75
"""Share of the budget above which connections are shed."""
SHED_SHARE: Final = 0.1
"""Share of responses that close their connection above the high mark."""
NOTICE_S_MAX: Final = 30.0
"""A gateway that could not check for a mode switch for this long accepts no uploads."""
SETTLE_S: Final = NOTICE_S_MAX + UPLOAD_TIME_S_MAX
"""Time after a switch until no gateway of the old mode acknowledges an upload."""


def memory_cost(length_bytes: int) -> int:
    """Return the cost of a body: its length, and a quarter for copies while it is read.

    Measured with 256 clients of 16 MiB: with the length alone, the peak was 45 MB above the budget
    and the process itself. With this cost it is below.
    """
    return length_bytes + length_bytes // 4


class BodyBudget:
    """The bytes of bodies that one worker has in memory."""

    def __init__(self, bytes_max: int, metrics: GatewayMetrics, rng: random.Random) -> None:
        self._bytes_max = bytes_max
        self._rng = rng
        self.held_bytes = 0
        metrics.inflight_bytes.set_function(lambda: self.held_bytes)

    def room_bytes(self, length_bytes: int) -> int:
        """Return how much more than `length_bytes` a request can take if it is the only one."""
        return max(0, self._bytes_max - memory_cost(length_bytes)) * 4 // 5

    def take(self, length_bytes: int) -> AbstractContextManager[None]:
        """Return a block that reserves the cost of a body while it is in memory.

        The block raises `HttpRefusal` when it is entered with the budget exhausted; then nothing is
        reserved.
        """
        return _Reserved(self, memory_cost(length_bytes))

    def reserve(self, cost_bytes: int) -> None:
        """Reserve memory; raise `HttpRefusal` and reserve nothing if the budget is exhausted."""
        if self.held_bytes + cost_bytes > self._bytes_max:
            raise HttpRefusal(ErrorCode.OVERLOADED, "this gateway is full: try another gateway")
        self.held_bytes += cost_bytes

    def release(self, cost_bytes: int) -> None:
        """Release memory that `reserve` reserved."""
        self.held_bytes -= cost_bytes

    def is_nearly_full(self) -> bool:
        """Return whether more than `HIGH_MARK` of the memory is reserved."""
        return self.held_bytes > HIGH_MARK * self._bytes_max

    def sheds(self) -> bool:
        """Return whether the next response should close its connection; true for a random share."""
        return self.is_nearly_full() and self._rng.random() < SHED_SHARE


@dataclass(slots=True)
class _Reserved(AbstractContextManager[None]):
    """A block that holds memory; a class, because a generator costs several times as much."""

    budget: BodyBudget
    cost_bytes: int

    def __enter__(self) -> None:
        self.budget.reserve(self.cost_bytes)

    def __exit__(self, *_: object) -> None:
        self.budget.release(self.cost_bytes)


class RunningUploads(AbstractContextManager[None]):
    """Counts running uploads, each a block; after `drain`, entering a block is refused."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False
        self.count = 0

    def __enter__(self) -> None:
        """Count an upload that begins; raise `HttpRefusal` when draining."""
        if self.draining:
            raise HttpRefusal(ErrorCode.DRAINING, "this gateway is stopping: try another gateway")
        self.count += 1
        self._idle.clear()

    def __exit__(self, *_: object) -> None:
        """Count an upload that ended."""
        self.count -= 1
        if self.count == 0:
            self._idle.set()

    def drain(self) -> None:
        """Refuse new uploads from now on."""
        self.draining = True
        self._metrics.draining.set(1)

    async def wait_idle(self, time_s_max: float) -> bool:
        """Wait for the running uploads; return whether all of them ended in time."""
        try:
            async with asyncio.timeout(time_s_max):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True


class ModeWatch:
    """Whether the authority is known to be in the acceptance mode of this gateway.

    `checked_at` is when it was last confirmed; None where a spool is locked, so that no switch is
    possible.
    """

    def __init__(self, clock: SuspendAwareClock, checked_at: MachineInstant | None = None) -> None:
        self._clock = clock
        self.switched = False
        self.checked_at = checked_at

    def now(self) -> MachineInstant:
        """Return the present instant; a check of the mode confirms it for the time it began."""
        return machine_now(self._clock)

    @property
    def known(self) -> bool:
        """Whether the mode was confirmed within `NOTICE_S_MAX`, a suspension included."""
        return not self.switched and self._age_s() < NOTICE_S_MAX

    def _age_s(self) -> float:
        return (
            0.0 if self.checked_at is None else self.checked_at.seconds_to(machine_now(self._clock))
        )

    def problem(self) -> str:
        """Return why the mode is not known; empty if it is."""
        if self.known:
            return ""
        return "the acceptance mode of the authority could not be read for too long"

    def require_known(self) -> None:
        """Refuse an upload in a mode that may have been switched unnoticed."""
        if not self.known:
            raise HttpRefusal(
                ErrorCode.STORE_UNAVAILABLE,
                "the authority was switched or cannot be read: try another gateway",
            )

    def require_unsettled(self) -> None:
        """Refuse to acknowledge an upload after a gateway of another mode may have begun.

        Raises:
            HttpRefusal: The batch may be accepted; the same bytes may be sent to any gateway.
        """
        if self._age_s() >= SETTLE_S:
            raise HttpRefusal(
                ErrorCode.OUTCOME_UNKNOWN,
                "the authority may have been switched meanwhile: send the same bytes again",
            )


def check_head(request: web.Request, bytes_max: int, media_type: str = FRAME_MEDIA_TYPE) -> int:
    """Return the announced length of an upload whose header fields follow the protocol.

    Another media type or a Content-Encoding is refused with 415, a missing length with 411.
    """
    if request.content_type != media_type:
        raise HttpRefusal(ErrorCode.UNSUPPORTED_MEDIA_TYPE, f"send Content-Type: {media_type}")
    if "Content-Encoding" in request.headers:
        raise HttpRefusal(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE, "send the frame without Content-Encoding"
        )
    return check_length(request, bytes_max)
