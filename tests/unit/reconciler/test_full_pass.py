"""Full passes over one store."""

import asyncio
import random
from pathlib import Path

from support.queue_store import SimClock, SimIds, SimStore
from support.reconciler_seed import accept, enqueued, index_keys, refuse

from sluice_protocol.authority import Authority
from sluice_protocol.journals import HoldReason
from sluice_protocol.keys import accepted_key, blob_key
from sluice_protocol.outcomes import Found, ObjectInfo
from sluice_protocol.units import ObjectKey
from sluice_queue.lane import Runtime
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_reconciler.verify import list_hold_records
from sluice_store.local import open_local_store
from sluice_store.port import ObjectStore


def sim() -> SimStore:
    return SimStore(clock=SimClock())


def make(store: ObjectStore, seed: int = 1, **settings: object) -> Reconciler:
    runtime = Runtime(clock=SimClock(), ids=SimIds(seed), rng=random.Random(seed))
    return Reconciler(
        store,
        Authority(authority_id="A", lanes=2),
        settings=ReconcilerSettings(**settings),
        runtime=runtime,
    )


def test_every_accepted_batch_is_indexed_and_enqueued_once_on_the_local_store(
    tmp_path: Path,
) -> None:
    """Two passes by two processes write three index entries of each batch and enqueue it once."""

    async def run() -> None:
        async with open_local_store(tmp_path) as store:
            batches = [
                await accept(store, seq, agent=agent)
                for agent in ("host-1", "host-2", "host-3")
                for seq in range(0, 100, 10)
            ]
            first = await make(store, 1).once()
            assert (first.listed, first.outcome.enqueued, first.outcome.indexed) == (30, 30, 90)
            again = await make(store, 2).once()
            assert (again.listed, again.outcome.enqueued, again.outcome.indexed) == (30, 0, 0)
            found = await enqueued(store)
            assert sorted(one.identity for one in found) == sorted(b.identity for b in batches)
            for one in batches:
                for key in index_keys(one):
                    assert isinstance(await store.head(key), ObjectInfo), key
            by_time = await store.get(index_keys(batches[0])[0])
            accepted = await store.get(accepted_key(batches[0].identity))
            assert isinstance(by_time, Found)
            assert isinstance(accepted, Found)
            assert by_time.body == accepted.body

    asyncio.run(run())


def test_batches_with_missing_or_corrupt_blobs_are_held_until_repaired() -> None:
    """A batch with a wrong blob is held and reported, and is enqueued when the blob is right."""

    async def run() -> None:
        store = sim()
        good, gone, bad = [await accept(store, seq) for seq in (0, 10, 20)]
        frame = store.held.pop(blob_key(gone.digest))
        store.held[blob_key(bad.digest)].body = b"x" * bad.frame_bytes
        report = await make(store, 1).once()
        assert (report.outcome.enqueued, report.held_back) == (1, 2)
        marks = {mark.key: mark.reason async for mark in list_hold_records(store)}
        assert marks == {
            accepted_key(gone.identity): HoldReason.BLOB_MISSING,
            accepted_key(bad.identity): HoldReason.BLOB_CORRUPT,
        }
        store.held[blob_key(gone.digest)] = frame
        healed = await make(store, 2).once()
        assert (healed.outcome.enqueued, healed.held_back) == (1, 1)
        found = [one.identity for one in await enqueued(store)]
        assert found == [good.identity, gone.identity]

    asyncio.run(run())


