"""Ports for time and ids, which a simulation replaces by replayable ones."""

from typing import Final, Protocol

import msgspec

from sluice_protocol.units import NS_PER_S, UnixNs


class Clock(Protocol):
    """The time of this machine. It never proves ownership or order: the store's clock does."""

    def now_ns(self) -> UnixNs:
        """Return the wall clock in Unix nanoseconds."""
        ...

    def monotonic_ns(self) -> int:
        """Return a clock that never moves back, in nanoseconds from an arbitrary start."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Suspend the calling task for that many seconds."""
        ...


class SuspendAwareClock(Clock, Protocol):
    """A clock that also measures time during which this machine was suspended."""

    def boottime_ns(self) -> int:
        """Return the time since the machine started, in nanoseconds, suspension included."""
        ...


class MachineInstant(msgspec.Struct, frozen=True, kw_only=True):
    """One instant by two clocks of this machine.

    `boottime_ns` also runs during suspension. The wall clock also shows that a virtual machine was
    paused.
    """

    boottime_ns: int
    wall_ns: int

    def seconds_to(self, later: "MachineInstant") -> float:
        """Return the time to a later instant, by the clock that ran further."""
        elapsed_ns = max(later.boottime_ns - self.boottime_ns, later.wall_ns - self.wall_ns)
        return elapsed_ns / NS_PER_S


def machine_now(clock: SuspendAwareClock) -> MachineInstant:
    """Return the present instant."""
    return MachineInstant(boottime_ns=clock.boottime_ns(), wall_ns=clock.now_ns())


class IdSource(Protocol):
    """A source of ids that never repeat."""

    def ulid(self) -> str:
        """Return a new ULID, 26 characters of Crockford base32."""
        ...


_ULID_TIME_CHARS: Final = 10


def ulid_time_prefix(at_ns: float) -> str:
    """Return the first characters of every ULID of a time: lower ULIDs are of an earlier time."""
    from ulid import ULID  # noqa: PLC0415 - an agent does not need it

    return str(ULID.from_timestamp(max(at_ns, 0) / NS_PER_S))[:_ULID_TIME_CHARS]
