"""Two reconcilers with half of the lanes each follow the journals of one gateway."""

import asyncio
import dataclasses
from collections import Counter

import pytest
from support import reconciler_world
from support.gateway_journal import JournalWriter
from support.queue_store import SimStore
from support.reconciler_seed import accept, enqueued
from support.reconciler_world import record

from sluice_protocol.journals import DiscoveryRecord, journal_key
from sluice_protocol.keys import accepted_key, lane_of
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_reconciler.discovery import IDLE_STEP_S, is_worth_writing
from sluice_reconciler.journals import route
from sluice_reconciler.journals.progress import UnprocessedObject
from sluice_reconciler.passes.progress import NextPass, PassRecord
from sluice_reconciler.service import Reconciler
from sluice_store.authority import create_authority

AGENTS = ("host-1", "host-2", "host-3", "host-4")


def make(store: SimStore, seed: int, lane: int) -> Reconciler:
    subject = reconciler_world.make(store, seed)
    subject._workers.share(frozenset({lane}))
    return subject


async def rounds(store: SimStore, subjects: list[Reconciler], count: int) -> None:
    for _ in range(count):
        store.clock.at_ns += int(1.1 * NS_PER_S)
        for one in subjects:
            await one.journals.run_pass()


async def shared() -> tuple[SimStore, list[Reconciler], JournalWriter]:
    """Return two reconcilers for which journals decide."""
    store = SimStore()
    writer = JournalWriter(store, store.clock.at_ns)
    await writer.register()
    first = make(store, 1, 0)
    first._workers._shared = None  # it makes the first pass alone
    for worker in first._workers:
        worker.is_allowed = True
    await first.journals.run_pass()
    await first.once()
    first._workers.share(frozenset({0}))
    subjects = [first, make(store, 2, 1)]
    await writer.append([], through_ns=store.clock.at_ns)
    await rounds(store, subjects, 3)
    assert record(store).journaled_since_unix_ns is not None
    return store, subjects, writer


async def test_each_enqueues_its_lane_and_the_record_follows_without_a_wait() -> None:
    store, subjects, writer = await shared()
    assert {lane_of(agent, 2) for agent in AGENTS} == {0, 1}
    for seq in range(0, 50, 10):
        at_ns = store.clock.at_ns
        batches = [await writer.accept(seq, at_ns=at_ns, agent=agent) for agent in AGENTS]
        number = await writer.append(batches, through_ns=store.clock.at_ns)
        await rounds(store, subjects, 1)
    through_ns = store.clock.at_ns
    # The next object shows that everything before it is done.
    number = await writer.append([], through_ns=through_ns)
    await rounds(store, subjects, 4)
    counts = Counter(one.identity for one in await enqueued(store))
    assert len(counts) == 20
    assert set(counts.values()) == {1}
    for subject in subjects:
        (lane,) = subject._workers.shared or ()
        verified = subject.metrics.enqueued.labels("spark")._value.get()
        assert verified == 5 * sum(lane_of(agent, 2) == lane for agent in AGENTS)
    assert record(store).complete_through_unix_ns == through_ns
    assert record(store).journals == {writer.process: number}
    assert record(store).lanes == {}


async def test_nothing_of_a_lane_is_claimed_that_its_member_has_not_done() -> None:
    """The other member does not work: its lane holds the time back, and the first lane advances."""
    store, subjects, writer = await shared()
    before_ns = record(store).complete_through_unix_ns
    batches = [await writer.accept(0, at_ns=store.clock.at_ns, agent=one) for one in AGENTS]
    await writer.append(batches, through_ns=store.clock.at_ns)
    through_ns = store.clock.at_ns
    await writer.append([], through_ns=through_ns)
    await rounds(store, subjects[:1], 30)
    assert {lane_of(one.agent_id, 2) for one in await enqueued(store)} == {0}
    assert record(store).complete_through_unix_ns < through_ns
    assert record(store).complete_through_unix_ns - before_ns < NS_PER_S
    assert record(store).lanes == {"000": through_ns}
    # The lane is handed over.
    await subjects[0]._workers.share_with_refresh(frozenset({0, 1}))
    await rounds(store, subjects[:1], 3)
    assert len(await enqueued(store)) == 4
    assert record(store).complete_through_unix_ns == through_ns


async def backlog(store: SimStore, writer: JournalWriter, objects: int) -> int:
    """Journal one batch of each agent per object; return how many of the batches are in lane 0."""
    for seq in range(0, 10 * objects, 10):
        at_ns = store.clock.at_ns
        batches = [await writer.accept(seq, at_ns=at_ns, agent=agent) for agent in AGENTS]
        store.clock.at_ns += NS_PER_S
        await writer.append(batches, through_ns=store.clock.at_ns)
    return objects * sum(lane_of(agent, 2) == 0 for agent in AGENTS)


