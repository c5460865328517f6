"""The batches of an agent: every reaction of `sluice_agent.upload_decisions` to each response."""

from collections.abc import Iterator
from typing import Final

from deploy.pictures.drawing import Drawing, DrawnState, Step, arrow
from sluice_agent.foreign_responses import BatchRefusals
from sluice_agent.parked import drop_parked, retry_parked
from sluice_agent.upload_decisions import (
    ConnectionFailure,
    DropResolved,
    Forget,
    GatewayResponse,
    NoGatewayResponse,
    Park,
    Reaction,
    SendAgain,
    StopSending,
    decide_reaction,
)
from sluice_protocol.conflicts import ACCEPT_EXISTING
from sluice_protocol.errors import ErrorCode, status_of
from sluice_protocol.units import Digest

_SENT, _OTHER = Digest("a" * 64), Digest("b" * 64)
_AFTER_UPLOAD: Final[dict[type, str]] = {
    Forget: "accepted",
    Park: "parked",
    DropResolved: "removed",
    SendAgain: "ready",
    StopSending: "stopped",
}
_AFTER_QUESTION: Final[dict[type, str]] = {
    Forget: "accepted",
    Park: "parked",
    DropResolved: "removed",
    SendAgain: "parked",
    StopSending: "parked",
}
"""What `ParkedInquiry` does with the reaction to the response to a conflict that is sent again."""


def _responses() -> Iterator[tuple[str, GatewayResponse | NoGatewayResponse]]:
    for code in ErrorCode:
        yield code.value, GatewayResponse(status=status_of(code), code=code.value)
    conflict = ErrorCode.IDENTITY_CONFLICT.value
    for event, resolution, digest in (
        ("accept_existing", ACCEPT_EXISTING, _SENT),
        ("accept_existing of other bytes", ACCEPT_EXISTING, _OTHER),
        ("another decision", "quarantine_identity", _SENT),
    ):
        yield (
            event,
            GatewayResponse(
                status=409, code=conflict, resolution=resolution, submitted_sha256=digest
            ),
        )
    yield "200", GatewayResponse(status=200, frame_sha256=_SENT)
    yield "200 of other bytes", GatewayResponse(status=200, frame_sha256=_OTHER)
    yield "302", GatewayResponse(status=302)
    yield "a page with 404", GatewayResponse(status=404, media_type="text/html")
    yield "a code of a later release", GatewayResponse(status=418, code="later")
    yield "502", GatewayResponse(status=502)
    for failure in ConnectionFailure:
        yield failure.value, NoGatewayResponse(failure=failure)


def explore() -> frozenset[Step]:
    """Return what each response and each command does with a ready and with a parked batch."""
    steps: set[Step] = set()
    for event, response in _responses():
        reaction: Reaction = decide_reaction(response, sent=_SENT)
        steps.add(("ready", event, _AFTER_UPLOAD[type(reaction)]))
        steps.add(("parked", event, _AFTER_QUESTION[type(reaction)]))
    steps.add(("ready", _GIVEN_UP, "parked"))
    steps.add(("parked", retry_parked.__name__, "ready"))
    steps.add(("parked", drop_parked.__name__, "removed"))
    return frozenset(steps)


_REFUSED: Final = frozenset(
    {
        *("invalid_frame", "identity_quarantined", "identity_conflict", "too_large"),
        *("accept_existing of other bytes", "another decision", "a code of a later release"),
    }
)
_GIVEN_UP: Final = BatchRefusals.is_final.__qualname__
"""An hour of foreign responses to one batch, while gateways decide about others."""
_STOPPED: Final = frozenset({"unauthenticated", "forbidden_agent"})
_AGAIN: Final = frozenset(
    {
        *(
            "digest_mismatch",
            "unsupported_version",
            "length_required",
            "unsupported_media_type",
            "corrupt_object",
        ),
        *("internal", "store_unavailable", "overloaded", "draining", "outcome_unknown"),
        *("bad_request", "forbidden", "not_found", "method_not_allowed"),
        *("fenced", "delete_id_taken", "a page with 404"),
        *(
            "200 of other bytes",
            "302",
            "502",
            "timeout",
            "reset",
            "connection_refused",
            "name_not_resolved",
            "tls",
        ),
    }
)


DRAWING: Final = Drawing(
    name="agent-batches",
    title="The batches in the spool of an agent",
    summary=(
        "What a response of a gateway does with a batch, and how a parked batch leaves the spool."
        " Only conflicts are sent again while they are parked."
    ),
    states=(
        DrawnState(name="ready", title="ready: sent until a gateway decides", kind="start"),
        DrawnState(
            name="stopped",
            title="all uploads stop",
            kind="bad",
            note="one batch a minute is tried; batches are kept",
        ),
        DrawnState(
            name="parked", title="parked: kept with the response", kind="action", note="in parked/"
        ),
        DrawnState(name="accepted", title="removed: it is accepted", kind="good"),
        DrawnState(
            name="removed", title="removed by a decision", kind="good", note="of an operator"
        ),
    ),
    edges=(
        arrow("ready", "accepted", "200 that names these bytes", "200"),
        arrow("ready", "ready", "5xx, no response, not a gateway's response", *_AGAIN),
        arrow("ready", "stopped", "401, 403 forbidden_agent", *_STOPPED),
        arrow("ready", "parked", "409, 413, any other final refusal", *_REFUSED, _GIVEN_UP),
        arrow("ready", "removed", "409 with accept_existing", "accept_existing"),
        arrow("parked", "accepted", "asked again: 200", "200"),
        arrow("parked", "removed", "asked again: accept_existing", "accept_existing"),
        arrow("parked", "parked", "asked again: anything else", *_REFUSED, *_STOPPED, *_AGAIN),
        arrow("parked", "ready", "sluice agent parked retry", retry_parked.__name__),
        arrow("parked", "removed", "sluice agent parked drop", drop_parked.__name__),
    ),
    explore=explore,
)
