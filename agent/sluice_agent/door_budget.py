"""The memory that requests to doors may use, and how many of them may wait."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from sluice_protocol.errors import ErrorCode
from sluice_web.problems import HttpRefusal

BODIES_BYTES_MAX: Final = 64 * 1024 * 1024
"""Limit of all bodies that are in memory, as announced; more requests get "later"."""
REQUESTS_MAX: Final = 256
"""Limit of requests that wait to become durable."""


class DoorBudget:
    """The requests of all doors of one agent."""

    def __init__(self, body_bytes_max: int, is_full: Callable[[], bool]) -> None:
        """Start without a request.

        Args:
            body_bytes_max: Largest body; one of this size always fits alone.
            is_full: Returns whether the spool is full.
        """
        self.bytes_max = max(BODIES_BYTES_MAX, body_bytes_max)
        self._is_full = is_full
        self.held_bytes = 0
        self._requests = 0

    @contextmanager
    def take(self, length_bytes: int) -> Iterator[None]:
        """Reserve memory.

        Raises:
            HttpRefusal: There is no room.
        """
        if self.held_bytes + length_bytes > self.bytes_max:
            raise HttpRefusal(ErrorCode.OVERLOADED, "too many requests: send it again later")
        self.held_bytes += length_bytes
        try:
            yield
        finally:
            self.held_bytes -= length_bytes

    @contextmanager
    def request(self, length_bytes: int) -> Iterator[None]:
        """Reserve memory for a request, and count it.

        Raises:
            HttpRefusal: Inputs are blocked, or too many requests are waiting.
        """
        if self._is_full():
            raise HttpRefusal(ErrorCode.OVERLOADED, "the spool is full: send it again later")
        if self._requests >= REQUESTS_MAX:
            raise HttpRefusal(ErrorCode.OVERLOADED, "too many requests: send it again later")
        with self.take(length_bytes):
            self._requests += 1
            try:
                yield
            finally:
                self._requests -= 1
