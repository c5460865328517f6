"""Writes that are retried until their outcome is known, and the replacement of an object."""

import asyncio
import random
from pathlib import Path

import pytest
from support.memory_bucket import Crashed, Fault, MemoryBucket, Scripted, open_memory_store
from support.memory_bucket.faults import OnKey
from support.queue_store import SimClock

from sluice_protocol.clock import Clock
from sluice_protocol.errors import OutcomeUnknown, StoreDenied, StoreUnavailable
from sluice_protocol.outcomes import Applied, Exists, Found, NotFound
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_store.local import open_local_store
from sluice_store.port import ObjectStore
from sluice_store.retry import (
    Backoff,
    OtherBytes,
    RetryBudget,
    RetrySettings,
    SameBytes,
    create_known,
    create_once,
    overwrite_known,
    replace_version,
)

KEY = ObjectKey("some/key")
NOT_APPLIED = [Fault.TIMEOUT_BEFORE, Fault.RESET_BEFORE, Fault.CONFLICT, Fault.SLOW_DOWN]
APPLIED = [Fault.TIMEOUT_AFTER, Fault.RESET_AFTER, Fault.TRUNCATED, Fault.ERROR_AFTER]
UNREADABLE = [Fault.NOT_SENT, Fault.TIMEOUT_BEFORE, Fault.RESET_AFTER, Fault.SLOW_DOWN]


