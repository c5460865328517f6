"""The reaction to each response: the whole table of the protocol's HTTP section."""

from dataclasses import replace

import msgspec
import pytest

from sluice_agent.sending.transport import parse_response
from sluice_agent.sending.upload_decisions import (
    NOT_A_GATEWAY,
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
from sluice_protocol.errors import ErrorCode, retryable
from sluice_protocol.units import Digest
from sluice_web.problems import problem_of

SENT = Digest("a" * 64)
PARKED = {
    ErrorCode.INVALID_FRAME,
    ErrorCode.IDENTITY_QUARANTINED,
    ErrorCode.IDENTITY_CONFLICT,
    ErrorCode.TOO_LARGE,
}
FOREIGN = {
    ErrorCode.FENCED,
    ErrorCode.DELETE_ID_TAKEN,
    ErrorCode.BAD_REQUEST,
    ErrorCode.FORBIDDEN,
    ErrorCode.METHOD_NOT_ALLOWED,
    ErrorCode.NOT_FOUND,
}
"""Codes of sluice that are not about a batch: of another path, or of another service."""
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


NOT_DECIDED = SendAgain(reason=NOT_A_GATEWAY, is_foreign=True)
CLIENT_ERRORS = range(400, 500)


def test_every_code_has_its_reaction() -> None:
    """The four sets cover the whole enum, so that a new code must be added here."""
    assert set(ErrorCode) == PARKED | FOREIGN | STOPPED | AGAIN


@pytest.mark.parametrize("code", list(ErrorCode))
def test_each_code_of_a_problem_document(code: ErrorCode) -> None:
    """With a status of 4xx the code decides, as in the table of the protocol."""
    for status in CLIENT_ERRORS:
        reaction = decide_reaction(GatewayResponse(status=status, code=code), sent=SENT)
        if code in PARKED:
            assert reaction == Park(reason=code)
        elif code in STOPPED:
            assert reaction == StopSending(reason=code)
        elif code in FOREIGN:
            assert reaction == NOT_DECIDED
        else:
            assert code in AGAIN
            assert retryable(code)
            assert reaction == SendAgain(reason=code)


def test_each_status_without_the_form_of_the_protocol() -> None:
    """No such response parks or removes a batch, or stops the agent, whatever its status is."""
    for status in range(100, 600):
        reaction = decide_reaction(GatewayResponse(status=status, retry_after_s=9), sent=SENT)
        if status >= 500 or status in {408, 425, 429}:
            assert reaction == SendAgain(reason=f"http_{status}", pause_s=9), status
        else:
            assert reaction == replace(NOT_DECIDED, pause_s=9), status


@pytest.mark.parametrize("code", ["", *ErrorCode])
def test_statuses_that_no_gateway_sends_decide_nothing(code: str) -> None:
    for status in (*range(100, 200), *range(201, 400)):
        response = GatewayResponse(status=status, code=code, frame_sha256=SENT)
        assert decide_reaction(response, sent=SENT) == NOT_DECIDED, status


@pytest.mark.parametrize("status", [400, 404, 418, 451])
def test_a_code_of_a_later_release_is_followed_by_its_retryable(status: int) -> None:
    final = GatewayResponse(status=status, code="later")
    assert decide_reaction(final, sent=SENT) == Park(reason="later")
    again = replace(final, retryable=True)
    assert decide_reaction(again, sent=SENT) == SendAgain(reason="later")


@pytest.mark.parametrize("code", ["", "later", *ErrorCode])
@pytest.mark.parametrize("status", [500, 502, 503, 504, 599])
def test_5xx_is_always_retried(status: int, code: str) -> None:
    """No code in the body of a 5xx can park or stop, or is a sign of a wrong address."""
    reaction = decide_reaction(GatewayResponse(status=status, code=code), sent=SENT)
    assert reaction == SendAgain(reason=code or f"http_{status}")


PROBLEM = {"status": 413, "code": "too_large", "retryable": False, "effect": "none"}
BODIES_OF_OTHERS = [
    b"",
    b"<html>too_large</html>",
    b"[]",
    b"\xff",
    b"[" * 100_000,
    *(
        msgspec.json.encode(body)
        for body in (
            {},
            {"code": "too_large"},
            {"code": 413, "message": "too large"},
            {"error": "too_large"},
            {**PROBLEM, "status": 400},
            {**PROBLEM, "code": ""},
            {name: value for name, value in PROBLEM.items() if name != "status"},
            {name: value for name, value in PROBLEM.items() if name != "retryable"},
            {name: value for name, value in PROBLEM.items() if name != "effect"},
            {**PROBLEM, "retryable": "no"},
        )
    ),
]


@pytest.mark.parametrize("body", BODIES_OF_OTHERS)
def test_only_a_problem_document_of_sluice_decides(body: bytes) -> None:
    """A proxy may send JSON, and problem documents of RFC 9457 without the members of sluice."""
    headers = {"Content-Type": "text/html; charset=utf-8"}
    response = parse_response(413, headers, body)
    assert response == GatewayResponse(status=413, media_type="text/html")
    assert decide_reaction(response, sent=SENT) == NOT_DECIDED


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_problem_document_of_a_gateway_is_recognised(code: ErrorCode) -> None:
    """Also without a media type, which a proxy may remove."""
    problem = problem_of(code, "why")
    response = parse_response(problem.status, {}, msgspec.json.encode(problem))
    assert response == GatewayResponse(status=problem.status, code=code, retryable=retryable(code))


@pytest.mark.parametrize("status", [200, 201, 404, 409])
@pytest.mark.parametrize("body", [*BODIES_OF_OTHERS, b'{"frame_sha256":"%b"}' % (b"a" * 64)])
def test_no_foreign_body_removes_or_parks_a_batch(status: int, body: bytes) -> None:
    assert decide_reaction(parse_response(status, {}, body), sent=SENT) == NOT_DECIDED


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
        replace(settled, code=ErrorCode.TOO_LARGE),
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
    assert reaction == NOT_DECIDED


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
