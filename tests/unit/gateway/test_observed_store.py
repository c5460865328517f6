"""The counted store of a gateway: listings are requests too, one for each page."""

import pytest
from support.memory_bucket import Fault, Scripted, open_memory_store

from sluice_gateway.metrics import GatewayMetrics, ObservedStore
from sluice_protocol.errors import StoreError
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import ObjectKey


def listed(metrics: GatewayMetrics, result: str) -> float:
    value = metrics.registry.get_sample_value(
        "sluice_store_requests_total", {"op": "list", "result": result}
    )
    return value or 0.0


async def test_each_page_of_a_listing_is_counted() -> None:
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


async def test_a_listing_that_fails_is_counted() -> None:
    metrics = GatewayMetrics()
    inner, _ = open_memory_store(plan=Scripted({0: Fault.DENIED}))
    store = ObservedStore(inner, metrics, SystemClock())
    with pytest.raises(StoreError):
        [page async for page in store.list("k/")]
    assert listed(metrics, "error") == 1
