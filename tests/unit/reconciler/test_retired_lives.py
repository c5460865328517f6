"""Lives that leave the lane state: when, what a late batch costs, and what a rebuild changes."""

import pytest
from support.queue_store import SimClock, SimStore
from support.reconciler_seed import accept, enqueued
from support.reconciler_world import ONE_LANE, make

from sluice_protocol.journals import DiscoveryRecord, HoldReason, HoldRecord, hold_record_key
from sluice_protocol.keys import accepted_key, blob_key
from sluice_protocol.manifests import AcceptedManifest, encode_record
from sluice_protocol.units import NS_PER_S
from sluice_queue.lane import Lane
from sluice_reconciler.discovery import DiscoveryClaim, merge_claim
from sluice_reconciler.explain import read_batch_paths
from sluice_reconciler.lanes import state
from sluice_reconciler.lanes.parts import BootCounts, make_part, merge_parts
from sluice_reconciler.lanes.sequence_ranges import BootRanges, ListedBatch
from sluice_reconciler.lanes.state import (
    CLOCK_MARGIN_S,
    RETIRED_MIN,
    LaneRecord,
    ShownPass,
    is_rewrite_due,
    lane_key,
    parts_prefix,
    read_lane_state,
    restore_ranges,
    settled_time_s,
)
from sluice_reconciler.passes.progress import PassOptions, PassRecord, PassSpan
from sluice_reconciler.service import Reconciler
from sluice_store.authority import create_authority

LANE = Lane(queue="spark", lane=0)


def at(seconds: int) -> int:
    return seconds * NS_PER_S


def record(since_s: int = 100, settled_s: int = 0) -> LaneRecord:
    return LaneRecord(
        queue="spark",
        lane=0,
        nonce="",
        producer_id="",
        ledger_since_unix_ns=at(since_s),
        settled_s=settled_s,
    )


@pytest.mark.parametrize(
    ("lane", "shown", "expected"),
    [
        (record(), ShownPass(began_ns=at(1000), queues=["spark"]), 1000 - 200 - CLOCK_MARGIN_S),
        (record(), ShownPass(began_ns=at(1000), queues=["other"]), None),
        (record(since_s=1000), ShownPass(began_ns=at(1000), queues=["spark"]), None),
        (record(since_s=0), ShownPass(began_ns=at(1000), queues=["spark"]), None),
        (record(settled_s=800), ShownPass(began_ns=at(1000), queues=["spark"]), None),
    ],
    ids=["shown", "another queue", "before the ledger", "unknown ledger", "no progress"],
)
def test_a_pass_counts_if_it_compared_the_present_ledger_of_the_lane(
    lane: LaneRecord, shown: ShownPass, expected: int | None
) -> None:
    assert settled_time_s(lane, shown, 200) == expected


def test_a_rewrite_pays_if_a_quarter_of_the_lives_is_idle() -> None:
    idle = RETIRED_MIN
    assert is_rewrite_due(BootCounts(total=4 * idle, idle=idle))
    assert not is_rewrite_due(BootCounts(total=4 * idle + 1, idle=idle))
    assert not is_rewrite_due(BootCounts(total=idle, idle=idle - 1))


def test_restored_ranges_contain_what_was_created_before_the_settled_time() -> None:
    listed = [
        ListedBatch(start=0, end=9, last_modified_ns=at(10)),
        ListedBatch(start=10, end=19, last_modified_ns=at(10)),
        ListedBatch(start=20, end=29, last_modified_ns=at(20)),
    ]
    expected = BootRanges()
    expected.add(0, 9)
    assert restore_ranges(listed, 20, {(10, 19)}) == expected


def test_idle_lives_are_left_out_of_a_merge() -> None:
    old = make_part({("a", "1"): BootRanges(), ("a", "2"): BootRanges()}, 50)
    idle = make_part({("a", "3"): BootRanges(), ("a", "1"): BootRanges()}, 5)
    (merged,) = merge_parts([old, idle], 10, retired_before_s=10)
    assert merged.seen.tolist() == [50]
    assert list(merge_parts([idle], 10, retired_before_s=10)) == []


