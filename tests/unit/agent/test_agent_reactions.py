"""The reaction to each response: the whole table of the protocol's HTTP section."""

from dataclasses import replace

import pytest

from sluice_agent.upload_decisions import (
    ConnectionFailure,
    DropResolved,
    Forget,
    GatewayResponse,
    NoGatewayResponse,
    Park,
    SendAgain,
    StopSending,
    decide_reaction,
)
from sluice_protocol.errors import ErrorCode, retryable, status_of
from sluice_protocol.units import Digest

SENT = Digest("a" * 64)
PARKED = {
    ErrorCode.INVALID_FRAME,
    ErrorCode.IDENTITY_QUARANTINED,
    ErrorCode.IDENTITY_CONFLICT,
    ErrorCode.FENCED,
    ErrorCode.DELETE_ID_TAKEN,
    ErrorCode.TOO_LARGE,
    ErrorCode.BAD_REQUEST,
    ErrorCode.FORBIDDEN,
    ErrorCode.NOT_FOUND,
}
STOPPED = {ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN_AGENT}
AGAIN = {
    ErrorCode.DIGEST_MISMATCH,
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.LENGTH_REQUIRED,
    ErrorCode.UNSUPPORTED_MEDIA_TYPE,
    ErrorCode.CORRUPT_OBJECT,
    ErrorCode.INTERNAL,
    ErrorCode.STORE_UNAVAILABLE,
    ErrorCode.OVERLOADED,
    ErrorCode.DRAINING,
    ErrorCode.OUTCOME_UNKNOWN,
}


def expected(code: ErrorCode) -> type:
    return Park if code in PARKED else StopSending if code in STOPPED else SendAgain


def test_every_code_has_its_reaction() -> None:
    """The three sets cover the whole enum, so that a new code must be added here."""
    assert set(ErrorCode) == PARKED | STOPPED | AGAIN


@pytest.mark.parametrize("code", list(ErrorCode))
def test_each_code_of_a_problem_document(code: ErrorCode) -> None:
    """Each code with its status leads to the reaction of the protocol's **Agent** lines."""
    reaction = decide_reaction(GatewayResponse(status=status_of(code), code=code), sent=SENT)
    assert type(reaction) is expected(code)
    if code in AGAIN:
        assert retryable(code)


@pytest.mark.parametrize("code", ["", "nobody_knows_this"])
def test_each_status_without_a_known_code(code: str) -> None:
    """The status alone decides: 401 stops, 411, 415 and 5xx retry, other 4xx park."""
    for status in range(100, 600):
        reaction = decide_reaction(GatewayResponse(status=status, code=code), sent=SENT)
        if status == 401:
            assert isinstance(reaction, StopSending)
        elif 400 <= status < 500 and status not in {411, 415}:
            assert isinstance(reaction, Park), status
        else:
            assert isinstance(reaction, SendAgain), status


@pytest.mark.parametrize("code", list(ErrorCode))
@pytest.mark.parametrize("status", [500, 502, 503, 504, 599])
def test_5xx_is_always_retried(status: int, code: ErrorCode) -> None:
    """No code in the body of a 5xx can park or stop."""
    assert isinstance(
        decide_reaction(GatewayResponse(status=status, code=code), sent=SENT), SendAgain
    )


@pytest.mark.parametrize("code", list(ErrorCode))
def test_409_and_413_park_without_a_decision(code: ErrorCode) -> None:
    """Regardless of the code, these bytes will not be accepted."""
    for status in (409, 413):
        assert isinstance(
            decide_reaction(GatewayResponse(status=status, code=code), sent=SENT), Park
        )


def test_200_for_these_bytes_forgets() -> None:
    """Only a 200 that contains the digest of the bytes sent accepts them."""
    assert decide_reaction(GatewayResponse(status=200, frame_sha256=SENT), sent=SENT) == Forget()


def test_only_accept_existing_for_exactly_these_bytes_drops_them() -> None:
    """Each part of the response is required; otherwise the batch is parked."""
    settled = GatewayResponse(
        status=409,
        code=ErrorCode.IDENTITY_CONFLICT,
        resolution="accept_existing",
        submitted_sha256=SENT,
    )
    assert decide_reaction(settled, sent=SENT) == DropResolved(reason="accept_existing")
    for other in (
        replace(settled, code=ErrorCode.BAD_REQUEST),
        replace(settled, resolution="quarantine_identity"),
        replace(settled, resolution=""),
        replace(settled, submitted_sha256=Digest("b" * 64)),
        replace(settled, submitted_sha256=None),
        replace(settled, status=413),
    ):
        assert isinstance(decide_reaction(other, sent=SENT), Park), other


@pytest.mark.parametrize("digest", [None, Digest("b" * 64), Digest("")])
def test_200_without_the_digest_accepts_nothing(digest: Digest | None) -> None:
    """A captive portal's page or the response for another batch accepts nothing."""
    reaction = decide_reaction(GatewayResponse(status=200, frame_sha256=digest), sent=SENT)
    assert reaction == SendAgain(reason="foreign_answer")


@pytest.mark.parametrize("failure", list(ConnectionFailure))
def test_no_response_is_retried(failure: ConnectionFailure) -> None:
    """The same bytes are sent again after a timeout, a reset, a refusal or a TLS error."""
    assert decide_reaction(NoGatewayResponse(failure=failure), sent=SENT) == SendAgain(
        reason=failure
    )


@pytest.mark.parametrize(("asked_s", "pause_s"), [(None, None), (7.0, 7.0), (1e9, 300.0)])
def test_retry_after_is_limited(asked_s: float | None, pause_s: float | None) -> None:
    """A gateway's Retry-After is obeyed up to five minutes."""
    answer = GatewayResponse(status=503, code="overloaded", retry_after_s=asked_s)
    assert decide_reaction(answer, sent=SENT) == SendAgain(reason="overloaded", pause_s=pause_s)
