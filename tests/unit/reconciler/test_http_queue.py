"""A queue over HTTP: who holds leases, and what happens while a lane cannot be read."""

import random

import pytest
from support.builders import descriptors
from support.memory_bucket import Fault, MemoryBucket, open_memory_store
from support.memory_bucket.faults import Call
from support.queue_store import SimClock, SimIds
from support.reconciler_seed import accept

from sluice_protocol.authority import Authority
from sluice_protocol.errors import SluiceError
from sluice_protocol.units import NS_PER_S
from sluice_queue.lane import Lane
from sluice_queue.register_client import Runtime
from sluice_reconciler import http_queue
from sluice_reconciler.http_queue import HttpQueue, LaneLeases, LeaseHolder, holders_of
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings

AGENTS = ("host-1", "host-2", "host-3", "host-4")


class Failing:
    """Calls whose keys begin with a text fail; by default none do."""

    prefix: str | None = None
    methods = ("GET", "HEAD", "LIST", "PUT", "DELETE")

    def fault_of(self, call: Call) -> Fault | None:
        fails = self.prefix is not None and call.key.startswith(self.prefix)
        return Fault.SLOW_DOWN if fails and call.method in self.methods else None


async def opened() -> tuple[HttpQueue, Failing]:
    """Return a queue with entries in both of its lanes, and the faults of its store."""
    clock = SimClock()
    runtime = Runtime(clock=clock, ids=SimIds(1), rng=random.Random(1))
    bucket = MemoryBucket(clock=clock, rng=random.Random(2))
    store, _ = open_memory_store(bucket, clock=clock)
    for agent in AGENTS:
        await accept(store, agent=agent)
    settings = ReconcilerSettings(http_queues="sink", list_batches_max=1)
    authority = Authority(authority_id="A", lanes=2)
    await Reconciler(store, authority, settings=settings, runtime=runtime).once()
    plan = Failing()
    faulty, _ = open_memory_store(bucket, plan=plan, clock=clock)
    return HttpQueue(faulty, "sink", authority, runtime, lease_s=60), plan


async def test_a_lane_that_cannot_be_read_stops_no_other_lane() -> None:
    queue, plan = await opened()
    everything = await queue.claim(100, "probe")
    lanes = {one.lane for one in everything}
    assert lanes == {0, 1}
    for broken in lanes:
        queue, plan = await opened()
        plan.prefix = Lane(queue="sink", lane=broken).key
        expected = [one for one in everything if one.lane != broken]
        found = await queue.claim(100, "c")
        assert [one.sequence for one in found] == [one.sequence for one in expected]
        assert {one.lane for one in found} == lanes - {broken}
        plan.prefix = None
        again = await queue.claim(100, "c")
        assert {one.lane for one in again} == {broken}


async def test_a_commit_is_repeated_after_its_acknowledgement_failed() -> None:
    queue, plan = await opened()
    leases = [one.lease_id for one in await queue.claim(100, "c")]
    plan.prefix, plan.methods = "", ("PUT",)
    with pytest.raises(SluiceError):
        await queue.commit(leases)
    plan.prefix = None
    assert await queue.commit(leases) == len(leases)
    assert await queue.claim(100, "c") == []


def test_only_a_lease_that_was_committed_can_be_committed_again() -> None:
    lane = LaneLeases(acked_through=0)
    lane.offer(descriptors(1, 2))
    for name in ("first", "second"):
        assert lane.claim(name, "c", 0, 10 * NS_PER_S)
    assert lane.commit("first")
    assert lane.commit("first")
    assert not lane.commit("third")
    lane.expire(20 * NS_PER_S)
    assert not lane.commit("second")


def leases(*claims: tuple[str, int, int]) -> LaneLeases:
    """Return the leases of claims: consumer, time of the claim and end in seconds."""
    lane = LaneLeases(acked_through=0)
    lane.offer(descriptors(1, len(claims)))
    for number, (consumer, at_s, end_s) in enumerate(claims):
        assert lane.claim(f"lease-{number}", consumer, at_s * NS_PER_S, end_s * NS_PER_S)
    return lane


def test_leases_are_added_up_by_consumer_and_ended_ones_do_not_count() -> None:
    lane = leases(("b", 5, 60), ("a", 1, 61), ("a", 8, 40), ("a", 0, 20), ("gone", 0, 20))
    found = holders_of(lane.leases, 20 * NS_PER_S)
    assert found == (
        LeaseHolder(consumer="a", entries=2, oldest_s=19, ends_s=20, attempts=0),
        LeaseHolder(consumer="b", entries=1, oldest_s=15, ends_s=40, attempts=0),
    )
    assert lane.expire(20 * NS_PER_S) == 2
    assert lane.claim("again", "c", 20 * NS_PER_S, 80 * NS_PER_S)
    assert holders_of(lane.leases, 20 * NS_PER_S)[-1].attempts == 1


def test_an_extended_lease_keeps_the_time_of_its_claim() -> None:
    lane = leases(("a", 1, 10))
    assert lane.extend("lease-0", 100 * NS_PER_S)
    (holder,) = holders_of(lane.leases, 51 * NS_PER_S)
    assert (holder.oldest_s, holder.ends_s) == (50, 49)


def test_the_list_of_consumers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_queue, "HOLDERS_MAX", 2)
    lane = leases(("a", 3, 9), ("b", 1, 9), ("c", 2, 9))
    assert [one.consumer for one in holders_of(lane.leases, 4 * NS_PER_S)] == ["b", "c"]
