"""A batch that has expired is no damage: it is indexed, enqueued and explained without its blob."""

import contextlib
import itertools
import json
from collections import Counter

import pytest
from support.builders import tombstone_of
from support.dying_store import WRITES, Died, DyingStore
from support.queue_store import SimStore
from support.reconciler_seed import accept_logs
from support.reconciler_world import make

from sluice_protocol.authority import Authority
from sluice_protocol.errors import BadUsage
from sluice_protocol.expiry import SignedTombstone, TableVersion, encode_tombstone
from sluice_protocol.journals import HOLD_RECORDS
from sluice_protocol.keys import (
    ACCEPTED_BY_BLOB,
    ACCEPTED_BY_TIME,
    LEDGER_LOG,
    RAW_BLOBS_BY_TIME,
    accepted_key,
    blob_key,
    digest_of,
)
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_reconciler.explain import read_batch_paths
from sluice_reconciler.http_queue import ClaimedEntry
from sluice_reconciler.queue_api import BatchUnreadable, DataCount, entry_chunks
from sluice_reconciler.service import Reconciler
from sluice_store.authority import create_authority

AUTHORITY = Authority(authority_id="A", lanes=1)
STATE = TableVersion(version=4, commit_sha256=digest_of(b"4"))


async def seeded(store: SimStore) -> tuple[AcceptedManifest, AcceptedManifest]:
    """Accept two batches; the blob of the second is lost, and the first has expired."""
    await create_authority(store, AUTHORITY)
    first = await accept_logs(store, ["a"], seq=1, at_ns=1)
    second = await accept_logs(store, ["b"], seq=2, at_ns=2)
    for one in (first, second):
        del store.held[blob_key(one.digest)]
    tombstone = tombstone_of(first, STATE)
    signed = SignedTombstone(tombstone=tombstone, key_id="k", signature="s")
    await store.create(tombstone.key, encode_tombstone(signed))
    return first, second


async def test_only_the_batch_without_a_tombstone_is_held(store: SimStore) -> None:
    first, _ = await seeded(store)
    await make(store, authority=AUTHORITY).once()
    assert sum(key.startswith(HOLD_RECORDS) for key in store.held) == 1
    [path] = await read_batch_paths(store, first.identity)
    assert [one.enqueued for one in path.queues] == [True]


async def test_an_expired_batch_is_explained_by_its_tombstone(store: SimStore) -> None:
    first, second = await seeded(store)
    [path] = await read_batch_paths(store, first.identity)
    assert path.blob == "expired"
    [proof] = [one.proof for one in path.objects if one.role == "blob"]
    assert "expired after 30 days by rule 1" in proof
    assert "(batches 4, logs 4)" in proof
    [path] = await read_batch_paths(store, second.identity)
    assert path.blob.startswith("blob_missing: ")


async def test_a_damaged_tombstone_explains_nothing(store: SimStore) -> None:
    first, _ = await seeded(store)
    store._put(tombstone_of(first, STATE).key, b"damaged")
    [path] = await read_batch_paths(store, first.identity)
    assert path.blob.startswith("blob_missing: ")


HOUR_NS = 3_600 * NS_PER_S


async def expire(store: SimStore, batch: AcceptedManifest) -> None:
    """Record an expiry in a tombstone that names only this batch, and delete the blob."""
    await name(store, batch)
    del store.held[blob_key(batch.digest)]


async def name(store: SimStore, batch: AcceptedManifest) -> None:
    tombstone = tombstone_of(batch, STATE, run_id=f"{batch.seq_start:026d}")
    signed = SignedTombstone(tombstone=tombstone, key_id="k", signature="s")
    await store.create(tombstone.key, encode_tombstone(signed))


def entries(store: SimStore) -> Counter[str]:
    """Return the number of objects of each index."""
    roots = (ACCEPTED_BY_TIME, RAW_BLOBS_BY_TIME, ACCEPTED_BY_BLOB)
    return Counter(root for key in store.held for root in roots if key.startswith(root))


