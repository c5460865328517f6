"""What the agent does after each answer of a gateway, as a pure function.

States of one sealed batch and what each move proves:

    ready --200--> forgotten      a gateway read or wrote the accepted manifest of these bytes
    ready --409, 413, …--> parked no gateway will ever take these bytes as they are
    ready --503, reset, …--> ready the same bytes go again, to another gateway first
    ready --401, forbidden_agent--> ready, and all sending stops until a person acted

Source: `docs/protocol.md`, HTTP, **Agent**; ADR 0033.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sluice_protocol.errors import ErrorCode
from sluice_protocol.units import Digest

RETRY_AFTER_S_MAX: Final = 300.0
"""A gateway can ask for no longer pause than this; it may be wrong, and another may be free."""

_OK: Final = 200
_CLIENT_ERRORS: Final = range(400, 500)


class Lost(StrEnum):
    """Why there was no answer to judge."""

    TIMEOUT = "timeout"
    RESET = "reset"
    REFUSED = "connection_refused"
    TLS = "tls"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
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
class NoAnswer:
    """The request ended without a whole answer; nobody knows what it did."""

    lost: Lost


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


def decide_reaction(observed: Answer | NoAnswer, *, sent: Digest) -> Reaction:
    """Decides what happens to the batch whose bytes were just sent.

    Args:
        observed: The answer, or that there was none.
        sent: The sha256 of the bytes that were sent. A 200 that does not name it (a captive
            portal, a proxy's page, another batch's answer) accepts nothing.
    """
    if isinstance(observed, NoAnswer):
        return SendAgain(reason=observed.lost)
    if observed.status == _OK:
        return Forget() if observed.frame_sha256 == sent else SendAgain(reason="foreign_answer")
    if observed.status in _CLIENT_ERRORS:
        return _after_client_error(observed)
    # 5xx by the table; 1xx, other 2xx and 3xx are no answer of sluice and accept nothing.
    return SendAgain(reason=_reason(observed), pause_s=_pause_s(observed))


def _after_client_error(observed: Answer) -> Reaction:
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


def _reason(observed: Answer) -> str:
    return observed.code or f"http_{observed.status}"


def _pause_s(observed: Answer) -> float | None:
    asked = observed.retry_after_s
    return None if asked is None else min(max(asked, 0.0), RETRY_AFTER_S_MAX)
