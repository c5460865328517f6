"""Following a deployment: each record is told once, whether it waits or is in the lake."""

import asyncio
from pathlib import Path

from support.query_lake import DAY0_NS, deployment, log_batch, question
from support.spark_lake import Deployment, Sent
from support.spark_local import ingest_locally

from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_query.following import follow
from sluice_query.search import Searcher
from sluice_query.settings import QuerySettings
from sluice_store import open_store


class StandingClock(SystemClock):
    """A clock that stands a minute after the first record, and never sleeps."""

    def now_ns(self) -> UnixNs:
        return UnixNs(DAY0_NS + 60 * NS_PER_S)

    async def sleep(self, seconds: float) -> None:
        del seconds


def _later() -> Sent:
    return log_batch(["late", "new"], start=9, agent="host-2", from_ns=DAY0_NS + 3 * NS_PER_S)


async def _told(place: Deployment) -> list[list[object]]:
    told = []
    steps = iter(
        (
            lambda: place.accept([]),
            lambda: ingest_locally(place.url),
            lambda: place.deliver([_later()]),
            lambda: ingest_locally(place.url),
        )
    )
    async with open_store(place.url) as store:
        searcher = Searcher(
            store=store, store_url=place.url, settings=QuerySettings(), clock=StandingClock()
        )
        async for answer in follow(searcher, question(limit=2)):
            told.append([row["body"] for row in answer.records])
            step = next(steps, None)
            if step is None:
                return told
            await asyncio.to_thread(step)
    return told


def test_a_follower_is_told_each_record_once(tmp_path: Path) -> None:
    """First the latest, then only what is new; moving into the lake is nothing new."""
    place = deployment(tmp_path)
    place.deliver([log_batch(["a", "b", "c"], step_ns=2 * NS_PER_S)])
    first, same, ingested, fresh, settled = asyncio.run(_told(place))
    assert first == ["b", "c"]
    assert same == []  # what the first limit cut off is old news
    assert (ingested, fresh, settled) == ([], ["late", "new"], [])
