"""The application of a service: requests to paths and with methods that it does not have."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from structlog.testing import capture_logs

from sluice_web.application import guarded_middlewares, make_application
from sluice_web.endpoints import Endpoint


async def answer(request: web.Request) -> web.Response:
    del request
    return web.Response(text="found")


ENDPOINTS = (
    Endpoint(method="GET", path="/v1/things/{id:[0-9]+}", handler=answer, summary="a thing"),
)


async def ask(head: bytes) -> bytes:
    """Return the response to a request of these lines."""
    app = make_application(ENDPOINTS, middlewares=guarded_middlewares(""), title="things")
    async with TestServer(app) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        host = b"Host: 127.0.0.1:%d\r\nConnection: close\r\n" % (server.port or 0)
        writer.write(head + host + b"\r\n")
        response = await reader.read()
        writer.close()
    return response


@pytest.mark.parametrize("expect", [b"", b"Expect: \xff\r\n", b"Expect: 100-continue\r\n"])
@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /v1/things/7", b"200 OK"),
        (b"GET /openapi.json", b"200 OK"),
        (b"GET /v1/things/x", b"404"),
        (b"GET /", b"404"),
        (b"HEAD /v1/things/x", b"404"),
        (b"DELETE /v1/things/7", b"405"),
    ],
)
def test_an_expectation_is_never_a_server_error(
    request_line: bytes, status: bytes, expect: bytes
) -> None:
    fields = expect + (b"X-Requested-With: test\r\n" if request_line[:6] == b"DELETE" else b"")
    with capture_logs() as events:
        response = asyncio.run(ask(request_line + b" HTTP/1.1\r\n" + fields))
    final = response.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert final.startswith(b"HTTP/1.1 " + status), response
    assert [one for one in events if one["log_level"] == "error"] == []
    if status == b"405":
        assert b"Allow: GET,HEAD" in final
    if status[:1] == b"4" and request_line[:4] != b"HEAD":
        assert b"application/problem+json" in final
