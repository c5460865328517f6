"""The published time: what holds it back, who publishes it, and which journals are removed."""

import random

import pytest
from msgspec import structs
from support.gateway_journal import JournalWriter
from support.queue_store import SimStore, UnversionedStore
from support.reconciler_seed import enqueued
from support.reconciler_world import (
    SHORT_HORIZON,
    journaled,
    make,
    make_pass,
    now,
    pass_time,
    record,
    rounds,
)

from sluice_protocol.authority import Authority, ModeSwitch, mode_switch_key
from sluice_protocol.journals import (
    DISCOVERY,
    JOURNAL_REPLACED_AFTER_S,
    LATE_S,
    DiscoveryRecord,
    journal_key,
    registration_key,
)
from sluice_protocol.keys import AUTHORITY_SETTINGS, GATEWAYS, accepted_key
from sluice_protocol.manifests import decode_record, encode_record
from sluice_protocol.units import NS_PER_S
from sluice_reconciler.journals.progress import BREAK_MARGIN_S
from sluice_reconciler.service import Reconciler


async def test_a_dead_process_holds_the_frontier_until_a_pass_that_began_later() -> None:
    store = SimStore()
    subject, writer = await journaled(store)
    named = await writer.accept(0, at_ns=now(store))
    through = now(store)
    await writer.append([named], through_ns=through)
    await rounds(store, subject)
    await writer.accept(10, at_ns=now(store))  # killed before its journal object
    pass_time(store, 60)
    await make_pass(subject)  # began too early: the process may still acknowledge
    await rounds(store, subject, 25)
    assert record(store).complete_through_unix_ns == record(store).pass_began_unix_ns
    held_at = record(store).complete_through_unix_ns
    pass_time(store, JOURNAL_REPLACED_AFTER_S)
    await rounds(store, subject, 25)
    assert record(store).complete_through_unix_ns == held_at
    wanted = subject.journals.wanted_pass_ns()
    assert wanted is not None
    await writer.accept(20, at_ns=now(store))
    await make_pass(subject)
    await rounds(store, subject)
    assert record(store).complete_through_unix_ns > wanted
    assert record(store).held_by is None
    assert len(await enqueued(store)) == 3
    assert subject.journals.wanted_pass_ns() is None


@pytest.mark.parametrize(("manifests", "looks"), [(0, True), (200_000, True), (200_001, False)])
async def test_what_a_killed_gateway_did_not_name_is_found_when_it_is_late(
    store: SimStore, manifests: int, looks: bool
) -> None:
    """The pass proves nothing yet, so the time of the process still bounds the frontier."""
    subject, writer = await journaled(store)
    await writer.append([], through_ns=now(store))
    await rounds(store, subject)
    await writer.accept(10, at_ns=now(store))  # killed before its journal object
    pass_time(store, LATE_S - 6)
    await rounds(store, subject, 2)
    assert subject.journals.wanted_pass_ns() is None
    pass_time(store, 6)
    await rounds(store, subject, 2)
    old = subject.discovery.record
    subject.discovery.record = structs.replace(old, listed=manifests)
    wanted = subject.journals.wanted_pass_ns()
    subject.discovery.record = old
    if not looks:
        assert wanted is None
        return
    assert wanted is not None
    await make_pass(subject)
    await rounds(store, subject)
    assert len(await enqueued(store)) == 1
    assert record(store).complete_through_unix_ns == record(store).pass_began_unix_ns
    assert (record(store).pass_began_unix_ns or 0) >= wanted
    await rounds(store, subject, 5)  # it may still acknowledge
    assert record(store).complete_through_unix_ns == record(store).pass_began_unix_ns
    assert subject.journals.wanted_pass_ns() == wanted  # made: the stored pass began later


