"""Inputs that once caused a server error, as a table: each is the client's fault."""

from collections.abc import Iterator

import pytest
from support.web_services import Services, served

JSON = ("Content-Type", "application/json")
TOKEN = ("Authorization", "Bearer s3cret")


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with served(tmp_path_factory.mktemp("input"), token="s3cret") as found:
        yield found


@pytest.mark.parametrize("service", ["reconciler", "query"])
def test_a_token_that_is_not_utf_8_is_unknown(services: Services, service: str) -> None:
    path = {"reconciler": "/v1/agents", "query": "/v1/query"}[service]
    response = services.request(service, "GET", path, ("Authorization", "Bearer \udcff"))
    assert response.status == 401


@pytest.mark.parametrize(
    ("service", "target"),
    [
        ("reconciler", "/v1/queue/next?queue=http&max=" + "9" * 5000),
        ("reconciler", "/v1/conflicts?limit=" + "9" * 5000),
        ("reconciler", "/v1/live?wait=" + "0" * 20 + "100"),
        ("reconciler", "/v1/live?after=x." + "9" * 5000),
        ("reconciler", "/v1/audits?limit=" + "9" * 5000),
        ("reconciler", "/v1/conflicts?agent=" + "a" * 500),
        ("reconciler", "/v1/agents?agent=" + "a" * 500),
        ("reconciler", "/v1/live?agent=" + "a" * 500),
        ("reconciler", "/v1/queue?queue=" + "a" * 5000),
        ("query", "/v1/query?limit=" + "9" * 5000),
        ("query", "/v1/query?from=" + "9" * 5000),
        ("query", "/v1/query?query=%7B%7D%7C~%22" + "a" * 7_000 + "%22"),
    ],
)
def test_long_parameters_are_refused(services: Services, service: str, target: str) -> None:
    response = services.request(service, "GET", target, TOKEN)
    assert response.status == 400
    assert len(response.problem["detail"]) < 300


@pytest.mark.parametrize(
    "body",
    [
        b'{"lease_ids":["' + b"9" * 5000 + b'.x"]}',
        '{"lease_ids":["²³.x"]}'.encode(),
        b"[" * 5000,
        b'{"lease_ids":' * 3000,
    ],
)
def test_a_body_that_is_not_leases_is_refused(services: Services, body: bytes) -> None:
    response = services.request("reconciler", "POST", "/v1/queue/commit", TOKEN, JSON, body=body)
    assert response.status == 400


@pytest.mark.parametrize("path", ["/v1/logs", "/v1/metrics"])
def test_deeply_nested_otlp_is_refused(services: Services, path: str) -> None:
    response = services.request("agent-otlp", "POST", path, JSON, body=b'{"a":' * 5000)
    assert response.status == 400


def test_a_body_that_cannot_be_decompressed_is_refused(services: Services) -> None:
    fields = (JSON, ("Content-Encoding", "gzip"))
    response = services.request("agent-otlp", "POST", "/v1/logs", *fields, body=b"not gzip")
    assert response.status == 400


@pytest.mark.parametrize("service", ["gateway", "reconciler", "query", "agent-health"])
def test_an_unknown_expectation_is_ignored(services: Services, service: str) -> None:
    assert services.request(service, "GET", "/livez", ("Expect", "\udcff")).status == 200
