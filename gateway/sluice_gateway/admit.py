"""Admission: what a worker takes on, decided before a byte of a body is read.

Bodies are counted by their announced length, so memory is bounded by a budget and not by the
number of clients. Over budget the answer is 503 before reading. Above a high mark a share of
keep-alive connections is closed after their answer, so that agents spread over the gateways.
"""

import random  # noqa: TID251 - the type of the seeded source that comes in
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from aiohttp import web

from sluice_gateway.metrics import GatewayMetrics
from sluice_protocol.errors import ErrorCode
from sluice_protocol.upload_http import FRAME_MEDIA_TYPE
from sluice_web.json_bodies import check_length
from sluice_web.problems import HttpRefusal

HIGH_MARK: Final = 0.75
"""Share of the budget above which connections are shed."""
SHED_SHARE: Final = 0.1
"""Share of answers that close their connection above the high mark."""


def charge(length_bytes: int) -> int:
    """Gives what a body costs: its length, and a quarter for the copies while it is taken in.

    Measured with 256 clients of 16 MiB: with the length alone the peak lay 45 MB above the budget
    and the process itself; with this it lies below.
    """
    return length_bytes + length_bytes // 4


class Budget:
    """Bytes of bodies that one worker holds at once."""

    def __init__(self, bytes_max: int, metrics: GatewayMetrics, rng: random.Random) -> None:
        """Takes the budget in bytes."""
        self._bytes_max = bytes_max
        self._metrics = metrics
        self._rng = rng
        self.held_bytes = 0

    @contextmanager
    def take(self, length_bytes: int) -> Iterator[None]:
        """Holds the charge of a body while it is in memory.

        Raises:
            HttpRefusal: The budget does not hold it; nothing was taken.
        """
        cost_bytes = charge(length_bytes)
        if self.held_bytes + cost_bytes > self._bytes_max:
            raise HttpRefusal(ErrorCode.OVERLOADED, "this gateway is full: try another one")
        self._hold(cost_bytes)
        try:
            yield
        finally:
            self._hold(-cost_bytes)

    def _hold(self, cost_bytes: int) -> None:
        self.held_bytes += cost_bytes
        self._metrics.inflight_bytes.set(self.held_bytes)

    def sheds(self) -> bool:
        """Tells whether this answer should close its connection."""
        high = self.held_bytes > HIGH_MARK * self._bytes_max
        return high and self._rng.random() < SHED_SHARE


def check_head(request: web.Request, frame_bytes_max: int) -> int:
    """Gives the announced length of an upload whose head is as the protocol wants it.

    Raises:
        HttpRefusal: 415 for another media type or a Content-Encoding, 411 without a length.
        TooLarge: The announced length is over the limit.
    """
    if request.content_type != FRAME_MEDIA_TYPE:
        raise HttpRefusal(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE, f"send Content-Type: {FRAME_MEDIA_TYPE}"
        )
    if "Content-Encoding" in request.headers:
        raise HttpRefusal(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE, "send the frame without Content-Encoding"
        )
    return check_length(request, frame_bytes_max)
