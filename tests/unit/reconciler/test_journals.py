"""The journal route: what it enqueues, what it repeats, and what it counts."""

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs
from support.gateway_journal import JournalWriter
from support.queue_store import SimStore
from support.reconciler_seed import enqueued
from support.reconciler_world import journaled, make, make_pass, now, pass_time, record, rounds

from sluice_protocol.errors import describe_version
from sluice_protocol.journals import DISCOVERY, LATE_S, HoldReason, journal_key
from sluice_protocol.keys import accepted_key, blob_key
from sluice_reconciler.journals import route
from sluice_reconciler.journals.reader import OBJECTS_MAX
from sluice_reconciler.verify import list_hold_records


async def test_journaled_batches_are_enqueued_without_a_listing_of_accepted() -> None:
    store = SimStore()
    subject, writer = await journaled(store)
    listed = subject.metrics.listed._value.get()
    batches = [await writer.accept(seq, at_ns=now(store)) for seq in range(0, 50, 10)]
    through = now(store)
    number = await writer.append(batches, through_ns=through)
    await rounds(store, subject)
    assert {one.identity for one in await enqueued(store)} == {b.identity for b in batches}
    assert record(store).complete_through_unix_ns == through
    assert record(store).journals == {writer.process: number}
    assert record(store).held_by == f"gw-1 (process {writer.process})"
    assert subject.metrics.listed._value.get() == listed


async def test_requests_of_a_round_do_not_depend_on_the_number_of_manifests() -> None:
    counts: list[dict[str, int]] = []
    for manifests in (2, 200):
        store = SimStore()
        subject, writer = await journaled(store)
        old = [await writer.accept(10 * n, at_ns=now(store)) for n in range(manifests)]
        await writer.append(old, through_ns=now(store))
        await rounds(store, subject)
        before = dict(store.counts)
        await rounds(store, subject, 5)
        counts.append({verb: store.counts[verb] - before[verb] for verb in ("get", "list")})
    assert counts[0] == counts[1]
    assert counts[0]["list"] == 5  # of the registrations


async def test_a_round_that_cannot_read_everything_makes_the_next_one_due(store: SimStore) -> None:
    """Long intervals between rounds do not limit how many objects are read."""
    subject, writer = await journaled(store)
    batches = [await writer.accept(10 * n, at_ns=now(store)) for n in range(OBJECTS_MAX + 1)]
    for one in batches:
        await writer.append([one], through_ns=now(store))
    await rounds(store, subject, 1)
    assert subject.journals.is_behind
    await rounds(store, subject, 1)
    assert not subject.journals.is_behind
    assert len(await enqueued(store)) == len(batches)


async def test_an_unreported_batch_of_a_late_gateway_is_found_without_a_full_pass() -> None:
    """It continues a boot of which the journal named a batch; the scan is made once."""
    store = SimStore()
    subject, writer = await journaled(store)
    named = await writer.accept(0, at_ns=now(store))
    await writer.append([named], through_ns=now(store))
    await rounds(store, subject)
    unreported = await writer.accept(10, at_ns=now(store))
    await subject.scan_after_late_gateways()
    assert {one.identity for one in await enqueued(store)} == {named.identity}
    listed = subject.metrics.listed._value.get()
    pass_time(store, LATE_S)
    await rounds(store, subject)
    await subject.scan_after_late_gateways()
    found = {one.identity for one in await enqueued(store)}
    assert found == {named.identity, unreported.identity}
    assert subject.metrics.listed._value.get() == listed
    before = store.counts["list"]
    await subject.scan_after_late_gateways()
    assert store.counts["list"] == before


async def test_a_missing_number_is_not_skipped_until_a_full_pass_has_listed_what_it_named() -> None:
    store = SimStore()
    subject, writer = await journaled(store)
    through = record(store).complete_through_unix_ns
    lost = await writer.accept(0, at_ns=now(store))
    later = await writer.accept(10, at_ns=now(store))
    writer.number += 1  # an object that does not exist
    await writer.append([later], through_ns=now(store))
    await rounds(store, subject, 30)
    assert await enqueued(store) == []
    assert record(store).complete_through_unix_ns == through
    assert subject.journals.wanted_pass_ns() is not None
    await make_pass(subject)
    await rounds(store, subject, 3)
    found = {one.identity for one in await enqueued(store)}
    assert found == {lost.identity, later.identity}
    assert record(store).complete_through_unix_ns > through
    assert record(store).journals[writer.process] == writer.number


@pytest.mark.parametrize("damage", [b"{torn", b""])
async def test_a_damaged_object_holds_the_frontier_until_a_full_pass(damage: bytes) -> None:
    store = SimStore()
    subject, writer = await journaled(store)
    through = record(store).complete_through_unix_ns
    one = await writer.accept(0, at_ns=now(store))
    number = await writer.append([one], through_ns=now(store))
    store.held[journal_key(writer.process, number)].body = damage
    await rounds(store, subject, 3)
    assert record(store).complete_through_unix_ns == through
    assert subject.journals.wanted_pass_ns() is None  # the margin has not passed
    pass_time(store, 20)
    await rounds(store, subject, 1)
    assert subject.journals.wanted_pass_ns() is not None
    await make_pass(subject)
    await writer.append([], through_ns=now(store))
    await rounds(store, subject, 3)
    assert [found.identity for found in await enqueued(store)] == [one.identity]
    assert record(store).complete_through_unix_ns > through


