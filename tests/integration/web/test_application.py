"""One application over a real socket: errors, tokens and health checks."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry

from sluice_protocol.errors import BadUsage, ErrorCode
from sluice_web.application import guarded_middlewares, make_application
from sluice_web.endpoints import Endpoint
from sluice_web.health import live_endpoint, metrics_endpoint, ready_endpoint
from sluice_web.json_bodies import json_response
from sluice_web.problems import HttpRefusal, problem_of

Client = TestClient[Any, Any]


async def refuse(_: web.Request) -> web.Response:
    raise BadUsage("name must be a word")


async def fail(_: web.Request) -> web.Response:
    raise KeyError("a defect")


async def overloaded(_: web.Request) -> web.Response:
    raise HttpRefusal(ErrorCode.OVERLOADED, "this service is full")


async def size(request: web.Request) -> web.Response:
    return json_response({"size": len(await request.read())})


def endpoint(path: str, handler: Callable[[web.Request], Awaitable[web.Response]]) -> Endpoint:
    return Endpoint(method="POST", path=path, handler=handler, summary="")


@asynccontextmanager
async def served(token: str = "") -> AsyncIterator[Client]:
    app = make_application(
        [
            *(endpoint("/v1/refuse", refuse), endpoint("/v1/fail", fail)),
            *(endpoint("/v1/overloaded", overloaded), endpoint("/v1/size", size)),
            live_endpoint(),
            ready_endpoint(lambda: problem_of(ErrorCode.DRAINING, "stopping")),
            metrics_endpoint(CollectorRegistry()),
        ],
        middlewares=guarded_middlewares(token),
        title="a service",
        body_bytes_max=1000,
    )
    async with TestClient(TestServer(app)) as client:
        yield client


async def problem(response: Any) -> dict[str, Any]:
    assert response.content_type == "application/problem+json"
    document: dict[str, Any] = json.loads(await response.read())
    assert document["type"] == "about:blank"
    assert document["status"] == response.status
    return document


async def test_every_error_is_a_problem_document() -> None:
    """Also what aiohttp itself refuses, and a defect, whose reason is only logged."""
    async with served() as client:
        for method, path, data, status, code in (
            ("POST", "/v1/refuse", b"", 400, "bad_request"),
            ("POST", "/v1/fail", b"", 500, "internal"),
            ("POST", "/v1/overloaded", b"", 503, "overloaded"),
            ("GET", "/v1/nothing", None, 404, "not_found"),
            ("GET", "/v1/size", None, 405, "method_not_allowed"),
            ("POST", "/v1/size", b"x" * 1001, 413, "too_large"),
        ):
            response = await client.request(method, path, data=data)
            document = await problem(response)
            assert (response.status, document["code"]) == (status, code)
            assert "a defect" not in document["detail"]
            assert ("Allow" in response.headers) == (status == 405)
            assert ("Retry-After" in response.headers) == (status == 503)


async def test_a_token_guards_the_api_and_not_the_health_checks() -> None:
    async with served("s3cret") as client:
        response = await client.post("/v1/size", data=b"x")
        assert (await problem(response))["code"] == "unauthenticated"
        assert response.headers["WWW-Authenticate"] == "Bearer"
        headers = {"Authorization": "Bearer s3cret"}
        assert (await client.post("/v1/size", data=b"x", headers=headers)).status == 200
        assert await (await client.get("/livez")).text() == "ok\n"
        response = await client.get("/readyz")
        assert (await problem(response))["code"] == "draining"
        assert (await client.get("/metrics")).status == 200
        assert (await client.get("/openapi.json")).status == 200
        assert (await client.get("/none")).status == 404
        assert (await client.get("/v1/size")).status == 405


async def test_the_openapi_description_lists_every_route() -> None:
    async with served() as client:
        document = await (await client.get("/openapi.json")).json()
        assert set(document["paths"]) == {
            *("/v1/refuse", "/v1/fail", "/v1/overloaded", "/v1/size"),
            *("/livez", "/readyz", "/metrics"),
        }
