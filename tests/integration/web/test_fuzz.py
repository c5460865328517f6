"""Requests drawn from the OpenAPI description of each service: no 5xx, no defect, no long wait."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from structlog.testing import capture_logs
from support.web_fuzz import Request, requests_of, sweep_of
from support.web_services import SERVICES, Services, served

LONG = int(os.environ.get("SLUICE_FUZZ_EXAMPLES", "500"))
DEFECTS = {"request_failed", "request_error", "http_server_error", "library_error"}
"""Events that an operator must act on; no request of a client may cause one."""


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with served(tmp_path_factory.mktemp("fuzz")) as found:
        yield found


def check(services: Services, service: str, document: dict[str, Any], request: Request) -> None:
    method, target, fields, body = request
    with capture_logs() as events:
        response = services.request(service, method, target, *fields, body=body)
    defects = [one for one in events if one["event"] in DEFECTS]
    assert defects == []
    path = target.partition("?")[0]
    described = document["paths"].get(path, {}).get(method.lower(), {"responses": {}})
    allowed = response.status == 503 and "503" in described["responses"]
    assert 100 <= response.status < 500 or allowed, response
    assert "Traceback" not in response.body.decode("latin-1")


def fuzz(services: Services, service: str, examples: int) -> None:
    document = services.request(service, "GET", "/openapi.json").problem
    listed = services.request("reconciler", "GET", "/v1/conflicts").problem
    names = {
        "id": tuple(one["id"] for one in listed["conflicts"]),
        "agent": ("host-1",),
        "queue": ("http",),
        "kind": ("logs",),
    }

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(request=requests_of(document, names))
    def run(request: Request) -> None:
        check(services, service, document, request)

    run()


@pytest.mark.parametrize("service", SERVICES)
def test_no_hostile_value_causes_a_server_error(services: Services, service: str) -> None:
    """Values in every different parameter, and in fields and body of every route."""
    document = services.request(service, "GET", "/openapi.json").problem
    for request in sweep_of(document, each=False):
        check(services, service, document, request)


@pytest.mark.long
@pytest.mark.parametrize("service", SERVICES)
def test_no_hostile_value_in_any_route_causes_a_server_error(
    services: Services, service: str
) -> None:
    document = services.request(service, "GET", "/openapi.json").problem
    for request in sweep_of(document):
        check(services, service, document, request)


@pytest.mark.parametrize("service", SERVICES)
def test_no_request_causes_a_server_error(services: Services, service: str) -> None:
    fuzz(services, service, 50)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("service", SERVICES)
def test_no_request_causes_a_server_error_in_a_long_run(services: Services, service: str) -> None:
    fuzz(services, service, LONG)