@pytest.mark.parametrize("version", [0, 2])
async def test_an_object_of_another_version_holds_the_frontier_and_is_named(version: int) -> None:
    store = SimStore()
    subject, writer = await journaled(store)
    through = record(store).complete_through_unix_ns
    one = await writer.accept(0, at_ns=now(store))
    number = await writer.append([one], through_ns=now(store))
    held = store.held[journal_key(writer.process, number)]
    held.body = held.body.replace(b"journal.v1", b"journal.v%d" % version)
    body = held.body
    with capture_logs() as logs:
        await rounds(store, subject, 3)
    (broken,) = (line for line in logs if line["event"] == "journal_broken")
    assert broken["reason"] == describe_version("sluice.acceptance_journal", version, 1)
    assert record(store).complete_through_unix_ns == through
    assert held.body == body


async def test_an_entry_without_a_manifest_is_held_and_stops_nothing(store: SimStore) -> None:
    subject, writer = await journaled(store)
    gone = await writer.accept(0, at_ns=now(store))
    kept = await writer.accept(10, at_ns=now(store))
    del store.held[accepted_key(gone.identity)]
    through = now(store)
    await writer.append([gone, kept], through_ns=through)
    await rounds(store, subject)
    assert [one.identity for one in await enqueued(store)] == [kept.identity]
    assert subject.metrics.journal_entries_absent._value.get() == 1
    assert record(store).complete_through_unix_ns == through
    held = [one async for one in list_hold_records(store)]
    assert [(one.key, one.reason) for one in held] == [
        (accepted_key(gone.identity), HoldReason.MANIFEST_MISSING)
    ]


async def test_an_entry_that_differs_from_its_manifest_enqueues_the_manifest() -> None:
    """An entry is a hint: what is stored decides."""
    store = SimStore()
    subject, writer = await journaled(store)
    one = await writer.accept(0, at_ns=now(store))
    await writer.append([replace(one, record_count=999)], through_ns=now(store))
    await rounds(store, subject)
    assert await enqueued(store) == [one]


async def test_a_held_batch_does_not_hold_the_frontier_and_is_checked_again() -> None:
    store = SimStore()
    subject, writer = await journaled(store)
    one = await writer.accept(0, at_ns=now(store))
    blob = store.held.pop(blob_key(one.digest))
    through = now(store)
    await writer.append([one], through_ns=through)
    await rounds(store, subject)
    assert await enqueued(store) == []
    assert record(store).complete_through_unix_ns == through
    store.held[blob_key(one.digest)] = blob
    await subject._held.check()
    assert await enqueued(store) == [one]


async def test_a_duplicate_in_two_journals_is_enqueued_once(store: SimStore) -> None:
    subject, writer = await journaled(store)
    other = JournalWriter(store, now(store), collector_id="gw-2", ulid="01J00000000000000000000001")
    await other.register()
    one = await writer.accept(0, at_ns=now(store))
    await other.append([one], through_ns=now(store))
    await writer.append([one], through_ns=now(store))
    await rounds(store, subject, 3)
    assert await enqueued(store) == [one]
    assert subject.metrics.maybe_doubled.labels("spark")._value.get() == 0


async def test_entries_with_many_parts_are_read_in_smaller_groups(
    store: SimStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their parts need up to 32 KiB each."""
    monkeypatch.setattr(route, "PENDING_MAX", 40)
    subject, writer = await journaled(store)
    for seq in range(4):
        one = await writer.accept(seq, at_ns=now(store))
        parts = replace(one, parts="A" * 32 * 1024)
        await writer.append([parts], through_ns=now(store))
    await subject.journals._read_objects()
    assert [journal.read_through - writer.number for journal in subject.journals.journals] == [-2]
    await rounds(store, subject, 4)
    assert len(await enqueued(store)) == 4


async def test_a_restart_continues_after_the_published_number(store: SimStore) -> None:
    subject, writer = await journaled(store)
    for seq in range(0, 50, 10):
        one = await writer.accept(seq, at_ns=now(store))
        await writer.append([one], through_ns=now(store))
        await rounds(store, subject)
    through = record(store).complete_through_unix_ns
    reads = store.counts["get"]
    again = make(store, 2)
    pass_time(store, 1.1)
    await again.journals.run_pass()
    assert store.counts["get"] - reads < 10  # the last object, not the five before
    assert record(store).complete_through_unix_ns >= through
    assert len(await enqueued(store)) == 5
    assert record(store).journaled_since_unix_ns is not None


async def test_a_lost_record_repeats_work_and_enqueues_nothing_twice(store: SimStore) -> None:
    subject, writer = await journaled(store)
    batches = [await writer.accept(seq, at_ns=now(store)) for seq in range(0, 50, 10)]
    await writer.append(batches, through_ns=now(store))
    await rounds(store, subject)
    del store.held[DISCOVERY]
    again = make(store, 2, takeover_after_s=0)
    await rounds(store, again, 2)
    assert record(store).journals == {writer.process: writer.number}
    assert record(store).journaled_since_unix_ns is None
    assert record(store).complete_through_unix_ns == 0  # a full pass decides first
    assert len(await enqueued(store)) == 5
