"""The machine's clock and id source: the only module of the protocol that is not pure."""

import asyncio
import time
from typing import Final

from ulid import ULID

from sluice_protocol.units import UnixNs

_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux has a clock that runs during suspension; elsewhere the monotonic clock replaces it."""


class SystemClock:
    """The machine's wall clock and monotonic clock; sleeps on the running event loop."""

    def now_ns(self) -> UnixNs:
        """Return the wall clock in Unix nanoseconds."""
        return UnixNs(time.time_ns())  # noqa: TID251 - every other module receives a Clock

    def monotonic_ns(self) -> int:
        """Return the monotonic clock in nanoseconds."""
        return time.monotonic_ns()  # noqa: TID251 - every other module receives a Clock

    def boottime_ns(self) -> int:
        """Return the time since the machine started, in nanoseconds, suspension included."""
        return time.clock_gettime_ns(_BOOTTIME)

    async def sleep(self, seconds: float) -> None:
        """Suspend the calling task for that many seconds."""
        await asyncio.sleep(seconds)  # noqa: TID251 - every other module receives a Clock


class SystemIds:
    """ULIDs made of the wall clock and 80 bits of the system's randomness."""

    def ulid(self) -> str:
        """Return a new ULID."""
        return str(ULID())
