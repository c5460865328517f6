"""Who owns a lane: what claims and member records show, and lanes that an owner released."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from support.queue_store import SimIds, SimStore
from support.reconciler_seed import accept
from support.reconciler_world import ONE_LANE, make, runtime_of
from ulid import ULID

from sluice_protocol.authority import Authority
from sluice_protocol.errors import OutcomeUnknown, StoreUnavailable
from sluice_protocol.keys import accepted_key, lane_of
from sluice_protocol.manifests import encode_record
from sluice_protocol.units import NS_PER_S
from sluice_queue.inspection import LaneOwnership, OwnershipState
from sluice_queue.lane import Lane
from sluice_reconciler.lanes.defects import read_queue_status
from sluice_reconciler.lanes.membership import (
    MEMBER_DEAD_AFTER_S,
    LiveMembers,
    MemberRecord,
    decide_ownership,
    member_key,
    read_live_members,
    unread_ownership,
)
from sluice_reconciler.lanes.owner import LaneOwner
from sluice_reconciler.lanes.state import LaneRecord, OwnerClaim, lane_key, read_lane_state
from sluice_reconciler.lanes.worker import LaneWorker, LaneWorkers, Takeover
from sluice_reconciler.metrics import ReconcilerMetrics
from sluice_reconciler.service import Reconciler

LANE = Lane(queue="spark", lane=0)
A, B = SimIds(1).ulid(), SimIds(2).ulid()
FREE = LaneRecord(queue="spark", lane=0, nonce="", producer_id="00")
UNNAMED = replace(FREE, owner_term=3)
BY_A = replace(UNNAMED, owner=OwnerClaim(member=A, host="a", pid=7, sharing=True, since_unix_ns=5))
RELEASED = replace(BY_A, released=True)
BY_STANDBY = replace(UNNAMED, owner=OwnerClaim(member=A, url="http://a", since_unix_ns=5))


def member(name: str, *lanes: int) -> MemberRecord:
    return MemberRecord(member=name, url=f"http://{name}", host="h", lanes=lanes)


IN_BOTH = LiveMembers(records=(member(A, 0), member(B, 0)))


def seen(*records: MemberRecord, unreadable: int = 0) -> LiveMembers:
    return LiveMembers(records=records, unreadable=unreadable)


@pytest.mark.parametrize(
    ("record", "members", "state", "owners", "detail"),
    [
        (None, seen(), "unowned", [], "start `sluice reconciler`"),
        (None, seen(member(A, 1)), "unowned", [], "start `sluice reconciler`"),
        (RELEASED, seen(), "unowned", [], "start `sluice reconciler`"),
        (BY_A, seen(member(A, 0)), "owned", [(A, 5, True)], ""),
        (RELEASED, seen(member(B, 0)), "owned", [(B, None, True)], "next batch"),
        (BY_A, seen(member(B, 0)), "owned", [(B, None, True)], "next batch"),
        (UNNAMED, seen(member(B, 0)), "owned", [(B, None, True)], "does not name"),
        (BY_STANDBY, seen(), "owned", [(A, 5, None)], "no member record"),
        (BY_A, seen(), "lapsed", [(A, 5, False)], "takes it within 15 s"),
        (BY_A, seen(member(A), member(B, 1)), "lapsed", [(A, 5, True)], "works on it no more"),
        (UNNAMED, seen(), "unknown", [], "does not name"),
        (None, seen(unreadable=2), "unknown", [], "2 member records"),
        (BY_A, seen(unreadable=1), "unknown", [], "1 member records"),
        (BY_A, IN_BOTH, "disputed", [(A, 5, True), (B, None, True)], ""),
        (None, IN_BOTH, "disputed", [(A, None, True), (B, None, True)], ""),
        (BY_STANDBY, seen(member(B, 0)), "disputed", [(B, None, True), (A, 5, None)], "stop all"),
    ],
)  # fmt: skip
def test_claims_and_member_records_decide_who_owns_a_lane(
    record: LaneRecord | None,
    members: LiveMembers,
    state: str,
    owners: list[tuple[str, int | None, bool | None]],
    detail: str,
) -> None:
    found = decide_ownership(0, record, members)
    assert found.state == state
    assert [(one.member, one.since_unix_ns, one.is_running) for one in found.owners] == owners
    assert detail in found.detail
    assert bool(found.detail) == (found.state != "owned" or bool(detail))


def test_a_lane_state_that_cannot_be_read_hides_no_member() -> None:
    assert unread_ownership(0, seen()).state is OwnershipState.UNKNOWN
    assert unread_ownership(0, seen(member(A, 0))).owners[0].member == A


class World:
    """Reconcilers of one store with a simulated clock."""

    def __init__(self) -> None:
        self.store = SimStore()
        self.seq = 0

    def start(self, seed: int, *, sharing: bool = True) -> Reconciler:
        return make(self.store, seed, authority=ONE_LANE, share_lanes=sharing)

    async def enqueue(self, one: Reconciler) -> None:
        batch = await accept(self.store, self.seq)
        self.seq += 10
        for worker in one._workers:
            assert await worker.enqueue([batch], takeover=Takeover.ALWAYS) == 1

    async def ownership(self) -> LaneOwnership:
        members = await read_live_members(self.store)
        (lane,) = await read_queue_status(self.store, 1, members=members)
        assert lane.ownership is not None
        return lane.ownership


async def test_a_reconciler_names_itself_in_its_claim_and_another_one_replaces_the_name() -> None:
    world = World()
    first, second = world.start(1), world.start(2)
    first.share.url = "http://first:8081"
    await first.share.beat()
    await world.enqueue(first)
    found = await world.ownership()
    (owner,) = found.owners
    assert (found.state, owner.member, owner.url) == (
        OwnershipState.OWNED,
        first.share.member,
        "http://first:8081",
    )
    stored = await read_lane_state(world.store, LANE)
    claim = stored.record.owner
    assert isinstance(claim, OwnerClaim)
    assert claim.host
    assert claim.pid > 0
    assert claim.sharing
    assert stored.date_ns - NS_PER_S < claim.since_unix_ns <= stored.date_ns
    assert owner.since_unix_ns == claim.since_unix_ns
    # The process is killed: the claim stays, and the member record lapses.
    world.store.clock.at_ns += int(MEMBER_DEAD_AFTER_S * NS_PER_S)
    found = await world.ownership()
    assert found.state is OwnershipState.LAPSED
    assert found.unchanged_s == pytest.approx(MEMBER_DEAD_AFTER_S, abs=1)
    world.store.clock.at_ns += int(100 * NS_PER_S)
    found = await world.ownership()
    assert found.unchanged_s == pytest.approx(MEMBER_DEAD_AFTER_S + 100, abs=1)
    await second.share.beat()
    found = await world.ownership()
    assert [one.member for one in found.owners] == [second.share.member]
    assert "next batch" in found.detail
    await world.enqueue(second)
    found = await world.ownership()
    assert (found.state, found.detail) == (OwnershipState.OWNED, "")
    assert found.owners[0].since_unix_ns is not None
    # It stops in order.
    await second._workers.close()
    await second.share.leave()
    found = await world.ownership()
    assert found.state is OwnershipState.UNOWNED
    assert found.unchanged_s == pytest.approx(0, abs=1)


@pytest.mark.parametrize(
    ("started_s", "changed_s"),
    [(40, 40), (7200, 7200), (-30, 0), (-120, None)],
    ids=["young", "old", "its clock is ahead", "its clock is wrong"],
)
async def test_a_member_that_started_is_a_change(started_s: int, changed_s: int | None) -> None:
    world = World()
    name = str(ULID.from_timestamp(world.store.clock.at_ns / NS_PER_S - started_s))
    world.store._put(member_key(name), encode_record(member(name)))
    found = await read_live_members(world.store)
    expected = None if changed_s is None else pytest.approx(changed_s, abs=1)
    assert found.changed_s == expected


async def test_a_member_that_left_or_died_is_a_change() -> None:
    """A live record that is as old as the deployment is none."""
    world = World()
    clock = world.store.clock
    for name, leaving in ((A, False), (B, True)):
        record = replace(member(name), leaving=leaving)
        world.store._put(member_key(name), encode_record(record))
    assert (await read_live_members(world.store)).changed_s == pytest.approx(0, abs=1)
    clock.at_ns += 50 * NS_PER_S
    assert (await read_live_members(world.store)).changed_s == pytest.approx(50, abs=1)


async def test_a_standby_is_named_by_its_claim_alone() -> None:
    world = World()
    standby = world.start(1, sharing=False)
    await world.enqueue(standby)
    found = await world.ownership()
    assert (found.state, found.owners[0].is_running) == (OwnershipState.OWNED, None)
    sharing = world.start(2)
    await sharing.share.beat()
    found = await world.ownership()
    assert found.state is OwnershipState.DISPUTED
    assert {one.member for one in found.owners} == {standby.share.member, sharing.share.member}


async def test_two_members_that_name_a_lane_dispute_it() -> None:
    world = World()
    first = world.start(1)
    await first.share.beat()
    await world.enqueue(first)
    rival = first.share.members[0]
    world.store._put(member_key(B), encode_record(replace(rival, member=B, host="b")))
    assert (await world.ownership()).state is OwnershipState.DISPUTED


async def test_an_owner_without_a_name_leaves_no_wrong_name() -> None:
    """It takes the lane over, and its state has no owner: the last name does not stay."""
    world = World()
    await world.enqueue(world.start(1, sharing=False))
    stored = await read_lane_state(world.store, LANE)
    unnamed = world.start(2, sharing=False)
    unnamed._workers.claim_as(lambda: None)  # as `sluice rebuild`, which writes no name
    await world.enqueue(unnamed)
    found = await world.ownership()
    assert (found.state, found.owners) == (OwnershipState.UNKNOWN, ())
    after = await read_lane_state(world.store, LANE)
    assert after.record.owner is None
    assert after.record.owner_term == stored.record.owner_term + 1


async def test_damaged_records_are_shown_and_hide_no_lane() -> None:
    world = World()
    first = world.start(1)
    await first.share.beat()
    await world.enqueue(first)
    key = member_key(first.share.member)
    whole = world.store.held[key].body
    world.store._put(key, b"{")
    found = await world.ownership()
    assert (found.state, found.owners) == (OwnershipState.UNKNOWN, ())
    assert "1 member records cannot be read" in found.detail
    world.store._put(key, whole)
    world.store._put(lane_key(LANE), b"damaged")
    found = await world.ownership()
    assert [one.member for one in found.owners] == [first.share.member]


def worker(store: SimStore, seed: int) -> LaneWorker:
    return LaneWorker(store, LANE, runtime_of(store, seed), ReconcilerMetrics(), 1)


async def enqueue(one: LaneWorker, store: SimStore, seq: int) -> int | None:
    """Enqueue a batch as a process that takes only lanes without an owner."""
    await one.refresh()
    batch = await accept(store, seq)
    return await one.enqueue([batch], takeover=Takeover.IF_UNOWNED)


def test_a_released_lane_is_taken_without_a_wait_and_another_is_not() -> None:

    async def run() -> None:
        store = SimStore()
        first = worker(store, 1)
        assert await enqueue(first, store, 0) == 1
        # Killed: the state does not show that the owner has ended.
        second = worker(store, 2)
        assert await enqueue(second, store, 10) is None
        assert second.is_of_rival
        await first.close()
        assert await enqueue(second, store, 20) == 1
        stored = await read_lane_state(store, LANE)
        assert stored.record.released is False
        assert await enqueue(worker(store, 3), store, 30) is None
        # The first one returns: it is fenced by the owner term, whatever the record shows.
        assert await first.enqueue([await accept(store, 40)], takeover=Takeover.ALWAYS) == 1
        assert await enqueue(second, store, 50) is None

    asyncio.run(run())


async def test_a_lane_that_another_member_works_on_is_given_nothing(store: SimStore) -> None:
    """Neither by its last owner, nor by a process that would have to take it."""
    owner, other = worker(store, 1), worker(store, 2)
    assert await enqueue(owner, store, 0) == 1
    for one in (owner, other):
        one.is_allowed = False
        assert await one.enqueue([await accept(store, 10)], takeover=Takeover.ALWAYS) is None
    owner.is_allowed = True
    assert await owner.enqueue([await accept(store, 10)], takeover=Takeover.ALWAYS) == 1


async def test_a_batch_is_done_when_every_queue_was_given_it(store: SimStore) -> None:
    workers = LaneWorkers(
        store,
        Authority(authority_id="A", lanes=1),
        ("spark", "copy"),
        runtime_of(store),
        ReconcilerMetrics(),
    )
    batch = await accept(store, 0)
    done = []
    for one in workers:
        done.append(workers.has_batch(accepted_key(batch.identity)))
        await one.enqueue([batch], takeover=Takeover.ALWAYS)
    assert [*done, workers.has_batch(accepted_key(batch.identity))] == [False, False, True]


def _keeps_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner leaves the mark of the last one in the record."""
    real = LaneOwner._write

    async def write(self: LaneOwner, **fields: Any) -> None:
        await real(self, **{**fields, "released": True})

    monkeypatch.setattr(LaneOwner, "_write", write)


