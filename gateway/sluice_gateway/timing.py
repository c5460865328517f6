"""How long each phase of an upload took: for `Server-Timing` and the histograms."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sluice_protocol.clock import Clock


class Phases:
    """Seconds by phase, in the order in which they were first met."""

    def __init__(self, clock: Clock) -> None:
        """Starts the time of the whole."""
        self._clock = clock
        self._started_ns = clock.monotonic_ns()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the time of the block to a phase."""
        started_ns = self._clock.monotonic_ns()
        try:
            yield
        finally:
            self.add({name: (self._clock.monotonic_ns() - started_ns) / 1e9})

    def add(self, seconds: Mapping[str, float]) -> None:
        """Adds times measured elsewhere."""
        for name, spent_s in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + spent_s

    def total_s(self) -> float:
        """Gives the seconds since the start."""
        return (self._clock.monotonic_ns() - self._started_ns) / 1e9

    def server_timing(self) -> str:
        """Gives the Server-Timing field value (W3C), durations in milliseconds."""
        parts = [f"{name};dur={spent_s * 1e3:.2f}" for name, spent_s in self.seconds.items()]
        return ", ".join([*parts, f"total;dur={self.total_s() * 1e3:.2f}"])
