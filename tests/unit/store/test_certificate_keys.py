"""The newest certificates are found without a request for each page of the chain."""

import asyncio

import pytest
from support.gc_store import VersionedStore
from support.gc_world import MovedClock

from sluice_protocol.keys import AUDIT_CHAIN, chain_key
from sluice_protocol.units import ObjectKey
from sluice_store.plan_folders import list_newest_certificate_keys


def store_with(*positions: int) -> VersionedStore:
    store = VersionedStore(clock=MovedClock())

    async def fill() -> None:
        for position in positions:
            await store.create(chain_key(position), b"{}")

    asyncio.run(fill())
    store.requests.clear()
    return store


def newest(store: VersionedStore, limit: int, known: int = -1) -> tuple[ObjectKey, ...]:
    return asyncio.run(list_newest_certificate_keys(store, limit, known=known))


def keys(*positions: int) -> tuple[ObjectKey, ...]:
    return tuple(chain_key(position) for position in positions)


@pytest.mark.parametrize("length", [*range(10), 31, 32, 33])
@pytest.mark.parametrize("limit", [1, 3, 40])
def test_the_newest_are_returned_for_every_length(length: int, limit: int) -> None:
    store = store_with(*range(length))
    for known in range(-1, length + 2):
        expected = keys(*reversed(range(max(0, length - limit), length)))
        assert newest(store, limit, known) == expected, known


def test_a_chain_of_one_page_costs_one_list() -> None:
    store = store_with(*range(1000))
    assert newest(store, 2) == keys(999, 998)
    assert store.requests == {"list": 1, "list_page": 1}


def test_a_chain_of_5000_costs_two_pages_and_a_few_heads() -> None:
    store = store_with(*range(5000))
    assert newest(store, 1) == keys(4999)
    assert store.requests["list_page"] == 2
    assert store.requests["head"] <= 26


@pytest.mark.parametrize("lost", [(999,), (1000,), (1001, 2400), (0, 2499), range(990, 1100)])
def test_missing_positions_of_a_long_chain_do_not_hide_the_newest(lost: tuple[int, ...]) -> None:
    kept = [one for one in range(2500) if one not in lost]
    assert newest(store_with(*kept), 2) == keys(kept[-1], kept[-2])


def test_a_known_position_costs_one_list_and_two_heads() -> None:
    store = store_with(*range(5000))
    assert newest(store, 1, known=4999) == keys(4999)
    assert {name: n for name, n in store.requests.items() if name in ("list", "head")} == {
        "list": 1,
        "head": 2,
    }


@pytest.mark.parametrize("lost", [(7,), (3, 7), (28, 29), (0,), tuple(range(25))])
def test_a_chain_with_missing_positions_is_listed_exactly(lost: tuple[int, ...]) -> None:
    kept = [one for one in range(30) if one not in lost]
    store = store_with(*kept)
    for limit in (1, 4, 40):
        expected = keys(*reversed(kept[-limit:]))
        for known in (-1, 5, 7, 27):
            assert newest(store, limit, known) == expected, (limit, known)


def test_a_foreign_key_behind_the_chain_is_returned() -> None:
    """The reader reports it as unreadable; it must not hide."""
    store = store_with(0, 1)
    foreign = ObjectKey(f"{AUDIT_CHAIN}x.json")
    asyncio.run(store.create(foreign, b"{"))
    assert newest(store, 2) == (foreign, chain_key(1))
