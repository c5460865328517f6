"""The machine's clock and id source: the only module of the protocol that is not pure."""

import time
from typing import Final

from sluice_protocol.units import UnixNs

_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux has a clock that runs during suspension; elsewhere the monotonic clock replaces it."""
_NS_PER_MS: Final = 1_000_000
_CROCKFORD: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS: Final = tuple(one + other for one in _CROCKFORD for other in _CROCKFORD)
_SHIFTS: Final = tuple(range(120, -1, -10))
"""The 26 characters of a ULID are looked up in pairs, each of ten bits."""
_RANDOM_BITS: Final = 80


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
        import asyncio  # noqa: PLC0415 - some commands have no event loop

        await asyncio.sleep(seconds)  # noqa: TID251 - every other module receives a Clock


class SystemIds:
    """ULIDs made of the wall clock and 80 bits of the system's randomness.

    The package `ulid` reads the metadata of installed packages when it is imported, which would
    cost each start of an agent 1 MiB of memory.
    """

    def ulid(self) -> str:
        """Return a new ULID."""
        import secrets  # noqa: PLC0415 - few commands make an id

        now_ms = time.time_ns() // _NS_PER_MS  # noqa: TID251 - every other module receives a Clock
        random = int.from_bytes(secrets.token_bytes(_RANDOM_BITS // 8), "big")
        number = now_ms << _RANDOM_BITS | random
        return "".join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])