async def test_entries_of_other_lanes_neither_bound_reading_nor_wait_for_a_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other member does not work. Its entries are many times what may wait."""
    monkeypatch.setattr(route, "PENDING_MAX", 8)
    store, subjects, writer = await shared()
    mine = await backlog(store, writer, 40)
    first = subjects[0]
    await rounds(store, [first], 40)
    assert len(await enqueued(store)) == mine
    waiting = first.journals.journals[0].pending
    assert len(waiting) == 40
    assert not any(one.left or one.abandoned for one in waiting)
    assert not first.journals._entries.manifests
    # The lane is handed over before its owner has done anything.
    await first._workers.share_with_refresh(frozenset({0, 1}))
    await rounds(store, [first], 60)
    counts = Counter(one.identity for one in await enqueued(store))
    assert (len(counts), set(counts.values())) == (40 * len(AGENTS), {1})
    assert record(store).complete_through_unix_ns > store.clock.at_ns - 200 * NS_PER_S
    assert record(store).journals == {writer.process: writer.number}
    await writer.append([], through_ns=store.clock.at_ns)  # it is not late
    await rounds(store, [first], 2)
    assert first.journals.wanted_pass_ns() is None


@pytest.mark.parametrize("damage", ["missing", "damaged"])
async def test_an_object_that_cannot_be_read_again_needs_a_full_pass(damage: str) -> None:
    lane_1 = sum(lane_of(agent, 2) == 1 for agent in AGENTS)
    store, subjects, writer = await shared()
    await backlog(store, writer, 3)
    first = subjects[0]
    await rounds(store, [first], 3)
    key = journal_key(writer.process, writer.number - 1)
    if damage == "missing":
        del store.held[key]
    else:
        store.held[key] = dataclasses.replace(store.held[key], body=b"{}")
    waiting = first.journals.journals[0].pending
    through_ns = waiting[-2].complete_through_ns
    await first._workers.share_with_refresh(frozenset({0, 1}))
    store.clock.at_ns += 20 * NS_PER_S
    await rounds(store, [first], 2)
    assert len(await enqueued(store)) == 3 * len(AGENTS) - lane_1
    assert record(store).complete_through_unix_ns < through_ns
    assert first.journals.wanted_pass_ns() is not None
    await first._pass_loop.run_once(None)
    await rounds(store, [first], 2)
    assert len(await enqueued(store)) == 3 * len(AGENTS)
    assert (first.journals.wanted_pass_ns() or 0) < (record(store).pass_began_unix_ns or 0)
    assert record(store).complete_through_unix_ns > through_ns


async def test_objects_of_a_member_that_does_not_work_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beyond the bound they are left to its owner or to a full pass."""
    monkeypatch.setattr(route, "OBJECTS_PENDING_MAX", 4)
    store, subjects, writer = await shared()
    mine = await backlog(store, writer, 12)
    await rounds(store, subjects[:1], 20)
    assert len(await enqueued(store)) == mine
    journal = subjects[0].journals.journals[0]
    assert journal.read_through == writer.number
    assert len(journal.pending) == 1
    await rounds(store, subjects, 20)
    await writer.append([], through_ns=store.clock.at_ns)
    await rounds(store, subjects, 4)
    counts = Counter(one.identity for one in await enqueued(store))
    assert (len(counts), set(counts.values())) == (12 * len(AGENTS), {1})
    assert record(store).journals == {writer.process: writer.number}


async def test_a_round_that_stopped_at_a_limit_is_followed_without_a_pause() -> None:
    _, subjects, _ = await shared()
    journals = subjects[0].journals
    assert journals.pause_s == subjects[0].settings.journal_poll_s
    journals.is_behind = True
    assert journals.pause_s == 0


async def test_batches_of_other_lanes_are_left_by_every_route(store: SimStore) -> None:
    batches = [await accept(store, 0, agent=agent) for agent in AGENTS]
    subject = make(store, 1, 0)
    keys = [accepted_key(one.identity) for one in batches]
    elsewhere = {
        key for key, one in zip(keys, batches, strict=True) if lane_of(one.agent_id, 2) == 1
    }
    done = await subject.pipeline.process_new(keys)
    assert done.left_keys == elsewhere
    assert (done.left, done.enqueued) == (len(elsewhere), len(keys) - len(elsewhere))
    report = await subject._pass_loop.run_once(None)
    assert report.complete_through_ns is None
    # The other member enqueues them; the ledger of its lane shows it.
    other = make(store, 2, 1)
    await other.pipeline.process_new(keys)
    report = await subject._pass_loop.run_once(None)
    assert report.complete_through_ns is not None
    assert len(await enqueued(store)) == len(keys)


