"""Warnings that a client could cause without end, at most one in a while for each subject."""

from typing import Final

from sluice_protocol.clock import Clock
from sluice_protocol.units import NS_PER_S

WARN_EVERY_S: Final = 30.0


class RareWarnings:
    """Decides whether to log a warning now."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._warned: dict[str, float] = {}

    def may_warn(self, subject: str) -> bool:
        """Return True at most every `WARN_EVERY_S` for each subject."""
        now_s = self._clock.monotonic_ns() / NS_PER_S
        if now_s - self._warned.get(subject, -WARN_EVERY_S) < WARN_EVERY_S:
            return False
        self._warned[subject] = now_s
        return True
