"""The reaction to the response to an upload, as a pure function.

Only a gateway decides about a batch. A response is that of a gateway if its body has the form that
the protocol defines for its status; the status alone proves nothing, because a proxy, a captive
portal or another service behind a mistyped URL also responds with 200, 403, 404 or 413.

| status | body of a gateway | any other body |
|---|---|---|
| 200 | forget if it names the sent bytes | send again, foreign |
| 400, 403, 409, 413 that decide about the batch | park, or drop after a decision | |
| 401, 403 `forbidden_agent` | stop sending | |
| 408, 425, 429 | by its code | send again, after the requested pause |
| any other 4xx | by its code | send again, foreign |
| 1xx, any other 2xx, 3xx | send again, foreign | send again, foreign |
| 5xx | send again | send again |

States of one sealed batch, and what each transition proves:

    ready --200--> forgotten        a gateway has the accepted manifest of these bytes
    ready --409, 413, …--> parked   no gateway will ever accept these bytes unchanged
    ready --foreign--> ready        not the response of a gateway; the uploader parks a batch that
                                    only foreign servers refuse (`foreign_responses`)
    ready --409 accept_existing--> forgotten
    parked --409 accept_existing--> removed
                                    the refused bytes are stored in quarantine, and an operator
                                    decided that the accepted ones remain
    ready --503, reset, …--> ready  the same bytes are sent again, to another gateway first
    ready --401, forbidden_agent--> ready, and all uploads stop until an operator acts

Source: `docs/protocol.md`, HTTP, **Agent**; ADR 18.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final

from sluice_protocol.conflicts import ACCEPT_EXISTING
from sluice_protocol.errors import ErrorCode, status_of
from sluice_protocol.units import Digest

RETRY_AFTER_S_MAX: Final = 300.0
"""The maximum pause that a gateway can request: it may be wrong, and another may be available."""

NOT_A_GATEWAY: Final = "not_a_gateway"
"""The reason of a response without the form of the protocol."""

_OK: Final = 200
_CLIENT_ERRORS: Final = range(400, 500)
_SERVER_ERRORS: Final = range(500, 600)
_KNOWN: Final = frozenset(code.value for code in ErrorCode)
_BUSY: Final = frozenset({408, 425, 429})
"""Statuses by which a proxy requests a retry: RFC 9110 section 15.5.9, RFC 8470, RFC 6585."""


class ConnectionFailure(StrEnum):
    """Why there was no response."""

    TIMEOUT = "timeout"
    RESET = "reset"
    REFUSED = "connection_refused"
    NAME = "name_not_resolved"
    TLS = "tls"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayResponse:
    """A response of a gateway.

    Attributes:
        code: `code` of the problem document; empty if the body is no problem document of sluice.
        media_type: The media type of a body that has another form than the protocol's.
        frame_sha256: `frame_sha256` of the body of a 200; None if it is not a response of a
            gateway.
        retry_after_s: Retry-After in seconds; None if absent or invalid.
        sheds: The gateway requests that the next batches be sent to another one.
        resolution: The decision of an operator about a conflict; empty if there is none.
        submitted_sha256: In a conflict, the digest of the bytes that were refused.
    """

    status: int
    code: str = ""
    retryable: bool = False
    media_type: str = ""
    frame_sha256: Digest | None = None
    retry_after_s: float | None = None
    sheds: bool = False
    resolution: str = ""
    submitted_sha256: Digest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoGatewayResponse:
    """The request ended without a complete response; its effect is unknown."""

    failure: ConnectionFailure
    detail: str = ""


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

    `pause_s` is the pause that this gateway requested. If the response `is_foreign`, no gateway
    sent it: the URL is wrong, or a proxy refuses.
    """

    name: ClassVar[str] = "sendagain"
    reason: str
    pause_s: float | None = None
    is_foreign: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StopSending:
    """Keep every batch, stop all uploads and alert an operator."""

    name: ClassVar[str] = "stopsending"
    reason: str


Reaction = Forget | Park | DropResolved | SendAgain | StopSending
"""Its `name` is a label of `sluice_agent_answers_total` and is printed by `sluice upload`."""


def decide_reaction(response: GatewayResponse | NoGatewayResponse, *, sent: Digest) -> Reaction:
    """Decide what happens to a batch after an upload.

    A 200 without the digest `sent` (from a captive portal, a proxy, or for another batch) accepts
    nothing.
    """
    if isinstance(response, NoGatewayResponse):
        return SendAgain(reason=response.failure)
    if response.status == _OK and response.frame_sha256 == sent:
        return Forget()
    if response.status in _SERVER_ERRORS:
        return _send_again(response)
    if response.status in _CLIENT_ERRORS and response.code:
        return _after_problem(response, sent)
    if response.status in _BUSY:
        return _send_again(response)
    return _send_again(response, is_foreign=True)


def _after_problem(response: GatewayResponse, sent: Digest) -> Reaction:
    """Decide by the code of a problem document with a status of 4xx."""
    match response.code:
        case ErrorCode.IDENTITY_CONFLICT if _is_settled(response, sent):
            return DropResolved(reason=response.resolution)
        case (
            ErrorCode.INVALID_FRAME
            | ErrorCode.IDENTITY_QUARANTINED
            | ErrorCode.IDENTITY_CONFLICT
            | ErrorCode.TOO_LARGE
        ):
            return Park(reason=response.code)
        case ErrorCode.UNAUTHENTICATED | ErrorCode.FORBIDDEN_AGENT:
            return StopSending(reason=response.code)
        case (
            ErrorCode.NOT_FOUND
            | ErrorCode.METHOD_NOT_ALLOWED
            | ErrorCode.FORBIDDEN
            | ErrorCode.BAD_REQUEST
            | ErrorCode.FENCED
            | ErrorCode.DELETE_ID_TAKEN
        ):  # of another path, of another service of sluice, or about a damaged request
            return _send_again(response, is_foreign=True)
        case code if code in _KNOWN:  # damaged in transit, newer than this gateway, or of a 5xx
            return _send_again(response)
        case _:  # of a later release
            return _send_again(response) if response.retryable else Park(reason=response.code)


def _send_again(response: GatewayResponse, *, is_foreign: bool = False) -> SendAgain:
    reason = NOT_A_GATEWAY if is_foreign else response.code or f"http_{response.status}"
    requested_s = response.retry_after_s
    pause_s = None if requested_s is None else min(max(requested_s, 0.0), RETRY_AFTER_S_MAX)
    return SendAgain(reason=reason, pause_s=pause_s, is_foreign=is_foreign)


def _is_settled(response: GatewayResponse, sent: Digest) -> bool:
    """Return True if the gateway stored exactly these bytes and an operator closed the conflict.

    After `quarantine_identity` and after any decision of a later version the batch stays parked.
    """
    return (
        response.status == status_of(ErrorCode.IDENTITY_CONFLICT)
        and response.resolution == ACCEPT_EXISTING
        and response.submitted_sha256 == sent
    )
