"""Live records of a reconciler that shares its lanes: what another one took over is reported."""

from functools import partial

import msgspec
import pytest
from support import reconciler_world
from support.gateway_journal import JournalWriter
from support.queue_store import SimStore
from support.reconciler_seed import accept_logs
from support.reconciler_world import TWO_LANES, rounds

from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_reconciler.live_window import LiveView
from sluice_reconciler.passes.progress import NextPass
from sluice_reconciler.service import Reconciler

WINDOW_NS = 300 * NS_PER_S


make = partial(reconciler_world.make, authority=TWO_LANES, live_bytes_max=1 << 20)


async def view(reconciler: Reconciler, after: str | None = None) -> LiveView:
    """Return the live records after everything that was offered has been read."""
    live = reconciler.live
    while live._pending:
        await live._read(live._pending.popleft())
    return await live.view(agent_id=None, after=after, limit=1000, wait_s=0)


def sequences(seen: LiveView) -> list[int]:
    """Return the sequence numbers, without those of the first batch."""
    found = [msgspec.json.decode(line)["seq"] for line in seen.lines]
    return sorted(seq for seq in found if seq < 1000)


async def accept_lines(store: SimStore, seq: int) -> None:
    at_ns = store.clock.at_ns
    await accept_logs(store, [f"line {seq + n}" for n in range(10)], seq=seq, at_ns=at_ns)


async def two_reconcilers(store: SimStore) -> tuple[Reconciler, Reconciler]:
    """Return an owner of every lane and a second reconciler, which have watched for a window."""
    first, second = make(store, 1), make(store, 2)
    await accept_lines(store, 1000)
    await first.once()
    await second.once(takeover=None)
    store.clock.at_ns += 2 * WINDOW_NS
    for one in (first, second):
        await one.once(takeover=None)
        assert not (await view(one)).partial
    return first, second


async def test_second_reconciler_reports_batches_that_only_the_first_one_read() -> None:
    store = SimStore()
    first, second = await two_reconcilers(store)
    cursor = (await view(second)).next
    await accept_lines(store, 0)
    await first.once()
    await accept_lines(store, 10)
    await second.once(takeover=None)

    complete = await view(first)
    assert (sequences(complete), complete.partial) == (list(range(10)), False)
    for after in (None, cursor):
        seen = await view(second, after)
        assert sequences(seen) == list(range(10, 20))
        assert seen.partial
        assert "another reconciler" in " ".join(seen.reasons)

    # A follower that continues behind the gap is complete; so is the whole window later.
    assert not (await view(second, (await view(second)).next)).partial
    await second.once(takeover=None)
    assert not (await view(second, (await view(second)).next)).partial
    store.clock.at_ns += WINDOW_NS
    await second.once(takeover=None)
    assert not (await view(second)).partial


async def test_held_batch_is_reported_until_it_is_read(store: SimStore) -> None:
    _, second = await two_reconcilers(store)
    at_ns = store.clock.at_ns
    batch = await accept_logs(store, ["a"], seq=0, at_ns=at_ns)
    blob = store.held.pop(batch.raw_blob_key)
    await second.once()
    assert (await view(second)).partial
    store.held[batch.raw_blob_key] = blob
    await second.once()
    assert sequences(await view(second)) == [0]


async def test_single_reconciler_is_not_partial_because_of_what_it_read_itself() -> None:
    store = SimStore()
    first, _ = await two_reconcilers(store)
    for seq in range(0, 100, 10):
        await accept_lines(store, seq)
        await first.once()
        assert not (await view(first)).partial
    assert sequences(await view(first)) == list(range(100))


async def journaled_pair(store: SimStore) -> tuple[Reconciler, Reconciler, JournalWriter]:
    """Return an owner of every lane, a standby, and a gateway whose journal decides."""
    writer = JournalWriter(store, store.clock.at_ns)
    await writer.register()
    first, second = make(store, 1), make(store, 2)
    await accept_lines(store, 1000)
    for one in (first, second):
        await one.journals.run_pass()
        await one._pass_loop.run_once(None)
    store.clock.at_ns += 2 * WINDOW_NS
    await writer.append([], through_ns=store.clock.at_ns)
    for one in (first, second):
        await one._pass_loop.run_once(None)
        await rounds(store, one)
        assert not (await view(one)).partial
    return first, second, writer


