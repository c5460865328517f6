"""The scanner, the tail, and object events."""

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
from sluice_reconciler.scanners import CHECKPOINT, TimeIndexScanner
from sluice_reconciler.service import Reconciler


def sim() -> SimStore:
    return SimStore(clock=SimClock())


def make(store: SimStore, seed: int = 1) -> Reconciler:
    runtime = Runtime(clock=store.clock, ids=SimIds(seed), rng=random.Random(seed))
    return Reconciler(store, Authority(authority_id="A", lanes=2), runtime=runtime)


def test_scanner_takes_what_others_indexed_once_and_remembers_how_far() -> None:
    """A by-time entry that an event worker wrote is enqueued by the next scan, once."""

    async def run() -> None:
        store = sim()
        batches = [await accept(store, seq) for seq in range(0, 50, 10)]
        for one in batches[:3]:
            await store.create(index_keys(one)[0], encode_record(one))
        reconciler = make(store)
        scanner = TimeIndexScanner(reconciler.intake)
        first = await scanner.scan()
        assert (first.sound, first.enqueued) == (3, 3)
        reads = store.counts["get"]
        assert (await scanner.scan()).sound == 0
        assert store.counts["get"] == reads
        assert CHECKPOINT in store.held
        await store.create(index_keys(batches[3])[0], encode_record(batches[3]))
        await store.create(index_keys(batches[4])[0], b"{broken")
        assert (await scanner.scan()).enqueued == 1
        again = TimeIndexScanner(make(store, 2).intake)
        await again._intake.desks["spark", 0].refresh()
        await again._intake.desks["spark", 1].refresh()
        assert (await again.scan()).sound == 0
        assert len(await enqueued(store)) == 4

    asyncio.run(run())


def test_tail_finds_what_came_behind_the_last_key_of_each_life() -> None:
    """After a pass, new batches of known lives are taken by listing only what lies behind them."""

    async def run() -> None:
        store = sim()
        for agent in ("a", "b"):
            for seq in range(0, 50, 10):
                await accept(store, seq, agent=agent)
        reconciler = make(store)
        assert (await reconciler.once()).outcome.enqueued == 10
        assert (await reconciler.tail.scan()).sound == 0
        await accept(store, 50, agent="a")
        await accept(store, 70, agent="b")
        await accept(store, 60, agent="b")
        gets = store.counts["get"]
        assert (await reconciler.tail.scan()).enqueued == 3
        assert store.counts["get"] < gets + 20
        assert (await reconciler.tail.scan()).sound == 0
        await accept(store, 0, agent="new life")
        assert (await reconciler.tail.scan()).sound == 0
        assert (await reconciler.once()).outcome.enqueued == 1

    asyncio.run(run())


def test_all_routes_at_once_end_in_the_same_state() -> None:
    """Full pass, scanner and hints over the same batches enqueue each of them once."""

    async def run() -> None:
        store = sim()
        batches = [await accept(store, seq) for seq in range(0, 200, 10)]
        for one in batches:
            await store.create(index_keys(one)[0], encode_record(one))
        reconciler = make(store)
        keys = [accepted_key(one.identity) for one in batches]
        await asyncio.gather(
            reconciler.once(),
            TimeIndexScanner(reconciler.intake).scan(),
            reconciler.intake.take_new(keys),
            reconciler.intake.take_new(keys[::-1]),
        )
        found = [one.identity for one in await enqueued(store)]
        assert sorted(found) == sorted(one.identity for one in batches)

    asyncio.run(run())


def test_routes_that_meet_the_same_batches_do_the_work_once() -> None:
    """Who comes second waits for the first and reads nothing again; so does the next pass."""

    async def run() -> None:
        store = sim()
        keys = [accepted_key((await accept(store, seq)).identity) for seq in range(0, 200, 10)]
        reconciler = make(store)
        await asyncio.gather(
            reconciler.intake.take(keys),
            reconciler.intake.take(keys[::-1]),
            reconciler.intake.take(keys[5:]),
        )
        # Manifest and blob once each; the rest are the lane's own objects.
        assert (store.counts["head"], len(await enqueued(store))) == (20, 20)
        assert (await reconciler.once()).outcome.sound == 0
        assert store.counts["head"] == 20

    asyncio.run(run())


def test_a_route_that_fails_leaves_its_batches_to_the_one_that_waited() -> None:
    """Waiting for another route is no promise that it succeeds."""

    async def run() -> None:
        store = sim()
        keys = [accepted_key((await accept(store, seq)).identity) for seq in range(0, 50, 10)]
        reconciler = make(store)
        first = asyncio.create_task(reconciler.intake.take(keys))
        await asyncio.sleep(0)
        second = asyncio.create_task(reconciler.intake.take(keys))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).enqueued == 5
        assert len(await enqueued(store)) == 5

    asyncio.run(run())


def test_tail_waits_at_a_hole_for_a_batch_that_comes_out_of_order() -> None:
    """Two uploads of one life overtake each other: the later one is found without a pass."""

    async def run() -> None:
        store = sim()
        await accept(store, 0)
        reconciler = make(store)
        await reconciler.once()
        await accept(store, 20)
        assert (await reconciler.tail.scan()).enqueued == 1
        await accept(store, 10)
        assert (await reconciler.tail.scan()).enqueued == 1
        heads = store.counts["head"]
        assert (await reconciler.tail.scan()).sound == 0
        assert store.counts["head"] == heads

    asyncio.run(run())


@given(st.binary(max_size=200))
def test_event_bytes_are_refused_by_name(body: bytes) -> None:
    """No body makes the parser fail with anything but its own error."""
    with contextlib.suppress(BadUsage):
        parse_events(body)


@given(st.recursive(st.none() | st.text() | st.integers(), lambda s: st.lists(s, max_size=3)))
def test_events_of_odd_json_are_refused_by_name(value: object) -> None:
    """Nor does JSON of another shape."""
    import msgspec  # noqa: PLC0415

    for shape in (value, {"Records": value}, {"detail": value}, {"Message": value}):
        with contextlib.suppress(BadUsage):
            parse_events(msgspec.json.encode(shape))
