"""Choose the gateway and the time of the next attempt, as pure functions.

Gateways are equivalent: each may accept any batch. An agent measures the latency of its uploads and
uses the power of two choices. It draws two gateways at random, sends to the faster one, and
replaces the slower one from time to time. Only two are in use, so that the number of connections
does not grow with the number of gateways. Agents that draw independently spread over all gateways
by their speed.

After a failure the other gateways are tried immediately. When all have failed, the next attempt is
delayed with full jitter, so that agents do not return at the same time. A gateway that sheds is
tried after the others for a while.

Source: M. Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 2001; the choice
that is kept: M. Mitzenmacher, B. Prabhakar, D. Shah, "Load Balancing with Memory", 2002; ADR 18.
"""

import math
import random  # noqa: TID251 - the type of the seeded argument
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

BACKOFF_BASE_S: Final = 0.2
BACKOFF_S_MAX: Final = 30.0
PROBE_AFTER_S: Final = 30.0
"""A gateway whose last failure is older than this is tried again; doubled per further failure."""
PROBE_DOUBLINGS_MAX: Final = 3
SHED_S: Final = 60.0
"""For this long, a gateway that shed is tried after the others."""
CHOICES: Final = 2
REDRAW_S: Final = 60.0
"""About how often the slower choice is replaced by another gateway, chosen at random."""
LATENCY_WEIGHT: Final = 0.3
"""Weight of the newest latency in the moving average."""
LATENCY_FADES_S: Final = 60.0
"""Time after which a latency counts 1/e, so that a gateway that was slow is tried again."""
STAY_FACTOR: Final = 1.25
"""The other choice is used if it is faster by this factor; this keeps connections in use."""
_DOUBLINGS_MAX: Final = 16
"""2**16 times the base already exceeds the maximum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayTarget:
    """One gateway.

    Attributes:
        address: The IP address to connect to; empty if the URL contains it, or if its name does not
            resolve.
    """

    url: str
    address: str = ""

    def __str__(self) -> str:
        return f"{self.url} ({self.address})" if self.address else self.url


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetHealth:
    """What is known about one gateway; all times are monotonic.

    Attributes:
        failed_at_s: Time of its last failure; None since its last success.
        failures: Failures since its last success, each at least a probe interval after the last.
        not_before_s: Time until which it requested a pause.
        shed_at_s: None if never.
        latency_s: Moving average; None before the first.
    """

    target: GatewayTarget
    failed_at_s: float | None = None
    failures: int = 0
    not_before_s: float = 0.0
    shed_at_s: float | None = None
    latency_s: float | None = None
    observed_at_s: float = 0.0

    def is_failing(self, now_s: float) -> bool:
        """Return True if its last failure is recent."""
        if self.failed_at_s is None:
            return False
        doublings = min(max(self.failures - 1, 0), PROBE_DOUBLINGS_MAX)
        return now_s - self.failed_at_s < PROBE_AFTER_S * 2.0**doublings

    def is_shedding(self, now_s: float) -> bool:
        """Return True if it shed recently."""
        return self.shed_at_s is not None and now_s - self.shed_at_s < SHED_S

    def is_usable(self, now_s: float) -> bool:
        """Return True if it neither fails nor sheds, and has not requested a pause."""
        return not (self.is_failing(now_s) or self.is_shedding(now_s) or self.not_before_s > now_s)

    def expected_s(self, now_s: float) -> float:
        """Return the latency to expect; 0 if unknown, so that an unknown gateway is tried."""
        if self.latency_s is None:
            return 0.0
        return self.latency_s * math.exp(-(now_s - self.observed_at_s) / LATENCY_FADES_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySet:
    """All gateways of an agent.

    `choices` has the gateways in use, at most `CHOICES`; the slower is replaced at the monotonic
    time `redraw_at_s`.
    """

    states: tuple[TargetHealth, ...]
    choices: tuple[GatewayTarget, ...] = ()
    redraw_at_s: float = 0.0

    @classmethod
    def of(cls, targets: Iterable[GatewayTarget]) -> "GatewaySet":
        """Return the initial state."""
        return cls(states=tuple(TargetHealth(target=target) for target in targets))

    def replaced(self, targets: Iterable[GatewayTarget]) -> "GatewaySet":
        """Return the state with other gateways; what is known about the remaining ones is kept."""
        known = {state.target: state for state in self.states}
        states = tuple(known.get(each) or TargetHealth(target=each) for each in targets)
        return replace(self, states=states)

    def failed(self, target: GatewayTarget, *, now_s: float, pause_s: float | None) -> "GatewaySet":
        """Return the state after a failed attempt and the pause that the gateway requested."""
        until_s = now_s + (pause_s or 0.0)

        def fail(health: TargetHealth) -> TargetHealth:
            failures = health.failures + (not health.is_failing(now_s))
            not_before_s = max(health.not_before_s, until_s)
            return replace(health, failed_at_s=now_s, failures=failures, not_before_s=not_before_s)

        return self._update(target, fail)

    def succeeded(self, target: GatewayTarget, *, now_s: float, latency_s: float) -> "GatewaySet":
        """Return the state after a success and its latency."""

        def succeed(health: TargetHealth) -> TargetHealth:
            before_s = latency_s if health.latency_s is None else health.latency_s
            return TargetHealth(
                target=health.target,
                shed_at_s=health.shed_at_s,
                latency_s=before_s + LATENCY_WEIGHT * (latency_s - before_s),
                observed_at_s=now_s,
            )

        return self._update(target, succeed)

    def shed(self, target: GatewayTarget, *, now_s: float) -> "GatewaySet":
        """Return the state after a gateway shed."""
        return self._update(target, lambda health: replace(health, shed_at_s=now_s))

    def with_choices(self, *, now_s: float, rng: random.Random) -> "GatewaySet":
        """Return the state with two usable choices, if there are two."""
        usable = [state for state in self.states if state.is_usable(now_s)]
        kept = [state for state in usable if state.target in self.choices]
        if len(kept) >= CHOICES and now_s < self.redraw_at_s:
            return self
        if len(kept) >= CHOICES:
            kept = [min(kept, key=lambda state: state.expected_s(now_s))]
        others = [state for state in usable if state.target not in self.choices]
        if not others:
            others = [state for state in usable if state not in kept]
        drawn = rng.sample(others, min(len(others), CHOICES - len(kept)))
        return replace(
            self,
            choices=tuple(state.target for state in (*kept, *drawn)),
            redraw_at_s=now_s + REDRAW_S * rng.uniform(0.5, 1.5),
        )

    def _update(
        self, target: GatewayTarget, change: Callable[[TargetHealth], TargetHealth]
    ) -> "GatewaySet":
        states = tuple(change(each) if each.target == target else each for each in self.states)
        return replace(self, states=states)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAttempts:
    """The attempts to send one batch.

    Attributes:
        rounds: How often every gateway was tried.
    """

    rounds: int = 0
    used: frozenset[GatewayTarget] = frozenset()

    def after(self, target: GatewayTarget, gateways: GatewaySet) -> "SendAttempts":
        """Return the attempts including one at `target`."""
        used = self.used | {target}
        if all(state.target in used for state in gateways.states):
            return SendAttempts(rounds=self.rounds + 1)
        return SendAttempts(rounds=self.rounds, used=used)


@dataclass(frozen=True, slots=True, kw_only=True)
class NextAttempt:
    """The next attempt to send a batch."""

    target: GatewayTarget
    wait_s: float


def plan_attempt(
    gateways: GatewaySet, attempts: SendAttempts, *, now_s: float, rng: random.Random
) -> NextAttempt:
    """Choose gateway and time of the next attempt to send a batch."""
    fresh = [state for state in gateways.states if state.target not in attempts.used]
    usable = [state for state in fresh if state.is_usable(now_s)]
    in_use = {state.target: state for state in usable}
    chosen = [in_use[target] for target in gateways.choices if target in in_use]
    if usable and not chosen:
        chosen = rng.sample(usable, min(len(usable), CHOICES))
    best = (
        _faster(chosen, now_s)
        if chosen
        else min(fresh or gateways.states, key=lambda state: _rank(state, now_s))
    )
    pause_s = max(0.0, best.not_before_s - now_s)
    backoff_s = backoff(attempts.rounds, rng) if attempts.rounds and not attempts.used else 0.0
    return NextAttempt(target=best.target, wait_s=max(pause_s, backoff_s))


def backoff(rounds: int, rng: random.Random) -> float:
    """Return the pause after `rounds` failed rounds: full jitter below a doubling limit."""
    bound_s = min(BACKOFF_S_MAX, BACKOFF_BASE_S * 2.0 ** min(rounds, _DOUBLINGS_MAX))
    return rng.uniform(bound_s / 10, bound_s)


def _faster(chosen: list[TargetHealth], now_s: float) -> TargetHealth:
    """Return the choice used last, unless another is clearly faster."""
    last = max(chosen, key=lambda state: state.observed_at_s)

    def cost_s(state: TargetHealth) -> float:
        return state.expected_s(now_s) * (1.0 if state is last else STAY_FACTOR)

    return min(chosen, key=cost_s)


def _rank(state: TargetHealth, now_s: float) -> tuple[bool, bool, float, float]:
    pause_s = max(0.0, state.not_before_s - now_s)
    # If all of them shed, the one that did so first has had the most time to recover.
    shed_s = (state.shed_at_s or 0.0) if state.is_shedding(now_s) else -math.inf
    return pause_s > 0, state.is_failing(now_s), pause_s, shed_s
