"""Time by the clocks of this machine, as far as a suspension or a pause cannot hide it."""

import msgspec

from sluice_protocol.clock import SuspendAwareClock
from sluice_protocol.units import NS_PER_S


class MachineInstant(msgspec.Struct, frozen=True, kw_only=True):
    """One instant by two clocks of this machine.

    Attributes:
        boottime_ns: By the clock that runs during suspension.
        wall_ns: By the wall clock, which also shows that a virtual machine was paused.
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
