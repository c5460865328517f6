"""Time and ids as ports, so that tests can replay them."""

import asyncio
import time
from typing import Protocol

from ulid import ULID

from sluice_protocol.units import UnixNs


class Clock(Protocol):
    """Time as the agent sees it. It proves nothing: the store's clock decides."""

    def now_ns(self) -> UnixNs:
        """Gives the local wall clock in Unix ns."""
        ...

    def monotonic_s(self) -> float:
        """Gives a clock that never falls, in seconds from an arbitrary start."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_ns(self) -> UnixNs:
        """Gives the wall clock in Unix ns."""
        return UnixNs(time.time_ns())  # noqa: TID251 - the agent's one place

    def monotonic_s(self) -> float:
        """Gives the monotonic clock in seconds."""
        return time.monotonic()  # noqa: TID251 - the agent's one place

    async def sleep(self, seconds: float) -> None:
        """Waits on the running event loop."""
        await asyncio.sleep(seconds)  # noqa: TID251 - the agent's one place


def new_boot_id() -> str:
    """Gives a boot id that no other agent life has: a ULID, 80 bits of it random."""
    return str(ULID())
