"""Reads the messages of gRPC calls: each has a deadline, and few may arrive slowly.

gRPC returns a message when it is complete. Until then its size and its pace are not known, and what
has arrived of it is in memory. Most messages arrive with their call. A message that does not is
counted in the budget of bodies as if it had the largest size. Such messages take half of the budget
at most, so that senders that stall do not keep out the others. Source: ADR 0172.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from sluice_door_ports.acceptance import MemoryBudget
from sluice_doors.decoded import BodyUnreadable
from sluice_protocol.errors import ErrorCode
from sluice_web.connection_guard import BodyPace
from sluice_web.problems import HttpRefusal

QUICK_S: Final = 2.0
"""Time within which most messages arrive; later ones are counted."""
PACED_BYTES: Final = 1024 * 1024
"""Size of the body whose time at the minimum rate is the time for any message."""


class Call(Protocol):
    """A call whose message has not been read."""

    async def read(self) -> object:
        """Return the message when it is complete; something else than bytes if there is none."""


class MessageReader:
    """Reads the messages of one process."""

    def __init__(
        self, budget: MemoryBudget, pace: BodyPace, *, message_bytes_max: int, slow_max: int
    ) -> None:
        """Bind the limits.

        Args:
            budget: The memory that bodies may use.
            pace: How slowly a body may arrive over HTTP.
            message_bytes_max: Largest message.
            slow_max: How many messages may arrive slowly at the same time.
        """
        self._budget = budget
        self._quick_s = min(QUICK_S, pace.grace_s)
        self._rest_s = time_max_s(pace, message_bytes_max) - self._quick_s
        self._slow_max = slow_max
        self.message_bytes_max = message_bytes_max
        self.slow = 0

    async def read(self, call: Call) -> bytes:
        """Return the message of a call.

        Raises:
            BodyUnreadable: The client sent none, or gRPC has refused it as too large.
            HttpRefusal: It arrived too slowly, or too many arrive slowly; it may be sent again.
        """
        reading = asyncio.ensure_future(call.read())
        try:
            await asyncio.wait((reading,), timeout=self._quick_s)
            if not reading.done():
                with self._slowly():
                    await asyncio.wait((reading,), timeout=self._rest_s)
            if not reading.done():
                raise HttpRefusal(
                    ErrorCode.OVERLOADED,
                    "the message arrived too slowly: send it again on a new connection",
                )
            found = reading.result()
        finally:
            reading.cancel()
        if not isinstance(found, bytes):
            raise BodyUnreadable("the call contains no message")
        return found

    @contextmanager
    def _slowly(self) -> Iterator[None]:
        """Count a message that is not complete.

        Raises:
            HttpRefusal: Too many arrive slowly, or the budget is exhausted.
        """
        if self.slow >= self._slow_max:
            raise HttpRefusal(
                ErrorCode.OVERLOADED, "too many messages arrive slowly: send it again later"
            )
        with self._budget.take(self.message_bytes_max):
            self.slow += 1
            try:
                yield
            finally:
                self.slow -= 1


def time_max_s(pace: BodyPace, message_bytes_max: int) -> float:
    """Return the time for a message."""
    return pace.grace_s + min(PACED_BYTES, message_bytes_max) / pace.rate_min


def slow_max(cost_bytes: int, budget_bytes: int) -> int:
    """Return how many messages may arrive slowly: those of half the budget, at least one.

    Args:
        cost_bytes: What the budget counts for the largest message.
        budget_bytes: The size of the budget.
    """
    return max(1, budget_bytes // (2 * cost_bytes))