class PauseClock(SimClock):
    """A virtual clock that records every pause above zero."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        if seconds > 0:
            self.pauses.append(seconds)
        await super().sleep(seconds)


def store_with(faults: dict[int, Fault], clock: Clock) -> ObjectStore:
    return open_memory_store(plan=Scripted(faults), clock=clock)[0]


def backoff_of(clock: Clock, **settings: float) -> Backoff:
    return Backoff(clock=clock, rng=random.Random(7), settings=RetrySettings(**settings))


async def stored(store: ObjectStore) -> bytes | None:
    read = await store.get(KEY)
    return read.body if isinstance(read, Found) else None


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [*((one, Applied) for one in NOT_APPLIED), *((one, SameBytes) for one in APPLIED)],
    ids=str,
)
async def test_create_is_retried_after_a_pause_and_reports_bytes_that_the_first_try_applied(
    fault: Fault, outcome: type
) -> None:
    clock = PauseClock()
    store = store_with({0: fault}, clock)
    assert isinstance(await create_once(store, KEY, b"body", backoff_of(clock)), outcome)
    assert len(clock.pauses) == 1
    assert await stored(store) == b"body"


async def test_create_that_is_applied_late_is_met_by_a_later_try() -> None:
    clock = PauseClock()
    late = dict.fromkeys(range(2), Fault.APPLIED_LATE) | dict.fromkeys(range(2, 6), Fault.CONFLICT)
    store = store_with(late, clock)
    assert isinstance(await create_once(store, KEY, b"body", backoff_of(clock)), SameBytes)
    assert await stored(store) == b"body"


async def test_the_bytes_of_another_writer_are_returned_and_kept() -> None:
    clock = PauseClock()
    store = store_with({1: Fault.TIMEOUT_BEFORE}, clock)
    await store.create(KEY, b"theirs")
    outcome = await create_once(store, KEY, b"ours", backoff_of(clock))
    assert outcome == OtherBytes(body=b"theirs")
    assert await stored(store) == b"theirs"


async def test_an_object_that_is_deleted_before_it_is_read_is_created_again() -> None:
    class Deleting:
        """Reports the first read as missing, as if the object was deleted after the create."""

        def __init__(self, inner: ObjectStore) -> None:
            self.inner = inner
            self.create = inner.create
            self.reads = 0

        async def get(self, key: ObjectKey) -> Found | NotFound:
            self.reads += 1
            return NotFound(date_ns=UnixNs(0)) if self.reads == 1 else await self.inner.get(key)

    clock = PauseClock()
    store = store_with({}, clock)
    await store.create(KEY, b"body")
    deleting = Deleting(store)
    outcome = await create_once(deleting, KEY, b"body", backoff_of(clock))
    assert isinstance(outcome, SameBytes)
    assert deleting.reads == 2
    assert len(clock.pauses) == 1


@pytest.mark.parametrize("fault", UNREADABLE, ids=str)
async def test_a_failed_comparison_raises_and_the_same_call_succeeds_later(fault: Fault) -> None:
    clock = PauseClock()
    bucket = MemoryBucket(clock=clock, rng=random.Random(0))
    store, _ = open_memory_store(bucket, plan=OnKey("GET", KEY, 1, fault), clock=clock)
    await store.create(KEY, b"body")
    with pytest.raises(StoreUnavailable):
        await create_once(store, KEY, b"body", backoff_of(clock))
    assert isinstance(await create_once(store, KEY, b"body", backoff_of(clock)), SameBytes)


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER], ids=str)
async def test_a_process_that_dies_in_the_create_finds_the_same_state_at_its_next_start(
    fault: Fault,
) -> None:
    clock = PauseClock()
    store = store_with({0: fault}, clock)
    with pytest.raises(Crashed):
        await create_once(store, KEY, b"body", backoff_of(clock))
    wanted = Applied if fault is Fault.CRASH_BEFORE else SameBytes
    assert isinstance(await create_once(store, KEY, b"body", backoff_of(clock)), wanted)


async def test_a_refusal_is_raised_without_a_second_try() -> None:
    clock = PauseClock()
    store = store_with({0: Fault.DENIED}, clock)
    with pytest.raises(StoreDenied):
        await create_once(store, KEY, b"body", backoff_of(clock))
    assert clock.pauses == []


async def test_create_known_reports_exists_without_reading_the_object() -> None:
    clock = PauseClock()
    store, network = open_memory_store(plan=Scripted({1: Fault.CONFLICT}), clock=clock)
    assert isinstance(await create_known(store, KEY, b"one", backoff_of(clock)), Applied)
    assert isinstance(await create_known(store, KEY, b"two", backoff_of(clock)), Exists)
    assert network.calls == 3
    assert len(clock.pauses) == 1


async def test_a_request_that_was_not_sent_is_retried_only_on_demand() -> None:
    clock = PauseClock()
    store = store_with({0: Fault.NOT_SENT, 1: Fault.NOT_SENT}, clock)
    with pytest.raises(StoreUnavailable):
        await create_known(store, KEY, b"body", backoff_of(clock))
    outcome = await create_known(store, KEY, b"body", backoff_of(clock), retry_unsent=True)
    assert isinstance(outcome, Applied)
    assert len(clock.pauses) == 1


@pytest.mark.parametrize("fault", NOT_APPLIED + APPLIED, ids=str)
async def test_overwrite_is_retried_until_it_is_applied(fault: Fault) -> None:
    clock = PauseClock()
    store = store_with({1: fault}, clock)
    await store.create(KEY, b"old")
    await overwrite_known(store, KEY, b"new", backoff_of(clock))
    assert await stored(store) == b"new"
    assert len(clock.pauses) == 1


async def test_the_number_of_tries_is_bounded_and_the_last_try_is_not_followed_by_a_pause() -> None:
    clock = PauseClock()
    store, network = open_memory_store(
        plan=Scripted(dict.fromkeys(range(99), Fault.CONFLICT)), clock=clock
    )
    with pytest.raises(OutcomeUnknown) as raised:
        await create_known(store, KEY, b"body", backoff_of(clock, tries_max=4))
    assert raised.value.tries == network.calls == 4
    assert len(clock.pauses) == 3


async def test_the_total_time_is_bounded() -> None:
    clock = PauseClock()
    budget = RetryBudget("create", KEY, backoff_of(clock, tries_max=99, total_s=10.0))
    await budget.wait_or_raise()
    clock.at_ns += 10 * NS_PER_S
    cause = StoreUnavailable("create", KEY, "no response")
    with pytest.raises(OutcomeUnknown) as raised:
        await budget.wait_or_raise(cause)
    assert raised.value.__cause__ is cause


def test_pauses_are_random_below_a_limit_that_doubles_up_to_a_maximum() -> None:
    async def pauses(seed: int) -> list[float]:
        clock = PauseClock()
        settings = RetrySettings(tries_max=9, total_s=1e6, backoff_s=0.1, backoff_max_s=0.8)
        backoff = Backoff(clock=clock, rng=random.Random(seed), settings=settings)
        budget = RetryBudget("create", KEY, backoff)
        for _ in range(8):
            await budget.wait_or_raise()
        return clock.pauses

    seen = [asyncio.run(pauses(seed)) for seed in range(200)]
    limits = [0.1, 0.2, 0.4, 0.8, 0.8, 0.8, 0.8, 0.8]
    for at, limit in enumerate(limits):
        longest = max(one[at] for one in seen)
        assert 0.9 * limit < longest <= limit
        assert min(one[at] for one in seen) < 0.1 * limit


def test_a_backoff_seeded_by_a_virtual_clock_replays() -> None:
    one, two = (Backoff.seeded_by(SimClock()) for _ in range(2))
    assert [one.rng.random() for _ in range(5)] == [two.rng.random() for _ in range(5)]


JOURNAL = ObjectKey("transferred/v1/journal.json")


def test_a_replaced_object_leaves_no_older_version(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_local_store(tmp_path) as store:
            for body in (b"one", b"two", b"three"):
                await replace_version(store, JOURNAL, body, Backoff.seeded_by(SystemClock()))
            found = await store.get(JOURNAL)
            assert found.body == b"three"

    asyncio.run(main())
    kept = [one for one in tmp_path.rglob("*") if one.is_file() and one.stat().st_size in (3, 5)]
    assert [one.read_bytes() for one in kept] == [b"three"]
