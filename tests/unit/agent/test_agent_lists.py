"""What a list of batches may contain, and the results in a response to one."""

import msgspec
import pytest

from sluice_agent.sending.transport import UploadResult, parse_results
from sluice_agent.sending.upload_decisions import (
    NOT_A_GATEWAY,
    ConnectionFailure,
    GatewayResponse,
    NoGatewayResponse,
    SendAgain,
    decide_reaction,
)
from sluice_agent.sending.uploader import LIST_BYTES_MAX, SMALL_BYTES_MAX, ListPlan
from sluice_protocol.units import Digest
from sluice_protocol.upload_http import FRAMES_MAX, listed_bytes

DIGEST = Digest("a" * 64)


def test_a_plan_bounds_frames_and_bytes() -> None:
    plan = ListPlan()
    assert not plan.add(SMALL_BYTES_MAX + 1)
    fits = LIST_BYTES_MAX // listed_bytes(SMALL_BYTES_MAX)
    assert [plan.add(SMALL_BYTES_MAX) for _ in range(fits + 1)] == [True] * fits + [False]
    assert plan.frames == fits
    assert plan.size_bytes <= LIST_BYTES_MAX
    small = ListPlan()
    assert [small.add(10) for _ in range(FRAMES_MAX + 1)] == [True] * FRAMES_MAX + [False]


def answer(*results: object, status: int = 200, sheds: bool = False) -> UploadResult:
    body = msgspec.json.encode({"results": results})
    return UploadResult(response=GatewayResponse(status=status, sheds=sheds), body=body)


def test_each_result_is_the_response_of_a_single_upload() -> None:
    accepted = {"status": "accepted", "frame_sha256": DIGEST, "later": 1}
    conflict = {
        "status": 409,
        "code": "identity_conflict",
        "retryable": False,
        "effect": "none",
        "resolution": "accept_existing",
        "submitted_frame_sha256": DIGEST,
    }
    problem = {"status": 503, "code": "overloaded", "retryable": True, "effect": "none"}
    found = parse_results(
        answer(
            {"status": 200, "accepted": accepted},
            {"status": 409, "conflict": conflict},
            {"status": 503, "problem": problem},
            {"status": 200},
            sheds=True,
        ),
        4,
    )
    assert isinstance(found, tuple)
    assert [one.response for one in found] == [
        GatewayResponse(status=200, frame_sha256=DIGEST, sheds=True),
        GatewayResponse(
            status=409,
            code="identity_conflict",
            resolution="accept_existing",
            submitted_sha256=DIGEST,
            sheds=True,
        ),
        GatewayResponse(status=503, code="overloaded", retryable=True, sheds=True),
        GatewayResponse(status=200, sheds=True),
    ]
    assert b"identity_conflict" in found[1].body


@pytest.mark.parametrize(
    "result",
    [
        {"status": 200},
        {"status": 200, "accepted": {}},
        {"status": 200, "accepted": {"status": "accepted", "frame_sha256": "b" * 64}},
        {"status": 200, "accepted": {"status": "ok", "frame_sha256": DIGEST}},
        {"status": 404},
        {"status": 413, "problem": {"status": 413, "code": "too_large"}},
        {"status": 413, "problem": {"code": "too_large", "retryable": False, "effect": "none"}},
    ],
)
def test_a_result_in_another_form_decides_nothing(result: dict[str, object]) -> None:
    """A proxy that made it up neither removes nor parks the batch."""
    found = parse_results(answer(result), 1)
    assert isinstance(found, tuple)
    assert decide_reaction(found[0].response, sent=DIGEST) == SendAgain(
        reason=NOT_A_GATEWAY, is_foreign=True
    )


@pytest.mark.parametrize(
    "sent",
    [
        answer({"status": 200}),
        answer(),
        answer({"status": 200}, {"status": 200}, status=503),
        UploadResult(response=GatewayResponse(status=200), body=b"<html>"),
        UploadResult(response=GatewayResponse(status=200), body=b'{"results": [1, 2]}'),
        UploadResult(response=NoGatewayResponse(failure=ConnectionFailure.TIMEOUT)),
    ],
)
def test_a_response_without_a_result_for_each_frame_settles_none(sent: UploadResult) -> None:
    assert parse_results(sent, 2) is sent
