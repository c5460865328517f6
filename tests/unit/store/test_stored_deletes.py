"""The register of deletes and the pack: readers apply the same as with all of history."""

import asyncio
import contextlib
import random
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.dying_store import Died, DyingStore
from support.gc_store import VersionedStore
from support.gc_world import MovedClock
from support.memory_bucket import MemoryBucket, open_memory_store
from support.memory_bucket.faults import Call

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.fields import Kind
from sluice_protocol.keys import ACTIVE_DELETES, AUTHORITY_SETTINGS, DELETES, PACKED_DELETES
from sluice_protocol.manifests import encode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.record_deletes import (
    ActiveDeletes,
    DeleteRecord,
    TimeRanges,
    delete_key,
    implies,
    is_retention,
    needed_deletes,
    through_id,
)
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_store import stored_deletes
from sluice_store.authority import create_authority
from sluice_store.port import ObjectStore
from sluice_store.restore import finish_restore
from sluice_store.retry import Backoff, create_known
from sluice_store.stored_deletes import (
    PACK_MIN,
    CompactedDeletes,
    DeletesCache,
    DeletesPack,
    PackedDelete,
    compact_deletes,
    decode_pack,
    encode_pack,
    read_active_deletes,
    read_all_deletes,
    read_known_deletes,
    write_delete,
)

IDS = SystemIds()


@dataclass(frozen=True)
class Row:
    """One record of one batch, whenever that batch arrives."""

    kind: Kind
    accepted_ns: int
    at_ns: int
    agent: str
    text: str
    attributes: tuple[tuple[str, str], ...]


def hides(record: DeleteRecord, row: Row) -> bool:
    """Return whether a delete hides a row, written independently of the product."""
    return (
        record.kind == row.kind
        and row.accepted_ns <= record.accepted_until_unix_ns
        and (record.from_unix_ns is None or row.at_ns >= record.from_unix_ns)
        and (record.to_unix_ns is None or row.at_ns < record.to_unix_ns)
        and (record.agent_id is None or row.agent == record.agent_id)
        and (record.contains is None or _matches(record, row))
        and set(record.attributes.items()) <= set(row.attributes)
    )


def _matches(record: DeleteRecord, row: Row) -> bool:
    wanted = record.contains or ""
    return row.text == wanted if record.kind == "metrics" else wanted in row.text


def delete(number: int, **given: Any) -> DeleteRecord:
    values: dict[str, Any] = {"kind": "logs", "accepted_until_unix_ns": 10, "to_unix_ns": 5}
    return DeleteRecord(delete_id=f"{number:026d}", **(values | given))


KINDS: st.SearchStrategy[Any] = st.sampled_from(["logs", "metrics"])
TEXTS = st.sampled_from(["", "a", "ab", "abc", "b"])
PAIRS = st.dictionaries(st.sampled_from(["k", "l"]), st.sampled_from(["1", "2"]), max_size=2)
AGENTS = st.sampled_from(["x", "y"])


@st.composite
def deletes(draw: st.DrawFn) -> DeleteRecord:
    start = draw(st.none() | st.integers(0, 4))
    end = draw(st.none() | st.integers(5, 9))
    agent = draw(st.none() | AGENTS)
    contains = draw(st.none() | TEXTS)
    attributes = draw(PAIRS)
    if (start, end) == (None, None) and not (agent or contains or attributes):
        end = 7
    return DeleteRecord(
        delete_id=f"{draw(st.integers(0, 10**6)):026d}",
        kind=draw(KINDS),
        accepted_until_unix_ns=draw(st.integers(0, 9)),
        from_unix_ns=start,
        to_unix_ns=end,
        agent_id=agent,
        contains=contains,
        attributes=attributes,
    )


ROWS = st.builds(
    Row,
    kind=KINDS,
    accepted_ns=st.integers(0, 10),
    at_ns=st.integers(0, 10),
    agent=AGENTS,
    text=TEXTS,
    attributes=PAIRS.map(lambda found: tuple(found.items())),
)
HISTORY = st.lists(deletes(), max_size=8, unique_by=lambda one: one.delete_id)


@given(history=HISTORY, rows=st.lists(ROWS, max_size=30))
def test_every_row_is_hidden_as_by_all_of_history(
    history: list[DeleteRecord], rows: list[Row]
) -> None:
    needed = needed_deletes(history)
    for row in rows:
        assert any(hides(one, row) for one in needed) == any(hides(one, row) for one in history)
    assert all(
        not implies(wide, narrow) or wide == narrow or narrow.kind == "metrics"
        for wide in needed
        for narrow in needed
    )


