"""Following a deployment by polling."""

import asyncio
from pathlib import Path

from support.query_lake import DAY0_NS, deployment, log_batch, make_query
from support.spark_lake import Deployment, Sent
from support.spark_local import ingest_locally

from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_query.following import follow
from sluice_query.search import Searcher
from sluice_query.settings import QuerySettings
from sluice_store import open_store


class FrozenClock(SystemClock):
    """A clock that is always a minute after the first record, and never sleeps."""

    def now_ns(self) -> UnixNs:
        return UnixNs(DAY0_NS + 60 * NS_PER_S)

    async def sleep(self, seconds: float) -> None:
        del seconds


def _later() -> Sent:
    """Return a batch that is accepted now, with records of a time long ago."""
    records_ns, now_ns = DAY0_NS + 3 * NS_PER_S, SystemClock().now_ns()
    return log_batch(["late", "new"], start=9, agent="host-2", from_ns=records_ns, at_ns=now_ns)


async def _followed(place: Deployment) -> list[list[object]]:
    found = []
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
            store=store, store_url=place.url, settings=QuerySettings(), clock=FrozenClock()
        )
        async for result in follow(searcher.search, searcher.clock, make_query(limit=2)):
            found.append([row["body"] for row in result.records])
            step = next(steps, None)
            if step is None:
                return found
            await asyncio.to_thread(step)
    return found


def test_a_follower_returns_each_record_once(tmp_path: Path) -> None:
    """First the latest records, then new ones. Ingestion of a pending batch adds none."""
    place = deployment(tmp_path)
    place.deliver([log_batch(["a", "b", "c"], step_ns=2 * NS_PER_S)])
    first, same, ingested, fresh, settled = asyncio.run(_followed(place))
    assert first == ["b", "c"]
    assert same == []  # records that the first limit cut off are old
    assert (ingested, fresh, settled) == ([], ["late", "new"], [])
