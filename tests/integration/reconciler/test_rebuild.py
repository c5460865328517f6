"""Derived objects are lost in part or completely, and rebuilt from their sources."""

from pathlib import Path

import pytest
from support.reconciler_seed import accept, enqueued, index_keys, refuse

from sluice_protocol.authority import Authority
from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import RECONCILER
from sluice_protocol.outcomes import Found, ObjectInfo
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_queue.consumer import Consumer
from sluice_queue.inspection import read_lane
from sluice_queue.lane import list_lanes
from sluice_reconciler.indexes import DifferenceKind
from sluice_reconciler.rebuild import Rebuild
from sluice_reconciler.service import Reconciler
from sluice_store.local import open_local_store
from sluice_store.port import ObjectStore


def make(store: ObjectStore) -> tuple[Reconciler, Rebuild]:
    reconciler = Reconciler(store, Authority(authority_id="A", lanes=1))
    return reconciler, reconciler.rebuild()


BASE_NS = 1_700_000_000 * NS_PER_S
HOUR_NS = 3600 * NS_PER_S


async def lose(store: ObjectStore, key: ObjectKey) -> None:
    """Delete every version: otherwise the version before the current one becomes current."""
    while isinstance(info := await store.head(key), ObjectInfo):
        assert info.incarnation is not None
        await store.delete(key, info.incarnation)


async def snapshot(store: ObjectStore) -> dict[ObjectKey, bytes]:
    found = {}
    async for page in store.list(""):
        for one in page.objects:
            read = await store.get(one.key)
            assert isinstance(read, Found)
            found[one.key] = read.body
    return found


async def test_intact_store_has_no_difference_and_repair_changes_nothing(tmp_path: Path) -> None:
    async with open_local_store(tmp_path) as store:
        for seq in range(0, 50, 10):
            await accept(store, seq)
        await refuse(store, 0)
        reconciler, rebuild = make(store)
        await reconciler.once()
        before = await snapshot(store)
        assert [one async for one in rebuild.differences()] == []
        assert [one async for one in rebuild.repair()] == []
        assert await snapshot(store) == before


async def test_every_difference_is_reported_and_repaired(tmp_path: Path) -> None:
    """Missing, extra, different and unreadable entries, and lost work lists.

    Each batch is of an hour for itself, so that its entries are objects.
    """
    async with open_local_store(tmp_path) as store:
        batches = [
            await accept(store, 10 * hour, at_ns=BASE_NS + hour * HOUR_NS) for hour in range(5)
        ]
        await refuse(store, 0)
        reconciler, rebuild = make(store)
        await reconciler.once()
        before = await snapshot(store)
        queued = await enqueued(store)
        view = await read_lane(store, "spark", 0)
        lost_list = view.descriptors[0].location
        await lose(store, index_keys(batches[0])[0])
        await lose(store, index_keys(batches[1])[1])
        await store.overwrite(index_keys(batches[2])[0], before[index_keys(batches[3])[0]])
        await store.overwrite(index_keys(batches[3])[1], b"{broken")
        extra = ObjectKey(index_keys(batches[4])[1].replace("0049.json", "0048.json"))
        await store.create(extra, before[index_keys(batches[4])[1]])
        stray = ObjectKey(index_keys(batches[4])[0].replace("/0170", "/0171"))
        await store.create(stray, before[index_keys(batches[4])[0]])
        await lose(store, next(key for key in before if key.startswith("quarantine-by-blob")))
        await lose(store, lost_list)
        found = {(one.key, one.wrong) async for one in rebuild.differences()}
        assert {(lost_list, DifferenceKind.MISSING), (extra, DifferenceKind.EXTRA)} < found
        assert (stray, DifferenceKind.EXTRA) in found
        assert (index_keys(batches[0])[0], DifferenceKind.MISSING) in found
        assert (index_keys(batches[3])[1], DifferenceKind.UNREADABLE) in found
        assert (index_keys(batches[2])[0], DifferenceKind.DIFFERENT) in found
        repaired = {(one.key, one.wrong) async for one in rebuild.repair()}
        assert repaired == found
        # A reverse reference can only keep a blob alive: it is reported and kept.
        left = [(one.key, one.wrong) async for one in rebuild.differences()]
        assert left == [(extra, DifferenceKind.EXTRA)]
        after = await snapshot(store)
        indexed = {k: v for k, v in before.items() if "-by-" in k}
        assert {k: v for k, v in after.items() if "-by-" in k and k != extra} == indexed
        assert await enqueued(store) == queued


async def test_lost_queue_and_lane_state_are_rebuilt(tmp_path: Path) -> None:
    """Without registers, work lists and lane states, every batch is enqueued behind a given
    sequence.
    """
    async with open_local_store(tmp_path) as store:
        for seq in range(0, 50, 10):
            await accept(store, seq)
        await (make(store)[0]).once()
        before = await enqueued(store)
        for lane in await list_lanes(store):
            await lose(store, lane.key)
        with pytest.raises(BadUsage, match="first-sequence"):
            _ = [one async for one in make(store)[1].repair()]
        _ = [one async for one in make(store)[1].repair(first_sequence=8)]
        await (make(store)[0]).once()
        assert await enqueued(store) == before
        assert (await read_lane(store, "spark", 0)).descriptors[0].sequence == 8
        consumer = await Consumer.open(store, queue="spark", lane=0, resume_after=7)
        assert (await consumer.next_descriptors(1))[0].sequence == 8

        async for page in store.list(RECONCILER):
            for one in page.objects:
                await lose(store, one.key)
        await (make(store)[0]).once()
        assert len(await enqueued(store)) == 2 * len(before)


async def test_lane_is_halted_while_its_register_is_missing_or_replaced(tmp_path: Path) -> None:
    """An append to a new register would skip the entries that were pending in the lost one."""
    async with open_local_store(tmp_path) as store:
        for seq in range(0, 50, 10):
            await accept(store, seq)
        running = make(store)[0]
        await running.once()
        for replaced in (False, True):
            for lane in await list_lanes(store):
                await lose(store, lane.key)
            if replaced:
                await Consumer.open(store, queue="spark", lane=0)
            await accept(store, 50 + 10 * replaced)
            for reconciler in (running, make(store)[0]):
                report = await reconciler.once()
                assert report.registers_lost == ("queue/v1/spark.000/manifest",)
                assert (report.outcome.enqueued, report.outcome.left) == (0, 1 + replaced)
            wrong = DifferenceKind.DIFFERENT if replaced else DifferenceKind.MISSING
            found = [(one.key, one.wrong) async for one in make(store)[1].differences()]
            assert ("queue/v1/spark.000/manifest", wrong) in found
        _ = [one async for one in make(store)[1].repair(first_sequence=8)]
        report = await make(store)[0].once()
        assert (report.outcome.enqueued, report.registers_lost) == (7, ())
        assert len({one.identity for one in await enqueued(store)}) == 7
