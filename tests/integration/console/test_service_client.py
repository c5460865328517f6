"""Requests of the console to other services: long responses, and metrics of other formats."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientSession, web

from sluice_console.reconcilers import ServiceClient, ServiceFailed
from sluice_reconciler.completeness import BootList
from sluice_web.connection_guard import listening
from sluice_web.listening import ServerOptions
from sluice_web.problems import Handler

METRICS = """\
# TYPE waiting gauge
waiting{queue="}",stage="index"} 2.5
waiting{queue="b",stage="index"} NaN
waiting{queue="b",stage="other"} 7
waiting_other{stage="index"} 9
calls_total{op="get",place="a}b"} 1
calls_total{op="get",place="c"} 2
calls_total{op="put"} 4e3
broken{op=} x
"""


async def in_parts(request: web.Request) -> web.StreamResponse:
    """Send a list whose second half arrives later."""
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b'{"complete_through": null,')
    await asyncio.sleep(0.2)
    await response.write(b' "boots": []}')
    return response


async def metrics(request: web.Request) -> web.StreamResponse:
    del request
    return web.Response(text=METRICS)


@asynccontextmanager
async def serving(**handlers: Handler) -> AsyncIterator[str]:
    """Serve `/v1/agents` or `/metrics`; yield the URL."""
    app = web.Application()
    paths = {"agents": "/v1/agents", "metrics": "/metrics"}
    app.add_routes([web.get(paths[name], handler) for name, handler in handlers.items()])
    async with listening(app, "127.0.0.1:0", ServerOptions(shutdown_s=1.0)) as urls:
        yield urls[0]


def asking(story: Callable[[ServiceClient], Awaitable[None]]) -> None:
    """Run a story with a client of a service that sends these responses."""

    async def main() -> None:
        async with serving(agents=in_parts, metrics=metrics) as url, ClientSession() as session:
            await story(ServiceClient(service="reconciler", url=url, token="", session=session))

    asyncio.run(main())


def test_a_response_that_arrives_in_parts_is_read_to_its_end() -> None:
    async def story(client: ServiceClient) -> None:
        assert (await client.get("/v1/agents", BootList)).complete_through is None

    asking(story)


def test_a_response_above_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice_console.reconcilers.RESPONSE_BYTES_MAX", 20)

    async def story(client: ServiceClient) -> None:
        with pytest.raises(ServiceFailed, match="larger than 20 bytes"):
            await client.get("/v1/agents", BootList)

    asking(story)


def test_metrics_are_read_by_label() -> None:
    async def story(client: ServiceClient) -> None:
        assert await client.gauge("waiting", "stage", "index") == [2.5]
        assert await client.gauge("calls_total", "op", "get") == [1.0, 2.0]
        assert await client.gauge("calls_total", "place", "a}b") == [1.0]
        assert await client.gauge("missing", "op", "get") == []
        with pytest.raises(ServiceFailed, match="unreadable metrics"):
            await client.gauge("broken", "op", "get")

    asking(story)


def test_a_path_that_an_earlier_release_does_not_have_is_named_with_the_remedy() -> None:
    async def story(client: ServiceClient) -> None:
        with pytest.raises(ServiceFailed, match="does not know /v1/later: upgrade the reconciler"):
            await client.get("/v1/later?limit=1", BootList)

    asking(story)
