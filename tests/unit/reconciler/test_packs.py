"""By-time entries packed into one object per hour (ADR 27)."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import manifest
from support.queue_store import SimClock, SimIds, SimStore
from support.reconciler_seed import enqueued, index_keys

from sluice_protocol.authority import Authority
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import (
    ACCEPTED_BY_TIME,
    RAW_BLOBS_BY_TIME,
    accepted_key,
    blob_key,
    hour_path,
    parse_pack_key,
)
from sluice_protocol.manifests import AcceptedManifest, encode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_queue.lane import Runtime
from sluice_reconciler.explain import read_paths
from sluice_reconciler.indexes import DifferenceKind, TimeEntry, pack, unpack
from sluice_reconciler.passes.scanners import TimeIndexScanner
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_store.authority import create_authority

HOUR_NS = 3600 * NS_PER_S
BASE_NS = 1_699_999_200 * NS_PER_S


def make(store: SimStore, seed: int = 1, *, packed: bool = True) -> Reconciler:
    runtime = Runtime(clock=store.clock, ids=SimIds(seed), rng=random.Random(seed))
    return Reconciler(
        store,
        Authority(authority_id="A", lanes=1),
        settings=ReconcilerSettings(pack_by_time=packed),
        runtime=runtime,
    )


async def accept_at(store: SimStore, seq: int, at_ns: int) -> AcceptedManifest:
    frame = f"frame {seq}".encode()
    one = manifest(seq, at_ns=at_ns, frame=frame)
    await store.create(blob_key(one.digest), frame)
    await store.create(accepted_key(one.identity), encode_record(one))
    return one


async def three_hours(store: SimStore) -> list[AcceptedManifest]:
    """Accept four batches in one hour, four in the next, and one in the third."""
    at = [BASE_NS + number * HOUR_NS // 4 for number in range(9)]
    return [await accept_at(store, 10 * number, ns) for number, ns in enumerate(at)]


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


def test_batches_processed_together_make_one_object_per_hour_and_index() -> None:
    """Nine batches over three hours: two packed objects and one entry alone in either index."""

    async def run() -> None:
        store = SimStore(clock=SimClock())
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
        await create_authority(store, Authority(authority_id="A", lanes=1))
        [path] = await read_paths(store, batches[5].digest)
        assert all(one.present and one.right is not False for one in path.objects)
        assert any(one.packed_in for one in path.objects)
        assert [one async for one in make(store, 2).rebuild().differences()] == []

    asyncio.run(run())


def test_scanner_enqueues_what_another_process_packed() -> None:
    """It reads packed objects and entries that are not packed, and skips a damaged object."""

    async def run() -> None:
        store = SimStore(clock=SimClock())
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

    asyncio.run(run())


def test_name_with_a_future_time_does_not_move_the_checkpoint() -> None:
    """An object with a future time does not move the checkpoint beyond the store's time."""

    async def run() -> None:
        store = SimStore(clock=SimClock())
        store.clock.at_ns = BASE_NS
        await store.create(ObjectKey(f"{ACCEPTED_BY_TIME}{'9' * 20}-x.json"), b"{}")
        reconciler = make(store)
        scanner = TimeIndexScanner(store, reconciler.pipeline, reconciler._requests)
        await scanner.scan()
        one = await accept_at(store, 0, BASE_NS)
        await store.create(index_keys(one)[0], encode_record(one))
        assert (await scanner.scan()).enqueued == 1

    asyncio.run(run())


def test_an_index_entry_with_an_impossible_identity_does_not_stop_the_scan() -> None:
    async def run() -> None:
        store = SimStore(clock=SimClock())
        store.clock.at_ns = BASE_NS
        one = await accept_at(store, 10, BASE_NS)
        key = index_keys(one)[0]
        await store.create(key, encode_record(one))
        wrong = encode_record(one).replace(b'"seq_end":19', b'"seq_end":1')
        assert wrong != encode_record(one)
        await store.create(ObjectKey(key.replace(".json", "0.json")), wrong)
        reconciler = make(store)
        scanner = TimeIndexScanner(store, reconciler.pipeline, reconciler._requests)
        assert (await scanner.scan()).enqueued == 1

    asyncio.run(run())


def test_rebuild_finds_and_repairs_defects_of_packed_objects() -> None:
    """A missing packed object, a damaged one, and one with an entry that has no source."""

    async def run() -> None:
        store = SimStore(clock=SimClock())
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

    asyncio.run(run())


def test_packed_entry_with_other_bytes_is_reported_and_repaired() -> None:
    """The right entry is written alone, and the wrong one is removed from the packed object."""

    async def run() -> None:
        store = SimStore(clock=SimClock())
        batches = await three_hours(store)
        await make(store, packed=False).once()
        for key in [key for key in by_time(store) if key.startswith(ACCEPTED_BY_TIME)]:
            del store.held[key]
        wrong = encode_record(manifest(0, at_ns=BASE_NS, frame=b"frame 0", count=10)) + b""
        bodies = [wrong.replace(b"gw-1", b"gw-2"), *(encode_record(one) for one in batches[1:])]
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

    asyncio.run(run())
