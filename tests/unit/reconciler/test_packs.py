"""Entries packed into one object per hour, and packed raw-blob entries as reverse references."""

import asyncio
from collections import Counter
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import reconciler_world
from support.builders import make_identity, manifest_of, salted_frame
from support.frames import logs
from support.queue_store import OneByOne, SimStore
from support.reconciler_seed import accept, enqueued, index_keys
from support.reconciler_world import ONE_LANE

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import (
    ACCEPTED_BY_BLOB,
    ACCEPTED_BY_TIME,
    RAW_BLOBS_BY_TIME,
    accepted_by_blob_key,
    accepted_key,
    blob_key,
    digest_of,
    hour_path,
    parse_pack_key,
)
from sluice_protocol.manifests import AcceptedManifest, encode_record
from sluice_protocol.outcomes import Found, GetOutcome
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_reconciler.concurrency import RequestLimit
from sluice_reconciler.explain import read_batch_paths
from sluice_reconciler.indexes import (
    DifferenceKind,
    EntryComparison,
    TimeEntry,
    by_blob_of,
    by_time_of,
    pack,
    parse_source,
    unpack,
)
from sluice_reconciler.passes.scanners import TimeIndexScanner
from sluice_store.authority import create_authority

HOUR_NS = 3600 * NS_PER_S
BASE_NS = 1_699_999_200 * NS_PER_S


make = partial(reconciler_world.make, authority=ONE_LANE)


