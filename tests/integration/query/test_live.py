"""Following by a real reconciler's live records: each once, as soon as it was read."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from support.query_lake import deployment, log_batch, metric_batch, question
from support.spark_lake import Deployment

from sluice_protocol.errors import BadUsage
from sluice_protocol.manifests import encode_record
from sluice_protocol.record_deletes import DeleteRecord, delete_key
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S
from sluice_query.errors import ReconcilerUnreachable
from sluice_query.live import LiveRecordsClient, follow_live
from sluice_query.request import Query
from sluice_query.search import Searcher
from sluice_query.settings import QuerySettings
from sluice_reconciler.api import make_app
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
        async with TestServer(make_app(service)) as server:
            source = LiveRecordsClient(session=session, url=str(server.make_url("/")), token=token)
            searcher = Searcher(
                store=store, store_url=place.url, settings=QuerySettings(), clock=SystemClock()
            )
            answers = follow_live(searcher, query, source)
            yield ([row["body"] for row in one.records] async for one in answers)


async def gathered(told: AsyncIterator[list[object]], count: int) -> list[object]:
    bodies: list[object] = []
    async with asyncio.timeout(30):
        while len(bodies) < count:
            bodies += await anext(told)
    return bodies


def test_a_follower_is_told_what_the_reconciler_reads(tmp_path: Path) -> None:
    """Text, agent and deletes are judged as in any question; each record comes once."""
    place = deployment(tmp_path)
    now_ns = SystemClock().now_ns()  # only what was accepted lately is held
    gone = DeleteRecord(
        delete_id="01" + "A" * 24,
        kind="logs",
        accepted_until_unix_ns=now_ns + 3600 * NS_PER_S,
        contains="secret",
    )

    async def run() -> list[object]:
        async with open_store(place.url) as store:
            await store.create(delete_key(gone.delete_id), encode_record(gone))
        wanted = question(text="err(or)? [0-9]", regex=True, agents=("host-1", "host-2"))
        async with following(place, wanted, token="s3cret", live_bytes_max=1 << 20) as told:
            await asyncio.to_thread(
                place.accept, [log_batch(["err 1", "fine", "err 2 secret"], at_ns=now_ns)]
            )
            first = await gathered(told, 1)
            await asyncio.to_thread(
                place.accept,
                [
                    log_batch(["error 3"], start=3, attributes={"k": "v"}, at_ns=now_ns),
                    log_batch(["error 4"], agent="host-2", at_ns=now_ns),
                    log_batch(["error 5"], agent="host-3", at_ns=now_ns),
                    metric_batch([1.0], start=9),
                ],
            )
            return first + sorted(map(str, await gathered(told, 2)))

    assert asyncio.run(run()) == ["err 1", "error 3", "error 4"]


@pytest.mark.parametrize(
    ("token", "settings", "says"),
    [
        ("wrong", {"live_bytes_max": 1 << 20}, "reconciler_token"),
        ("s3cret", {}, "set its live_bytes_max"),
    ],
)
def test_a_follower_is_refused_in_one_line(
    token: str, settings: dict[str, Any], says: str, tmp_path: Path
) -> None:
    """A wrong token, a reconciler that keeps no live records."""
    place = deployment(tmp_path)

    async def run() -> None:
        async with following(place, question(), token=token, **settings) as told:
            await anext(told)

    with pytest.raises(BadUsage, match=says):
        asyncio.run(run())


def test_a_reconciler_that_is_away_is_named(tmp_path: Path) -> None:
    """At the first question it is an error; the store was fine."""
    place = deployment(tmp_path)

    async def run() -> None:
        async with open_store(place.url) as store, aiohttp.ClientSession() as session:
            searcher = Searcher(
                store=store, store_url=place.url, settings=QuerySettings(), clock=SystemClock()
            )
            source = LiveRecordsClient(session=session, url="http://127.0.0.1:9")
            await anext(follow_live(searcher, question(), source))

    with pytest.raises(ReconcilerUnreachable, match="reconciler is unreachable"):
        asyncio.run(run())
