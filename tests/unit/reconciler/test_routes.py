"""The scanners, and object events."""

import asyncio
import contextlib
import random

from hypothesis import given
from hypothesis import strategies as st
from support.queue_store import SimClock, SimIds, SimStore
from support.reconciler_seed import accept, enqueued, index_keys

from sluice_protocol.authority import Authority
from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import accepted_key
from sluice_protocol.manifests import encode_record
from sluice_queue.lane import Runtime
from sluice_reconciler.events import parse_events
from sluice_reconciler.scanners import CHECKPOINT
from sluice_reconciler.service import Reconciler


def sim() -> SimStore:
    return SimStore(clock=SimClock())


def make(store: SimStore, seed: int = 1) -> Reconciler:
    runtime = Runtime(clock=store.clock, ids=SimIds(seed), rng=random.Random(seed))
    return Reconciler(store, Authority(authority_id="A", lanes=2), runtime=runtime)


def test_scanner_enqueues_what_others_indexed_once_and_stores_a_checkpoint() -> None:

    async def run() -> None:
        store = sim()
        batches = [await accept(store, seq) for seq in range(0, 50, 10)]
        for one in batches[:3]:
            await store.create(index_keys(one)[0], encode_record(one))
        reconciler = make(store)
        first = await reconciler.scan_time_index()
        assert (first.sound, first.enqueued) == (3, 3)
        reads = store.counts["get"]
        assert (await reconciler.scan_time_index()).sound == 0
        assert store.counts["get"] == reads
        assert CHECKPOINT in store.held
        await store.create(index_keys(batches[3])[0], encode_record(batches[3]))
        await store.create(index_keys(batches[4])[0], b"{broken")
        assert (await reconciler.scan_time_index()).enqueued == 1
        again = make(store, 2)
        await again._workers.refresh()
        assert (await again.scan_time_index()).sound == 0
        assert len(await enqueued(store)) == 4

    asyncio.run(run())


def test_tail_scan_finds_batches_behind_the_last_key_of_each_boot() -> None:
    """After a pass, only the part of each known boot behind its last key is listed."""

    async def run() -> None:
        store = sim()
        for agent in ("a", "b"):
            for seq in range(0, 50, 10):
                await accept(store, seq, agent=agent)
        reconciler = make(store)
        assert (await reconciler.once()).outcome.enqueued == 10
        assert (await reconciler.scan_boot_tails()).sound == 0
        await accept(store, 50, agent="a")
        await accept(store, 70, agent="b")
        await accept(store, 60, agent="b")
        gets = store.counts["get"]
        assert (await reconciler.scan_boot_tails()).enqueued == 3
        assert store.counts["get"] < gets + 20
        assert (await reconciler.scan_boot_tails()).sound == 0
        await accept(store, 0, agent="new life")
        assert (await reconciler.scan_boot_tails()).sound == 0
        assert (await reconciler.once()).outcome.enqueued == 1

    asyncio.run(run())


def test_concurrent_routes_enqueue_each_batch_once() -> None:
    """Full pass, scanner and hints enqueue each of the same batches once."""

    async def run() -> None:
        store = sim()
        batches = [await accept(store, seq) for seq in range(0, 200, 10)]
        for one in batches:
            await store.create(index_keys(one)[0], encode_record(one))
        reconciler = make(store)
        keys = [accepted_key(one.identity) for one in batches]
        await asyncio.gather(
            reconciler.once(),
            reconciler.scan_time_index(),
            reconciler.pipeline.process_new(keys),
            reconciler.pipeline.process_new(keys[::-1]),
        )
        found = [one.identity for one in await enqueued(store)]
        assert sorted(found) == sorted(one.identity for one in batches)

    asyncio.run(run())


def test_routes_with_the_same_batches_do_the_work_once() -> None:
    """The second route waits for the first and reads nothing again; neither does the next pass."""

    async def run() -> None:
        store = sim()
        keys = [accepted_key((await accept(store, seq)).identity) for seq in range(0, 200, 10)]
        reconciler = make(store)
        await asyncio.gather(
            reconciler.pipeline.process(keys),
            reconciler.pipeline.process(keys[::-1]),
            reconciler.pipeline.process(keys[5:]),
        )
        # Each blob is read once.
        assert (store.counts["head"], len(await enqueued(store))) == (20, 20)
        assert (await reconciler.once()).outcome.sound == 0
        assert store.counts["head"] == 20

    asyncio.run(run())


def test_batches_of_a_route_that_failed_are_processed_by_the_route_that_waited() -> None:

    async def run() -> None:
        store = sim()
        keys = [accepted_key((await accept(store, seq)).identity) for seq in range(0, 50, 10)]
        reconciler = make(store)
        first = asyncio.create_task(reconciler.pipeline.process(keys))
        await asyncio.sleep(0)
        second = asyncio.create_task(reconciler.pipeline.process(keys))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).enqueued == 5
        assert len(await enqueued(store)) == 5

    asyncio.run(run())


def test_tail_scan_finds_a_batch_accepted_out_of_order() -> None:
    """Two uploads of one boot are accepted out of order: the late one is found without a pass."""

    async def run() -> None:
        store = sim()
        await accept(store, 0)
        reconciler = make(store)
        await reconciler.once()
        await accept(store, 20)
        assert (await reconciler.scan_boot_tails()).enqueued == 1
        await accept(store, 10)
        assert (await reconciler.scan_boot_tails()).enqueued == 1
        heads = store.counts["head"]
        assert (await reconciler.scan_boot_tails()).sound == 0
        assert store.counts["head"] == heads

    asyncio.run(run())


@given(st.binary(max_size=200))
def test_invalid_event_bytes_raise_bad_usage(body: bytes) -> None:
    """Any body is parsed or refused with BadUsage."""
    with contextlib.suppress(BadUsage):
        parse_events(body)


@given(st.recursive(st.none() | st.text() | st.integers(), lambda s: st.lists(s, max_size=3)))
def test_json_of_another_shape_raises_bad_usage(value: object) -> None:
    import msgspec  # noqa: PLC0415

    for shape in (value, {"Records": value}, {"detail": value}, {"Message": value}):
        with contextlib.suppress(BadUsage):
            parse_events(msgspec.json.encode(shape))
