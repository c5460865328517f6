"""How long a producer lets entries pile up before its next swap, so that rivals seldom collide.

Each conflict doubles the pause, each swap that lands shortens it by 1.5 %: in balance about one
swap in forty-five collides, however many producers there are, and a producer that is alone never
waits. A pause is spread by chance, or producers that collided once would collide for ever. Stores
that allow one write a second per key are met by the same rule, up to the longest pause.

Pure: time and chance come in as arguments.
"""

import random  # noqa: TID251 - as a type
from dataclasses import dataclass
from typing import Final

PAUSE_S_MAX: Final = 4.0
_FIRST_PAUSE_SWAPS: Final = 10
_SHRINK: Final = 0.985


@dataclass(slots=True)
class Pacer:
    """The pause of one producer, and when its last swap landed.

    Attributes:
        pause_s: How long to wait between two swaps, on average, seconds.
        swap_s: How long a swap takes from its read on, seconds; a moving average.
        landed_s: When the last one landed, by the caller's clock.
    """

    pause_s: float = 0.0
    swap_s: float = 0.0
    landed_s: float = 0.0

    def wait_s(self, now_s: float, rng: random.Random) -> float:
        """Return how long to wait now before the next swap."""
        if not self.pause_s:
            return 0.0
        return max(0.0, self.landed_s + self.pause_s * rng.uniform(0.5, 1.5) - now_s)

    def conflicted(self) -> None:
        """Takes note that a swap met another writer's."""
        self.pause_s = min(PAUSE_S_MAX, max(2 * self.pause_s, _FIRST_PAUSE_SWAPS * self.swap_s))

    def landed(self, now_s: float, took_s: float) -> None:
        """Takes note that a swap landed."""
        self.swap_s = took_s if not self.swap_s else 0.9 * self.swap_s + 0.1 * took_s
        self.landed_s = now_s
        self.pause_s *= _SHRINK
        if self.pause_s < self.swap_s:
            self.pause_s = 0.0
