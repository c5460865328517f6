"""The query service of a deployment, in this process."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import aiohttp
from support.constants import settings_with
from support.query_lake import DAY0_NS
from support.spark_lake import Deployment

from sluice_protocol.system_clock import SystemClock
from sluice_query.http.service import make_app
from sluice_query.search import Searcher
from sluice_query.settings import QuerySettings, ServeSettings
from sluice_store import open_store
from sluice_web.bounded_listening import listening

RANGE = {"from": str(DAY0_NS), "to": str(DAY0_NS + 86_400 * 10**9)}
Pairs = list[tuple[str, str]]


@dataclass(frozen=True)
class QueryClient:
    """A client of the service."""

    url: str
    session: aiohttp.ClientSession

    def target(self, path: str, *more: tuple[str, str], **given: object) -> str:
        """Return the URL of a route, by default with the range of the test's records."""
        pairs: Pairs = [(name.rstrip("_"), str(value)) for name, value in given.items()]
        named = {name for name, _ in pairs}
        pairs += [one for one in RANGE.items() if one[0] not in named]
        return f"{self.url}{path}?{urlencode([*pairs, *more])}"

    async def get(self, path: str, *more: tuple[str, str], **given: object) -> tuple[int, Any]:
        """Return the status and the JSON of a response."""
        async with self.session.get(self.target(path, *more, **given)) as response:
            return response.status, json.loads(await response.read())

    async def lines(self, path: str, *more: tuple[str, str], **given: object) -> list[Any]:
        """Return the lines of a response."""
        async with self.session.get(self.target(path, *more, **given)) as response:
            body = await response.read()
            assert response.status == 200, body
            return [json.loads(line) for line in body.splitlines()]


@asynccontextmanager
async def served_queries(
    place: Deployment, settings: QuerySettings | None = None, **serving: Any
) -> AsyncIterator[QueryClient]:
    """Serve the queries of a deployment."""
    async with open_store(place.url) as store, aiohttp.ClientSession() as session:
        searcher = Searcher(
            store=store,
            store_url=place.url,
            settings=settings or QuerySettings(threads=2),
            clock=SystemClock(),
        )
        async with listening(
            make_app(searcher, settings_with(ServeSettings, **serving)), "127.0.0.1:0"
        ) as urls:
            yield QueryClient(urls[0], session)


def talk(
    place: Deployment,
    story: Callable[[QueryClient], Awaitable[None]],
    settings: QuerySettings | None = None,
    **serving: Any,
) -> None:
    """Run a conversation with the service."""

    async def run() -> None:
        async with served_queries(place, settings, **serving) as client:
            await story(client)

    asyncio.run(run())
