"""High-water marks: read many at a time, removed if they show nothing, kept if records are lost."""

from dataclasses import replace

import pytest
from support.queue_store import CrowdedStore, SimStore
from support.reconciler_seed import accept
from support.reconciler_world import ONE_LANE, make

from sluice_protocol.errors import StoreDenied
from sluice_protocol.identity import Identity
from sluice_protocol.keys import high_water_key
from sluice_protocol.manifests import HighWaterMark, encode_record
from sluice_protocol.outcomes import DeleteOutcome, HeadOutcome, ObjectInfo
from sluice_protocol.units import NS_PER_S, NULL_VERSION, ETag, ObjectKey, ObjectVersion, UnixNs
from sluice_reconciler import completeness
from sluice_reconciler.completeness import (
    BootTally,
    HighWaterReader,
    ReportedHighWater,
    StoreTally,
    read_completeness,
)
from sluice_reconciler.concurrency import RequestLimit
from sluice_reconciler.passes.full_pass import PassReport

KEY = high_water_key("host-1", "b1")
DAY_NS = 86_400 * NS_PER_S


def mark_body(seq_end: int) -> bytes:
    return encode_record(HighWaterMark(agent_id="host-1", boot_id="b1", seq_end=seq_end))


async def run_pass(store: SimStore) -> PassReport:
    return await make(store, authority=ONE_LANE).once()


async def stored(mark: int, *, accepted: int = 20, store: SimStore | None = None) -> SimStore:
    """Return a store with a mark, and batches through the number `accepted` - 1."""
    there = store if store is not None else SimStore()
    there._put(KEY, mark_body(mark))
    for seq in range(0, accepted, 10):
        await accept(there, seq)
    return there


async def tails(store: SimStore) -> list[int]:
    return [one.tail_missing async for one in read_completeness(store)]


@pytest.mark.parametrize(
    ("seq_end", "age_ns", "removed"),
    [(9, 100, True), (9, 99, False), (10, 100, False), (5, 100, True)],
    ids=["covered", "young", "records lost", "lower than what is accepted"],
)
def test_a_mark_is_removed_if_it_is_covered_and_old(
    seq_end: int, age_ns: int, removed: bool
) -> None:
    tally = BootTally("host-1", "b1")
    tally.add(Identity(agent_id="host-1", boot_id="b1", seq_start=0, seq_end=9), 1)
    reported_at_ns = UnixNs(1000 - age_ns)
    marks = {
        ("host-1", "b1"): ReportedHighWater(
            seq_end=seq_end, reported_at_ns=reported_at_ns, etag=ETag('"1"')
        )
    }
    listed = StoreTally(marks, 100)
    listed.add(tally, UnixNs(1000))
    assert [key for key, _ in listed.covered_marks] == ([KEY] if removed else [])


async def test_a_pass_removes_covered_marks_and_the_report_stays_the_same() -> None:
    store = await stored(19)
    await run_pass(store)
    assert KEY in store.held
    store.clock.at_ns += 8 * DAY_NS
    before = await tails(store)
    await run_pass(store)
    assert KEY not in store.held
    assert await tails(store) == before == [0]
    # A delayed gateway writes the mark again: it is covered, and it is removed again.
    store._put(KEY, mark_body(19))
    assert await tails(store) == [0]


async def test_a_mark_of_lost_records_is_kept_until_a_late_retry_covers_it() -> None:
    store = await stored(29)
    store.clock.at_ns += 1000 * DAY_NS
    await run_pass(store)
    assert await tails(store) == [10]
    await accept(store, 20)
    await run_pass(store)
    assert KEY not in store.held
    assert await tails(store) == [0]


@pytest.mark.parametrize("verb", ["head", "delete"], ids=["before its read", "before its delete"])
async def test_a_mark_that_a_gateway_raises_during_a_removal_is_not_deleted(verb: str) -> None:
    store = await stored(19)
    store.clock.at_ns += 8 * DAY_NS
    seen: list[str] = []

    def raise_mark(called: str, key: str) -> None:
        if (called, key) == (verb, KEY):
            seen.append(key)
            store._put(KEY, mark_body(99))

    store.before = raise_mark
    await run_pass(store)
    assert KEY in store.held
    assert seen


class Unversioned(SimStore):
    """A bucket without versioning: a delete removes whatever is current."""

    async def head(self, key: ObjectKey) -> HeadOutcome:
        found = await super().head(key)
        return replace(found, incarnation=NULL_VERSION) if isinstance(found, ObjectInfo) else found

    async def delete(self, key: ObjectKey, incarnation: ObjectVersion) -> DeleteOutcome:
        return await super().delete(key, ObjectVersion(str(self.held[key].generation)))


async def test_no_mark_is_deleted_in_a_bucket_without_versioning() -> None:
    store = await stored(19, store=Unversioned())
    store.clock.at_ns += 8 * DAY_NS
    await run_pass(store)
    assert KEY in store.held


async def test_a_refused_delete_does_not_fail_the_pass() -> None:
    def deny(verb: str, key: str) -> None:
        if verb == "delete":
            raise StoreDenied(verb, key, "planned")

    store = await stored(19)
    store.clock.at_ns += 8 * DAY_NS
    store.before = deny
    report = await run_pass(store)
    assert report.complete_through_ns is not None
    assert KEY in store.held


async def test_one_pass_removes_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completeness, "REMOVED_MARKS_MAX", 0)
    store = await stored(19)
    store.clock.at_ns += 8 * DAY_NS
    await run_pass(store)
    assert KEY in store.held


MARKS = 30


def put(store: SimStore, boot: int, seq_end: int) -> None:
    mark = HighWaterMark(agent_id="host-1", boot_id=f"b{boot}", seq_end=seq_end)
    store._put(high_water_key(mark.agent_id, mark.boot_id), encode_record(mark))


async def test_changed_marks_are_read_concurrently() -> None:
    """A restarted reconciler reads the marks of all agents: one at a time would take hours."""
    store = CrowdedStore()
    for boot in range(MARKS):
        put(store, boot, 9)
    reader = HighWaterReader(store, RequestLimit(8))
    assert len(await reader.read()) == MARKS
    assert (store.counts["get"], store.most) == (MARKS, 8)
    put(store, 3, 19)
    marks = await reader.read("host-1")
    assert (marks["host-1", "b3"].seq_end, marks["host-1", "b4"].seq_end) == (19, 9)
    assert store.counts["get"] == MARKS + 1
