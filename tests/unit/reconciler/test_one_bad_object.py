"""One object that cannot be read stops no batch of another agent, and no other lane."""

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from support.gateway_journal import JournalWriter
from support.memory_bucket import Fault, MemoryBucket, open_memory_store
from support.memory_bucket.faults import Call
from support.queue_store import SimClock, SimIds
from support.reconciler_seed import accept, enqueued

from sluice_protocol.authority import Authority
from sluice_protocol.errors import SluiceError
from sluice_protocol.keys import accepted_key, lane_of
from sluice_protocol.units import NS_PER_S
from sluice_queue.lane import Lane
from sluice_queue.register_client import Runtime
from sluice_reconciler.lanes.state import lane_key
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings

LANES = 2
AGENTS = ("host-1", "host-2", "host-3", "host-4", "host-5")


class OneBadKey:
    """Every call for one key fails."""

    key = ""
    fault = Fault.SLOW_DOWN

    def fault_of(self, call: Call) -> Fault | None:
        return self.fault if self.key and call.key == self.key else None


async def by_journals(subject: Reconciler) -> None:
    await subject.journals.run_pass()


async def by_pass(subject: Reconciler) -> None:
    await subject.once()


@pytest.mark.daily(6)
@pytest.mark.parametrize("fault", [Fault.SLOW_DOWN, Fault.DENIED])
@pytest.mark.parametrize(
    ("what", "route"),
    [
        ("manifest", by_journals),
        ("blob", by_journals),
        ("lane", by_journals),
        ("register", by_journals),
        ("manifest", by_pass),
        ("blob", by_pass),
        ("register", by_pass),
    ],
)
async def test_the_others_are_enqueued(
    route: Callable[[Reconciler], Awaitable[None]], what: str, fault: Fault
) -> None:
    clock, plan = SimClock(), OneBadKey()
    plan.fault = fault
    bucket = MemoryBucket(clock=clock, rng=random.Random(2))
    store, _ = open_memory_store(bucket, clock=clock)
    faulty, _ = open_memory_store(bucket, plan=plan, clock=clock)
    runtime = Runtime(clock=clock, ids=SimIds(1), rng=random.Random(1))
    authority = Authority(authority_id="A", lanes=LANES)
    writer = JournalWriter(store, clock.at_ns)
    await writer.register()
    batches = [await writer.accept(0, at_ns=clock.at_ns, agent=agent) for agent in AGENTS]
    await writer.append(batches, through_ns=clock.at_ns)
    bad = batches[1]
    lane = Lane(queue="spark", lane=lane_of(bad.agent_id, LANES))
    plan.key = {
        "manifest": accepted_key(bad.identity),
        "blob": bad.raw_blob_key,
        "lane": lane_key(lane),
        "register": lane.key,
    }[what]
    stopped = {bad.agent_id}
    if what in ("lane", "register"):
        stopped = {one for one in AGENTS if lane_of(one, LANES) == lane.lane}
    assert stopped != set(AGENTS)
    subject = Reconciler(faulty, authority, settings=ReconcilerSettings(), runtime=runtime)

    async def tries() -> None:
        for _ in range(5):
            clock.at_ns += 2 * NS_PER_S
            with suppress(SluiceError):  # the loop logs it and tries again
                await route(subject)

    await tries()
    found = {one.agent_id for one in await enqueued(store)}
    assert found == set(AGENTS) - stopped
    plan.key = ""
    await tries()
    assert {one.agent_id for one in await enqueued(store)} == set(AGENTS)


@pytest.mark.parametrize("what", ["manifest", "blob"])
async def test_a_full_pass_ends_although_one_object_cannot_be_read(what: str) -> None:
    """A pass that failed would list everything again and again; this one leaves the batch."""
    clock, plan = SimClock(), OneBadKey()
    bucket = MemoryBucket(clock=clock, rng=random.Random(2))
    store, _ = open_memory_store(bucket, clock=clock)
    faulty, _ = open_memory_store(bucket, plan=plan, clock=clock)
    runtime = Runtime(clock=clock, ids=SimIds(1), rng=random.Random(1))
    bad = await accept(store)
    plan.key = bad.raw_blob_key if what == "blob" else accepted_key(bad.identity)
    authority = Authority(authority_id="A", lanes=LANES)
    subject = Reconciler(faulty, authority, settings=ReconcilerSettings(), runtime=runtime)
    report = await subject.once()
    assert (report.listed, report.outcome.left) == (1, 1)
    assert report.complete_through_ns is None, "nothing shows that this batch is enqueued"
    plan.key = ""
    report = await subject.once()
    assert (report.outcome.left, report.outcome.enqueued) == (0, 1)
