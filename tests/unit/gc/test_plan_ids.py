"""The newest plans are found without a request for each plan of the past."""

import asyncio

from support.gc_store import VersionedStore
from support.gc_world import MovedClock
from ulid import ULID

from sluice_gc.plan import newest_plan_id, plan_ids_newest_first, plan_key
from sluice_protocol.units import NS_PER_S
from sluice_reconciler.audit_summaries import list_newest_plans
from sluice_store.plan_folders import plan_folders_newest_first

DAY_S = 86_400


def plans_of_days(*ages_days: float) -> tuple[VersionedStore, list[str]]:
    """Return a store with one plan of each age, and their ids, newest first."""
    clock = MovedClock()
    store = VersionedStore(clock=clock)
    ids = [str(ULID.from_timestamp(clock.at_ns / NS_PER_S - age * DAY_S)) for age in ages_days]

    async def fill() -> None:
        for plan_id in ids:
            await store.create(plan_key(plan_id), b"{}")

    asyncio.run(fill())
    return store, sorted(ids, reverse=True)


async def every(store: VersionedStore) -> list[str]:
    return [plan_id async for plan_id in plan_ids_newest_first(store)]


def test_every_plan_is_yielded_once_newest_first() -> None:
    store, ids = plans_of_days(0.1, 1, 5, 15.9, 16.1, 100, 127, 400, 4000)
    assert asyncio.run(every(store)) == ids


def test_a_plan_from_a_clock_that_is_ahead_is_found() -> None:
    store, ids = plans_of_days(-1, 3)
    assert asyncio.run(every(store)) == ids


def test_the_newest_plan_costs_no_request_for_older_ones() -> None:
    store, ids = plans_of_days(*(0.5 + day for day in range(300)))
    before = sum(store.requests.values())
    assert asyncio.run(newest_plan_id(store)) == ids[0]
    assert sum(store.requests.values()) - before < 10


def test_an_old_plan_is_found_if_there_is_no_other() -> None:
    store, ids = plans_of_days(900)
    assert asyncio.run(newest_plan_id(store)) == ids[0]


def test_after_a_known_plan_only_later_ones_cost_requests() -> None:
    store, ids = plans_of_days(*(0.1 * day for day in range(300)))

    async def since() -> list[str]:
        return [one async for one in plan_folders_newest_first(store, since=ids[1])]

    assert asyncio.run(since()) == ids[:2]
    assert store.requests["list"] == 3


def test_a_list_of_the_newest_plans_costs_no_request_for_older_ones() -> None:
    store, ids = plans_of_days(*(0.5 + day for day in range(300)))
    before = sum(store.requests.values())
    found = asyncio.run(list_newest_plans(store, 2))
    assert [one.key for one in found] == [plan_key(plan_id) for plan_id in ids[:2]]
    assert sum(store.requests.values()) - before < 12
