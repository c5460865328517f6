"""What the reconciler measures: the queue, its requests, and the age of pending batches."""

from collections.abc import Callable

import pytest
from support.queue_store import SimClock, SimStore
from support.reconciler_seed import accept
from support.reconciler_world import ONE_LANE, make

from sluice_protocol.errors import StoreUnavailable
from sluice_protocol.keys import DEAD_LETTER_FILES, GATEWAY_JOURNALS, WORK_LISTS
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_reconciler.lanes.upkeep import MEASURE_S
from sluice_reconciler.metrics import PendingStages, Stage, StoreClock
from sluice_reconciler.service import Reconciler
from sluice_store.port import ListPage


def value(reconciler: Reconciler, name: str, **labels: str) -> float | None:
    return reconciler.metrics.registry.get_sample_value(name, labels)


async def test_objects_and_bytes_of_the_queue_are_measured_once_an_hour(store: SimStore) -> None:
    await accept(store, 0)
    reconciler = make(store, authority=ONE_LANE)
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
    await store.clock.sleep(MEASURE_S)
    await reconciler._queue_upkeep.run()
    assert sizes("journals") == (2, 10)


def refuses(refused: str, prefix: str) -> Callable[[str, str], None]:
    """Return what refuses one verb of a store under a prefix."""

    def refuse(verb: str, key: str) -> None:
        if verb == refused and key.startswith(prefix):
            raise StoreUnavailable(verb, key, "503")

    return refuse


async def test_a_measurement_that_failed_is_due_in_the_next_round(store: SimStore) -> None:
    await accept(store, 0)
    reconciler = make(store, authority=ONE_LANE)
    await reconciler.once()
    await store.create(ObjectKey(f"{GATEWAY_JOURNALS}p/1"), b"12345")
    plain, store.before = store.before, refuses("list", GATEWAY_JOURNALS)
    with pytest.raises(StoreUnavailable):
        await reconciler._queue_upkeep.run()
    store.before = plain
    await reconciler._queue_upkeep.run()
    assert value(reconciler, "sluice_queue_bytes", part="journals") == 5


async def test_each_page_of_a_listing_is_counted_as_a_request(store: SimStore) -> None:
    await accept(store, 0)
    reconciler = make(store, authority=ONE_LANE)

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


def test_age_is_that_of_the_oldest_pending_batch() -> None:
    """Stages are independent, ages grow with the clock, and an empty stage has age 0."""
    store_clock = StoreClock(SimClock())
    backlog = PendingStages(store_clock)
    store_clock.observe(UnixNs(100 * NS_PER_S))
    one, two = ObjectKey("one"), ObjectKey("two")
    backlog.begin(Stage.INDEX, one, UnixNs(90 * NS_PER_S))
    backlog.begin(Stage.INDEX, two, UnixNs(97 * NS_PER_S))
    assert (backlog.oldest_s(Stage.INDEX), backlog.oldest_s(Stage.ENQUEUE)) == (10, 0)
    backlog.end(Stage.INDEX, [one, one])
    assert backlog.oldest_s(Stage.INDEX) == 3


async def test_batch_whose_append_failed_is_pending_until_a_pass_enqueues_it(
    store: SimStore,
) -> None:
    """It is pending at `enqueue` after the failure; a full pass that left no batch clears it."""
    await accept(store, 0)
    plain, store.before = store.before, refuses("create", WORK_LISTS)
    reconciler = make(store)
    backlog = reconciler._context.pending
    assert (await reconciler.once()).outcome.left == 1
    assert [len(keys) for keys in backlog.known().values()] == [0, 1]
    store.before = plain
    await reconciler.once()
    assert [len(keys) for keys in backlog.known().values()] == [0, 0]