async def three_hours(store: SimStore) -> list[AcceptedManifest]:
    """Accept four batches in one hour, four in the next, and one in the third."""
    at = [BASE_NS + number * HOUR_NS // 4 for number in range(9)]
    return [await accept(store, 10 * number, at_ns=ns) for number, ns in enumerate(at)]


def by_time(store: SimStore) -> list[ObjectKey]:
    roots = (ACCEPTED_BY_TIME, RAW_BLOBS_BY_TIME)
    return sorted(ObjectKey(key) for key in store.held if key.startswith(roots))


entries = st.lists(
    st.builds(
        lambda at, name, value: TimeEntry(
            at_ns=UnixNs(BASE_NS + at * NS_PER_S),
            key=ObjectKey(f"{ACCEPTED_BY_TIME}{hour_path(BASE_NS + at * NS_PER_S)}/{name}.json"),
            body=value,
        ),
        st.integers(0, 3 * 3600),
        st.uuids().map(str),
        st.sampled_from([b"{}", b'{"a":1}', b'{"a": "\\n"}', b'{"a":\n1}', b' {"a":1}', b"[]"]),
    ),
    max_size=20,
)


@given(entries)
def test_unpack_returns_every_packed_entry_byte_for_byte(given_entries: list[TimeEntry]) -> None:
    """Entries whose bytes do not fit a line are not packed."""
    made = pack(given_entries)
    assert sum(count for _, _, count in made) == len({one.key for one in given_entries})
    found = [entry for key, body, _ in made for entry in unpack(key, body)]
    assert sorted(found) == sorted({one.key: one.body for one in given_entries}.items())
    assert made == pack(given_entries)
    for key, body, count in made:
        span = parse_pack_key(key)
        assert (span is not None) == (count > 1)
        if span is not None:
            assert key.startswith(f"{ACCEPTED_BY_TIME}{hour_path(span.last_ns)}/")
            assert hour_path(span.first_ns) == hour_path(span.last_ns)
            with pytest.raises(InvalidRecord, match="do not match the hash"):
                unpack(key, body + b"\n")


async def test_batches_processed_together_make_one_object_per_hour_and_index() -> None:
    """Nine batches over three hours: two packed objects and one entry alone in either index."""
    store = SimStore()
    batches = await three_hours(store)
    report = await make(store).once()
    assert (report.outcome.indexed, report.outcome.enqueued) == (27, 9)
    spans = [parse_pack_key(key) for key in by_time(store)]
    assert len(spans) == 6
    assert spans.count(None) == 2
    keys = [key for one in batches for key in index_keys(one)]
    existing = {
        key
        for place in [*by_time(store), *(k for k in store.held if "accepted-by-blob" in k)]
        for key, _ in unpack(ObjectKey(place), store.held[place].body)
    }
    assert existing == set(keys)
    await create_authority(store, ONE_LANE)
    [path] = await read_batch_paths(store, batches[5].digest)
    assert all(one.present and one.right is not False for one in path.objects)
    assert any(one.packed_in for one in path.objects)
    assert [one async for one in make(store, 2).rebuild().differences()] == []


async def test_scanner_enqueues_what_another_process_packed(store: SimStore) -> None:
    """It reads packed objects and entries that are not packed, and skips a damaged object."""
    store.clock.at_ns = BASE_NS + 3 * HOUR_NS
    batches = await three_hours(store)
    other = make(store)
    await other.once()
    damaged = by_time(store)[0]
    store.held[damaged].body = b"{broken"
    for key in [key for key in store.held if key.startswith(("queue/", "reconciler/"))]:
        del store.held[key]
    again = make(store, 2)
    assert (await again.scan_time_index()).enqueued == 5
    assert len(await enqueued(store)) == 5
    assert (await other.scan_time_index()).sound == 0
    assert (await again.once()).outcome.enqueued == 4
    assert len(await enqueued(store)) == len(batches)


async def test_name_with_a_future_time_does_not_move_the_checkpoint(store: SimStore) -> None:
    store.clock.at_ns = BASE_NS
    await store.create(ObjectKey(f"{ACCEPTED_BY_TIME}{'9' * 20}-x.json"), b"{}")
    reconciler = make(store)
    scanner = TimeIndexScanner(store, reconciler.pipeline, reconciler._requests)
    await scanner.scan()
    one = await accept(store, at_ns=BASE_NS)
    await store.create(index_keys(one)[0], encode_record(one))
    assert (await scanner.scan()).enqueued == 1


async def test_an_index_entry_with_an_impossible_identity_does_not_stop_the_scan() -> None:
    store = SimStore()
    store.clock.at_ns = BASE_NS
    one = await accept(store, 10, at_ns=BASE_NS)
    key = index_keys(one)[0]
    await store.create(key, encode_record(one))
    wrong = encode_record(one).replace(b'"seq_end":19', b'"seq_end":1')
    assert wrong != encode_record(one)
    await store.create(ObjectKey(key.replace(".json", "0.json")), wrong)
    reconciler = make(store)
    scanner = TimeIndexScanner(store, reconciler.pipeline, reconciler._requests)
    assert (await scanner.scan()).enqueued == 1


async def test_rebuild_finds_and_repairs_defects_of_packed_objects(store: SimStore) -> None:
    """A missing packed object, a damaged one, and one with an entry that has no source."""
    batches = await three_hours(store)
    await make(store).once()
    rebuild = make(store, 2).rebuild()
    first, second = [key for key in by_time(store) if parse_pack_key(key)][:2]
    raws = [key for key in by_time(store) if parse_pack_key(key)][2:]
    del store.held[first]
    store.held[raws[0]].body = b"{broken"
    gone = batches[5]
    del store.held[accepted_key(gone.identity)]
    found = [(one.key, one.wrong, one.pack) async for one in rebuild.differences()]
    assert (raws[0], DifferenceKind.UNREADABLE, None) in found
    assert (index_keys(batches[0])[0], DifferenceKind.MISSING, None) in found
    assert (index_keys(batches[0])[2], DifferenceKind.MISSING, None) in found
    assert (index_keys(gone)[0], DifferenceKind.EXTRA, second) in found
    assert (index_keys(gone)[2], DifferenceKind.EXTRA, raws[1]) in found
    _ = [one async for one in rebuild.repair()]
    left = [(one.key, one.wrong) async for one in rebuild.differences()]
    assert left == [(index_keys(gone)[1], DifferenceKind.EXTRA)]
    assert isinstance(await store.get(index_keys(batches[4])[0]), Found)


async def test_packed_entry_with_other_bytes_is_reported_and_repaired(store: SimStore) -> None:
    """The right entry is written alone, and the wrong one is removed from the packed object."""
    batches = await three_hours(store)
    await make(store, list_batches_max=1).once()
    for key in [key for key in by_time(store) if key.startswith(ACCEPTED_BY_TIME)]:
        del store.held[key]
    bodies = [
        encode_record(batches[0]).replace(b"gw-1", b"gw-2"),
        *(encode_record(one) for one in batches[1:]),
    ]
    made = pack(
        TimeEntry(at_ns=one.accepted_at_ns, key=index_keys(one)[0], body=body)
        for one, body in zip(batches, bodies, strict=True)
    )
    for key, body, _ in made:
        await store.create(key, body)
    rebuild = make(store, 2).rebuild()
    found = [(one.key, one.wrong) async for one in rebuild.differences()]
    place = index_keys(batches[0])[0]
    assert found == [(place, DifferenceKind.MISSING), (place, DifferenceKind.DIFFERENT)]
    _ = [one async for one in rebuild.repair()]
    assert [one async for one in rebuild.differences()] == []
    assert store.held[place].body == encode_record(batches[0])


class SlowStore(OneByOne):
    """Counts the reads of each object, and the most of packed objects at the same time."""

    def __init__(self, inner: SimStore) -> None:
        self._inner = inner
        self.reads = Counter[str]()
        self.now = self.most = 0

    async def get(self, key: ObjectKey, **options: Any) -> GetOutcome:
        self.reads[key] += 1
        self.now += parse_pack_key(key) is not None
        self.most = max(self.most, self.now)
        for _ in range(50):
            await asyncio.sleep(0)
        self.now -= parse_pack_key(key) is not None
        return await self._inner.get(key, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


async def test_a_batch_is_compared_with_the_packed_objects_of_its_instant(store: SimStore) -> None:
    """Of an hour with 40 flushes, only those are read, each once, and several at a time."""
    times = [BASE_NS + number * 20 * NS_PER_S for number in range(80)]
    batches = [await accept(store, 10 * number, at_ns=ns) for number, ns in enumerate(times)]
    sources = [
        one
        for batch in batches
        if (one := parse_source(accepted_key(batch.identity), encode_record(batch))) is not None
    ]
    for pair in zip(sources[::2], sources[1::2], strict=True):
        for place in range(2):
            [(key, body, _)] = pack(by_time_of(one)[place] for one in pair)
            await store.create(key, body)
        await store.create(*by_blob_of(pair[0]))
        await store.create(*by_blob_of(pair[1]))
    lost = by_time(store)[3]
    del store.held[lost]
    slow = SlowStore(store)
    assert await EntryComparison(slow).compare_accepted(sources[40]) == []
    assert sum(parse_pack_key(ObjectKey(key)) is not None for key in slow.reads) == 2
    slow = SlowStore(store)
    comparison = EntryComparison(slow)
    found = await RequestLimit(16).each(sources, comparison.compare_accepted)
    missing = [one.key for some in found for one in some]
    assert missing == [by_time_of(one)[0].key for one in sources[6:8]]
    packs = {key: count for key, count in slow.reads.items() if parse_pack_key(ObjectKey(key))}
    assert packs == dict.fromkeys((key for key in by_time(store) if parse_pack_key(key)), 1)
    assert slow.most >= 4


make_with_references = partial(make, pack_references=True)


async def accept_in_hours(store: SimStore, count: int, *, hours: int = 1) -> list[AcceptedManifest]:
    """Accept batches, each in the hour after that of the one before, again and again."""
    times = [BASE_NS + number % hours * HOUR_NS for number in range(count)]
    return [await accept(store, 10 * number, at_ns=ns) for number, ns in enumerate(times)]


class CountingStore(OneByOne):
    """Counts the writes of each kind, by prefix."""

    def __init__(self, inner: SimStore) -> None:
        self._inner = inner
        self.puts: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._inner, name)
        if name not in {"create", "replace", "overwrite"}:
            return verb

        async def counted(key: str, *args: Any, **named: Any) -> Any:
            self.puts[key.partition("/")[0]] += 1
            return await verb(key, *args, **named)

        return counted


async def test_a_flush_of_500_batches_costs_at_most_015_puts_a_batch(store: SimStore) -> None:
    await accept_in_hours(store, 500)
    counting: Any = CountingStore(store)
    report = await make_with_references(counting).once()
    assert report.outcome.enqueued == len(await enqueued(store)) == 500
    assert counting.puts["accepted-by-blob"] == 0
    assert counting.puts["accepted-by-time"] == counting.puts["raw-blobs-by-time"] == 1
    assert sum(counting.puts.values()) <= 0.15 * 500


async def test_every_batch_has_a_reference_of_one_shape(store: SimStore) -> None:
    """A raw-blob entry that is alone in its hour has a reference alone."""
    batches = await accept_in_hours(store, 5, hours=4)
    await make_with_references(store).once()
    alone = [key for key in store.held if key.startswith(ACCEPTED_BY_BLOB)]
    packed = {batches[0].digest, batches[4].digest}
    assert sorted(alone) == sorted(
        accepted_by_blob_key(one.digest, one.identity)
        for one in batches
        if one.digest not in packed
    )
    assert [one async for one in make_with_references(store, 2).rebuild().differences()] == []


@pytest.mark.parametrize("damage", ["removed", "damaged"])
async def test_a_lost_pack_is_a_missing_reference_and_rebuild_writes_it_alone(damage: str) -> None:
    store = SimStore()
    batches = await accept_in_hours(store, 5)
    await make_with_references(store).once()
    [pack] = [k for k in store.held if k.startswith(RAW_BLOBS_BY_TIME) and parse_pack_key(k)]
    if damage == "removed":
        del store.held[pack]
    else:
        store.held[pack].body = b"{broken"
    rebuild = make_with_references(store, 2).rebuild()
    found = {one.key async for one in rebuild.differences() if _missing(one)}
    wanted = {accepted_by_blob_key(one.digest, one.identity) for one in batches}
    assert wanted <= found
    _ = [one async for one in rebuild.repair()]
    assert wanted <= set(store.held)
    assert [one async for one in rebuild.differences()] == []


def _missing(one: Any) -> bool:
    return bool(one.wrong is DifferenceKind.MISSING)


async def test_both_shapes_are_read_side_by_side(store: SimStore) -> None:
    await accept_in_hours(store, 6)
    await make(store, pack_references=False).once()
    assert sum(key.startswith(ACCEPTED_BY_BLOB) for key in store.held) == 6
    for number in range(3):
        await accept(store, 1000 + 10 * number, at_ns=BASE_NS)
    await make_with_references(store, 2).once()
    assert sum(key.startswith(ACCEPTED_BY_BLOB) for key in store.held) == 6
    assert [one async for one in make_with_references(store, 3).rebuild().differences()] == []


async def test_explain_finds_a_blob_without_a_reference_by_its_envelope(store: SimStore) -> None:
    await accept_in_hours(store, 3)
    who = make_identity(5000, count=3)
    frame = salted_frame(who, logs(), "")
    one = manifest_of(frame, at_ns=BASE_NS)
    assert one.identity == who
    await store.create(blob_key(digest_of(frame)), frame)
    await store.create(accepted_key(who), encode_record(one))
    await make_with_references(store).once()
    assert not any(key.startswith(ACCEPTED_BY_BLOB) for key in store.held)
    await create_authority(store, ONE_LANE)
    [path] = await read_batch_paths(store, digest_of(frame))
    assert (path.identity, path.blob) == (who, "ok")
    assert all(one.present and one.right is not False for one in path.objects)
