"""The parts of a lane's state: versions, damage, leftovers, and owners that were fenced."""

from collections.abc import Collection, Iterable
from functools import partial

import msgspec
import pytest
import zstandard
from support import reconciler_world
from support.queue_store import SimStore
from support.reconciler_seed import accept, enqueued
from support.reconciler_world import ONE_LANE, make_parts_small, runtime_of

from sluice_protocol.errors import StoreUnavailable, UnsupportedVersion
from sluice_protocol.keys import digest_of
from sluice_protocol.manifests import AcceptedManifest
from sluice_queue.inspection import LaneCondition
from sluice_queue.lane import Lane
from sluice_reconciler.explain import read_batch_paths
from sluice_reconciler.indexes import DifferenceKind
from sluice_reconciler.lanes import part_log
from sluice_reconciler.lanes.defects import read_queue_status
from sluice_reconciler.lanes.enqueued import EnqueuedBatches, IntendedBatch
from sluice_reconciler.lanes.owner import LaneOwner, LaneTakenOver
from sluice_reconciler.lanes.part_log import nameable, read_enqueued
from sluice_reconciler.lanes.sequence_ranges import EnqueueStatus
from sluice_reconciler.lanes.state import (
    PartReference,
    StoredLaneState,
    damaged_state_key,
    encode_lane,
    lane_key,
    part_key,
    parts_prefix,
    read_lane_state,
)
from sluice_store.authority import create_authority

LANE = Lane(queue="spark", lane=0)
make = partial(reconciler_world.make, authority=ONE_LANE)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    make_parts_small(monkeypatch)


async def state_of(store: SimStore) -> StoredLaneState:
    stored = await read_lane_state(store, LANE)
    assert stored is not None
    return stored


def parts_in(store: SimStore) -> set[str]:
    prefix = parts_prefix(LANE)
    return {key.removeprefix(prefix) for key in store.held if key.startswith(prefix)}


async def named(store: SimStore) -> set[str]:
    return {part.name for part in (await state_of(store)).record.parts()}


async def flushes(store: SimStore, owner: LaneOwner, first: int, count: int) -> None:
    """Enqueue `count` times three batches of three lives."""
    for number in range(first, first + count):
        batches: list[AcceptedManifest] = [
            await accept(store, number * 10, boot=f"b{life}") for life in range(3)
        ]
        await owner.enqueue(batches)


async def in_parts() -> tuple[SimStore, LaneOwner]:
    """Return a store whose lane state names parts, and the owner of the lane."""
    store = SimStore()
    owner = await LaneOwner.take(store, LANE, runtime_of(store, 1))
    await flushes(store, owner, 0, 6)
    await owner.close()
    assert await named(store)
    return store, owner


@pytest.mark.parametrize("version", [b"v3", b"v9"])
async def test_state_of_another_version_is_refused_and_not_replaced(version: bytes) -> None:
    store, _ = await in_parts()
    other = encode_lane((await state_of(store)).record)
    raw = zstandard.ZstdDecompressor().decompress(other).replace(b"lane.v6", b"lane." + version)
    body = zstandard.ZstdCompressor().compress(raw)
    store._put(lane_key(LANE), body)
    with pytest.raises(UnsupportedVersion, match=r"of lane state: .*supported=`6`") as refused:
        await read_enqueued(store, LANE)
    assert refused.value.location == lane_key(LANE)
    with pytest.raises(UnsupportedVersion):
        await make(store, 2).once()
    with pytest.raises(UnsupportedVersion):
        _ = [one async for one in make(store, 9).rebuild().repair()]
    assert store.held[lane_key(LANE)].body == body


