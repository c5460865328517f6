"""The undocumented parts of aiohttp that the S3 connection uses are as it expects them.

A failure names what aiohttp changed and the file to change. Raise the limit of aiohttp in
pyproject.toml only after these tests and tests/fault/store/test_s3_connection.py pass with it.
"""

import asyncio
import inspect

import aiohttp
import pytest
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import StreamReader
from support.private_api import expect_call, expect_limited, expect_name
from yarl import URL

USED_IN = "core/sluice_store/s3/connection.py"
SELF = object()


def test_pyproject_limits_aiohttp_to_the_tested_versions() -> None:
    expect_limited("aiohttp", used_in=USED_IN)


@pytest.mark.parametrize(
    ("owner", "name", "is_async"),
    [
        (ResponseHandler, "set_response_params", False),
        (ResponseHandler, "read", True),
        (ResponseHandler, "is_connected", False),
        (ResponseHandler, "_drain_helper", True),
        (aiohttp.BaseConnector, "connect", True),
        (Connection, "release", False),
        (Connection, "close", False),
        (StreamReader, "read", True),
    ],
)
def test_method_exists_and_is_called_as_before(owner: type, name: str, is_async: bool) -> None:
    found = expect_name("aiohttp", owner, name, used_in=USED_IN)
    message = f"aiohttp {aiohttp.__version__}: `{owner.__name__}.{name}` is"
    assert inspect.iscoroutinefunction(found) is is_async, (
        f"{message} {'no longer' if is_async else 'now'} a coroutine function: change {USED_IN}"
    )


def test_connection_still_has_its_protocol() -> None:
    expect_name("aiohttp", Connection, "protocol", used_in=USED_IN)
    expect_name("aiohttp", ResponseHandler, "transport", used_in=USED_IN)
    expect_name("aiohttp", ResponseHandler, "should_close", used_in=USED_IN)


def test_calls_still_accept_their_arguments() -> None:
    expect_call(
        "aiohttp",
        ResponseHandler.set_response_params,
        SELF,
        skip_payload=True,
        auto_decompress=False,
        used_in=USED_IN,
    )
    expect_call("aiohttp", ResponseHandler.read, SELF, used_in=USED_IN)
    expect_call("aiohttp", ResponseHandler._drain_helper, SELF, used_in=USED_IN)
    expect_call("aiohttp", StreamReader.read, SELF, 16, used_in=USED_IN)
    timeout = aiohttp.ClientTimeout(total=1, connect=1)
    expect_call("aiohttp", aiohttp.BaseConnector.connect, SELF, SELF, [], timeout, used_in=USED_IN)
    url = URL("http://localhost")
    expect_call("aiohttp", aiohttp.ClientRequest, "GET", url, loop=SELF, used_in=USED_IN)


def test_parser_errors_are_still_of_the_class_that_is_caught() -> None:
    assert issubclass(HttpProcessingError, Exception)
    assert not issubclass(HttpProcessingError, aiohttp.ClientError | OSError), (
        f"HttpProcessingError is now a ClientError or OSError: simplify the except in {USED_IN}"
    )


RESPONSE = b"HTTP/1.1 200 OK\r\nETag: abc\r\nContent-Length: 4\r\n\r\nbody"


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.readuntil(b"\r\n\r\n"):
        writer.write(RESPONSE)


async def test_a_released_connection_is_reused_and_a_closed_one_is_not() -> None:
    """The whole sequence of calls, on a real socket, without the product's code."""

    async def exchange(connection: Connection) -> None:
        protocol = connection.protocol
        assert protocol.transport is not None
        protocol.set_response_params(skip_payload=False, auto_decompress=False)
        protocol.transport.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        message, payload = await protocol.read()
        assert (message.code, message.headers["ETag"]) == (200, "abc")
        assert await payload.read() == b"body"

    server = await asyncio.start_server(_serve, "127.0.0.1", 0)
    origin = URL(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    timeout = aiohttp.ClientTimeout(total=5, connect=5)
    async with aiohttp.TCPConnector() as connector:
        peer = aiohttp.ClientRequest("GET", origin, loop=asyncio.get_running_loop())
        used = []
        for release in (True, False, True):
            connection = await connector.connect(peer, [], timeout)
            await exchange(connection)
            used.append(connection.protocol)
            if release:
                connection.release()
            connection.close()  # no effect after a release
        assert used[0] is used[1], "release() no longer returns the connection to the pool"
        assert used[1] is not used[2], "close() no longer removes the connection from the pool"
    server.close()