@given(history=HISTORY, honoured=st.integers(0, 255))
def test_a_delete_is_dropped_only_if_one_that_stays_implies_it(
    history: list[DeleteRecord], honoured: int
) -> None:
    ids = {one.delete_id for place, one in enumerate(history) if honoured >> place & 1}
    needed = needed_deletes(history, ids)

    def replaces(wide: DeleteRecord, narrow: DeleteRecord) -> bool:
        on_rollups = narrow.kind == "metrics" and not is_retention(narrow)
        pinned = on_rollups and narrow.delete_id not in ids
        return implies(wide, narrow) and not (pinned and is_retention(wide))

    for one in history:
        others = [wide for wide in needed if wide != one]
        assert (one in needed) != any(replaces(wide, one) for wide in others)


@pytest.mark.parametrize("form", ["agents", "texts", "times", "metrics"])
def test_the_comparisons_for_one_delete_do_not_grow_with_the_others(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = 0
    contain = TimeRanges.contain

    def counted(ranges: TimeRanges, start: float, end: float) -> bool:
        nonlocal compared
        compared += 1
        return contain(ranges, start, end)

    forms: dict[str, Any] = {
        "agents": lambda n: {"agent_id": f"a{n}"},
        "texts": lambda n: {"contains": f"user {n:05d}"},
        "times": lambda n: {"from_unix_ns": n, "to_unix_ns": n + 1},
        "metrics": lambda n: {"kind": "metrics", "contains": f"m{n}"},
    }
    history = [delete(n, **forms[form](n)) for n in range(2_000)]
    monkeypatch.setattr(TimeRanges, "contain", counted)
    assert len(needed_deletes(history)) == len(history)
    assert compared <= 3 * len(history)


@given(history=HISTORY)
def test_rollups_lose_no_delete_to_retention(history: list[DeleteRecord]) -> None:
    """Retention is not applied to rollups: only a delete that is can replace another one there."""
    needed = needed_deletes(history)
    on_rollups = [
        one
        for one in needed
        if one.agent_id or one.contains or one.attributes or one.from_unix_ns is not None
    ]
    for record in history:
        narrow = record.agent_id or record.contains or record.attributes
        if record.kind == "metrics" and (narrow or record.from_unix_ns is not None):
            assert any(implies(wide, record) for wide in on_rollups) or any(
                implies(wide, record) and wide.to_unix_ns is None for wide in needed
            )


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        ({"contains": "a"}, {"contains": "abc"}, True),
        ({"contains": "abc"}, {"contains": "a"}, False),
        ({"contains": "x"}, {"contains": "abc"}, False),
        ({"contains": "a"}, {}, False),
        ({"kind": "metrics", "contains": "a"}, {"kind": "metrics", "contains": "ab"}, False),
        ({"agent_id": "x"}, {"agent_id": "y"}, False),
        ({"attributes": {"k": "1"}}, {"attributes": {"k": "1", "l": "2"}}, True),
        ({"attributes": {"k": "1"}}, {"attributes": {"k": "2"}}, False),
        ({"from_unix_ns": 1}, {"from_unix_ns": 2}, True),
        ({"from_unix_ns": 1}, {}, False),
        ({"to_unix_ns": 9}, {"to_unix_ns": None, "agent_id": "x"}, False),
        ({"accepted_until_unix_ns": 9}, {}, False),
        ({"kind": "entries"}, {}, False),
    ],
)
def test_one_delete_implies_another_only_if_it_hides_every_record_of_it(
    wide: dict[str, Any], narrow: dict[str, Any], expected: bool
) -> None:
    assert implies(delete(1, **wide), delete(2, **narrow)) is expected


def test_daily_retention_is_one_delete_and_covers_what_is_older() -> None:
    days = [delete(n, accepted_until_unix_ns=100 + n, to_unix_ns=n) for n in range(1, 366)]
    narrow = delete(900, agent_id="x", to_unix_ns=9)
    metric = delete(901, kind="metrics", contains="cpu", to_unix_ns=9)
    cut = delete(902, kind="metrics", accepted_until_unix_ns=500, to_unix_ns=300)
    assert needed_deletes([*days, narrow]) == (days[-1],)
    assert needed_deletes([metric, cut]) == (metric, cut)
    assert needed_deletes([metric, cut], {metric.delete_id}) == (cut,)


def test_an_id_of_a_clock_that_is_ahead_does_not_hide_later_ones() -> None:
    later = DeleteRecord(
        delete_id="7ZZZZZZZZZ0000000000000000", kind="logs", accepted_until_unix_ns=1, agent_id="x"
    )
    assert through_id([delete(1), later]) == delete(1).delete_id


