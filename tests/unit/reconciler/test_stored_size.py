"""What the reconciler measures about the store: the size of the queue, and its own requests."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.queue_store import SimClock, SimIds, SimStore
from support.reconciler_seed import accept

from sluice_protocol.authority import Authority
from sluice_protocol.errors import StoreUnavailable
from sluice_protocol.keys import DEAD_LETTER_FILES, GATEWAY_JOURNALS
from sluice_protocol.units import ObjectKey
from sluice_queue.lane import Runtime
from sluice_reconciler.lanes.upkeep import MEASURE_S
from sluice_reconciler.service import Reconciler
from sluice_store.port import ListPage


def make(store: SimStore) -> Reconciler:
    runtime = Runtime(clock=store.clock, ids=SimIds(1), rng=random.Random(1))
    return Reconciler(store, Authority(authority_id="A", lanes=1), runtime=runtime)


def value(reconciler: Reconciler, name: str, **labels: str) -> float | None:
    return reconciler.metrics.registry.get_sample_value(name, labels)


def test_objects_and_bytes_of_the_queue_are_measured_once_an_hour() -> None:
    async def run() -> None:
        clock = SimClock()
        store = SimStore(clock=clock)
        await accept(store, 0)
        reconciler = make(store)
        await reconciler.once()
        await store.create(ObjectKey(f"{GATEWAY_JOURNALS}p/1"), b"12345")
        await store.create(ObjectKey(f"{DEAD_LETTER_FILES}f.parquet"), b"123")
        await store.create(ObjectKey(f"{DEAD_LETTER_FILES}_delta_log/0.json"), b"12")

        def sizes(part: str) -> tuple[float | None, float | None]:
            return (
                value(reconciler, "sluice_queue_objects", part=part),
                value(reconciler, "sluice_queue_bytes", part=part),
            )

        await reconciler._queue_upkeep.run()
        registers = [one async for page in store.list("queue/v1/") for one in page.objects]
        assert sizes("queue") == (1, registers[0].size_bytes)
        assert (sizes("journals"), sizes("dead_letters")) == ((1, 5), (2, 5))
        await store.create(ObjectKey(f"{GATEWAY_JOURNALS}p/2"), b"12345")
        await reconciler._queue_upkeep.run()
        assert sizes("journals") == (1, 5)
        await clock.sleep(MEASURE_S)
        await reconciler._queue_upkeep.run()
        assert sizes("journals") == (2, 10)

    asyncio.run(run())


def test_a_measurement_that_failed_is_due_in_the_next_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        store = SimStore(clock=SimClock())
        await accept(store, 0)
        reconciler = make(store)
        await reconciler.once()
        await store.create(ObjectKey(f"{GATEWAY_JOURNALS}p/1"), b"12345")
        plain = store.list

        def refuse(prefix: str, **options: Any) -> AsyncIterator[ListPage]:
            if prefix == GATEWAY_JOURNALS:
                raise StoreUnavailable("list", prefix, "503")
            return plain(prefix, **options)

        with monkeypatch.context() as broken:
            broken.setattr(store, "list", refuse)
            with pytest.raises(StoreUnavailable):
                await reconciler._queue_upkeep.run()
        await reconciler._queue_upkeep.run()
        assert value(reconciler, "sluice_queue_bytes", part="journals") == 5

    asyncio.run(run())


def test_each_page_of_a_listing_is_counted_as_a_request() -> None:
    async def run() -> None:
        store = SimStore(clock=SimClock())
        await accept(store, 0)
        reconciler = make(store)

        def listed() -> float:
            return value(reconciler, "sluice_reconciler_store_requests_total", op="list") or 0

        async def list_all(subject: SimStore | Reconciler) -> list[ListPage]:
            source = subject.store if isinstance(subject, Reconciler) else subject
            return [page async for page in source.list("accepted/")]

        pages = await list_all(store)
        assert listed() == 0
        assert [one.objects for one in await list_all(reconciler)] == [one.objects for one in pages]
        assert listed() == len(pages)
        await reconciler.once()
        assert listed() > len(pages)
        assert value(reconciler, "sluice_reconciler_store_requests_total", op="get")

    asyncio.run(run())
