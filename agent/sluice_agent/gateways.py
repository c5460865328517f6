"""Which gateway gets the next try and when, as pure functions of what was seen so far.

Gateways are equal: any of them may take any batch. The first try of a batch goes to the gateway
that answered last; after a failure the others are tried at once, and only when a whole round
failed does the batch wait, with full jitter, so that agents do not come back together.
"""

import random  # noqa: TID251 - the type of the seeded argument
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

Change = Callable[["GatewayState"], "GatewayState"]

BACKOFF_BASE_S: Final = 0.2
BACKOFF_S_MAX: Final = 30.0
PROBE_AFTER_S: Final = 30.0
"""A gateway that failed this long ago is tried first again, in its place."""
_DOUBLINGS_MAX: Final = 16
"""2**16 times the base is far above the maximum; a larger power only costs arithmetic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayState:
    """What is known of one gateway.

    Attributes:
        url: Its base URL.
        failed_at_s: Monotonic second of its last failure; none since its last good answer.
        not_before_s: Monotonic second before which it asked to be left alone.
    """

    url: str
    failed_at_s: float | None = None
    not_before_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateways:
    """All gateways of an agent, in the order of the settings.

    Attributes:
        states: One state for each, at least one.
    """

    states: tuple[GatewayState, ...]

    @classmethod
    def of(cls, urls: tuple[str, ...], *, first: int = 0) -> "Gateways":
        """Starts with no knowledge; `first` rotates the order so that agents spread."""
        turned = urls[first % len(urls) :] + urls[: first % len(urls)]
        return cls(states=tuple(GatewayState(url=url) for url in turned))

    def failed(self, url: str, *, now_s: float, pause_s: float | None) -> "Gateways":
        """Notes a failed try and the pause that the gateway asked for."""
        until_s = now_s + (pause_s or 0.0)
        return self._with(
            url,
            lambda state: replace(
                state,
                failed_at_s=now_s,
                not_before_s=max(state.not_before_s, until_s),
            ),
        )

    def answered(self, url: str) -> "Gateways":
        """Notes that a gateway works."""
        return self._with(url, lambda state: GatewayState(url=state.url))

    def _with(self, url: str, change: "Change") -> "Gateways":
        states = tuple(change(state) if state.url == url else state for state in self.states)
        return Gateways(states=states)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tries:
    """How often one batch was sent.

    Attributes:
        rounds: How often every gateway had its try.
        used: The gateways that had theirs in this round.
    """

    rounds: int = 0
    used: frozenset[str] = frozenset()

    def after(self, url: str, *, gateways: int) -> "Tries":
        """Notes one more try, with how many gateways there are."""
        used = self.used | {url}
        if len(used) >= gateways:
            return Tries(rounds=self.rounds + 1)
        return Tries(rounds=self.rounds, used=used)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The next try of a batch.

    Attributes:
        url: Where to.
        wait_s: How long to wait before it.
    """

    url: str
    wait_s: float


def plan_turn(gateways: Gateways, tries: Tries, *, now_s: float, rng: random.Random) -> Turn:
    """Plans the next try of a batch.

    Args:
        gateways: What is known.
        tries: How often and where this batch was sent.
        now_s: The monotonic clock.
        rng: The source of jitter.
    """
    fresh = [state for state in gateways.states if state.url not in tries.used]
    best = min(fresh or gateways.states, key=lambda state: _rank(state, now_s))
    pause_s = max(0.0, best.not_before_s - now_s)
    backoff_s = backoff(tries.rounds, rng) if tries.rounds and not tries.used else 0.0
    return Turn(url=best.url, wait_s=max(pause_s, backoff_s))


def backoff(rounds: int, rng: random.Random) -> float:
    """Gives the pause after `rounds` failed rounds, full jitter over a doubling bound."""
    bound_s = min(BACKOFF_S_MAX, BACKOFF_BASE_S * 2.0 ** min(rounds, _DOUBLINGS_MAX))
    return rng.uniform(bound_s / 10, bound_s)


def _rank(state: GatewayState, now_s: float) -> tuple[bool, bool, float]:
    failed_s = state.failed_at_s
    failing = failed_s is not None and now_s - failed_s < PROBE_AFTER_S
    pause_s = max(0.0, state.not_before_s - now_s)
    return pause_s > 0, failing, pause_s