@pytest.mark.parametrize("version", [2, 4])
async def test_part_of_another_version_is_refused_and_not_replaced(version: int) -> None:
    store, _ = await in_parts()
    stored = await state_of(store)
    (first, *others), *runs = stored.record.runs
    key = part_key(LANE, first.name)
    raw = zstandard.ZstdDecompressor().decompress(store.held[key].body)
    body = zstandard.ZstdCompressor().compress(raw[:4] + bytes((version, 0)) + raw[6:])
    store._put(key, body)
    named = PartReference(
        name=first.name,
        sha256=digest_of(body),
        boots=first.boots,
        first=first.first,
        last=first.last,
    )
    state = encode_lane(msgspec.structs.replace(stored.record, runs=((named, *others), *runs)))
    store._put(lane_key(LANE), state)
    with pytest.raises(UnsupportedVersion) as refused:
        await read_enqueued(store, LANE)
    assert (refused.value.what, refused.value.found) == ("part of a lane state", version)
    assert (refused.value.known, refused.value.location) == (3, key)
    with pytest.raises(UnsupportedVersion):
        _ = [one async for one in make(store, 9).rebuild().repair()]
    assert (store.held[key].body, store.held[lane_key(LANE)].body) == (body, state)


@pytest.mark.parametrize("gone", [True, False], ids=["missing", "damaged"])
async def test_damaged_part_halts_the_lane_until_it_is_rebuilt(gone: bool) -> None:
    store, _ = await in_parts()
    before = {one.identity for one in await enqueued(store)}
    key = part_key(LANE, min(await named(store)))
    broken = store.held[key].body[:-1]
    if gone:
        del store.held[key]
    else:
        store._put(key, broken)
    report = await make(store, 2).once()
    assert (report.outcome.enqueued, report.outcome.left) == (0, 18)
    if gone:
        assert report.registers_lost == (key,)
        status = await read_queue_status(store, 1)
        assert [one.condition for one in status] == [LaneCondition.DAMAGED]
    repaired = [one async for one in make(store, 9).rebuild().repair()]
    assert [(one.key, one.wrong) for one in repaired] == [(key, DifferenceKind.UNREADABLE)]
    if not gone:
        assert store.held[damaged_state_key(LANE, digest_of(broken))].body == broken
    assert (await make(store, 50).once()).outcome.enqueued == 18
    assert {one.identity for one in await enqueued(store)} == before
    assert [one async for one in make(store, 9).rebuild().differences()] == []
    assert parts_in(store) == await named(store)


async def test_leftover_parts_of_a_crashed_owner_are_deleted_by_the_next_one() -> None:
    store, _ = await in_parts()
    term = (await state_of(store)).record.owner_term
    leftover = part_key(LANE, f"{term:010d}-{runtime_of(store, 7).ids.ulid()}")
    store._put(leftover, b"a part that no state names")
    foreign = part_key(LANE, "notes.txt")
    store._put(foreign, b"not a part")
    later = part_key(LANE, f"{term + 5:010d}-{runtime_of(store, 8).ids.ulid()}")
    store._put(later, b"a part of a later owner")
    owner = await LaneOwner.take(store, LANE, runtime_of(store, 2))
    assert leftover not in store.held
    assert {foreign, later} <= set(store.held)
    assert await named(store) <= parts_in(store)
    await flushes(store, owner, 6, 8)
    await owner.close()
    # At most the parts that the last merge replaced exist without being named.
    assert len(parts_in(store) - await named(store)) <= 2 + 2 * part_log.FAN_IN


def _named_only(listed: Iterable[str], named: Collection[str], _: int) -> set[str]:
    return {name for name in listed if name in named}


