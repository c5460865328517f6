"""New decisions are found by few requests, however many decisions there are."""

import asyncio

import pytest
from support.gc_store import PAGE, VersionedStore
from support.gc_world import START_NS, MovedClock
from ulid import ULID

from sluice_protocol.conflicts import Decision, decision_key
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.manifests import encode_record
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_store.conflicts import RECENT_S, DecisionsReader

YEAR_S = 365 * 86_400


def decide(store: VersionedStore, number: int, *, age_s: float) -> None:
    """Write a decision whose id is of an earlier time."""
    stamp_ms = (START_NS // NS_PER_S - int(age_s)) * 1000
    text = str(ULID((stamp_ms << 80 | number).to_bytes(16, "big")))
    decision = Decision(
        decision_id=text,
        action="accept_existing",
        conflict_id=f"conflict-{number}",
        agent_id="host-1",
        boot_id="b1",
        decided_by="operator",
        decided_at_unix_ns=START_NS,
    )
    store.put(decision_key(text), encode_record(decision))


def store_with(count: int) -> VersionedStore:
    store = VersionedStore(clock=MovedClock())
    for number in range(count):
        decide(store, number, age_s=YEAR_S)
    return store


def decided(store: VersionedStore, reader: DecisionsReader, number: int) -> bool:
    store.requests.clear()
    return f"conflict-{number}" in asyncio.run(reader.refresh()).by_conflict


@pytest.mark.daily(2)
@pytest.mark.parametrize("count", [0, 5, PAGE, PAGE + 1, 5 * PAGE])
def test_a_refresh_costs_at_most_two_pages_and_finds_a_new_decision(count: int) -> None:
    store = store_with(count)
    reader = DecisionsReader(store)
    assert len(asyncio.run(reader.refresh()).by_conflict) == count
    for round_ in range(7):
        number = count + round_
        decide(store, number, age_s=RECENT_S - 60)
        assert decided(store, reader, number)
        assert store.requests["list_page"] <= 2
        assert store.requests["get"] == 1
    assert len(reader.current.by_conflict) == count + 7


def test_a_decision_with_an_old_id_is_found_within_as_many_refreshes_as_there_are_pages() -> None:
    """A spool transfers decisions that are older than a day."""
    store = store_with(5 * PAGE)
    reader = DecisionsReader(store)
    asyncio.run(reader.refresh())
    for round_, age_s in enumerate((2 * YEAR_S, YEAR_S // 2, YEAR_S)):
        number = 6 * PAGE + round_
        decide(store, number, age_s=age_s)
        assert any(decided(store, reader, number) for _ in range(7))


def test_a_decision_with_an_old_id_is_found_immediately_if_there_are_few() -> None:
    store = store_with(5)
    reader = DecisionsReader(store)
    asyncio.run(reader.refresh())
    decide(store, 6, age_s=2 * YEAR_S)
    assert decided(store, reader, 6)


def test_a_damaged_decision_is_reported_until_it_is_repaired() -> None:
    store = store_with(2)
    key = ObjectKey("decisions/v1/00000000000000000000000000.json")
    store.put(key, b"{broken")
    reader = DecisionsReader(store)
    for _ in range(2):
        with pytest.raises(InvalidRecord):
            asyncio.run(reader.refresh())
    store.remove_key(key)
    assert len(asyncio.run(reader.refresh()).by_conflict) == 2
