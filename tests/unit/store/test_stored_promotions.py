"""Promotions in a store: created once, read by a listing, whatever else is there."""

import random

import pytest
from support.memory_bucket import MemoryBucket, open_memory_store

from sluice_protocol.errors import BadUsage
from sluice_protocol.promotions import PromotedType, Promotion, column_of, promotion_key
from sluice_protocol.system_clock import SystemClock
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff
from sluice_store.stored_promotions import StoredPromotions, read_promotions, submit_promotion


def made_bucket() -> MemoryBucket:
    return MemoryBucket(clock=SystemClock(), rng=random.Random(0))


def wanted(key: str, kind: PromotedType = PromotedType.TEXT, by: str = "alice") -> Promotion:
    return Promotion(
        kind="logs",
        source="attributes",
        key=key,
        column=column_of("attributes", key),
        type=kind,
        decided_by=f"operator:{by}",
        decided_at_unix_ns=0,
    )


async def submit(store: ObjectStore, one: Promotion, known: StoredPromotions) -> Promotion:
    return await submit_promotion(store, one, known, Backoff.seeded_by(SystemClock()))


async def test_a_decision_has_the_time_of_the_store_and_is_made_once() -> None:
    store = open_memory_store(made_bucket())[0]
    before = await read_promotions(store)
    first = await submit(store, wanted("a"), before)
    assert first.decided_at_unix_ns == before.date_ns > 0
    again = await submit(store, wanted("a", by="bob"), await read_promotions(store))
    assert again == first
    assert (await read_promotions(store)).records == (first,)


async def test_two_operators_at_the_same_moment_agree_or_one_is_refused() -> None:
    """Both read the list before either writes."""
    store = open_memory_store(made_bucket())[0]
    before = await read_promotions(store)
    first = await submit(store, wanted("a.b"), before)
    assert await submit(store, wanted("a.b", by="bob"), before) == first
    for other in (wanted("a-b"), wanted("a.b", PromotedType.FLOAT)):
        with pytest.raises(BadUsage, match="another attribute has this column"):
            await submit(store, other, before)
    assert (await read_promotions(store)).records == (first,)


async def test_a_list_that_did_not_change_is_not_read_again() -> None:
    store = open_memory_store(made_bucket())[0]
    await submit(store, wanted("a"), await read_promotions(store))
    known = await read_promotions(store)
    assert await read_promotions(store, known) is known
    await submit(store, wanted("b"), known)
    later = await read_promotions(store, known)
    assert [one.key for one in later.records] == ["a", "b"]


async def test_a_damaged_record_hides_no_other_and_is_read_again_when_it_is_repaired() -> None:
    bucket = made_bucket()
    store = open_memory_store(bucket)[0]
    first = await submit(store, wanted("a"), await read_promotions(store))
    key = promotion_key("logs", "attr_b")
    await store.create(key, b"{broken")
    found = await read_promotions(store)
    assert found.records == (first,)
    assert [error.key for error in found.unreadable] == [key]
    body = (await store.get(promotion_key("logs", "attr_a"))).body  # type: ignore[union-attr]
    await store.overwrite(key, body.replace(b'"a"', b'"b"').replace(b"attr_a", b"attr_b"))
    repaired = await read_promotions(store, found)
    assert [one.key for one in repaired.records] == ["a", "b"]
    assert repaired.unreadable == ()
