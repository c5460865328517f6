"""What is removed of the journals of gateways that died, and when."""

from support.gateway_journal import JournalWriter
from support.queue_store import SimStore, UnversionedStore
from support.reconciler_world import SHORT_HORIZON, make, make_pass, pass_time, rounds

from sluice_protocol.journals import (
    DISCOVERY,
    JOURNAL_REPLACED_AFTER_S,
    DiscoveryRecord,
    registration_key,
)
from sluice_protocol.keys import GATEWAYS
from sluice_protocol.manifests import decode_record
from sluice_reconciler.journals.progress import BREAK_MARGIN_S
from sluice_reconciler.service import Reconciler

HORIZON_S = SHORT_HORIZON.retry_horizon_s


async def died(store: SimStore) -> tuple[Reconciler, JournalWriter]:
    """Return a reconciler for which journals decide, and a gateway that writes nothing more."""
    writer = JournalWriter(store, store.clock.at_ns)
    await writer.register()
    subject = make(store, 1)
    await subject.journals.round()
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
    assert await subject._journal_loop.remove() == 1, "the object before the death"
    pass_time(store, 120)
    await rounds(store, subject, 3)
    assert await subject._journal_loop.remove() == 3
    assert stored(store) == []


async def test_a_dead_gateway_stays_registered_until_a_pass_has_replaced_it() -> None:
    """The last pass began soon after its newest object: it may have acknowledged more since."""
    store = SimStore()
    subject, writer = await died(store)
    pass_time(store, BREAK_MARGIN_S + 5)
    await make_pass(subject)
    await subject.journals.round()
    unnamed = await writer.accept(10, at_ns=store.clock.at_ns)  # killed before its journal
    pass_time(store, HORIZON_S + JOURNAL_REPLACED_AFTER_S)
    again = make(store, 2)
    await rounds(store, again, 3)
    await again._journal_loop.remove()
    assert registration_key(writer.process) in store.held
    await rounds(store, again, 3)
    record = decode_record(DISCOVERY, store.held[DISCOVERY].body, DiscoveryRecord)
    assert record.complete_through_unix_ns <= unnamed.accepted_at_unix_ns
    await make_pass(again)
    await rounds(store, again, 3)
    assert await again._journal_loop.remove() >= 1
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
    assert await subject._journal_loop.remove() == 0
    assert store.counts["head"] - before == 1