async def test_a_full_pass_counts_what_a_dead_gateway_did_not_name(store: SimStore) -> None:
    subject, writer = await journaled(store)
    named = await writer.accept(0, at_ns=now(store))
    await writer.append([named], through_ns=now(store))
    await rounds(store, subject)
    await make_pass(subject)
    assert subject.metrics.missed_by_journals._value.get() == 0
    await writer.accept(10, at_ns=now(store))
    pass_time(store, JOURNAL_REPLACED_AFTER_S + 30)
    await rounds(store, subject, 25)
    await make_pass(subject)
    assert subject.metrics.missed_by_journals._value.get() == 1


async def test_a_closed_process_holds_nothing_back(store: SimStore) -> None:
    subject, writer = await journaled(store)
    await writer.append([], through_ns=now(store), closed=True)
    await rounds(store, subject, 30)
    assert record(store).complete_through_unix_ns > now(store) - 15 * NS_PER_S
    assert record(store).held_by is None
    assert subject.journals.wanted_pass_ns() is None


def spool_of(store: SimStore) -> JournalWriter:
    return JournalWriter(
        store, now(store), ulid="01J00000000000000000000003", acceptance="local_spool"
    )


async def found_authority(store: SimStore) -> None:
    await store.create(AUTHORITY_SETTINGS, encode_record(Authority(authority_id="A", lanes=2)))


async def leave_spool(store: SimStore) -> None:
    """Write the records of an authority that switched to a spool and back."""
    for number, mode in enumerate(("local_spool", "s3_manifest"), start=1):
        switch = ModeSwitch(
            number=number,
            acceptance=mode,
            spool_writer="gw-1" if mode == "local_spool" else None,
            switched_at_unix_ns=now(store),
        )
        await store.create(mode_switch_key(number), encode_record(switch))


async def test_a_full_pass_proves_nothing_about_an_open_spool(store: SimStore) -> None:
    """What a spool has not transferred is in no listing."""
    spool = spool_of(store)
    await spool.register()
    await found_authority(store)
    pass_time(store, 60)
    await make_pass(make(store))
    assert record(store).pass_began_unix_ns is not None
    assert record(store).complete_through_unix_ns == 0


async def test_a_spool_that_was_killed_and_left_ends_by_a_later_pass(store: SimStore) -> None:
    await found_authority(store)
    subject, _ = await journaled(store)
    spool = spool_of(store)
    await spool.register()
    started = spool.started_ns
    await rounds(store, subject)
    pass_time(store, 60)
    await leave_spool(store)
    pass_time(store, 60)
    await make_pass(subject)
    assert record(store).complete_through_unix_ns <= started
    pass_time(store, 60)
    await rounds(store, subject)
    await make_pass(subject)
    assert record(store).complete_through_unix_ns > started


async def test_a_new_process_bounds_the_frontier_before_its_first_object(store: SimStore) -> None:
    subject, writer = await journaled(store)
    await writer.append([], through_ns=now(store), closed=True)
    await rounds(store, subject, 15)
    started = now(store)
    young = JournalWriter(store, started, ulid="01J00000000000000000000002")
    await young.register()
    await rounds(store, subject, 15)
    assert record(store).complete_through_unix_ns <= started


async def test_the_time_is_never_later_than_the_listing_of_the_registrations() -> None:
    """A process that registers after the listing may have acknowledged something already."""
    store = SimStore()
    _, writer = await journaled(store)
    await writer.append([], through_ns=now(store), closed=True)
    again = make(store, 2, journal_interval_s=1000)
    listed = now(store)
    await rounds(store, again, 30)
    assert record(store).journals[writer.process] == writer.number
    assert record(store).complete_through_unix_ns <= listed + 2 * NS_PER_S


async def test_a_time_that_is_later_than_its_object_proves_nothing(store: SimStore) -> None:
    """A gateway whose clock is wrong could otherwise declare batches complete that do not exist."""
    subject, writer = await journaled(store)
    pass_time(store, 5)
    number = await writer.append([], through_ns=now(store) + 3600 * NS_PER_S)
    written_ns = store.held[journal_key(writer.process, number)].modified_ns
    await rounds(store, subject, 4)
    assert now(store) > written_ns
    assert record(store).complete_through_unix_ns == written_ns
    late = await writer.accept(1, at_ns=now(store))
    await writer.append([late], through_ns=now(store))
    await rounds(store, subject)
    assert len(await enqueued(store)) == 1


