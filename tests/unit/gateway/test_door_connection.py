"""A connection to the doors, without sockets: when its bytes pass through the HTTP server."""

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from aiohttp import HttpVersion11, web
from multidict import CIMultiDict

from sluice_door_http.routes import AcceptedRequest, DoorRequest, DoorResult
from sluice_gateway.doors.door_connection import DoorConnection

HEAD = b"POST /v1/ingest HTTP/1.1\r\nAuthorization: Bearer t\r\nContent-Length: %d\r\n\r\n"
RESULT = DoorResult(records=1, unreadable=0, duplicate=False, source="content", combined=True)


class Service:
    """Begins every request; `answers` ends them."""

    def __init__(self) -> None:
        self.answers: list[Callable[[Any], None]] = []

    def begin_small(self, body: bytes, token: str, wanted: DoorRequest, answer: Any) -> bool:
        assert (body, token) == (b"abc", "t")
        self.answers.append(answer)
        return True

    def now_ns(self) -> int:
        return 0


class Request:
    """What the connection reads of a request of the server."""

    def __init__(self, length: int) -> None:
        self.headers = CIMultiDict({"Authorization": "Bearer t"})
        self.version, self.content_length = HttpVersion11, length
        self.content = Mock(is_eof=lambda: True)


class World:
    def __init__(self) -> None:
        self.server, self.service = Mock(spec=asyncio.Protocol), Service()
        self.transport = Mock(spec=asyncio.Transport, is_closing=lambda: False)
        self.connection = DoorConnection(self.server, self.service)  # type: ignore[arg-type]
        self.connection.connection_made(self.transport)
        self.seen: list[bytes] = []
        self.server.data_received = self.seen.append

    def served(self, length: int) -> Request:
        """Let the server handle a request, which was accepted."""
        request = Request(length)
        accepted = AcceptedRequest(
            request=request,  # type: ignore[arg-type]
            wanted=DoorRequest(door="json", decode=Mock(), coding="identity"),
            respond=lambda _result: web.Response(text="ok"),
            refuse=Mock(),
        )
        self.connection.remember(accepted)
        self.connection.finish(request)  # type: ignore[arg-type]
        return request


def knowing() -> World:
    world = World()
    world.connection.data_received(HEAD % 3 + b"abc")
    world.served(3)
    assert len(world.seen) == 1
    return world


def test_a_known_head_does_not_reach_the_server() -> None:
    world = knowing()
    world.connection.data_received(HEAD % 3 + b"abc")
    assert len(world.seen) == 1
    world.service.answers[0](RESULT)
    [written] = world.transport.write.call_args.args
    assert written.startswith(b"HTTP/1.1 200 OK\r\n")
    assert written.endswith(b"\r\n\r\nok")


def test_the_server_has_requests_of_a_client_that_does_not_read() -> None:
    world = knowing()
    world.connection.pause_writing()
    world.connection.data_received(HEAD % 3 + b"abc")
    assert len(world.seen) == 2
    world.served(3)
    world.connection.resume_writing()
    world.connection.data_received(HEAD % 3 + b"abc")
    assert len(world.seen) == 2


@pytest.mark.parametrize("behind", [HEAD % 3 + b"abc", HEAD % 3, HEAD[:5]])
def test_bytes_behind_a_request_keep_the_connection_with_the_server(behind: bytes) -> None:
    world = knowing()
    world.connection.pause_writing()
    world.connection.data_received(HEAD % 3 + b"abc" + behind)
    world.connection.resume_writing()
    world.served(3)  # the server still has a request whose response is not written
    world.connection.data_received(HEAD % 3 + b"abc")
    assert not world.service.answers
    assert len(world.seen) == 3


def test_nothing_is_read_until_the_response() -> None:
    world = knowing()
    world.connection.data_received(HEAD % 3 + b"abc")
    world.connection.data_received(b"more")
    world.transport.pause_reading.assert_called()
    assert len(world.seen) == 1


def test_a_lost_connection_keeps_no_request() -> None:
    gc.disable()
    try:
        world = World()
        world.connection.data_received(HEAD % 3 + b"abc")
        known = weakref.ref(world.served(3))
        assert known() is not None
        world.connection.connection_lost(None)
        assert known() is None
    finally:
        gc.enable()
