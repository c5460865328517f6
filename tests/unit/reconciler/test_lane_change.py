"""What `sluice queue lanes` refuses, and a change of two queues, one of them served over HTTP."""

import asyncio
from collections import Counter

import pytest
from support.queue_store import SimStore
from support.reconciler_seed import accept
from support.reconciler_world import TWO_LANES, Crash, Mortal, make, runtime_of

from sluice_protocol.authority import Authority
from sluice_protocol.errors import BadUsage
from sluice_protocol.identity import Identity
from sluice_protocol.keys import AUTHORITY_SETTINGS, lane_of
from sluice_protocol.manifests import encode_record
from sluice_queue.consumer import Consumer
from sluice_queue.lane import Lane
from sluice_queue.register import SEALED, decode_register
from sluice_reconciler.http_queue import HttpQueue
from sluice_reconciler.indexes import DifferenceKind
from sluice_reconciler.lanes.change import _Change, change_lanes, read_begun
from sluice_reconciler.lanes.defects import read_queue_status
from sluice_reconciler.lanes.membership import LiveMembers
from sluice_reconciler.lanes.state import lane_key, read_lane_state
from sluice_store.authority import read_authority

AGENTS = tuple(f"host-{number}" for number in range(6))


async def filled(queues: str = "spark") -> SimStore:
    """Return a store with two lanes, and a batch of each agent in each queue."""
    store = SimStore()
    await store.create(AUTHORITY_SETTINGS, encode_record(TWO_LANES))
    for agent in AGENTS:
        await accept(store, agent=agent)
    await make(store, 1, authority=TWO_LANES, queues=queues).once()
    return store


async def drain(store: SimStore, authority: Authority) -> None:
    """Acknowledge every entry of Spark's queue."""
    for lane in range(authority.lanes):
        consumer = await Consumer.open(
            store,
            queue="spark",
            lane=lane,
            layout=authority.layout,
            after=authority.after_sequence,
            runtime=runtime_of(store, lane),
        )
        found = await consumer.next_descriptors(100)
        if found:
            await consumer.ack_through(found[-1].sequence)


async def change(store: SimStore, lanes: int, seed: int = 5) -> None:
    await change_lanes(store, lanes, runtime_of(store, seed), lambda _: None)


async def begun(store: SimStore, lanes: int) -> None:
    """Begin a change and kill the command when it has closed the lanes."""
    mortal = Mortal(store=store, rng=runtime_of(store).rng, left=10)
    with pytest.raises((Crash, BaseExceptionGroup)):
        await change_lanes(mortal, lanes, runtime_of(store, 9), lambda _: None)  # type: ignore[arg-type]


async def test_another_number_is_refused_while_a_change_is_not_finished() -> None:
    store = await filled()
    await drain(store, TWO_LANES)
    await begun(store, 5)
    assert await read_begun(store, TWO_LANES) == 5
    for other in (2, 3):
        with pytest.raises(BadUsage, match="run `sluice queue lanes 5`"):
            await change(store, other)
    lanes = await read_queue_status(store, 2, members=LiveMembers(records=(), silent_s={}))
    shown = [one.ownership.detail for one in lanes if one.ownership is not None]
    assert any("sluice queue lanes 5" in one for one in shown)
    await change(store, 5)
    assert (await read_authority(store)).lanes == 5


@pytest.mark.parametrize("lanes", [2, 5], ids=["of init", "of a change"])
async def test_a_repeated_change_writes_nothing(lanes: int) -> None:
    store = await filled()
    await drain(store, TWO_LANES)
    if lanes != TWO_LANES.lanes:
        await change(store, lanes)
    held, notes = {key: one.body for key, one in store.held.items()}, list[str]()
    again = await change_lanes(store, lanes, runtime_of(store, 6), notes.append)
    assert (again.number, again.lanes_before, again.lanes) == (int(lanes == 5), 2, lanes)
    assert notes == [f"nothing to change: the queues have {lanes} lanes"]
    assert {key: one.body for key, one in store.held.items()} == held


async def test_a_lost_register_is_refused_before_anything_is_closed() -> None:
    store = await filled()
    await drain(store, TWO_LANES)
    del store.held[Lane(queue="spark", lane=1).key]
    with pytest.raises(BadUsage, match="sluice rebuild"):
        await change(store, 4)
    assert await read_begun(store, TWO_LANES) == 0


