"""How old the oldest batch is that waits before each stage: accepted, indexed, enqueued.

A batch waits from when this process has read its manifest. One whose stage failed goes on waiting,
so the age grows through an outage; a full pass that left nothing has found everything known before
it at its end, here or at another reconciler, so that pass clears what still waits.
"""

from collections import OrderedDict
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from sluice_protocol.clock import Clock
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs

WAITING_MAX: Final = 100_000
"""Batches that one stage remembers; the latest is dropped beyond, the oldest tells the age."""


class Stage(StrEnum):
    """What a batch waits for."""

    INDEX = "index"
    ENQUEUE = "enqueue"


class Waiting:
    """The batches that wait before each stage, by accepted key."""

    def __init__(self, clock: Clock) -> None:
        """Starts with nothing; the clock carries the store's time on between its answers."""
        self._clock = clock
        self._date_ns = 0
        self._dated_ns = 0
        self._waits: dict[Stage, OrderedDict[ObjectKey, UnixNs]] = {
            stage: OrderedDict() for stage in Stage
        }

    def dated(self, date_ns: UnixNs) -> None:
        """Takes the store's clock from an answer."""
        if date_ns > self._date_ns:
            self._date_ns, self._dated_ns = date_ns, self._clock.monotonic_ns()

    def begin(self, stage: Stage, key: ObjectKey, accepted_at_ns: UnixNs) -> None:
        """Lets a batch wait."""
        waits = self._waits[stage]
        waits[key] = accepted_at_ns
        if len(waits) > WAITING_MAX:
            waits.popitem()

    def end(self, stage: Stage, keys: Iterable[ObjectKey]) -> None:
        """Tells that batches are past a stage, or that it is no longer ours to take them there."""
        for key in keys:
            self._waits[stage].pop(key, None)

    def known(self) -> dict[Stage, tuple[ObjectKey, ...]]:
        """Gives what waits now, to be cleared when a full pass that begins now ends well."""
        return {stage: tuple(waits) for stage, waits in self._waits.items()}

    def oldest_s(self, stage: Stage) -> float:
        """Gives the age of the oldest batch before a stage, 0 for none, seconds."""
        since_ns = min(self._waits[stage].values(), default=None)
        return 0.0 if since_ns is None else self.age_s(since_ns)

    def now_ns(self) -> UnixNs:
        """Gives the store's time: its latest answer's, carried on; 0 before the first."""
        passed_ns = self._clock.monotonic_ns() - self._dated_ns
        return UnixNs(self._date_ns + passed_ns if self._date_ns else 0)

    def age_s(self, since_ns: int) -> float:
        """Gives how long ago an instant of the store's clock was, seconds."""
        return max(0, self.now_ns() - since_ns) / NS_PER_S
