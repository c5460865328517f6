"""The gate of every service over real sockets."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.web_services import SERVICES, Services, served

from sluice_protocol.upload_http import UPLOAD_PATH

READS = {
    "gateway": "/v1/conflicts",
    "reconciler": "/v1/queue/next?queue=http",
    "query": "/v1/query",
    "agent-otlp": "/openapi.json",
    "agent-health": "/metrics",
}
WRITES = {
    "gateway": "/v1/conflicts/x/resolve",
    "reconciler": "/v1/queue/commit",
    "agent-otlp": "/v1/logs",
}
JSON = ("Content-Type", "application/json")


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with served(tmp_path_factory.mktemp("gate"), hosts="sluice.example") as found:
        yield found


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize(
    ("fields", "passes"),
    [
        ((), True),
        ((("Host", "sluice.example"),), True),
        ((("Host", "localhost:1"),), True),
        ((("Host", "evil.test"),), False),
        ((("Origin", "http://evil.test"),), False),
        ((("Origin", "null"),), False),
        ((("Host", "sluice.example"), ("Origin", "http://sluice.example")), True),
        ((("Host", "sluice.example"), ("Origin", "http://sluice.example:81")), False),
        ((("Sec-Fetch-Site", "cross-site"),), False),
    ],
)
def test_a_read_passes_from_the_same_origin_only(
    services: Services, service: str, fields: tuple[tuple[str, str], ...], passes: bool
) -> None:
    response = services.request(service, "GET", READS[service], *fields)
    expected = 401 if service == "gateway" else 200
    assert response.status == (expected if passes else 403)
    assert passes or response.problem["code"] == "forbidden"


@pytest.mark.parametrize("service", WRITES)
@pytest.mark.parametrize(
    "field",
    [
        ("Content-Type", "text/plain"),
        ("Content-Type", "application/x-www-form-urlencoded"),
        ("Content-Type", "multipart/form-data; boundary=x"),
        ("Accept", "*/*"),
    ],
)
def test_a_write_that_a_form_could_send_is_refused(
    services: Services, service: str, field: tuple[str, str]
) -> None:
    response = services.request(service, "POST", WRITES[service], field, body=b"{}")
    assert response.status == 403
    assert "application/json" in response.problem["detail"]


@pytest.mark.parametrize("service", WRITES)
def test_a_write_in_json_reaches_the_handler(services: Services, service: str) -> None:
    response = services.request(service, "POST", WRITES[service], JSON, body=b"[]")
    assert response.status in {400, 401}


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("origin", ["http://evil.test", "http://sluice.example"])
def test_no_preflight_is_granted(services: Services, service: str, origin: str) -> None:
    response = services.request(
        service,
        "OPTIONS",
        WRITES.get(service, READS[service]),
        ("Host", "sluice.example"),
        ("Origin", origin),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "content-type"),
    )
    assert response.status == (405 if origin == "http://sluice.example" else 403)
    assert "access-control" not in response.head.lower()


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
@pytest.mark.parametrize("service", ["gateway", "reconciler", "query", "agent-health"])
def test_a_load_balancer_may_check_health_under_any_name(
    services: Services, service: str, path: str
) -> None:
    response = services.request(service, "GET", path, ("Host", "lb.example"))
    assert response.status == services.request(service, "GET", path).status
    assert response.status in {200, 503}
    page = ("Origin", "http://evil.test")
    assert services.request(service, "GET", path, page).status == 403


def test_uploads_may_name_any_host_and_never_come_from_a_page(services: Services) -> None:
    """A load balancer passes its own name on; the signature covers it."""
    frame = (("Host", "gateways.example"), ("Content-Type", "text/plain"))
    response = services.request("gateway", "POST", UPLOAD_PATH, *frame, body=b"x")
    assert response.status == 401
    page = ("Origin", "http://evil.test")
    assert services.request("gateway", "POST", UPLOAD_PATH, *frame, page).status == 403


def test_a_token_does_not_open_the_gate(tmp_path: Path) -> None:
    """The host and the origin are checked with a token too."""
    with served(tmp_path, token="s3cret") as services:
        token = ("Authorization", "Bearer s3cret")
        read = READS["reconciler"]
        assert services.request("reconciler", "GET", read, token).status == 200
        assert services.request("reconciler", "GET", read).status == 401
        for field in (("Host", "evil.test"), ("Origin", "http://evil.test")):
            assert services.request("reconciler", "GET", read, token, field).status == 403
        post = services.request("reconciler", "POST", "/v1/events", token, body=b"{}")
        assert post.status == 400


OPEN = {"/livez", "/readyz", "/metrics", "/openapi.json", "/{path}"}


def test_every_path_needs_the_token_unless_it_is_declared_open(tmp_path: Path) -> None:
    """A new path is guarded whatever its name is, and an unknown one is not found."""
    with served(tmp_path, token="s3cret") as services:
        for service in ("query", "reconciler"):
            paths = json.loads(services.request(service, "GET", "/openapi.json").body)["paths"]
            assert len(paths) > 10
            for path, methods in paths.items():
                for method in methods:
                    response = services.request(
                        service, method.upper(), path.replace("{", "").replace("}", ""), JSON
                    )
                    assert (response.status == 401) == (path not in OPEN), (service, path)
            assert services.request(service, "GET", "/none").status == 404
            assert services.request(service, "GET", "/api/none").status == 404