async def test_a_time_from_before_the_registration_of_a_spool_covers_none_of_its_objects() -> None:
    """The times of a spool are those of its last transfer, so lanes may be published ahead of it.

    The other member does not work at first. The object, which is the last one of its journal, would
    be processed, and published as such, with the batches in its lane never enqueued.
    """
    store, subjects, writer = await shared()
    await create_authority(store, reconciler_world.SHORT_HORIZON)
    await writer.append([], through_ns=store.clock.at_ns, closed=True)
    await rounds(store, subjects, 4)
    published_ns = record(store).complete_through_unix_ns
    spool = JournalWriter(
        store,
        published_ns - NS_PER_S,
        collector_id="spool",
        ulid="01J00000000000000000000001",
        acceptance="local_spool",
    )
    await spool.register()
    store.clock.at_ns += 2 * NS_PER_S
    batches = [await spool.accept(0, at_ns=store.clock.at_ns, agent=one) for one in AGENTS]
    await spool.append(batches, through_ns=spool.started_ns)
    await spool.append([], through_ns=store.clock.at_ns, closed=True)
    await rounds(store, subjects[:1], 40)
    assert {lane_of(one.agent_id, 2) for one in await enqueued(store)} == {0}
    assert record(store).complete_through_unix_ns == published_ns
    assert spool.process not in record(store).journals
    await rounds(store, subjects, 20)
    counts = Counter(one.identity for one in await enqueued(store))
    assert counts == Counter(one.identity for one in batches)
    assert record(store).journals[spool.process] == 2
    assert record(store).complete_through_unix_ns > published_ns + 3 * NS_PER_S


def test_an_object_is_covered_by_a_time_that_proves_that_its_lane_is_done() -> None:
    key, other = accepted_key_of(0), accepted_key_of(1)

    def left(through_ns: int, pass_began_ns: int, known_ns: int = 0) -> set[str]:
        one = UnprocessedObject(
            number=3,
            complete_through_ns=UnixNs(100 * NS_PER_S),
            closed=False,
            left={key: 0, other: 1},
            due_ns=0,
            written_ns=UnixNs(101 * NS_PER_S),
        )
        one.cover_lanes({1: through_ns}, pass_began_ns, UnixNs(known_ns))
        return set(one.left)

    second = NS_PER_S
    assert left(100 * second, 50 * second) == {key, other}
    assert left(100 * second + 1, 50 * second) == {key}
    # The process may not have been registered when the time was decided.
    assert left(105 * second, 50 * second, 105 * second) == {key, other}
    assert left(105 * second + 1, 50 * second, 105 * second) == {key}
    # A full pass decided the time: it may have begun before the last batch was accepted.
    assert left(105 * second, 105 * second) == {key, other}
    assert left(112 * second, 112 * second) == {key}


def accepted_key_of(number: int) -> ObjectKey:
    return ObjectKey(f"accepted/v1/{number}")


def test_a_lane_that_is_ahead_moves_the_record_every_second() -> None:
    """The reconcilers of the other lanes wait for it; a single one writes when it is idle."""
    before = DiscoveryRecord(complete_through_unix_ns=NS_PER_S, listed=0)
    ahead = DiscoveryRecord(
        complete_through_unix_ns=NS_PER_S, listed=0, lanes={"001": 3 * NS_PER_S}
    )
    assert is_worth_writing(before, ahead, IDLE_STEP_S)
    assert not is_worth_writing(ahead, ahead, IDLE_STEP_S)
    idle = DiscoveryRecord(complete_through_unix_ns=3 * NS_PER_S, listed=0)
    assert not is_worth_writing(before, idle, IDLE_STEP_S)


async def test_http_consumers_of_a_lane_are_sent_to_its_owner(store: SimStore) -> None:
    urls = ("http://first:8081", "http://second:8081")
    subjects = []
    for seed, url in enumerate(urls, start=1):
        subjects.append(reconciler_world.make(store, seed, http_queues="sink"))
        subjects[-1].share.url = url  # as the service does once it listens
    for _ in range(20):
        store.clock.at_ns += 3 * NS_PER_S
        for one in subjects:
            await one.share.beat()
    owned = [one.share._workers.shared or frozenset() for one in subjects]
    assert owned[0] | owned[1] == {0, 1}
    for lane in (0, 1):
        owner = next(n for n, lanes in enumerate(owned) if lane in lanes)
        assert subjects[owner].http_queues["sink"].owner_url(lane) == ""
        assert subjects[1 - owner].http_queues["sink"].owner_url(lane) == urls[owner]


async def test_one_pass_is_enough_for_what_no_journal_named_in_lanes_of_others() -> None:
    """The pass names these batches, and the owner of their lane enqueues them."""
    store, subjects, writer = await shared()
    unnamed = [await writer.accept(0, at_ns=store.clock.at_ns, agent=one) for one in AGENTS]
    first, second = subjects
    ended = asyncio.Event()
    await first.progress.read()
    began_ns = store.clock.at_ns
    await first.progress.save(PassRecord(began_unix_ns=began_ns, spans=(), ended=True))

    async def help_out() -> None:
        while not ended.is_set():
            await second._pass_loop._run_if_due()
            await asyncio.sleep(0)

    async def sleep(seconds: float) -> None:
        store.clock.at_ns += int(seconds * NS_PER_S)
        for _ in range(200):  # the other process works in the meantime
            await asyncio.sleep(0)

    store.clock.sleep = sleep
    helping = asyncio.create_task(help_out())
    report = await first._pass_loop.run_once(None, NextPass(start=True, urgent=True))
    ended.set()
    await helping
    assert report.complete_through_ns is not None
    assert report.outcome.left == 0
    counts = Counter(one.identity for one in await enqueued(store))
    assert counts == Counter(one.identity for one in unnamed)
    assert second.health.passes == 0, "it made no pass itself"
