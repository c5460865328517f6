"""What the agent does after each answer of a gateway, as a pure function.

States of one sealed batch and what each move proves:

    ready --200--> forgotten      a gateway read or wrote the accepted manifest of these bytes
    ready --409, 413, …--> parked no gateway will ever take these bytes as they are
    ready --503, reset, …--> ready the same bytes go again, to another gateway first
    ready --401, forbidden_agent--> ready, and all sending stops until a person acted

Source: `docs/protocol.md`, HTTP, **Agent**; ADR 0033.
"""

import random  # noqa: TID251 - the type of the seeded argument
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from sluice_protocol.errors import ErrorCode
from sluice_protocol.units import Digest

RETRY_AFTER_S_MAX: Final = 300.0
"""A gateway can ask for no longer pause than this; it may be wrong, and another may be free."""

_OK: Final = 200
_CLIENT_ERRORS: Final = range(400, 500)


class ConnectionFailure(StrEnum):
    """Why there was no answer to judge."""

    TIMEOUT = "timeout"
    RESET = "reset"
    REFUSED = "connection_refused"
    TLS = "tls"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayResponse:
    """An answer as it came in.

    Attributes:
        status: The HTTP status.
        code: `code` of the problem document; empty when there was none.
        frame_sha256: `frame_sha256` of a 200's body; none when the body was not sluice's.
        retry_after_s: Retry-After in seconds; none when absent or unreadable.
    """

    status: int
    code: str = ""
    frame_sha256: Digest | None = None
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoResponse:
    """The request ended without a whole answer; nobody knows what it did."""

    failure: ConnectionFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """The batch is accepted for ever: its spool file may go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Park:
    """The batch is set aside with a reason, and the next one goes."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAgain:
    """The same bytes go again, to another gateway where there is one, after a backoff.

    Attributes:
        reason: Why, for the log and the metric.
        pause_s: How long this gateway asked to be left alone; none when it did not ask.
    """

    reason: str
    pause_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopSending:
    """Everything is kept, nothing is sent, and a person is told."""

    reason: str


Reaction = Forget | Park | SendAgain | StopSending


def decide_reaction(observed: GatewayResponse | NoResponse, *, sent: Digest) -> Reaction:
    """Decides what happens to the batch whose bytes were just sent.

    Args:
        observed: The answer, or that there was none.
        sent: The sha256 of the bytes that were sent. A 200 that does not name it (a captive
            portal, a proxy's page, another batch's answer) accepts nothing.
    """
    if isinstance(observed, NoResponse):
        return SendAgain(reason=observed.failure)
    if observed.status == _OK:
        return Forget() if observed.frame_sha256 == sent else SendAgain(reason="foreign_answer")
    if observed.status in _CLIENT_ERRORS:
        return _after_client_error(observed)
    # 5xx by the table; 1xx, other 2xx and 3xx are no answer of sluice and accept nothing.
    return SendAgain(reason=_reason(observed), pause_s=_pause_s(observed))


def _after_client_error(observed: GatewayResponse) -> Reaction:
    match observed.status:
        case 400 if observed.code == ErrorCode.DIGEST_MISMATCH:
            return SendAgain(reason=_reason(observed), pause_s=_pause_s(observed))
        case 401:
            return StopSending(reason=_reason(observed))
        case 403 if observed.code == ErrorCode.FORBIDDEN_AGENT:
            return StopSending(reason=_reason(observed))
        case 411 | 415:
            return SendAgain(reason=_reason(observed), pause_s=_pause_s(observed))
        case _:
            return Park(reason=_reason(observed))


def _reason(observed: GatewayResponse) -> str:
    return observed.code or f"http_{observed.status}"


def _pause_s(observed: GatewayResponse) -> float | None:
    asked = observed.retry_after_s
    return None if asked is None else min(max(asked, 0.0), RETRY_AFTER_S_MAX)


Change = Callable[["GatewayHealth"], "GatewayHealth"]

BACKOFF_BASE_S: Final = 0.2
BACKOFF_S_MAX: Final = 30.0
PROBE_AFTER_S: Final = 30.0
"""A gateway that failed this long ago is tried first again, in its place."""
_DOUBLINGS_MAX: Final = 16
"""2**16 times the base is far above the maximum; a larger power only costs arithmetic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayHealth:
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
class GatewaySet:
    """All gateways of an agent, in the order of the settings.

    Attributes:
        states: One state for each, at least one.
    """

    states: tuple[GatewayHealth, ...]

    @classmethod
    def of(cls, urls: tuple[str, ...], *, first: int = 0) -> "GatewaySet":
        """Starts with no knowledge; `first` rotates the order so that agents spread."""
        turned = urls[first % len(urls) :] + urls[: first % len(urls)]
        return cls(states=tuple(GatewayHealth(url=url) for url in turned))

    def failed(self, url: str, *, now_s: float, pause_s: float | None) -> "GatewaySet":
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

    def answered(self, url: str) -> "GatewaySet":
        """Notes that a gateway works."""
        return self._with(url, lambda state: GatewayHealth(url=state.url))

    def _with(self, url: str, change: "Change") -> "GatewaySet":
        states = tuple(change(state) if state.url == url else state for state in self.states)
        return GatewaySet(states=states)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAttempts:
    """How often one batch was sent.

    Attributes:
        rounds: How often every gateway had its try.
        used: The gateways that had theirs in this round.
    """

    rounds: int = 0
    used: frozenset[str] = frozenset()

    def after(self, url: str, *, gateways: int) -> "SendAttempts":
        """Notes one more try, with how many gateways there are."""
        used = self.used | {url}
        if len(used) >= gateways:
            return SendAttempts(rounds=self.rounds + 1)
        return SendAttempts(rounds=self.rounds, used=used)


@dataclass(frozen=True, slots=True, kw_only=True)
class NextAttempt:
    """The next try of a batch.

    Attributes:
        url: Where to.
        wait_s: How long to wait before it.
    """

    url: str
    wait_s: float


def plan_attempt(
    gateways: GatewaySet, attempts: SendAttempts, *, now_s: float, rng: random.Random
) -> NextAttempt:
    """Plans the next try of a batch.

    Args:
        gateways: What is known.
        attempts: How often and where this batch was sent.
        now_s: The monotonic clock.
        rng: The source of jitter.
    """
    fresh = [state for state in gateways.states if state.url not in attempts.used]
    best = min(fresh or gateways.states, key=lambda state: _rank(state, now_s))
    pause_s = max(0.0, best.not_before_s - now_s)
    backoff_s = backoff(attempts.rounds, rng) if attempts.rounds and not attempts.used else 0.0
    return NextAttempt(url=best.url, wait_s=max(pause_s, backoff_s))


def backoff(rounds: int, rng: random.Random) -> float:
    """Gives the pause after `rounds` failed rounds, full jitter over a doubling bound."""
    bound_s = min(BACKOFF_S_MAX, BACKOFF_BASE_S * 2.0 ** min(rounds, _DOUBLINGS_MAX))
    return rng.uniform(bound_s / 10, bound_s)


def _rank(state: GatewayHealth, now_s: float) -> tuple[bool, bool, float]:
    failed_s = state.failed_at_s
    failing = failed_s is not None and now_s - failed_s < PROBE_AFTER_S
    pause_s = max(0.0, state.not_before_s - now_s)
    return pause_s > 0, failing, pause_s
