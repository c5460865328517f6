"""Time and ids as ports, so that a simulation can replay them."""

import asyncio
import time
from typing import Protocol

from ulid import ULID

from sluice_protocol.units import UnixNs


class Clock(Protocol):
    """Time as a component sees it. It proves nothing: the store's clock decides."""

    def now_ns(self) -> UnixNs:
        """Gives the local wall clock in Unix ns."""
        ...

    def monotonic_ns(self) -> int:
        """Gives a clock that never falls, in ns from an arbitrary start."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        ...


class IdSource(Protocol):
    """Makes ids that never repeat."""

    def ulid(self) -> str:
        """Gives a fresh ULID, 26 characters of Crockford base32."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_ns(self) -> UnixNs:
        """Gives the wall clock in Unix ns."""
        return UnixNs(time.time_ns())  # noqa: TID251 - the one place

    def monotonic_ns(self) -> int:
        """Gives the monotonic clock in ns."""
        return time.monotonic_ns()  # noqa: TID251 - the one place

    async def sleep(self, seconds: float) -> None:
        """Waits on the running event loop."""
        await asyncio.sleep(seconds)  # noqa: TID251 - the one place


class SystemIds:
    """ULIDs from the wall clock and the system's randomness."""

    def ulid(self) -> str:
        """Gives a fresh ULID."""
        return str(ULID())