async def test_standby_reports_a_batch_that_was_processed_before_it_read_the_journal() -> None:
    """No pass lists anything meanwhile; the standby finds the journal object processed already."""
    store = SimStore()
    first, second, writer = await journaled_pair(store)
    at_ns = store.clock.at_ns
    batch = await accept_logs(store, ["a"], seq=0, at_ns=at_ns)
    assert not (await view(second)).partial
    until_ns = (await view(second)).accepted_until_ns
    assert until_ns is not None
    assert until_ns <= at_ns
    await writer.append([batch], through_ns=store.clock.at_ns)
    await rounds(store, first)
    await rounds(store, second)

    complete = await view(first)
    assert (sequences(complete), complete.partial) == ([0], False)
    assert complete.accepted_until_ns is not None
    assert complete.accepted_until_ns > at_ns
    seen = await view(second)
    assert (sequences(seen), seen.partial) == ([], True)
    assert "another reconciler" in " ".join(seen.reasons)
    assert seen.accepted_until_ns == complete.accepted_until_ns


async def test_unread_batches_hold_the_time_of_live_records_back(store: SimStore) -> None:
    first, _, writer = await journaled_pair(store)
    at_ns = store.clock.at_ns
    batch = await accept_logs(store, ["a"], seq=0, at_ns=at_ns)
    await writer.append([batch], through_ns=store.clock.at_ns)
    await rounds(store, first)
    unread = await first.live.view(agent_id=None, after=None, limit=9, wait_s=0)
    assert (unread.accepted_until_ns, sequences(unread)) == (at_ns, [])
    read = await view(first)
    assert sequences(read) == [0]
    assert read.accepted_until_ns is not None
    assert read.accepted_until_ns > at_ns


async def test_live_records_are_partial_while_nothing_was_compared_for_a_minute() -> None:
    store = SimStore()
    _, second, _ = await journaled_pair(store)
    store.clock.at_ns += 61 * NS_PER_S
    await second.discovery.read()
    second._clock.observe(UnixNs(store.clock.at_ns))
    seen = await view(second)
    assert seen.reasons == (
        "newer batches may be missing: this reconciler has not looked for them recently",
    )


@pytest.mark.parametrize("starts", ["after the pass", "before the pass"])
async def test_a_gateway_that_died_bounds_the_live_records_until_a_pass_of_any_reconciler(
    store: SimStore, starts: str
) -> None:
    """The other reconciler makes no pass: the next one is due in a day.

    What the pass found was not offered to a window that is older than it, so this is reported.
    """
    began_ns = store.clock.at_ns
    dead, alive = (
        JournalWriter(store, began_ns, collector_id=name, ulid=f"01J0000000000000000000000{n}")
        for n, name in enumerate(("dead", "alive"))
    )
    for one in (dead, alive):
        await one.register()
        store.clock.at_ns += NS_PER_S
        await one.append([], through_ns=store.clock.at_ns)
    died_ns = store.clock.at_ns

    async def beat() -> None:
        store.clock.at_ns += NS_PER_S
        await alive.append([], through_ns=store.clock.at_ns)

    first, second = make(store, 1), make(store, 2)
    for _ in range(2):
        await first._pass_loop.run_once(None, NextPass(start=True))
        await first.journals.run_pass()
    assert first._registry.is_journaled
    if starts == "before the pass":
        await second.journals.run_pass()
        assert (await view(second)).accepted_until_ns is not None
    store.clock.at_ns += 2 * WINDOW_NS  # the dead gateway has lapsed
    await beat()
    await second.journals.run_pass()
    held_ns = (await view(second)).accepted_until_ns
    assert held_ns is None or held_ns <= died_ns, "no pass has replaced its journal yet"
    await first._pass_loop.run_once(None, NextPass(start=True))
    if starts == "after the pass":
        second = make(store, 2)
    for _ in range(3):
        await beat()
        await second.journals.run_pass()
    seen = await view(second)
    assert seen.accepted_until_ns is not None
    assert seen.accepted_until_ns >= store.clock.at_ns - 2 * NS_PER_S
    is_reported = "another reconciler" in " ".join(seen.reasons)
    assert is_reported == (starts == "before the pass")
    store.clock.at_ns += WINDOW_NS
    await beat()
    await second.journals.run_pass()
    assert not (await view(second)).partial


async def test_live_records_name_a_late_gateway(store: SimStore) -> None:
    first, _, writer = await journaled_pair(store)
    await writer.append([], through_ns=store.clock.at_ns)
    await rounds(store, first)
    assert not any("newer" in one for one in (await view(first)).reasons)
    store.clock.at_ns += 12 * NS_PER_S
    await rounds(store, first)
    (reason,) = [one for one in (await view(first)).reasons if "newer" in one]
    assert f"gateway gw-1 (process {writer.process}) has not reported since" in reason
