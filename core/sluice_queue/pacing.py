"""The pause of a producer before its next swap, so that swaps of rivals seldom conflict.

Each conflict doubles the pause, and each committed swap shortens it by 1.5 %. In balance about one
swap in 45 conflicts, however many producers there are. A producer without rivals never waits. Each
pause is random, or producers that conflicted once would conflict again and again. The same rule
adapts to stores that allow one write a second per key, up to the longest pause.

Pure: time and random numbers are arguments.
"""

import random  # noqa: TID251 - only the type
from dataclasses import dataclass
from typing import Final

PAUSE_S_MAX: Final = 4.0
_FIRST_PAUSE_SWAPS: Final = 10
_SHRINK: Final = 0.985


@dataclass(slots=True)
class Pacer:
    """The pause of one producer, and the time of its last committed swap.

    `pause_s` is the mean wait between two swaps. `swap_s` is the moving average of the duration of
    a swap, including its read.
    """

    pause_s: float = 0.0
    swap_s: float = 0.0
    committed_s: float = 0.0

    def wait_s(self, now_s: float, rng: random.Random) -> float:
        """Return how long to wait now before the next swap."""
        if not self.pause_s:
            return 0.0
        return max(0.0, self.committed_s + self.pause_s * rng.uniform(0.5, 1.5) - now_s)

    def conflicted(self) -> None:
        """Record that a swap conflicted with another writer's."""
        self.pause_s = min(PAUSE_S_MAX, max(2 * self.pause_s, _FIRST_PAUSE_SWAPS * self.swap_s))

    def committed(self, now_s: float, took_s: float) -> None:
        """Record that a swap was committed."""
        self.swap_s = took_s if not self.swap_s else 0.9 * self.swap_s + 0.1 * took_s
        self.committed_s = now_s
        self.pause_s *= _SHRINK
        if self.pause_s < self.swap_s:
            self.pause_s = 0.0
