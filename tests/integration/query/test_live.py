"""Following by the live records of a real reconciler."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from support.query_lake import deployment, log_batch, make_query, metric_batch
from support.spark_lake import Deployment

from sluice_protocol.errors import BadUsage
from sluice_protocol.manifests import encode_record
from sluice_protocol.record_deletes import DeleteRecord, delete_key
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S
from sluice_query.following import LiveRecordsClient, ReconcilerUnreachable, follow_live
from sluice_query.request import Query
from sluice_query.search import Searcher
from sluice_query.settings import QuerySettings
from sluice_reconciler.app import make_operator_app
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_store import open_store


@asynccontextmanager
async def following(
    place: Deployment, query: Query, token: str = "", **settings: Any
) -> AsyncIterator[AsyncIterator[list[object]]]:
    async with (
        open_store(place.url) as store,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session,
    ):
        found = ReconcilerSettings(
            tail_interval_s=0.05, pass_interval_s=0.05, api_token="s3cret", **settings
        )
        service = await Reconciler.of(store, settings=found)
        async with TestServer(make_operator_app(service)) as server:
            source = LiveRecordsClient(session=session, url=str(server.make_url("/")), token=token)
            searcher = Searcher(
                store=store, store_url=place.url, settings=QuerySettings(), clock=SystemClock()
            )
            results = follow_live(searcher, query, source)
            yield ([row["body"] for row in one.records] async for one in results)


async def gathered(found: AsyncIterator[list[object]], count: int) -> list[object]:
    bodies: list[object] = []
    async with asyncio.timeout(30):
        while len(bodies) < count:
            bodies += await anext(found)
    return bodies


def test_a_live_follower_returns_each_matching_record_once(tmp_path: Path) -> None:
    """Text, agents, filters and deletes apply as in any query."""
    place = deployment(tmp_path)
    now_ns = SystemClock().now_ns()  # the reconciler keeps only what was accepted lately
    secrets = DeleteRecord(
        delete_id="01" + "A" * 24,
        kind="logs",
        accepted_until_unix_ns=now_ns + 3600 * NS_PER_S,
        contains="secret",
    )

    async def run() -> list[object]:
        async with open_store(place.url) as store:
            await store.create(delete_key(secrets.delete_id), encode_record(secrets))
        asked = '{agent=~"host-[12]"} |~ "err(or)? [0-9]" | ms >= 5'
        wanted = make_query(asked, agents=("host-1", "host-2"))
        async with following(place, wanted, token="s3cret", live_bytes_max=1 << 20) as found:
            await asyncio.to_thread(
                place.accept,
                [
                    log_batch(
                        ["err 1", "fine", "err 2 secret"], attributes={"ms": "5.0"}, at_ns=now_ns
                    )
                ],
            )
            first = await gathered(found, 1)
            await asyncio.to_thread(
                place.accept,
                [
                    log_batch(["error 3"], start=3, attributes={"ms": "12"}, at_ns=now_ns),
                    log_batch(["error 4"], agent="host-2", attributes={"ms": "5"}, at_ns=now_ns),
                    log_batch(["error 5"], agent="host-3", attributes={"ms": "5"}, at_ns=now_ns),
                    log_batch(["error 6"], start=4, attributes={"ms": "4.9"}, at_ns=now_ns),
                    metric_batch([1.0], start=9),
                ],
            )
            return first + sorted(map(str, await gathered(found, 2)))

    assert asyncio.run(run()) == ["err 1", "error 3", "error 4"]


@pytest.mark.parametrize(
    ("token", "settings", "message"),
    [
        ("wrong", {"live_bytes_max": 1 << 20}, "reconciler_token"),
        ("s3cret", {}, "set its live_bytes_max"),
    ],
)
def test_a_refusal_of_the_reconciler_is_bad_usage(
    token: str, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """The token is wrong, or the reconciler keeps no live records."""
    place = deployment(tmp_path)

    async def run() -> None:
        async with following(place, make_query(), token=token, **settings) as found:
            await anext(found)

    with pytest.raises(BadUsage, match=message):
        asyncio.run(run())


def test_an_unreachable_reconciler_is_an_error_at_the_first_request(tmp_path: Path) -> None:
    place = deployment(tmp_path)

    async def run() -> None:
        async with open_store(place.url) as store, aiohttp.ClientSession() as session:
            searcher = Searcher(
                store=store, store_url=place.url, settings=QuerySettings(), clock=SystemClock()
            )
            source = LiveRecordsClient(session=session, url="http://127.0.0.1:9")
            await anext(follow_live(searcher, make_query(), source))

    with pytest.raises(ReconcilerUnreachable, match="reconciler is unreachable"):
        asyncio.run(run())