def backoff() -> Backoff:
    return Backoff.seeded_by(MovedClock())


async def compact(store: Any) -> CompactedDeletes:
    return await compact_deletes(store, await read_known_deletes(store), backoff(), IDS)


async def applied(store: VersionedStore) -> set[str]:
    return {one.delete_id for one in await read_active_deletes(store)}


async def test_a_reader_sees_every_delete_that_was_written_with_few_requests() -> None:
    store = VersionedStore(clock=MovedClock())
    cache = DeletesCache()
    written = [delete(n, agent_id=f"agent {n}") for n in range(50)]
    for one in written[:25]:
        await write_delete(store, one, backoff(), IDS)
    assert await read_active_deletes(store, cache) == tuple(written[:25])
    assert (await compact(store)).active == 25
    for one in written[25:]:
        await write_delete(store, one, backoff(), IDS)
    assert await read_active_deletes(store, cache) == tuple(written)
    store.requests.clear()
    assert await read_active_deletes(store, cache) == tuple(written)
    assert store.requests == {"head": 1, "list": 1, "list_page": 1}


async def test_a_restored_copy_applies_a_newer_delete_with_a_lower_id() -> None:
    """As of an operator's clock that is behind: the listing after the register does not show it."""
    (newest, _), (copy, _) = open_memory_store(), open_memory_store()
    await create_authority(newest)
    settings = await newest.get(AUTHORITY_SETTINGS)
    assert isinstance(settings, Found)
    await copy.create(AUTHORITY_SETTINGS, settings.body)
    known, missed = delete(5, agent_id="a"), delete(2, agent_id="b")
    for store in (newest, copy):
        await write_delete(store, known, backoff(), IDS)
        await compact(store)
    await write_delete(newest, missed, backoff(), IDS)
    done = await finish_restore(copy, newest, by="ann", clock=MovedClock(), ids=IDS)
    assert done.applied is not None
    assert done.applied[DELETES] == 1
    assert {one.delete_id for one in await read_active_deletes(copy)} == {
        known.delete_id,
        missed.delete_id,
    }


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(6))
async def test_a_delete_that_exists_is_applied_after_a_crash_at_any_write(
    at: int, after: bool
) -> None:
    store = VersionedStore(clock=MovedClock())
    dying: Any = DyingStore(store, at, after, {"create", "replace"})
    one, two = delete(1, agent_id="a"), delete(2, agent_id="b")
    with contextlib.suppress(Died):
        await write_delete(dying, one, backoff(), IDS)
        await compact(dying)
        await write_delete(dying, two, backoff(), IDS)
    exist = {r.delete_id for r in (one, two) if delete_key(r.delete_id) in store.versions}
    assert await applied(store) == exist
    await compact(store)
    assert await applied(store) == exist


@pytest.mark.parametrize(
    ("verb", "exists"),
    [("get", False), ("get", True), ("create", False), ("replace", False), ("replace", True)],
)
async def test_a_delete_written_during_a_compaction_is_not_lost(verb: str, exists: bool) -> None:
    """Its id is lower than the others: only the register, not the listing, shows it to readers."""
    store = VersionedStore(clock=MovedClock())
    many = [delete(n, agent_id=f"agent {n}") for n in range(5, 10)]
    for one in many:
        await write_delete(store, one, backoff(), IDS)
    if exists:
        await compact(store)
        many.append(delete(20, agent_id="agent 20"))
        await create_known(
            store, delete_key(many[-1].delete_id), encode_record(many[-1]), backoff()
        )
    late = delete(1, agent_id="late")
    store.hooks[verb, ACTIVE_DELETES] = lambda: write_delete(store, late, backoff(), IDS)
    await compact(store)
    assert (verb, ACTIVE_DELETES) not in store.hooks
    assert await applied(store) == {one.delete_id for one in (late, *many)}


async def test_a_lost_register_means_all_of_history_and_a_damaged_one_is_an_error() -> None:
    store = VersionedStore(clock=MovedClock())
    one = delete(1, agent_id="a")
    await write_delete(store, one, backoff(), IDS)
    await compact(store)
    store.remove_key(ACTIVE_DELETES)
    assert await read_active_deletes(store) == (one,)
    store.put(ACTIVE_DELETES, b'{"schema":"sluice.active_deletes.v1","unknown":1}')
    with pytest.raises(InvalidRecord, match="unknown field `unknown`"):
        await read_active_deletes(store)


async def test_a_compaction_that_changes_nothing_writes_nothing() -> None:
    store = VersionedStore(clock=MovedClock())
    await write_delete(store, delete(1, agent_id="a"), backoff(), IDS)
    await compact(store)
    versions = len(store.versions[ACTIVE_DELETES])
    await compact(store)
    assert len(store.versions[ACTIVE_DELETES]) == versions
    read = await store.get(ACTIVE_DELETES)
    assert b'"revision":1' in read.body


