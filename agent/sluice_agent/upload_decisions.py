"""Decisions of an upload as pure functions: the reaction to a response, and the next gateway.

States of one sealed batch, and what each transition proves:

    ready --200--> forgotten        a gateway has the accepted manifest of these bytes
    ready --409, 413, …--> parked   no gateway will ever accept these bytes unchanged
    ready --503, reset, …--> ready  the same bytes are sent again, to another gateway first
    ready --401, forbidden_agent--> ready, and all uploads stop until an operator acts

Gateways are equivalent: each may accept any batch. The first attempt goes to the gateway that last
succeeded. After a failure the other gateways are tried immediately. When all have failed, the
next attempt is delayed with full jitter, so that agents do not return at the same time. A gateway
that closes its connection after a success is under pressure or stops: the next batch is sent to
another one, chosen at random, so that the agents of one gateway spread over all others.

Source: `docs/protocol.md`, HTTP, **Agent**; ADR 0033.
"""

import math
import random  # noqa: TID251 - the type of the seeded argument
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar, Final

from sluice_protocol.errors import ErrorCode
from sluice_protocol.units import Digest

RETRY_AFTER_S_MAX: Final = 300.0
"""The maximum pause that a gateway can request: it may be wrong, and another may be available."""
BACKOFF_BASE_S: Final = 0.2
BACKOFF_S_MAX: Final = 30.0
PROBE_AFTER_S: Final = 30.0
"""A gateway whose last failure is older than this is tried in its normal order again."""
SHED_S: Final = 60.0
"""A gateway that shed a connection is tried after the others for this long."""
_DOUBLINGS_MAX: Final = 16
"""2**16 times the base already exceeds the maximum."""

_OK: Final = 200
_CLIENT_ERRORS: Final = range(400, 500)


class ConnectionFailure(StrEnum):
    """Why there was no response."""

    TIMEOUT = "timeout"
    RESET = "reset"
    REFUSED = "connection_refused"
    TLS = "tls"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayResponse:
    """A response of a gateway.

    Attributes:
        status: The HTTP status.
        code: `code` of the problem document; empty if there is none.
        frame_sha256: `frame_sha256` of the body of a 200; None if it is not a response of a
            gateway.
        retry_after_s: Retry-After in seconds; None if absent or invalid.
        closes: Whether the gateway closes the connection after this response.
    """

    status: int
    code: str = ""
    frame_sha256: Digest | None = None
    retry_after_s: float | None = None
    closes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NoGatewayResponse:
    """The request ended without a complete response; its effect is unknown."""

    failure: ConnectionFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """The batch is accepted permanently: remove its file."""

    name: ClassVar[str] = "forget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Park:
    """Move the batch to `parked/` with a reason and continue with the next one."""

    name: ClassVar[str] = "park"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAgain:
    """Send the same bytes again after a backoff, to another gateway if there is one.

    Attributes:
        reason: The reason for the log and the metric.
        pause_s: The pause that this gateway requested; None if it requested none.
    """

    name: ClassVar[str] = "sendagain"
    reason: str
    pause_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopSending:
    """Keep every batch, stop all uploads and alert an operator."""

    name: ClassVar[str] = "stopsending"
    reason: str


Reaction = Forget | Park | SendAgain | StopSending
"""Its `name` is a label of `sluice_agent_answers_total` and is printed by `sluice upload`."""


def decide_reaction(response: GatewayResponse | NoGatewayResponse, *, sent: Digest) -> Reaction:
    """Decide what happens to a batch after an upload.

    Args:
        response: The response, or why there was none.
        sent: The sha256 of the bytes that were sent. A 200 without this digest (from a captive
            portal, a proxy, or for another batch) accepts nothing.
    """
    if isinstance(response, NoGatewayResponse):
        return SendAgain(reason=response.failure)
    if response.status == _OK:
        return Forget() if response.frame_sha256 == sent else SendAgain(reason="foreign_answer")
    if response.status in _CLIENT_ERRORS:
        return _after_client_error(response)
    # 5xx as documented; 1xx, other 2xx and 3xx are not responses of a gateway and accept nothing.
    return SendAgain(reason=_reason(response), pause_s=_pause_s(response))


def _after_client_error(response: GatewayResponse) -> Reaction:
    match response.status:
        case 400 if response.code == ErrorCode.DIGEST_MISMATCH:
            return SendAgain(reason=_reason(response), pause_s=_pause_s(response))
        case 401:
            return StopSending(reason=_reason(response))
        case 403 if response.code == ErrorCode.FORBIDDEN_AGENT:
            return StopSending(reason=_reason(response))
        case 411 | 415:
            return SendAgain(reason=_reason(response), pause_s=_pause_s(response))
        case _:
            return Park(reason=_reason(response))


def _reason(response: GatewayResponse) -> str:
    return response.code or f"http_{response.status}"


