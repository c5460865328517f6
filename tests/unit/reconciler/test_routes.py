"""The scanners, and object events."""

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.queue_store import SimStore
from support.reconciler_seed import accept, enqueued, index_keys
from support.reconciler_world import make

from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import accepted_key
from sluice_protocol.manifests import AcceptedManifest, decode_record, encode_record
from sluice_protocol.units import NS_PER_S
from sluice_reconciler.events import parse_events
from sluice_reconciler.passes.scanners import CHECKPOINT, Checkpoint


async def test_scanner_enqueues_what_others_indexed_once_and_stores_a_checkpoint() -> None:
    store = SimStore()
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


async def test_tail_scan_finds_batches_behind_the_last_key_of_each_boot(store: SimStore) -> None:
    """After a pass, only the part of each known boot behind its last key is listed."""
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


async def test_concurrent_routes_enqueue_each_batch_once(store: SimStore) -> None:
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


async def test_routes_with_the_same_batches_do_the_work_once(store: SimStore) -> None:
    """The second route waits for the first and reads nothing again; neither does the next pass."""
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


async def test_batches_of_a_route_that_failed_are_processed_by_the_route_that_waited() -> None:
    store = SimStore()
    keys = [accepted_key((await accept(store, seq)).identity) for seq in range(0, 50, 10)]
    reconciler = make(store)
    first = asyncio.create_task(reconciler.pipeline.process(keys))
    await asyncio.sleep(0)
    second = asyncio.create_task(reconciler.pipeline.process(keys))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).enqueued == 5
    assert len(await enqueued(store)) == 5


async def test_tail_scan_finds_a_batch_accepted_out_of_order(store: SimStore) -> None:
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


@given(st.binary(max_size=200))
def test_invalid_event_bytes_raise_bad_usage(body: bytes) -> None:
    with contextlib.suppress(BadUsage):
        parse_events(body)


@given(st.recursive(st.none() | st.text() | st.integers(), lambda s: st.lists(s, max_size=3)))
def test_json_of_another_shape_raises_bad_usage(value: object) -> None:
    import msgspec  # noqa: PLC0415

    for shape in (value, {"Records": value}, {"detail": value}, {"Message": value}):
        with contextlib.suppress(BadUsage):
            parse_events(msgspec.json.encode(shape))


HOUR_NS = 3600 * NS_PER_S
DAY_NS = 24 * HOUR_NS
OVERLAP_NS = 600 * NS_PER_S


async def index_at(store: SimStore, seq: int, at_ns: int) -> AcceptedManifest:
    """Accept a batch and write its by-time entry, as another writer does before it is enqueued."""
    one = await accept(store, seq, at_ns=at_ns)
    await store.create(index_keys(one)[0], encode_record(one))
    return one


async def test_scanner_of_a_new_process_continues_at_the_stored_checkpoint(store: SimStore) -> None:
    """After days without a scanner it begins where the last one ended; it does not read older
    entries again.
    """
    stored_ns = store.clock.at_ns
    await index_at(store, 0, stored_ns)
    first = make(store)
    assert (await first.scan_time_index()).enqueued == 1
    checkpoint = decode_record(CHECKPOINT, store.held[CHECKPOINT].body, Checkpoint)
    assert checkpoint.through_unix_ns == stored_ns
    await first._workers.close()
    await index_at(store, 10, stored_ns + HOUR_NS)
    await index_at(store, 20, stored_ns - OVERLAP_NS - 1)
    store.clock.at_ns += 3 * DAY_NS
    again = make(store, 2)
    await again._workers.refresh()
    assert (await again.scan_time_index()).enqueued == 1
    assert [one.seq_start for one in await enqueued(store)] == [0, 10]


async def test_scanner_without_a_checkpoint_begins_a_day_back(store: SimStore) -> None:
    now_ns = store.clock.at_ns
    start_back_ns = DAY_NS + OVERLAP_NS
    await index_at(store, 0, now_ns - start_back_ns - HOUR_NS)
    await index_at(store, 10, now_ns - start_back_ns + HOUR_NS)
    assert (await make(store).scan_time_index()).enqueued == 1
    assert [one.seq_start for one in await enqueued(store)] == [10]


@pytest.mark.parametrize("restarted", [False, True])
async def test_scanner_finds_an_entry_that_appears_behind_the_checkpoint_within_the_overlap(
    store: SimStore, restarted: bool
) -> None:
    """A writer with a slow clock, or a late retry: up to the overlap, and not beyond it."""
    through_ns = store.clock.at_ns
    await index_at(store, 0, through_ns)
    scanner = make(store)
    assert (await scanner.scan_time_index()).enqueued == 1
    if restarted:
        await scanner._workers.close()
        scanner = make(store, 2)
        await scanner._workers.refresh()
    await index_at(store, 10, through_ns - OVERLAP_NS + NS_PER_S)
    await index_at(store, 20, through_ns - OVERLAP_NS - NS_PER_S)
    assert (await scanner.scan_time_index()).enqueued == 1
    assert [one.seq_start for one in await enqueued(store)] == [0, 10]
