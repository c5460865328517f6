"""Packed raw-blob entries as reverse references: two PUTs a flush, and readers accept both."""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from support.builders import make_identity, manifest, manifest_of, salted_frame
from support.frames import logs
from support.queue_store import OneByOne, SimClock, SimIds, SimStore
from support.reconciler_seed import enqueued

from sluice_protocol.authority import Authority
from sluice_protocol.keys import (
    ACCEPTED_BY_BLOB,
    RAW_BLOBS_BY_TIME,
    accepted_by_blob_key,
    accepted_key,
    blob_key,
    digest_of,
    parse_pack_key,
)
from sluice_protocol.manifests import AcceptedManifest, encode_record
from sluice_protocol.units import NS_PER_S
from sluice_queue.lane import Runtime
from sluice_reconciler.explain import read_paths
from sluice_reconciler.indexes import DifferenceKind
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_store.authority import create_authority

BASE_NS = 1_699_999_200 * NS_PER_S
LANES = 4


def make(store: SimStore, seed: int = 1, *, packed: bool = True) -> Reconciler:
    runtime = Runtime(clock=store.clock, ids=SimIds(seed), rng=random.Random(seed))
    return Reconciler(
        store,
        Authority(authority_id="A", lanes=LANES),
        settings=ReconcilerSettings(pack_by_time=True, pack_references=packed),
        runtime=runtime,
    )


async def accept(store: SimStore, count: int, *, hours: int = 1) -> list[AcceptedManifest]:
    found = []
    for number in range(count):
        at_ns = BASE_NS + number % hours * 3600 * NS_PER_S
        frame = f"frame {number}".encode()
        one = manifest(10 * number, at_ns=at_ns, frame=frame)
        await store.create(blob_key(one.digest), frame)
        await store.create(accepted_key(one.identity), encode_record(one))
        found.append(one)
    return found


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


def test_a_flush_of_500_batches_costs_at_most_015_puts_a_batch() -> None:
    async def story() -> None:
        store = SimStore(clock=SimClock())
        await accept(store, 500)
        counting: Any = CountingStore(store)
        report = await make(counting).once()
        assert report.outcome.enqueued == len(await enqueued(store)) == 500
        assert counting.puts["accepted-by-blob"] == 0
        assert counting.puts["accepted-by-time"] == counting.puts["raw-blobs-by-time"] == 1
        assert sum(counting.puts.values()) <= 0.15 * 500

    asyncio.run(story())


def test_every_batch_has_a_reference_of_one_shape() -> None:
    """A raw-blob entry that is alone in its hour has a reference alone."""

    async def story() -> None:
        store = SimStore(clock=SimClock())
        batches = await accept(store, 5, hours=4)
        await make(store).once()
        alone = [key for key in store.held if key.startswith(ACCEPTED_BY_BLOB)]
        packed = {batches[0].digest, batches[4].digest}
        assert sorted(alone) == sorted(
            accepted_by_blob_key(one.digest, one.identity)
            for one in batches
            if one.digest not in packed
        )
        assert [one async for one in make(store, 2).rebuild().differences()] == []

    asyncio.run(story())


@pytest.mark.parametrize("damage", ["removed", "damaged"])
def test_a_lost_pack_is_a_missing_reference_and_rebuild_writes_it_alone(damage: str) -> None:
    async def story() -> None:
        store = SimStore(clock=SimClock())
        batches = await accept(store, 5)
        await make(store).once()
        [pack] = [k for k in store.held if k.startswith(RAW_BLOBS_BY_TIME) and parse_pack_key(k)]
        if damage == "removed":
            del store.held[pack]
        else:
            store.held[pack].body = b"{broken"
        rebuild = make(store, 2).rebuild()
        found = {one.key async for one in rebuild.differences() if _missing(one)}
        wanted = {accepted_by_blob_key(one.digest, one.identity) for one in batches}
        assert wanted <= found
        _ = [one async for one in rebuild.repair()]
        assert wanted <= set(store.held)
        assert [one async for one in rebuild.differences()] == []

    asyncio.run(story())


def _missing(one: Any) -> bool:
    return bool(one.wrong is DifferenceKind.MISSING)


def test_both_shapes_are_read_side_by_side() -> None:
    async def story() -> None:
        store = SimStore(clock=SimClock())
        await accept(store, 6)
        await make(store, packed=False).once()
        assert sum(key.startswith(ACCEPTED_BY_BLOB) for key in store.held) == 6
        later = [manifest(1000 + 10 * n, at_ns=BASE_NS, frame=b"later %d" % n) for n in range(3)]
        for number, one in enumerate(later):
            await store.create(blob_key(one.digest), b"later %d" % number)
            await store.create(accepted_key(one.identity), encode_record(one))
        await make(store, 2).once()
        assert sum(key.startswith(ACCEPTED_BY_BLOB) for key in store.held) == 6
        assert [one async for one in make(store, 3).rebuild().differences()] == []

    asyncio.run(story())


def test_explain_finds_a_blob_without_a_reference_by_its_envelope() -> None:
    async def story() -> None:
        store = SimStore(clock=SimClock())
        await accept(store, 3)
        who = make_identity(5000, count=3)
        frame = salted_frame(who, logs(), "")
        one = manifest_of(frame, at_ns=BASE_NS)
        assert one.identity == who
        await store.create(blob_key(digest_of(frame)), frame)
        await store.create(accepted_key(who), encode_record(one))
        await make(store).once()
        assert not any(key.startswith(ACCEPTED_BY_BLOB) for key in store.held)
        await create_authority(store, Authority(authority_id="A", lanes=LANES))
        [path] = await read_paths(store, digest_of(frame))
        assert (path.identity, path.blob) == (who, "ok")
        assert all(one.present and one.right is not False for one in path.objects)

    asyncio.run(story())