async def test_a_gateway_without_a_journal_returns_the_decision_to_full_passes() -> None:
    store = SimStore()
    subject, writer = await journaled(store)
    silent = JournalWriter(store, now(store), collector_id="old-version")
    one = await silent.accept(0, at_ns=now(store), agent="other")
    subject.hint([accepted_key(one.identity)])
    await subject.pipeline.process_new([accepted_key(one.identity)])
    await rounds(store, subject)
    assert record(store).journaled_since_unix_ns is None
    through = record(store).complete_through_unix_ns
    await writer.append([], through_ns=now(store))
    await rounds(store, subject, 15)
    assert record(store).complete_through_unix_ns == through
    await make_pass(subject)  # meets no such batch
    await rounds(store, subject)
    assert record(store).journaled_since_unix_ns is not None


async def test_nothing_is_written_in_an_idle_store_except_a_bounded_heartbeat() -> None:
    store = SimStore()
    subject, writer = await journaled(store)
    await writer.append([], through_ns=now(store), closed=True)
    await rounds(store, subject, 3)
    writes = subject.discovery.writes
    await rounds(store, subject, 100)
    assert subject.discovery.writes - writes <= 110 * 1.1 / 10


async def test_two_reconcilers_never_lower_the_record(store: SimStore) -> None:
    subject, writer = await journaled(store)
    await writer.append([await writer.accept(1000, at_ns=now(store))], through_ns=now(store))
    await rounds(store, subject)
    standby = make(store, 2)
    await standby.journals.run_pass()
    times = []
    for seq in range(0, 100, 10):
        one = await writer.accept(seq, at_ns=now(store))
        await writer.append([one], through_ns=now(store))
        for each in random.Random(seq).sample([subject, standby], 2):
            pass_time(store, 0.6)
            await each.journals.run_pass()
            times.append(record(store).complete_through_unix_ns)
    assert times == sorted(times)
    assert len(await enqueued(store)) == 11
    assert standby.metrics.enqueued.labels("spark")._value.get() == 0
    assert standby.journals.journals[0].processed >= 9


async def test_a_standby_takes_over_when_the_owner_stops(store: SimStore) -> None:
    subject, writer = await journaled(store)
    first = await writer.accept(0, at_ns=now(store))
    await writer.append([first], through_ns=now(store))
    await rounds(store, subject)
    standby = make(store, 2)
    await standby.journals.run_pass()
    one = await writer.accept(10, at_ns=now(store))
    through = now(store)
    await writer.append([one], through_ns=through)
    await rounds(store, standby, 3)
    assert len(await enqueued(store)) == 1
    assert record(store).complete_through_unix_ns < through
    await rounds(store, standby, 10)
    assert len(await enqueued(store)) == 2
    assert record(store).complete_through_unix_ns == through


async def test_journals_are_removed_after_the_horizon_and_a_later_pass(store: SimStore) -> None:
    subject, writer = await journaled(store)
    for _ in range(5):
        await writer.append([], through_ns=now(store))
    await writer.append([], through_ns=now(store), closed=True)
    await rounds(store, subject, 3)
    pass_time(store, 700)
    await rounds(store, subject, 1)
    assert await subject.remove_journals() == 0  # no pass began after them
    await make_pass(subject)
    assert await subject.remove_journals() == 8
    assert not [key for key in store.held if key.startswith("gateways/")]
    await rounds(store, subject, 2)
    assert record(store).journals == {}


