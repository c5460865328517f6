"""Damaged and lost bookkeeping of lanes: reported with the next step, and rebuilt with a copy."""

from collections.abc import Callable

import pytest
from support.queue_store import CrowdedStore, SimStore
from support.reconciler_seed import accept, enqueued
from support.reconciler_world import make, make_parts_small

from sluice_protocol.errors import BadUsage, UnsupportedVersion
from sluice_protocol.keys import LEDGER_LOG, LOGS_LOG, damaged_copy_key, digest_of, segment_key
from sluice_protocol.outcomes import ReplaceOutcome, Unknown, UnknownReason
from sluice_protocol.units import ETag, ObjectKey
from sluice_queue.consumer import Consumer
from sluice_queue.errors import LaneDamaged
from sluice_queue.inspection import LANES_AT_ONCE, LaneCondition, LaneStatus, read_lane
from sluice_queue.lane import Lane
from sluice_queue.register import decode_register, encode_register
from sluice_queue.register_client import spill
from sluice_reconciler.app import refuse_lost_queue
from sluice_reconciler.indexes import DerivedDifference, DifferenceKind
from sluice_reconciler.lanes.defects import LaneDefect, read_queue_status
from sluice_reconciler.lanes.rebuild import LaneRebuild
from sluice_reconciler.lanes.state import damaged_state_key, decode_lane, lane_key, part_key
from sluice_reconciler.rebuild import Rebuild
from sluice_reconciler.settings import ReconcilerSettings

LANE = Lane(queue="spark", lane=0)
LANES = 2
AGENTS = ("host-1", "host-2", "host-3", "host-4")


def rebuild(store: SimStore, persisted: int = 0) -> Rebuild:
    lanes = [Lane(queue="spark", lane=lane) for lane in range(LANES)]
    return make(store, 9).rebuild(dict.fromkeys(lanes, persisted))


async def status(store: SimStore) -> dict[int, LaneStatus]:
    return {one.lane: one for one in await read_queue_status(store, LANES)}


async def filled(passes: int = 3) -> SimStore:
    """Return a store in which both lanes of the queue have one entry per pass."""
    store = SimStore()
    for seq in range(0, passes * 10, 10):
        for agent in AGENTS:
            await accept(store, seq, agent=agent)
        await make(store, seq + 1).once()
    assert {one.waiting for one in (await status(store)).values()} == {passes}
    return store


def damage(store: SimStore, key: str, change: Callable[[bytes], bytes]) -> bytes:
    broken = change(store.held[key].body)
    store._put(key, broken)
    return broken


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda body: b"",
    "cut short": lambda body: body[:100],
    "other bytes": lambda body: b"\x00" * len(body),
    "damaged entry": lambda body: body[:-200] + b"\xff" * 200,
}


@pytest.mark.parametrize("change", DAMAGES.values(), ids=DAMAGES.keys())
async def test_damaged_register_is_kept_and_the_lane_rebuilt(
    change: Callable[[bytes], bytes],
) -> None:
    """Status and comparison name the next step; the rebuild loses no batch and keeps the bytes."""
    store = await filled()
    before = sorted(one.identity for one in await enqueued(store))
    broken = damage(store, LANE.key, change)

    seen = await status(store)
    assert [seen[lane].condition for lane in (0, 1)] == [LaneCondition.DAMAGED, LaneCondition.SOUND]
    assert "sluice rebuild" in seen[0].problem
    found = [(one.key, one.wrong) async for one in rebuild(store).differences()]
    assert found == [(LANE.key, DifferenceKind.UNREADABLE)]
    assert store.held[LANE.key].body == broken

    copy = damaged_copy_key("spark", 0, digest_of(broken))
    repaired = [one async for one in rebuild(store).repair()]
    assert [(one.key, one.wrong) for one in repaired] == [(LANE.key, DifferenceKind.UNREADABLE)]
    assert f"kept as {copy}" in repaired[0].detail
    assert store.held[copy].body == broken
    await make(store, 50).once()
    assert [one async for one in rebuild(store).differences()] == []
    assert sorted(one.identity for one in await enqueued(store)) == before
    assert {one.condition for one in (await status(store)).values()} == {LaneCondition.SOUND}