def _pause_s(response: GatewayResponse) -> float | None:
    requested_s = response.retry_after_s
    return None if requested_s is None else min(max(requested_s, 0.0), RETRY_AFTER_S_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayHealth:
    """What is known about one gateway.

    Attributes:
        url: Its base URL.
        failed_at_s: Monotonic time of its last failure; None since its last success.
        not_before_s: Monotonic time until which it requested a pause.
        shed_at_s: Monotonic time at which it last shed a connection; None if never.
    """

    url: str
    failed_at_s: float | None = None
    not_before_s: float = 0.0
    shed_at_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySet:
    """All gateways of an agent, in the order of preference.

    Attributes:
        states: One state for each, at least one; the preferred gateway is first.
    """

    states: tuple[GatewayHealth, ...]

    @classmethod
    def of(cls, urls: tuple[str, ...], *, first: int = 0) -> "GatewaySet":
        """Return the initial state; `first` rotates the order, to spread the agents."""
        turned = urls[first % len(urls) :] + urls[: first % len(urls)]
        return cls(states=tuple(GatewayHealth(url=url) for url in turned))

    def failed(self, url: str, *, now_s: float, pause_s: float | None) -> "GatewaySet":
        """Return the state after a failed attempt and the pause that the gateway requested."""
        until_s = now_s + (pause_s or 0.0)

        def fail(health: GatewayHealth) -> GatewayHealth:
            not_before_s = max(health.not_before_s, until_s)
            return replace(health, failed_at_s=now_s, not_before_s=not_before_s)

        return self._update(url, fail)

    def succeeded(self, url: str) -> "GatewaySet":
        """Return the state after a success."""

        def succeed(health: GatewayHealth) -> GatewayHealth:
            return GatewayHealth(url=health.url, shed_at_s=health.shed_at_s)

        return self._update(url, succeed)

    def shed(self, url: str, *, now_s: float, rng: random.Random) -> "GatewaySet":
        """Return the state after a gateway shed a connection: it is last, the others shuffled.

        Only the preferred gateway is replaced: the responses to concurrent uploads count once.
        """
        marked = self._update(url, lambda health: replace(health, shed_at_s=now_s))
        first, *others = marked.states
        if first.url != url:
            return marked
        return GatewaySet(states=(*rng.sample(others, len(others)), first))

    def _update(self, url: str, change: Callable[[GatewayHealth], GatewayHealth]) -> "GatewaySet":
        states = tuple(change(each) if each.url == url else each for each in self.states)
        return GatewaySet(states=states)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAttempts:
    """The attempts to send one batch.

    Attributes:
        rounds: How often every gateway was tried.
        used: The gateways already tried in this round.
    """

    rounds: int = 0
    used: frozenset[str] = frozenset()

    def after(self, url: str, *, gateways: int) -> "SendAttempts":
        """Return the attempts including one at `url`, given the number of gateways."""
        used = self.used | {url}
        if len(used) >= gateways:
            return SendAttempts(rounds=self.rounds + 1)
        return SendAttempts(rounds=self.rounds, used=used)


@dataclass(frozen=True, slots=True, kw_only=True)
class NextAttempt:
    """The next attempt to send a batch.

    Attributes:
        url: The gateway.
        wait_s: Seconds to wait before the attempt.
    """

    url: str
    wait_s: float


def plan_attempt(
    gateways: GatewaySet, attempts: SendAttempts, *, now_s: float, rng: random.Random
) -> NextAttempt:
    """Choose gateway and time of the next attempt to send a batch.

    Args:
        gateways: What is known about the gateways.
        attempts: The attempts so far.
        now_s: The monotonic clock.
        rng: The source of jitter.
    """
    fresh = [state for state in gateways.states if state.url not in attempts.used]
    best = min(fresh or gateways.states, key=lambda state: _rank(state, now_s))
    pause_s = max(0.0, best.not_before_s - now_s)
    backoff_s = backoff(attempts.rounds, rng) if attempts.rounds and not attempts.used else 0.0
    return NextAttempt(url=best.url, wait_s=max(pause_s, backoff_s))


def backoff(rounds: int, rng: random.Random) -> float:
    """Return the pause after `rounds` failed rounds: full jitter below a doubling limit."""
    bound_s = min(BACKOFF_S_MAX, BACKOFF_BASE_S * 2.0 ** min(rounds, _DOUBLINGS_MAX))
    return rng.uniform(bound_s / 10, bound_s)


def _rank(state: GatewayHealth, now_s: float) -> tuple[bool, bool, float, float]:
    failed_s = state.failed_at_s
    failing = failed_s is not None and now_s - failed_s < PROBE_AFTER_S
    pause_s = max(0.0, state.not_before_s - now_s)
    shed_s = state.shed_at_s
    shedding = shed_s is not None and now_s - shed_s < SHED_S
    # If all of them shed, the one that did so first has had the most time to recover.
    return pause_s > 0, failing, pause_s, (shed_s or 0.0) if shedding else -math.inf
