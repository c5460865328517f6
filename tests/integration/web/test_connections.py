"""Every HTTP service bounds its connections, whatever clients do with theirs."""

import asyncio
from contextlib import AsyncExitStack

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from sluice_protocol.system_clock import SystemClock
from sluice_web import connection_guard, problems
from sluice_web.application import make_application
from sluice_web.connection_guard import listening, service_connections_max
from sluice_web.health import live_endpoint
from sluice_web.problems import problem_middleware
from sluice_web.rare_warnings import EventBudget


def application() -> web.Application:
    return make_application([live_endpoint()], middlewares=[problem_middleware()])


def test_idle_connections_do_not_lock_clients_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more idle connections than places a request is served, and one event reports it.

    It does not wait until the time of an idle connection is over.
    """
    monkeypatch.setattr(connection_guard, "HEAD_TIMEOUT_S", 3600.0)
    monkeypatch.setattr(connection_guard, "service_connections_max", lambda: 4)

    async def run() -> None:
        async with listening(application(), "127.0.0.1:0") as urls, AsyncExitStack() as stack:
            port = int(urls[0].rpartition(":")[2])
            for _ in range(20):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                stack.callback(writer.close)
            session = await stack.enter_async_context(aiohttp.ClientSession())
            async with session.get(f"{urls[0]}/livez") as response:
                assert response.status == 200

    with capture_logs() as logs:
        asyncio.run(asyncio.wait_for(run(), 20))
    assert [one["event"] for one in logs] == ["http_connections_full"]


def test_clients_that_keep_connections_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """While clients wait, a connection is closed after its response."""
    monkeypatch.setattr(connection_guard, "service_connections_max", lambda: 2)

    async def run() -> None:
        async with listening(application(), "127.0.0.1:0") as urls, AsyncExitStack() as stack:
            sessions = [await stack.enter_async_context(aiohttp.ClientSession()) for _ in range(8)]

            async def call(session: aiohttp.ClientSession) -> int:
                async with session.get(f"{urls[0]}/livez") as response:
                    return response.status

            for _ in range(3):
                assert set(await asyncio.gather(*map(call, sessions))) == {200}

    with capture_logs():
        asyncio.run(asyncio.wait_for(run(), 20))


def test_half_of_the_open_files_are_for_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_guard.resource, "getrlimit", lambda _: (256, 256))
    assert service_connections_max() == 128
    monkeypatch.setattr(connection_guard.resource, "getrlimit", lambda _: (-1, -1))
    assert service_connections_max() == 1024


def test_an_unknown_path_is_logged_with_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A 404 and a 405 are visible in the log; a scanner cannot fill it."""

    async def run() -> None:
        async with (
            listening(application(), "127.0.0.1:0") as urls,
            aiohttp.ClientSession() as session,
        ):
            for number in range(50):
                async with session.get(f"{urls[0]}/none/{number}") as response:
                    assert response.status == 404
            async with session.post(f"{urls[0]}/livez") as response:
                assert response.status == 405
                assert "GET" in response.headers["Allow"]
                assert (await response.json(content_type=None))["code"] == "method_not_allowed"

    monkeypatch.setattr(problems, "_UNKNOWN_LOGGED", EventBudget(SystemClock(), events_max=20))
    with capture_logs() as logs:
        asyncio.run(run())
    paths = [one["path"] for one in logs if one["event"] == "http_path_unknown"]
    assert paths[0] == "/none/0"
    assert 20 <= len(paths) <= 40  # two minutes may meet
