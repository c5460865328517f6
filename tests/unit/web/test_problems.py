import json

import pytest
from aiohttp import web
from structlog.testing import capture_logs
from tests.support.queue_store import SimClock

from sluice_protocol.errors import ErrorCode, SluiceError, effect_of, retryable, status_of
from sluice_protocol.units import NS_PER_S
from sluice_web import problems
from sluice_web.problems import HttpRefusal, describe_error, problem_of, problem_response
from sluice_web.rare_warnings import WARN_EVERY_S, RareWarnings


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_code_has_a_complete_problem_document(code: ErrorCode) -> None:
    """All seven members are present, `type` among them."""
    response = problem_response(problem_of(code, "what happened"))
    assert response.content_type == "application/problem+json"
    assert response.status == status_of(code)
    assert isinstance(response.body, bytes)
    document = json.loads(response.body)
    detail = document.pop("detail")
    assert detail
    assert document == {
        "type": "about:blank",
        "title": code.value.replace("_", " "),
        "status": status_of(code),
        "code": code.value,
        "retryable": retryable(code),
        "effect": effect_of(code).value,
    }


@pytest.mark.parametrize("code", list(ErrorCode))
def test_exactly_a_503_has_retry_after(code: ErrorCode) -> None:
    response = problem_response(problem_of(code, ""))
    assert response.headers.get("Retry-After") == ("1" if response.status == 503 else None)


@pytest.mark.parametrize("code", list(ErrorCode))
def test_a_client_without_access_does_not_learn_the_reason(code: ErrorCode) -> None:
    """The detail of a 401 or 403 is constant."""
    shown = problem_of(code, "the key's not_after has passed").detail
    assert ("not_after" in shown) == (status_of(code) not in {401, 403})


@pytest.mark.parametrize(
    "code", [ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN, ErrorCode.FORBIDDEN_AGENT]
)
def test_the_reason_that_a_client_does_not_learn_is_logged(code: ErrorCode) -> None:
    with capture_logs() as events:
        describe_error(HttpRefusal(code, "the reason"), path="/v1/logs", peer="192.0.2.1")
    shown = [(one["event"], one["reason"], one["path"], one["peer"]) for one in events]
    assert shown == [("request_refused", "the reason", "/v1/logs", "192.0.2.1")]


@pytest.mark.parametrize(
    ("error", "code", "detail"),
    [
        (web.HTTPNotFound(), ErrorCode.NOT_FOUND, "no such path: check the URL, path=`/v1/batch`"),
        (
            web.HTTPMethodNotAllowed("GET", ["POST"]),
            ErrorCode.METHOD_NOT_ALLOWED,
            "`Allow` lists those that it has, path=`/v1/batch`",
        ),
    ],
)
def test_a_path_or_method_that_does_not_exist_is_named(
    error: web.HTTPException, code: ErrorCode, detail: str
) -> None:
    shown = describe_error(error, path="/v1/batch", peer=None)
    assert shown.code is code
    assert shown.detail.endswith(detail)


class _Failed(SluiceError):
    def __init__(self, code: ErrorCode) -> None:
        super().__init__("the store")
        self.code = code


def _errors_of(code: ErrorCode, count: int) -> list[int]:
    with capture_logs() as events:
        for _ in range(count):
            describe_error(_Failed(code), path="/v1/batches", peer=None)
    return [one["left_out"] for one in events if one["event"] == "request_error"]


def test_an_outage_of_the_store_is_logged_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimClock()
    monkeypatch.setattr(problems, "_UNAVAILABLE_LOGGED", RareWarnings(clock))
    assert _errors_of(ErrorCode.STORE_UNAVAILABLE, 1_000) == [0]
    assert _errors_of(ErrorCode.OVERLOADED, 2) == [0], "another code is another event"
    clock.at_ns += int(WARN_EVERY_S * NS_PER_S)
    assert _errors_of(ErrorCode.STORE_UNAVAILABLE, 3) == [999]
    assert _errors_of(ErrorCode.CORRUPT_OBJECT, 3) == [0, 0, 0], "an operator must act on each"