def _never_has_an_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LaneRecord, "has_owner", property(lambda _: False))


def _always_has_an_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LaneRecord, "has_owner", property(lambda self: self.owner_term > 0))


@pytest.mark.parametrize("plant", [_keeps_released, _never_has_an_owner, _always_has_an_owner])
def test_planted_bugs_in_the_release_of_a_lane_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        test_a_released_lane_is_taken_without_a_wait_and_another_is_not()


async def test_an_error_of_one_lane_leaves_the_others_released(store: SimStore) -> None:

    class Failing:
        """A store without one lane."""

        def __init__(self, store: SimStore) -> None:
            self._store = store
            self.fails = False

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

        async def replace(self, key: str, body: bytes, **more: Any) -> Any:
            if self.fails and key == lane_key(LANE):
                raise PermissionRefused(key)
            return await self._store.replace(key, body, **more)

    class PermissionRefused(StoreUnavailable):
        def __init__(self, key: str) -> None:
            super().__init__("replace", key, "refused")

    failing: Any = Failing(store)
    workers = LaneWorkers(
        failing,
        Authority(authority_id="A", lanes=2),
        ["spark"],
        runtime_of(store),
        ReconcilerMetrics(),
    )
    for number in range(6):
        batch = await accept(store, agent=f"host-{number}")
        for one in workers.of_agent(batch.agent_id):
            assert await one.enqueue([batch], takeover=Takeover.ALWAYS) == 1
    assert {lane_of(f"host-{number}", 2) for number in range(6)} == {0, 1}
    failing.fails = True
    with pytest.raises(OutcomeUnknown, match="swap"):
        await workers.close()
    found = [await read_lane_state(store, Lane(queue="spark", lane=lane)) for lane in (0, 1)]
    assert [one is not None and one.record.has_owner for one in found] == [True, False]