def test_the_queues_of_a_pass_are_published_with_its_beginning() -> None:
    """A pass of a process with other queues does not count for a lane that it did not compare."""
    empty = DiscoveryRecord(complete_through_unix_ns=0, listed=0)
    first = merge_claim(empty, DiscoveryClaim(pass_began_ns=5, pass_queues=("spark",)), 1)
    older = merge_claim(first, DiscoveryClaim(pass_began_ns=4, pass_queues=("x",)), 1)
    assert (older.pass_began_unix_ns, older.pass_queues) == (5, ("spark",))
    later = merge_claim(older, DiscoveryClaim(pass_began_ns=6, pass_queues=()), 1)
    assert (later.pass_began_unix_ns, later.pass_queues) == (6, ())


class Deployment:
    """A store, its clock, and one reconciler after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(state, "RETIRED_MIN", 1)
        self.clock = SimClock()
        self.store = SimStore(clock=self.clock)
        self.seed = 0

    def reconciler(self, queues: str = "spark") -> Reconciler:
        self.seed += 1
        return make(self.store, self.seed, authority=ONE_LANE, queues=queues)

    def pass_days(self, days: int) -> None:
        self.clock.at_ns += at(days * 86_400)

    async def lives(self) -> int:
        stored = await read_lane_state(self.store, LANE)
        return sum(part.boots for part in stored.record.parts())

    async def retire_all(self, lives: int = 3, *, retires: bool = True) -> list[AcceptedManifest]:
        """Accept a batch of each life, and retire the lives."""
        batches = [await accept(self.store, boot=f"b{one}") for one in range(lives)]
        service = self.reconciler()
        assert (await service._pass_loop.run_once(None)).outcome.enqueued == lives
        self.spill(service)
        await service._workers.close()
        assert await self.lives() == lives
        self.pass_days(9)
        # A batch of another life, so that a process owns the lane.
        await accept(self.store, agent="host-2")
        await self.reconciler().once()
        stored = await read_lane_state(self.store, LANE)
        assert (stored.record.settled_s > 0) is retires
        return batches

    @staticmethod
    def spill(service: Reconciler) -> None:
        for worker in service._workers:
            worker.enqueued._unlogged += 1


async def test_idle_lives_leave_the_state_and_nothing_is_enqueued_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = Deployment(monkeypatch)
    batches = await place.retire_all()
    assert await place.lives() == 1
    assert len([key for key in place.store.held if key.startswith(parts_prefix(LANE))]) <= 3
    report = await place.reconciler().once()
    assert (report.outcome.enqueued, report.outcome.sound) == (0, 0)
    await create_authority(place.store, ONE_LANE)
    path = await read_batch_paths(place.store, batches[0].identity)
    assert [one.enqueued for one in path[0].queues] == [True]
    # A gateway names a duplicate of an old batch again.
    again = await place.reconciler().pipeline.process_new([accepted_key(batches[0].identity)])
    assert again.enqueued == 0


async def test_a_late_batch_of_a_retired_life_is_enqueued_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = Deployment(monkeypatch)
    await place.retire_all()
    late = await accept(place.store, 10, boot="b1")
    inside = await accept(place.store, 30, boot="b1")
    assert (await place.reconciler().once()).outcome.enqueued == 2
    stored = await read_lane_state(place.store, LANE)
    assert stored is not None
    place.pass_days(9)
    await accept(place.store, 20, boot="b1")
    assert (await place.reconciler().once()).outcome.enqueued == 1
    assert (await place.reconciler().once()).outcome.enqueued == 0
    found = [one.identity for one in await enqueued(place.store)]
    assert len(found) == len(set(found)) == 7
    assert {late.identity, inside.identity} <= set(found)


async def test_a_new_life_costs_one_listing_and_its_later_batches_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = Deployment(monkeypatch)
    await place.retire_all()
    service = place.reconciler()
    await service._workers.refresh()
    called: list[tuple[str, str]] = []
    place.store.before = lambda verb, key: called.append((verb, key))
    for seq in (0, 10, 20):
        one = await accept(place.store, seq, agent="host-9", boot="new")
        done = await service.pipeline.process_new([accepted_key(one.identity)])
        assert done.enqueued == 1
    boots = [key for verb, key in called if verb == "list" and key.startswith("accepted/")]
    # Once as a reader of the lane, once as its owner.
    assert len(boots) == 2


async def test_a_batch_that_is_held_back_is_enqueued_after_its_life_was_retired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = Deployment(monkeypatch)
    held = await accept(place.store, 50, boot="b1")
    blob = place.store.held.pop(blob_key(held.digest)).body
    await place.retire_all()
    stored = await read_lane_state(place.store, LANE)
    assert [one.seq_start for one in stored.record.unsettled] == [50]
    place.store._put(blob_key(held.digest), blob)
    assert (await place.reconciler().once()).outcome.enqueued == 1
    stored = await read_lane_state(place.store, LANE)
    assert stored.record.unsettled == ()
    assert (await place.reconciler().once()).outcome.enqueued == 0


@pytest.mark.parametrize("what", ["unreadable record", "too many"])
async def test_no_life_is_retired_while_held_batches_are_unknown_or_many(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Deployment(monkeypatch)
    if what == "too many":
        monkeypatch.setattr("sluice_reconciler.lanes.worker.UNSETTLED_MAX", 0)
        one = await accept(place.store, 50, boot="b2")
        del place.store.held[blob_key(one.digest)]
    else:
        place.store._put(hold_record_key("x"), b"damaged")
    await place.retire_all(retires=False)
    assert await place.lives() == 3


async def test_a_rebuild_forgets_the_settled_time_and_earlier_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the batches of lives that are in no part would never be enqueued again."""
    place = Deployment(monkeypatch)
    await place.retire_all()
    place.store._put(lane_key(LANE), b"damaged")
    assert [one async for one in place.reconciler().rebuild().repair()]
    service = place.reconciler()
    await service.discovery.read()
    assert service.discovery.record.pass_began_unix_ns is not None
    # The next owner retires nothing by the pass that compared the lost ledger.
    await service.pipeline.process_new([accepted_key((await accept(place.store, 70)).identity)])
    monkeypatch.setattr("sluice_reconciler.lanes.owner.is_rewrite_due", lambda counts: True)
    await service.lane_upkeep.run()
    await service._workers.close()
    assert (await place.reconciler().once()).outcome.enqueued == 4


async def test_a_pass_that_another_process_began_counts_for_common_queues_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = Deployment(monkeypatch)
    service = place.reconciler("spark,other")
    resume = PassRecord(
        began_unix_ns=place.clock.at_ns, spans=(PassSpan(after="", up_to=None),), queues=("spark",)
    )
    options = PassOptions(resume=resume)
    report = await service._pass_loop.full_pass.run(None, options)
    assert report.queues == ("spark",)
    assert (await service._pass_loop.full_pass.run(None)).queues == ("other", "spark")


async def test_a_held_batch_of_a_halted_lane_keeps_its_hold_record(store: SimStore) -> None:
    """It is valid again but not enqueued: without the record it would be in neither place."""
    one = await accept(store)
    record = HoldRecord(
        key=accepted_key(one.identity), reason=HoldReason.BLOB_MISSING, detail="", seen_at_unix_ns=1
    )
    await store.create(hold_record_key(record.key), encode_record(record))
    await store.create(lane_key(LANE), b"damaged")
    report = await make(store, authority=ONE_LANE).once()
    assert report.outcome.left == 1
    assert report.complete_through_ns is None
    assert report.held_back == 1