def test_invalid_manifests_and_foreign_keys_are_held_and_stop_no_other_batch() -> None:
    """An invalid object is held with its reason; the other batches are enqueued."""

    async def run() -> None:
        store = sim()
        before, after = await accept(store, 0), await accept(store, 50)
        other = await accept(store, 20)
        body = store.held[accepted_key(other.identity)].body
        place = accepted_key(before.identity).rpartition("/")[0]
        wrong = {
            f"{place}/{10:020d}-{19:020d}.json": b"{not json",
            f"{place}/{30:020d}-{39:020d}.json": body,
            f"{place}/{40:020d}-{49:020d}.json": body.replace(b"accepted_batch", b"other"),
            f"{place}/notes.txt": b"hello",
            "accepted/v1/agent=zz/boot=00/x": b"",
        }
        for key, bad in wrong.items():
            await store.create(ObjectKey(key), bad)
        report = await make(store).once()
        assert (report.outcome.enqueued, report.held_back) == (3, 5)
        marks = {mark.key: mark.reason async for mark in list_hold_records(store)}
        assert set(marks) == set(wrong)
        assert (
            sorted(marks.values())
            == [HoldReason.FOREIGN_KEY] * 2 + [HoldReason.INVALID_MANIFEST] * 3
        )
        assert len(await enqueued(store)) == 3
        assert after.identity in [one.identity for one in await enqueued(store)]

    asyncio.run(run())


def test_overlapping_ranges_are_enqueued_once_each() -> None:
    """A batch that overlaps an enqueued sequence range is found by the seal and enqueued once."""

    async def run() -> None:
        store = sim()
        for seq in range(0, 100, 10):
            await accept(store, seq)
        await make(store, 1).once()
        odd = [await accept(store, 30, count=5), await accept(store, 35, count=20)]
        report = await make(store, 2).once()
        assert report.outcome.enqueued == 2
        assert (await make(store, 3).once()).outcome.enqueued == 0
        found = [one.identity for one in await enqueued(store)]
        assert len(found) == len(set(found)) == 12
        assert {one.identity for one in odd} < set(found)

    asyncio.run(run())


def test_quarantine_manifests_get_their_reverse_reference() -> None:
    """The pass writes the reverse reference of a conflict if no gateway wrote it."""

    async def run() -> None:
        store = sim()
        await accept(store, 0)
        await refuse(store, 0)
        assert (await make(store, 1).once()).quarantined == 1
        assert (await make(store, 2).once()).quarantined == 0
        assert any(key.startswith("quarantine-by-blob/") for key in store.held)

    asyncio.run(run())


def test_each_queue_gets_every_batch() -> None:
    """A second queue contains every batch, including those accepted before it was added."""

    async def run() -> None:
        store = sim()
        await accept(store, 0)
        await make(store, 1).once()
        await accept(store, 10)
        report = await make(store, 2, queues="spark, http").once()
        assert report.outcome.enqueued == 3
        assert len(await enqueued(store, "spark")) == 2
        assert len(await enqueued(store, "http")) == 2

    asyncio.run(run())


def test_shards_list_every_key_once() -> None:
    """For any number of shards, each batch and each foreign key is in exactly one span."""

    async def run() -> None:
        agents = [
            "0",
            "9x",
            "A",
            "Zed",
            "_",
            "a",
            "host-1",
            "hostile",
            "m",
            "z",
            "~",
            "é",
            "\u65e5",
        ]
        for shards in (1, 2, 7, 40, 500):
            store = sim()
            for agent in agents:
                await accept(store, 0, agent=agent)
                await accept(store, 10, agent=agent)
            for key in ("accepted/v1/agent=zz/x", "accepted/v1/0", "accepted/v1/~"):
                await store.create(ObjectKey(key), b"")
            report = await make(store, shards, shards=shards).once()
            assert (report.listed, report.outcome.enqueued) == (29, 26), shards
            assert (report.held_back, len(report.boots.boots)) == (3, 13)
            assert (await make(store, 2, shards=3).once()).outcome.enqueued == 0

    asyncio.run(run())


def test_a_lost_reference_of_a_refused_upload_is_written_again_by_the_same_process() -> None:
    """Each check lists the references again: what an earlier one listed may be lost since."""

    async def run() -> None:
        store = sim()
        await accept(store, 0)
        await refuse(store, 0)
        subject = make(store, 1)
        for _ in range(2):
            await subject._held.check()
        (reference,) = (key for key in store.held if key.startswith("quarantine-by-blob/"))
        del store.held[reference]
        await subject._held.check()
        assert reference in store.held

    asyncio.run(run())