def test_the_stored_bytes_of_the_register_do_not_change() -> None:
    register = ActiveDeletes(
        revision=2, nonce="N", through_id=f"{7:026d}", known=3, records=(delete(7, agent_id="a"),)
    )
    assert encode_record(register) == (
        b'{"known":3,"nonce":"N","records":[{"accepted_until_unix_ns":10,"agent_id":"a",'
        b'"attributes":{},"contains":null,"delete_id":"00000000000000000000000007",'
        b'"from_unix_ns":null,"kind":"logs","principal":"","reason":"",'
        b'"schema":"sluice.delete.v1","to_unix_ns":5}],"revision":2,'
        b'"schema":"sluice.active_deletes.v1","through_id":"00000000000000000000000007"}'
    )


STORED = (
    b'{"records":[{"body":"{}","etag":"\\"e\\"","key":"deletes/v1/x.json"}],'
    b'"schema":"sluice.packed_deletes.v1"}'
)


class Counts:
    """Counts the reads of delete records."""

    def __init__(self) -> None:
        self.reads = 0

    def fault_of(self, call: Call) -> None:
        self.reads += call.method == "GET" and str(call.key).startswith("deletes/")


def record(number: int) -> DeleteRecord:
    return DeleteRecord(
        delete_id=f"01{number:024d}",
        kind="logs",
        accepted_until_unix_ns=number,
        agent_id=f"agent-{number}",
    )


async def write(store: ObjectStore, numbers: range) -> None:
    for number in numbers:
        one = record(number)
        await store.create(delete_key(one.delete_id), encode_record(one))


def counted_store() -> tuple[ObjectStore, Counts]:
    counts = Counts()
    bucket = MemoryBucket(clock=SystemClock(), rng=random.Random(0))
    return open_memory_store(bucket, plan=counts)[0], counts


def test_the_stored_form_does_not_change() -> None:
    import zlib  # noqa: PLC0415 - only to state the form

    one = PackedDelete(key="deletes/v1/x.json", etag='"e"', body="{}")
    pack = DeletesPack(records=(one,))
    assert zlib.decompress(encode_pack(pack)) == STORED
    assert decode_pack(zlib.compress(STORED)) == pack


async def test_only_records_that_are_not_packed_are_read() -> None:
    store, counts = counted_store()
    await write(store, range(PACK_MIN + 5))
    wanted = await read_all_deletes(store)
    for reads in (PACK_MIN + 5, 0):
        counts.reads = 0
        assert await read_known_deletes(store) == wanted
        assert counts.reads == reads
    await write(store, range(1000, 1003))
    counts.reads = 0
    assert await read_known_deletes(store) == await read_all_deletes(store)
    assert counts.reads == 3 + PACK_MIN + 5 + 3


@given(seed=st.integers(0, 2**32))
def test_any_pack_gives_the_deletes_that_exist(seed: int) -> None:
    """A pack that is missing, damaged, of another store, or older than the deletes."""

    async def scene() -> None:
        store, _ = counted_store()
        rng = random.Random(seed)
        numbers = rng.sample(range(400), rng.choice([3, PACK_MIN, 150]))
        for number in numbers[: len(numbers) // 2]:
            await write(store, range(number, number + 1))
        await read_known_deletes(store)
        for number in numbers[len(numbers) // 2 :]:
            await write(store, range(number, number + 1))
        read = await store.get(PACKED_DELETES)
        packed = decode_pack(read.body).records if isinstance(read, Found) else ()
        foreign = PackedDelete(key=delete_key("01" + "Z" * 24), etag='"x"', body="{}")
        stale = tuple(PackedDelete(key=one.key, etag='"other"', body="{}") for one in packed[:5])
        body = encode_pack(DeletesPack(records=(foreign, *packed[5:], *stale)))
        await store.overwrite(PACKED_DELETES, rng.choice([body, b"damaged", body[:-3]]))
        assert await read_known_deletes(store) == await read_all_deletes(store)

    asyncio.run(scene())


async def test_a_damaged_delete_is_refused() -> None:
    store, _ = counted_store()
    await store.create(delete_key("01" + "A" * 24), b"\xff")
    with pytest.raises(InvalidRecord):
        await read_known_deletes(store)


async def test_records_are_read_in_bounded_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_deletes, "READ_TOGETHER", 7)
    store, _ = counted_store()
    await write(store, range(30))
    assert len(await read_known_deletes(store)) == 30
