"""The reaction to the response to an upload, as a pure function.

States of one sealed batch, and what each transition proves:

    ready --200--> forgotten        a gateway has the accepted manifest of these bytes
    ready --409, 413, …--> parked   no gateway will ever accept these bytes unchanged
    ready --409 accept_existing--> forgotten
    parked --409 accept_existing--> removed
                                    the refused bytes are stored in quarantine, and an operator
                                    decided that the accepted ones remain
    ready --503, reset, …--> ready  the same bytes are sent again, to another gateway first
    ready --401, forbidden_agent--> ready, and all uploads stop until an operator acts

Source: `docs/protocol.md`, HTTP, **Agent**; ADR 0033.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final

from sluice_protocol.conflicts import ACCEPT_EXISTING
from sluice_protocol.errors import ErrorCode
from sluice_protocol.units import Digest

RETRY_AFTER_S_MAX: Final = 300.0
"""The maximum pause that a gateway can request: it may be wrong, and another may be available."""

_OK: Final = 200
_ACCEPTED_ELSEWHERE: Final = (ErrorCode.DIGEST_MISMATCH, ErrorCode.UNSUPPORTED_VERSION)
"""Damaged in transit, or newer than this gateway: another one, or this one after its upgrade."""
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
        sheds: Whether the gateway requests that the next batches be sent to another one.
        resolution: The decision of an operator about a conflict; empty if there is none.
        submitted_sha256: In a conflict, the digest of the bytes that were refused.
    """

    status: int
    code: str = ""
    frame_sha256: Digest | None = None
    retry_after_s: float | None = None
    sheds: bool = False
    resolution: str = ""
    submitted_sha256: Digest | None = None


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
class DropResolved:
    """An operator decided that the accepted bytes remain: remove these, which are in quarantine."""

    name: ClassVar[str] = "drop"
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


Reaction = Forget | Park | DropResolved | SendAgain | StopSending
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
        return _after_client_error(response, sent)
    # 5xx as documented; 1xx, other 2xx and 3xx are not responses of a gateway and accept nothing.
    return SendAgain(reason=_reason(response), pause_s=_pause_s(response))


def _after_client_error(response: GatewayResponse, sent: Digest) -> Reaction:
    match response.status:
        case 400 if response.code in _ACCEPTED_ELSEWHERE:
            return SendAgain(reason=_reason(response), pause_s=_pause_s(response))
        case 401:
            return StopSending(reason=_reason(response))
        case 403 if response.code == ErrorCode.FORBIDDEN_AGENT:
            return StopSending(reason=_reason(response))
        case 409 if _is_settled(response, sent):
            return DropResolved(reason=response.resolution)
        case 411 | 415:
            return SendAgain(reason=_reason(response), pause_s=_pause_s(response))
        case _:
            return Park(reason=_reason(response))


def _is_settled(response: GatewayResponse, sent: Digest) -> bool:
    """Return True if the gateway stored exactly these bytes and an operator closed the conflict.

    After `quarantine_identity` and after any decision of a later version the batch stays parked.
    """
    return (
        response.code == ErrorCode.IDENTITY_CONFLICT
        and response.resolution == ACCEPT_EXISTING
        and response.submitted_sha256 == sent
    )


def _reason(response: GatewayResponse) -> str:
    return response.code or f"http_{response.status}"


def _pause_s(response: GatewayResponse) -> float | None:
    requested_s = response.retry_after_s
    return None if requested_s is None else min(max(requested_s, 0.0), RETRY_AFTER_S_MAX)