async def indexed(
    store: SimStore, *at_ns: int, pack: bool = False
) -> tuple[list[AcceptedManifest], Reconciler]:
    await create_authority(store, AUTHORITY)
    batches = [
        await accept_logs(store, ["a"], seq=number, at_ns=at) for number, at in enumerate(at_ns)
    ]
    together = 512 if pack else 1
    reconciler = make(store, authority=AUTHORITY, list_batches_max=together, pack_references=pack)
    await reconciler.once()
    return batches, reconciler


async def test_entries_end_when_the_batch_has_expired_and_its_blob_is_deleted(
    store: SimStore,
) -> None:
    (first, _), reconciler = await indexed(store, 1, HOUR_NS)
    before = entries(store)
    assert set(before.values()) == {2}
    assert await reconciler.remove_expired_entries() == 0
    await name(store, first)
    assert await reconciler.remove_expired_entries() == 0, "the blob still exists"
    del store.held[blob_key(first.digest)]
    assert await reconciler.remove_expired_entries() == 3
    assert set(entries(store).values()) == {1}
    assert await reconciler.remove_expired_entries() == 0
    assert [one async for one in reconciler.rebuild().differences()] == []
    [path] = await read_batch_paths(store, first.identity)
    ended = [one.proof for one in path.objects if "by_" in one.role]
    assert ended == ["It ended with the batch, which has expired."] * 3


async def test_a_packed_object_stays_while_one_of_its_batches_is_kept(store: SimStore) -> None:
    (first, second), reconciler = await indexed(store, 1, 2, pack=True)
    assert set(entries(store).values()) == {1}
    await expire(store, first)
    assert await reconciler.remove_expired_entries() == 0
    await expire(store, second)
    assert await reconciler.remove_expired_entries() == 2
    assert not entries(store)
    assert [one async for one in reconciler.rebuild().differences()] == []


@pytest.mark.parametrize("after", [False, True])
async def test_a_removal_that_is_killed_is_continued(store: SimStore, after: bool) -> None:
    hours = range(1, 4 * HOUR_NS, HOUR_NS)
    batches, reconciler = await indexed(store, *hours, 4 * HOUR_NS)
    for one in batches[:-1]:
        await expire(store, one)
    deaths = 0
    for left in itertools.count(1):
        dying = DyingStore(inner=store, left=left, after=after, verbs=WRITES)
        with contextlib.suppress(Died, BaseExceptionGroup):
            await make(dying, authority=AUTHORITY).remove_expired_entries()
        assert [one async for one in reconciler.rebuild().differences()] == []
        deaths += dying.died
        if not dying.died:
            break
    assert deaths
    assert set(entries(store).values()) == {1}


async def test_a_missing_entry_of_another_batch_is_still_damage(store: SimStore) -> None:
    (first, second), reconciler = await indexed(store, 1, HOUR_NS)
    await expire(store, first)
    for key in [key for key in store.held if key.startswith(ACCEPTED_BY_TIME)]:
        del store.held[key]
    differences = [one async for one in reconciler.rebuild().differences()]
    assert [one.source for one in differences] == [accepted_key(second.identity)]


async def test_a_consumer_is_told_that_a_batch_has_expired(store: SimStore) -> None:
    batches = await seeded(store)

    async def sent(*wanted: AcceptedManifest) -> list[dict[str, object]]:
        entry = ClaimedEntry(
            lease_id="l", lane=0, sequence=1, attempts=0, lease_s=60.0, batches=wanted
        )
        count = DataCount()
        chunks = [one async for one in entry_chunks(store, entry, "records", count)]
        assert count.batches == len(wanted)
        return [json.loads(line) for line in b"".join(chunks).splitlines()]

    _, line = await sent(batches[0])
    assert line["expired"] is True
    with pytest.raises(BatchUnreadable):
        await sent(*batches)


async def test_a_rebuild_is_refused_where_only_lost_tables_had_the_records(store: SimStore) -> None:
    await seeded(store)
    with pytest.raises(BadUsage, match="restore `lake/v1/` from a backup"):
        _ = [one async for one in make(store, authority=AUTHORITY).rebuild().repair()]
    await store.create(ObjectKey(f"{LEDGER_LOG}00000000000000000001.json"), b"{}")
    _ = [one async for one in make(store, authority=AUTHORITY).rebuild().repair()]
