"""Log events that a client could cause without end, with a bound on their rate."""

from typing import Final

from sluice_protocol.clock import Clock
from sluice_protocol.units import NS_PER_S

WARN_EVERY_S: Final = 60.0


class RareWarnings:
    """Decides whether to log a warning now."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._warned: dict[str, tuple[float, int]] = {}

    def may_warn(self, subject: str) -> bool:
        """Return True at most every `WARN_EVERY_S` for each subject."""
        return self.left_out(subject) is not None

    def left_out(self, subject: str) -> int | None:
        """Return how many warnings were left out since the last one; None: leave this one out."""
        now_s = self._clock.monotonic_ns() / NS_PER_S
        warned_s, count = self._warned.get(subject, (-WARN_EVERY_S, 0))
        if now_s - warned_s < WARN_EVERY_S:
            self._warned[subject] = warned_s, count + 1
            return None
        self._warned[subject] = now_s, 0
        return count


class EventBudget:
    """Decides whether to log an event now: a number of events in each minute."""

    def __init__(self, clock: Clock, *, events_max: int) -> None:
        self._clock = clock
        self._events_max = events_max
        self._minute = -1
        self._logged = 0

    def may_log(self) -> bool:
        """Return True for the first events of a minute."""
        minute = self._clock.monotonic_ns() // (60 * NS_PER_S)
        if minute != self._minute:
            self._minute, self._logged = minute, 0
        self._logged += 1
        return self._logged <= self._events_max