@pytest.mark.parametrize("planted", [False, True])
async def test_fenced_owner_deletes_no_part_of_the_next_owner(
    planted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion that ignores the owner terms, planted here, would lose parts that are named."""
    store, fenced = await in_parts()
    owner = await LaneOwner.take(store, LANE, runtime_of(store, 2))
    await flushes(store, owner, 6, 4)
    await owner.close()
    if planted:
        monkeypatch.setattr(part_log, "nameable", _named_only)
    await fenced._log.collect(fenced._stored.record)
    await fenced._log._objects.delete_unnamed()
    assert (await named(store) <= parts_in(store)) is not planted
    with pytest.raises(LaneTakenOver):
        await fenced.close()


async def test_an_object_whose_delete_was_refused_is_deleted_by_the_next_call(
    store: SimStore,
) -> None:
    deletes: list[str] = []

    def refuse_the_first(verb: str, key: str) -> None:
        if verb == "delete":
            deletes.append(key)
            if len(deletes) == 1:
                raise StoreUnavailable("delete", key, "slow down")

    store.before = refuse_the_first
    objects = part_log.OwnedObjects(store, "parts/", 1, runtime_of(store, 1))
    names = {await objects.create(bytes([number])) for number in range(3)}
    objects.swapped(set())
    assert parts_with(store) == names
    await objects.delete_unnamed()
    assert parts_with(store) == names
    await objects.delete_unnamed()
    assert parts_with(store) == set()


def parts_with(store: SimStore) -> set[str]:
    return {key.removeprefix("parts/") for key in store.held if key.startswith("parts/")}


async def test_reader_reads_again_when_the_owner_merged_what_it_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, owner = await in_parts()
    real, reads = part_log.read_lane_state, []

    async def then_merge(store: SimStore, lane: Lane) -> StoredLaneState | None:
        stored = await real(store, lane)
        reads.append(1)
        if len(reads) == 1:
            await flushes(store, owner, 6, 10)
            await owner.close()
        return stored

    monkeypatch.setattr(part_log, "read_lane_state", then_merge)
    ledger, owned = await read_enqueued(store, LANE)
    assert not owned  # the owner has released the lane
    assert len(reads) == 2
    assert ledger.boot("host-1", "b0") == owner.enqueued.boot("host-1", "b0")


async def test_explain_reads_only_the_parts_of_one_life() -> None:
    store = SimStore()
    owner = await LaneOwner.take(store, LANE, runtime_of(store, 1))
    for number in range(6):
        batches = [await accept(store, 10 * number, agent=f"host-{one}") for one in range(3)]
        await owner.enqueue(batches)
    await owner.close()
    read: set[str] = set()
    store.before = lambda verb, key: read.add(key)
    life = batches[1].agent_id, batches[1].boot_id
    ledger, _ = await read_enqueued(store, LANE, of=life)
    assert ledger.boot(*life) is not None
    parts = {part_key(LANE, name) for name in await named(store)}
    assert 0 < len(parts & read) < len(parts)
    await create_authority(store, ONE_LANE)
    path = await read_batch_paths(store, (await enqueued(store))[0].identity)
    assert [one.enqueued for one in path[0].queues] == [True]


def test_a_dissolved_range_is_stored_with_the_next_write() -> None:
    """The recent batches cannot express it, so the life is written in a part."""
    ledger = EnqueuedBatches(
        recent=[IntendedBatch(agent_id="a", boot_id="b", seq_start=0, seq_end=9)]
    )
    assert not ledger.must_spill
    boot = ledger.boot("a", "b")
    ledger.dissolve(("a", "b"), boot.ranges[0])
    assert ledger.must_spill
    delta = ledger.delta(1)
    ledger.add(IntendedBatch(agent_id="a", boot_id="c", seq_start=0, seq_end=9))
    ledger.settle([[delta.part]], delta)
    assert not ledger.must_spill
    assert [one.boot_id for one in ledger.recent] == ["c"]
    dissolved = ledger.boot("a", "b")
    assert dissolved.ranges == []


def test_part_bytes_of_another_life_are_not_found() -> None:
    ledger = EnqueuedBatches(
        recent=[IntendedBatch(agent_id="a", boot_id="b", seq_start=0, seq_end=9)]
    )
    stored = ledger.boot("a", "b")
    delta = ledger.delta(1)
    ledger.settle([[delta.part]], delta)
    assert ledger.boot("a", "b") == stored is not None
    assert ledger.boot("ab", "") is None
    assert ledger.boot("", "ab") is None


def test_names_of_this_term_and_of_later_ones_are_kept() -> None:
    ulid = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
    names = [f"{term:010d}-{ulid}" for term in (4, 5, 6)]
    assert nameable([*names, "other"], (), 5) == {*names[1:], "other"}


async def test_status_of_the_enum_is_decided_by_parts() -> None:
    store, owner = await in_parts()
    ledger, _ = await read_enqueued(store, LANE)
    for batch in await enqueued(store):
        assert ledger.status(batch.identity) is not EnqueueStatus.NEW
        assert owner.enqueued.status(batch.identity) is not EnqueueStatus.NEW
