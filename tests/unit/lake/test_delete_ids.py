"""Sets of ids of deletes: what they contain, how large their record gets, and what is read."""

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.dying_store import Died, DyingStore
from support.gc_store import VersionedStore
from support.gc_world import MovedClock

from sluice_lake import source_ranges
from sluice_lake.source_ranges import DeleteIds, DeleteIdsReader, remove_old_parts, with_ids
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.manifests import encode_record
from sluice_protocol.system_clock import SystemIds
from sluice_protocol.units import ObjectKey
from sluice_store.retry import Backoff

PREFIX = "rollup/v1/deletes/"
IDS = SystemIds()


@pytest.fixture(autouse=True)
def few_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_ranges, "LISTED_MAX", 10)


def name(number: int) -> str:
    return f"01{number:024d}"


async def add(store: Any, before: DeleteIds, *numbers: int) -> DeleteIds:
    return await with_ids(
        DeleteIdsReader(store=store),
        before,
        [name(one) for one in numbers],
        prefix=PREFIX,
        ids=IDS,
        backoff=Backoff.seeded_by(MovedClock()),
    )


async def read(store: Any, found: DeleteIds, wanted: set[str] | None = None) -> frozenset[str]:
    return await DeleteIdsReader(store=store).read(found, wanted)


@given(
    added=st.lists(st.lists(st.integers(0, 300), max_size=30), max_size=12),
    asked=st.sets(st.integers(0, 300)),
)
def test_a_set_contains_what_was_added_in_any_order(
    added: list[list[int]], asked: set[int]
) -> None:
    async def story() -> None:
        store = VersionedStore(clock=MovedClock())
        found, model = DeleteIds(), set[str]()
        for numbers in added:
            new = {name(one) for one in numbers} - model
            found = await add(store, found, *(int(one[2:]) for one in new))
            model |= new
        assert await read(store, found) == model
        wanted = {name(one) for one in asked}
        assert await read(store, found, wanted) == model & wanted
        assert sum(part.count for part in found.parts) + len(found.listed) == len(model)

    asyncio.run(story())


async def test_the_record_stays_small_and_each_id_is_written_a_few_times() -> None:
    store = VersionedStore(clock=MovedClock())
    found, sizes, written = DeleteIds(), [], 0
    for start in range(0, 10_000, 5):
        before = {part.key for part in found.parts}
        found = await add(store, found, *range(start, start + 5))
        written += sum(part.count for part in found.parts if part.key not in before)
        sizes.append(len(encode_record(found)))
        assert all(
            one.count > 2 * later.count
            for one, later in zip(found.parts, found.parts[1:], strict=False)
        )
    assert max(sizes[1_000:]) <= max(sizes[:1_000]) + 3 * 250
    assert len(found.parts) <= 10
    assert written <= 10 * 10_000


async def test_only_parts_that_may_contain_a_wanted_id_are_read_and_only_once() -> None:
    store = VersionedStore(clock=MovedClock())
    found = await add(store, DeleteIds(), *range(100))
    found = await add(store, found, *range(1_000, 1_020))
    found = await add(store, found, 2_000)
    assert len(found.parts) == 2
    reader = DeleteIdsReader(store=store)
    for wanted, reads in ((2_000, 0), (1_005, 1), (1_006, 1), (500, 1), (5, 2)):
        assert (name(wanted) in await reader.read(found, {name(wanted)})) == (wanted != 500)
        assert store.requests.get("get", 0) == reads


@pytest.mark.parametrize("body", [None, b"", b"damaged"])
async def test_a_part_that_is_missing_or_damaged_is_an_error(body: bytes | None) -> None:
    store = VersionedStore(clock=MovedClock())
    found = await add(store, DeleteIds(), *range(20))
    key = ObjectKey(found.parts[0].key)
    store.remove_key(key)
    if body is not None:
        store.put(key, body)
    with pytest.raises(InvalidRecord, match="ids of deletes"):
        await read(store, found)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_crash_leaves_the_former_set_and_a_part_that_is_removed_later(after: bool) -> None:
    store = VersionedStore(clock=MovedClock())
    found = await add(store, DeleteIds(), *range(20))
    with pytest.raises(Died):
        await add(DyingStore(store, 0, after), found, *range(20, 40))
    assert await read(store, found) == {name(one) for one in range(20)}
    again = await add(store, found, *range(20, 40))
    named = {one.key for one in again.parts}
    keys = {key for key in store.versions if key.startswith(PREFIX)}
    assert len(keys - named) == 1 + after
    assert await remove_old_parts(store, PREFIX, named, store.clock.now_ns() - 10**12) == 0
    later_ns = store.clock.now_ns() + 10**12
    assert await remove_old_parts(store, PREFIX, named, later_ns) == 1 + after
    assert await read(store, again) == {name(one) for one in range(40)}


async def test_ids_of_another_order_than_their_creation_are_found() -> None:
    store = VersionedStore(clock=MovedClock())
    numbers, found = list(range(200)), DeleteIds()
    random.Random(3).shuffle(numbers)
    for one in numbers:
        found = await add(store, found, one)
    for one in numbers:
        assert await read(store, found, {name(one)}) == {name(one)}