async def test_the_last_object_of_an_open_process_is_kept(store: SimStore) -> None:
    subject, writer = await journaled(store)
    for _ in range(5):
        await writer.append([], through_ns=now(store))
    await rounds(store, subject, 3)
    pass_time(store, 700)
    young = await writer.append([], through_ns=now(store))
    await rounds(store, subject, 2)
    await make_pass(subject)
    assert await subject.remove_journals() == 6
    kept = {key for key in store.held if key.startswith("gateways/")}
    assert kept == {registration_key(writer.process), journal_key(writer.process, young)}


HORIZON_S = SHORT_HORIZON.retry_horizon_s


async def died(store: SimStore) -> tuple[Reconciler, JournalWriter]:
    """Return a reconciler for which journals decide, and a gateway that writes nothing more."""
    writer = JournalWriter(store, store.clock.at_ns)
    await writer.register()
    subject = make(store, 1)
    await subject.journals.run_pass()
    await make_pass(subject)
    one = await writer.accept(0, at_ns=store.clock.at_ns)
    await writer.append([one], through_ns=store.clock.at_ns)
    await rounds(store, subject, 3)
    return subject, writer


def stored(store: SimStore) -> list[str]:
    return [key for key in store.held if key.startswith(GATEWAYS)]


async def test_what_a_gateway_writes_after_it_was_replaced_is_removed_too(store: SimStore) -> None:
    """No reconciler reads these objects, so their numbers are never published."""
    subject, writer = await died(store)
    pass_time(store, JOURNAL_REPLACED_AFTER_S + 5)
    await rounds(store, subject, 3)
    await make_pass(subject)
    await rounds(store, subject, 3)
    late = await writer.accept(10, at_ns=store.clock.at_ns)
    await writer.append([late], through_ns=store.clock.at_ns)
    await writer.append([], through_ns=store.clock.at_ns, closed=True)
    pass_time(store, BREAK_MARGIN_S + 1)
    await make_pass(subject)
    await rounds(store, subject, 3)
    pass_time(store, HORIZON_S - 60)
    assert await subject.remove_journals() == 1, "the object before the death"
    pass_time(store, 120)
    await rounds(store, subject, 3)
    assert await subject.remove_journals() == 3
    assert stored(store) == []


async def test_a_dead_gateway_stays_registered_until_a_pass_has_replaced_it() -> None:
    """The last pass began soon after its newest object: it may have acknowledged more since."""
    store = SimStore()
    subject, writer = await died(store)
    pass_time(store, BREAK_MARGIN_S + 5)
    await make_pass(subject)
    await subject.journals.run_pass()
    unnamed = await writer.accept(10, at_ns=store.clock.at_ns)  # killed before its journal
    pass_time(store, HORIZON_S + JOURNAL_REPLACED_AFTER_S)
    again = make(store, 2)
    await rounds(store, again, 3)
    await again.remove_journals()
    assert registration_key(writer.process) in store.held
    await rounds(store, again, 3)
    record = decode_record(DISCOVERY, store.held[DISCOVERY].body, DiscoveryRecord)
    assert record.complete_through_unix_ns <= unnamed.accepted_at_unix_ns
    await make_pass(again)
    await rounds(store, again, 3)
    assert await again.remove_journals() >= 1
    assert stored(store) == []


async def test_journals_in_a_store_without_versions_are_not_read_one_by_one() -> None:
    """They cannot be removed, so a run may not read what gateways wrote in years."""
    store = UnversionedStore()
    subject, writer = await died(store)
    pass_time(store, JOURNAL_REPLACED_AFTER_S + 5)
    await rounds(store, subject, 3)
    await make_pass(subject)
    await rounds(store, subject, 3)
    await writer.append([], through_ns=store.clock.at_ns)
    await writer.append([], through_ns=store.clock.at_ns, closed=True)
    pass_time(store, BREAK_MARGIN_S + 1)
    await make_pass(subject)
    await rounds(store, subject, 3)
    pass_time(store, HORIZON_S + 60)
    await rounds(store, subject, 3)
    before = store.counts["head"]
    assert await subject.remove_journals() == 0
    assert store.counts["head"] - before == 1