async def test_a_register_that_another_rebuild_has_replaced_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other one ends, and a batch is enqueued, after both have read the damaged register."""
    store = await filled()
    damage(store, LANE.key, DAMAGES["cut short"])
    alone = LaneRebuild._move_segments
    replaced = b""

    async def after_another(self: LaneRebuild, lane: Lane) -> None:
        nonlocal replaced
        monkeypatch.setattr(LaneRebuild, "_move_segments", alone)
        assert [one async for one in rebuild(store).repair()]
        await make(store, 50).once()
        replaced = store.held[LANE.key].body
        await alone(self, lane)

    monkeypatch.setattr(LaneRebuild, "_move_segments", after_another)
    with pytest.raises(BadUsage, match="written meanwhile: repeat"):
        _ = [one async for one in rebuild(store).repair()]
    assert decode_register(LANE.key, replaced).waiting
    assert store.held[LANE.key].body == replaced


async def test_damaged_register_halts_only_its_lane() -> None:
    store = await filled()
    damage(store, LANE.key, DAMAGES["cut short"])
    for agent in AGENTS:
        await accept(store, 100, agent=agent)
    report = await make(store, 2).once()
    assert report.registers_lost == (LANE.key,)
    assert (report.outcome.enqueued, report.outcome.left) == (2, 2)


async def test_register_of_a_newer_version_is_never_replaced() -> None:
    """It is not damaged: the error names the upgrade as the next step, and nothing is written."""
    store = await filled()
    newer = damage(store, LANE.key, lambda body: body[:4] + b"\x09\x00" + body[6:])
    with pytest.raises(UnsupportedVersion, match="update"):
        _ = [one async for one in rebuild(store).repair(first_sequence=1)]
    assert store.held[LANE.key].body == newer


@pytest.mark.parametrize("gone", [True, False], ids=["missing", "damaged"])
async def test_lane_with_an_unreadable_segment_is_rebuilt(gone: bool) -> None:
    """The segments are moved, since the new register assigns their sequences again."""
    store = await filled(4)
    moved = spill(LANE.key, decode_register(LANE.key, store.held[LANE.key].body))
    key = segment_key("spark", 0, moved.ref.first, moved.ref.last)
    store._put(key, moved.body)
    store._put(LANE.key, encode_register(moved.after))
    assert len((await read_lane(store, "spark", 0)).descriptors) == 4
    if gone:
        del store.held[key]
    else:
        damage(store, key, DAMAGES["cut short"])
    assert (await status(store))[0].condition is LaneCondition.DAMAGED
    with pytest.raises(LaneDamaged, match="sluice rebuild"):
        await read_lane(store, "spark", 0)
    repaired = [one.wrong async for one in rebuild(store).repair()]
    assert repaired == [DifferenceKind.UNREADABLE]
    assert key not in store.held
    copies = [one for one in store.held if "/damaged-" in one]
    assert len(copies) == (1 if gone else 2)
    await make(store, 50).once()
    assert len(await enqueued(store)) == 16
    assert [one async for one in rebuild(store).differences()] == []


@pytest.mark.parametrize("trace", ["lane state", "segment", "consumer"])
async def test_missing_register_is_reported_as_lost_lane(trace: str) -> None:
    """The register is gone; any one of three traces shows that the lane existed."""
    store = await filled()
    del store.held[LANE.key]
    persisted = {}
    if trace != "lane state":
        del store.held[lane_key(LANE)]
    if trace == "segment":
        store._put(segment_key("spark", 0, 1, 2), b"any")
    if trace == "consumer":
        persisted = {LANE: 3}
    seen = {one.lane: one for one in await read_queue_status(store, LANES, "spark", persisted)}
    assert [seen[lane].condition for lane in (0, 1)] == [LaneCondition.LOST, LaneCondition.SOUND]
    assert "sluice rebuild" in seen[0].problem


async def test_lane_that_was_never_used_is_not_lost(store: SimStore) -> None:
    await accept(store, 0, agent="host-1")
    await make(store).once()
    assert [one.condition for one in await read_queue_status(store, 64)] == [LaneCondition.SOUND]


async def test_lanes_are_read_concurrently_within_a_bound() -> None:
    """With 64 lanes and 20 ms for each request, one after the other would take four seconds."""
    store = CrowdedStore()
    await accept(store, 0, agent="host-1")
    await make(store).once()
    store.most = 0
    await read_queue_status(store, 64)
    assert store.most == LANES_AT_ONCE


async def test_damaged_lane_state_is_kept_and_every_batch_of_the_lane_enqueued_again() -> None:
    store = await filled()
    before = {one.identity for one in await enqueued(store)}
    broken = damage(store, lane_key(LANE), lambda body: body[:20])
    assert (await status(store))[0].condition is LaneCondition.DAMAGED
    report = await make(store, 2).once()
    assert report.registers_lost == (lane_key(LANE),)
    assert (report.outcome.enqueued, report.outcome.left) == (0, 6)

    repaired = [(one.key, one.wrong) async for one in rebuild(store).repair()]
    assert repaired == [(lane_key(LANE), DifferenceKind.UNREADABLE)]
    assert store.held[damaged_state_key(LANE, digest_of(broken))].body == broken
    assert (await make(store, 50).once()).outcome.enqueued == 6
    assert {one.identity for one in await enqueued(store)} == before
    assert {one.condition for one in (await status(store)).values()} == {LaneCondition.SOUND}


@pytest.mark.parametrize("part", [True, False], ids=["part", "record"])
async def test_a_state_that_another_rebuild_has_replaced_is_kept(
    monkeypatch: pytest.MonkeyPatch, part: bool
) -> None:
    """The other one ends, and batches are enqueued, after both have found the damaged state."""
    make_parts_small(monkeypatch)
    store = await filled(8)
    named = next(decode_lane(lane_key(LANE), store.held[lane_key(LANE)].body).parts())
    damage(store, part_key(LANE, named.name) if part else lane_key(LANE), lambda body: body[:-1])
    alone = LaneRebuild._replace_state
    written = b""

    async def after_another(self: LaneRebuild, lane: Lane, defect: LaneDefect) -> DerivedDifference:
        nonlocal written
        monkeypatch.setattr(LaneRebuild, "_replace_state", alone)
        assert [one async for one in rebuild(store).repair()]
        await make(store, 50).once()
        written = store.held[lane_key(LANE)].body
        return await alone(self, lane, defect)

    monkeypatch.setattr(LaneRebuild, "_replace_state", after_another)
    with pytest.raises(BadUsage, match="written meanwhile: repeat"):
        _ = [one async for one in rebuild(store).repair()]
    assert decode_lane(lane_key(LANE), written).writes
    assert store.held[lane_key(LANE)].body == written


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not applied"])
async def test_an_empty_state_whose_response_was_lost_is_written_once(
    monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    store = await filled()
    broken = damage(store, lane_key(LANE), DAMAGES["cut short"])
    replace, lost = SimStore.replace, [lane_key(LANE)]

    async def lose(
        self: SimStore, key: ObjectKey, body: bytes, *, if_match: ETag
    ) -> ReplaceOutcome:
        if key not in lost:
            return await replace(self, key, body, if_match=if_match)
        lost.remove(key)
        if applied:
            await replace(self, key, body, if_match=if_match)
        return Unknown(reason=UnknownReason.TIMEOUT)

    monkeypatch.setattr(SimStore, "replace", lose)
    repaired = [one async for one in rebuild(store).repair()]
    kept = damaged_state_key(LANE, digest_of(broken))
    assert [one.key for one in repaired] == [lane_key(LANE)]
    assert f"kept as {kept}" in repaired[0].detail
    assert not lost
    assert {one.condition for one in (await status(store)).values()} == {LaneCondition.SOUND}


@pytest.mark.parametrize("lost", [True, False], ids=["missing", "damaged"])
async def test_rebuild_of_a_register_that_was_interrupted_can_be_repeated(lost: bool) -> None:
    """Whichever write is the last one that was made, the lane stays halted until the repetition.

    The position of the consumer is not stored, as for every queue but Spark's.
    """

    async def repair(store: SimStore) -> None:
        _ = [one async for one in make(store, 9).rebuild().repair(first_sequence=3)]

    for writes in range(1, 6):
        store = await filled()
        before = {one.identity for one in await enqueued(store)}
        if lost:
            del store.held[LANE.key]
        else:
            damage(store, LANE.key, DAMAGES["cut short"])
        put, left = store._put, [writes]

        def stop(key: str, body: bytes, put: object = put, left: list[int] = left) -> object:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            return put(key, body)

        store._put = stop
        interrupted = False
        try:
            await repair(store)
        except KeyboardInterrupt:
            interrupted = True
        del store._put
        if interrupted:
            assert (await status(store))[0].condition is not LaneCondition.SOUND
            await repair(store)
        await make(store, 50).once()
        assert {one.identity for one in await enqueued(store)} == before
        consumer = await Consumer.open(store, queue="spark", lane=0, resume_after=2)
        assert (await consumer.next_descriptors(1))[0].sequence == 3
        if not interrupted:
            return
    raise AssertionError("the rebuild was interrupted every time")


@pytest.mark.parametrize("table_log", [LEDGER_LOG, LOGS_LOG])
async def test_a_queue_is_lost_only_if_a_round_was_committed(
    table_log: str, store: SimStore
) -> None:
    """An ingest that starts first creates empty tables, and the registers after them."""
    for first in (LEDGER_LOG, LOGS_LOG):
        await store.create(ObjectKey(f"{first}{0:020d}.json"), b"{}")
    await refuse_lost_queue(store, ReconcilerSettings())
    await store.create(ObjectKey(f"{table_log}{1:020d}.json"), b"{}")
    with pytest.raises(BadUsage, match="queue is lost"):
        await refuse_lost_queue(store, ReconcilerSettings())
