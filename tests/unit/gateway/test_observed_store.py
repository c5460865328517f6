"""The counted store of a gateway: listings are requests too, one for each page."""

import asyncio
from pathlib import Path

import pytest
from support.memory_bucket import Fault, Scripted, open_memory_store
from support.store_groups import ALWAYS_GROUPS, CountedSync

from sluice_gateway.metrics import GatewayMetrics, ObservedStore
from sluice_protocol.errors import StoreError
from sluice_protocol.outcomes import Applied, NotFound
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import ObjectKey
from sluice_store.bulk import NewObject
from sluice_store.local import open_local_store
from sluice_store.pairs import NewPair


def listed(metrics: GatewayMetrics, result: str) -> float:
    value = metrics.registry.get_sample_value(
        "sluice_store_requests_total", {"op": "list", "result": result}
    )
    return value or 0.0


def test_each_page_of_a_listing_is_counted() -> None:
    async def main() -> None:
        metrics = GatewayMetrics()
        inner, transport = open_memory_store()
        transport.bucket.page_keys = 2
        store = ObservedStore(inner, metrics, SystemClock())
        for number in range(5):
            await store.create(ObjectKey(f"k/{number}"), b"x")
        pages = [page async for page in store.list("k/")]
        assert [len(page.objects) for page in pages] == [2, 2, 1]
        versions = [page async for page in store.list_incarnations("k/")]
        assert listed(metrics, "listpage") == 3
        assert listed(metrics, "incarnationpage") == len(versions) > 1
        assert listed(metrics, "error") == 0

    asyncio.run(main())


def test_a_listing_that_fails_is_counted() -> None:
    async def main() -> None:
        metrics = GatewayMetrics()
        inner, _ = open_memory_store(plan=Scripted({0: Fault.DENIED}))
        store = ObservedStore(inner, metrics, SystemClock())
        with pytest.raises(StoreError):
            [page async for page in store.list("k/")]
        assert listed(metrics, "error") == 1

    asyncio.run(main())


def counted(metrics: GatewayMetrics, result: str) -> float:
    value = metrics.registry.get_sample_value(
        "sluice_store_requests_total", {"op": "create", "result": result}
    )
    return value or 0.0


def pair_of(key: str) -> NewPair:
    second = NewObject(key=ObjectKey(f"second/{key}"), body=b"y")
    return NewPair(
        first=NewObject(key=ObjectKey(f"first/{key}"), body=b"x" * 100), follow=lambda _: second
    )


def test_both_creates_of_a_pair_are_counted(tmp_path: Path) -> None:
    """The newest time of the store is that of the second object."""

    async def main() -> None:
        metrics = GatewayMetrics()
        syncs = CountedSync(tmp_path)
        async with open_local_store(tmp_path, filesystem=syncs, limits=ALWAYS_GROUPS) as inner:
            store = ObservedStore(inner, metrics, SystemClock())
            created = await store.create_pair(pair_of("a"))
            assert isinstance(created.second, Applied)
            assert counted(metrics, "applied") == 2
            assert store.answered_ns == created.second.date_ns
            assert store.health.problem(SystemClock().monotonic_ns()) == ""
            again = await store.create_pair(pair_of("a"))
            assert (counted(metrics, "exists"), again.second) == (1, None)
            with pytest.raises(StoreError):
                await store.create_pair(pair_of("../bad"))
            assert counted(metrics, "error") == 1
            assert store.health.write_problem

    asyncio.run(main())


def test_a_store_without_pairs_creates_the_first_object() -> None:
    async def main() -> None:
        metrics = GatewayMetrics()
        inner, _ = open_memory_store()
        store = ObservedStore(inner, metrics, SystemClock())
        created = await store.create_pair(pair_of("a"))
        assert isinstance(created.first, Applied)
        assert created.second is None
        assert counted(metrics, "applied") == 1
        assert isinstance(await store.head(ObjectKey("second/a")), NotFound)

    asyncio.run(main())