async def test_a_closed_lane_stays_closed_and_its_parts_are_deleted() -> None:
    store = await filled()
    await drain(store, TWO_LANES)
    await change(store, 5)
    for lane in range(2):
        stored = await read_lane_state(store, Lane(queue="spark", lane=lane))
        assert stored is not None
        assert stored.record.closed_for == 5
        assert not stored.record.recent
    key = lane_key(Lane(queue="spark", lane=0))
    body = store.held[key].body
    report = await make(store, 3, authority=TWO_LANES).once()
    assert report.outcome.enqueued == 0
    assert store.held[key].body == body


async def test_a_lane_state_that_is_rebuilt_during_a_change_is_closed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = await filled()
    await drain(store, TWO_LANES)

    async def killed(_: object) -> None:
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(_Change, "record", killed)
        with pytest.raises(Crash):
            await change(store, 5)
    store._put(lane_key(Lane(queue="spark", lane=1)), b"damaged")
    persisted = {Lane(queue="spark", lane=lane): 0 for lane in range(2)}
    _ = [one async for one in make(store, 7, authority=TWO_LANES).rebuild(persisted).repair()]
    await change(store, 5, 8)
    authority = await read_authority(store)
    assert authority.lanes == 5
    again = await make(store, 8, authority=authority).once()
    lost = [agent for agent in AGENTS if lane_of(agent, 2) == 1]
    assert again.outcome.enqueued == len(lost), "as after every rebuild, known to the ledger"


async def test_two_queues_change_together_and_each_hands_over_every_batch_once() -> None:
    store = await filled("spark,sink")
    served: Counter[Identity] = Counter()

    async def serve(authority: Authority) -> int:
        queue = HttpQueue(store, "sink", authority, runtime_of(store, 20), lease_s=60)
        found = await queue.claim(100, "c")
        await queue.commit([one.lease_id for one in found])
        served.update(batch.identity for one in found for batch in one.batches)
        return len(found)

    with pytest.raises(BadUsage, match="start its consumer first"):
        await change(store, 5)
    await drain(store, TWO_LANES)
    gone = HttpQueue(store, "sink", TWO_LANES, runtime_of(store, 30), lease_s=60)
    assert await gone.claim(100, "a consumer that ends")
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(change(store, 5))
        for _ in range(200):
            await asyncio.sleep(0)
        assert not task.done(), "it waits for the consumer of the other queue"
        assert await serve(TWO_LANES)
    authority = await read_authority(store)
    assert (authority.lanes, authority.layout) == (5, 1)
    for agent in AGENTS:
        await accept(store, 10, agent=agent)
    report = await make(store, 4, authority=authority, queues="spark,sink").once()
    assert report.outcome.enqueued == 2 * len(AGENTS)
    assert await serve(TWO_LANES) == 0, "of the earlier layout"
    while await serve(authority):
        pass
    assert set(served.values()) == {1}
    assert len(served) == 2 * len(AGENTS)


async def test_a_damaged_register_of_a_lane_that_was_left_out_is_replaced() -> None:
    """It stops every reader of all lanes, and no present lane is concerned."""
    store = await filled()
    await drain(store, TWO_LANES)
    await change(store, 1)
    one, left_out = (Lane(queue="spark", lane=lane) for lane in range(2))
    body = store.held[left_out.key].body
    store._put(left_out.key, body[:60] + bytes([body[60] ^ 1]) + body[61:])
    authority = await read_authority(store)
    rebuild = make(store, 9, authority=authority).rebuild({one: authority.after_sequence})
    found = [(one.key, one.wrong) async for one in rebuild.differences()]
    assert found == [(left_out.key, DifferenceKind.UNREADABLE)]
    assert [(one.key, one.wrong) async for one in rebuild.repair()] == found
    assert [one async for one in rebuild.differences()] == []
    state = decode_register(left_out.key, store.held[left_out.key].body)
    assert (state.layout, state.waiting) == (SEALED, 0)
    await change(store, 3, 8)
    again = await make(store, 8, authority=await read_authority(store)).once()
    assert again.outcome.left == 0
