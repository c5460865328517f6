"""A run of an erasure: what it deletes and keeps, what it reports, and a kill at any write."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.gc_world import HORIZON_S, KEYS, GcWorld, memory_world, open_world

from sluice_gc.erasure_run import ErasureRun, check_signatures
from sluice_gc.settings import EraseSettings
from sluice_protocol.erasure import (
    DUE_AFTER_NS,
    ErasedCopy,
    ErasureReport,
    decide_erasure,
    erasure_key,
    erasure_report_key,
)
from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.expiry import RowTally
from sluice_protocol.fields import KINDS
from sluice_protocol.keys import DELETES, accepted_key, digest_of, trash_key
from sluice_protocol.manifests import AcceptedManifest, decode_record, encode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.units import ObjectKey
from sluice_spark.erasure import ErasureLake, TableSearch
from sluice_spark.read_back import BatchComparison, ComparedBatch
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff
from sluice_store.stored_erasures import StoredErasure, read_erasure, read_erasures
from sluice_store.stored_expiry import lift_hold

STARTS = (10, 20, 30)
MATCHING = (10, 30, 40, 50, 60)
NOW = EraseSettings(grace_s=0.0, readers_hours=0, max_delete_ratio=0.9)
DAY_S = 86_400


class Died(BaseException):
    """The process was killed."""


class Lake(ErasureLake):
    """Tables that contain every batch, and what a run does with them."""

    def __init__(self, world: GcWorld) -> None:
        super().__init__(spark=None, store_url="")
        self.store, self.loop = world.store, asyncio.get_running_loop()
        self.done: set[str] = set()
        self.unequal: set[int] = set()
        self.step = lambda: None

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def count_matches(
        self, manifests: Sequence[AcceptedManifest], deletes: Sequence[DeleteRecord]
    ) -> dict[int, int]:
        return {
            place: int(one.seq_start in MATCHING)
            for place, one in enumerate(manifests)
            if self._exists(one.raw_blob_key)
        }

    def _exists(self, key: str) -> bool:
        read = asyncio.run_coroutine_threadsafe(self.store.get(ObjectKey(key)), self.loop)
        return isinstance(read.result(10), Found)

    def compare(self, manifests: Sequence[AcceptedManifest]) -> BatchComparison:
        rows = RowTally(rows=2, content="c")
        found = ComparedBatch(
            blob_rows=rows, table_rows=rows, dead_letter=False, blob=None, ledger=None
        )
        other = RowTally(rows=1, content="d")
        return BatchComparison(
            batches={
                one.identity: changed(
                    found,
                    blob=one.digest,
                    ledger=one.digest,
                    table_rows=other if one.seq_start in self.unequal else rows,
                )
                for one in manifests
            },
            versions={"logs": 4, "batches": 4},
            deletes=1,
        )

    def remove_records(self, deletes: Sequence[DeleteRecord]) -> None:
        self._do("rows")

    def search(self, deletes: Sequence[DeleteRecord]) -> dict[str, TableSearch]:
        left = () if "files" in self.done else ("old.parquet",)
        rows = 0 if "rows" in self.done else 2
        return {"logs": TableSearch(version=7, rows=rows, files=2, replaced=left)}

    def remove_replaced(self, tables: Sequence[str], wait_hours: int) -> int:
        if wait_hours == 0 and "rows" in self.done:
            self._do("files")
        return 0

    def count_old_entries(self, clean: Mapping[str, int]) -> int:
        return 0 if "entries" in self.done else 3

    def remove_old_entries(self, clean: Mapping[str, int], before_ns: int | None) -> int:
        assert {"rows", "files"} <= self.done
        if before_ns is None:
            self._do("entries")
        return 0

    def _do(self, name: str) -> None:
        self.step()
        self.done.add(name)


async def aged(world: GcWorld) -> Lake:
    """Accept batches, of which the first and the last have matching records."""
    for start in STARTS:
        await world.accept(start)
    await world.orphan(40)
    await world.commit(4)
    trashed = world.frame(50, salt="trash")
    await world.store.create(trash_key(digest_of(trashed)), trashed)
    world.clock.pass_s(HORIZON_S + 2)
    await world.discover()
    return Lake(world)


def runner(world: GcWorld, lake: Lake, store: ObjectStore | None = None) -> ErasureRun:
    return ErasureRun(store or world.store, lake, KEYS, world.clock, world.ids)


async def decided(world: GcWorld, lake: Lake, store: ObjectStore | None = None) -> str:
    now_ns = world.clock.now_ns()
    decision = decide_erasure(
        "body contains 'x'", (), (None, None), "request 17", erasure_id=world.ids.ulid(),
        delete_ids=[world.ids.ulid() for _ in KINDS], now_ns=now_ns, decided_by="operator:ann",
    )  # fmt: skip
    await runner(world, lake, store).decide(decision)
    return decision.erasure_id


async def run(
    world: GcWorld, lake: Lake, erasure_id: str, settings: EraseSettings = NOW
) -> ErasureReport:
    return await runner(world, lake).run(erasure_id, settings)


def copy(report: ErasureReport, name: str) -> ErasedCopy:
    return next(one for one in report.copies if one.name == name)


async def names(world: GcWorld) -> list[int]:
    """Return the batches whose blob exists."""
    return [start for start in STARTS if await world.has(digest_of(world.frame(start)))]


async def test_blobs_with_matching_records_go_and_the_others_stay() -> None:
    async with memory_world() as (world, _):
        lake = await aged(world)
        erasure_id = await decided(world, lake)
        report = await run(world, lake, erasure_id)
        assert report.ended, report.copies
        assert (report.batches, report.records, report.number) == (2, 2, 1)
        assert await names(world) == [20]
        for start in STARTS:
            assert isinstance(await world.store.get(accepted_key(world.identity(start))), Found)
        assert not [page async for page in world.store.list("gc/v1/trash/") if page.objects]
        again = await run(world, lake, erasure_id)
        assert again.number == 2
        assert again.ended
        assert again.copies == report.copies


async def test_waits_are_reported_as_dates_and_a_later_run_ends_the_erasure() -> None:
    settings = EraseSettings()
    async with memory_world() as (world, _):
        lake = await aged(world)
        erasure_id = await decided(world, lake)
        first = await run(world, lake, erasure_id, settings)
        assert not first.ended
        assert not first.verified
        at_ns = world.clock.now_ns()
        dates = {one.name: one.at_unix_ns for one in first.copies if one.state == "by_date"}
        day_ns = DAY_S * 10**9
        assert dates.keys() == {"replaced_files", "table_logs", "raw_blobs", "orphans"}
        assert all(at_ns <= (one or 0) - day_ns < at_ns + 10**9 for one in dates.values())
        assert await names(world) == list(STARTS)
        world.clock.pass_s(DAY_S + 2)
        lake.done |= {"files", "entries"}
        second = await run(world, lake, erasure_id, settings)
        assert second.ended, second
        assert await names(world) == [20]
        assert (second.batches, second.tombstones) == (2, 1)


async def test_a_young_batch_waits_for_the_retry_horizon() -> None:
    async with memory_world() as (world, _):
        lake = await aged(world)
        await world.accept(60)
        erasure_id = await decided(world, lake)
        report = await run(world, lake, erasure_id)
        one = copy(report, "raw_blobs")
        assert (one.state, one.found) == ("by_date", 1)
        world.clock.pass_s(HORIZON_S + 2)
        await world.discover()
        assert (await run(world, lake, erasure_id)).ended


async def test_a_batch_that_is_not_proved_keeps_the_erasure_open() -> None:
    async with memory_world() as (world, _):
        lake = await aged(world)
        lake.unequal.add(30)
        erasure_id = await decided(world, lake)
        report = await run(world, lake, erasure_id)
        one = copy(report, "raw_blobs")
        assert (one.state, one.found, one.detail) == ("open", 1, "kept by rows 1")
        assert not report.verified
        assert await names(world) == [20, 30]


async def test_a_refusal_of_garbage_collection_is_in_the_report() -> None:
    async with memory_world() as (world, _):
        lake = await aged(world)
        erasure_id = await decided(world, lake)
        report = await run(world, lake, erasure_id, changed(NOW, max_delete_ratio=0.1))
        assert "rule=`delete_ratio`" in copy(report, "raw_blobs").detail
        assert copy(report, "orphans").state == "open"
        assert copy(report, "trash").state == "done"
        assert (await run(world, lake, erasure_id)).ended


async def test_an_erasure_is_refused_under_a_hold_also_when_it_is_continued() -> None:
    async with memory_world() as (world, store):
        lake = await aged(world)
        hold = await world.hold()
        with pytest.raises(BadUsage, match="C-1"):
            await decided(world, lake)
        assert await read_erasures(world.store) == []
        assert not [page async for page in world.store.list(DELETES) if page.objects]
        backoff = Backoff.seeded_by(world.clock)
        await lift_hold(world.store, hold.hold_id, by="bob", reason="over", backoff=backoff)
        erasure_id = await decided(world, lake)
        await world.hold()
        with pytest.raises(BadUsage, match="C-1"):
            await run(world, lake, erasure_id)
        assert (lake.done, store.deleted) == (set(), [])


async def test_a_filter_that_matches_every_record_and_missing_tables_are_refused() -> None:
    async with memory_world() as (world, _):
        await world.accept(10)
        lake = Lake(world)
        with pytest.raises(BadUsage, match="nothing was ingested"):
            await decided(world, lake)
        await world.commit(4)
        lake.count_matches = lambda manifests, _: dict.fromkeys(range(len(manifests)), 3)  # type: ignore[method-assign]
        with pytest.raises(BadUsage, match="all 3 records"):
            await decided(world, lake)
        assert await read_erasures(world.store) == []


async def test_altered_decisions_and_reports_are_refused() -> None:
    async with memory_world() as (world, store):
        lake = await aged(world)
        erasure_id = await decided(world, lake)
        await run(world, lake, erasure_id)
        stored = await read_erasure(world.store, erasure_id)
        check_signatures(stored, KEYS.trusted)
        decision = replace(stored.signed.decision, reason="another")
        other = changed(stored, signed=replace(stored.signed, decision=decision))
        with pytest.raises(InvalidRecord, match="altered"):
            check_signatures(other, KEYS.trusted)
        with pytest.raises(InvalidRecord, match="another decision"):
            check_signatures(changed(stored, body=b"{}"), KEYS.trusted)
        assert stored.report is not None
        claimed = replace(stored.report.report, verified=True, copies=())
        forged = replace(stored.report, report=claimed)
        with pytest.raises(InvalidRecord, match="altered"):
            check_signatures(changed(stored, report=forged), KEYS.trusted)
        store.remove_key(erasure_key(erasure_id))
        await world.store.create(erasure_key(erasure_id), encode_record(other.signed))
        with pytest.raises(InvalidRecord, match="another decision"):
            await run(world, lake, erasure_id)


async def test_an_erasure_is_late_a_month_after_its_decision() -> None:
    async with memory_world() as (world, _):
        lake = await aged(world)
        erasure_id = await decided(world, lake)
        stored: StoredErasure = await read_erasure(world.store, erasure_id)
        due_ns = stored.signed.decision.decided_at_unix_ns + DUE_AFTER_NS
        assert (stored.is_late(due_ns), stored.is_late(due_ns + 1)) == (False, True)
        await run(world, lake, erasure_id)
        assert not (await read_erasure(world.store, erasure_id)).is_late(due_ns + 1)


class DyingStore:
    """A store whose caller is killed before or after its n-th write."""

    def __init__(self, inner: ObjectStore, lake: Lake, *, at: int, after: bool) -> None:
        self._inner, self._left, self._after = inner, at, after
        lake.step = self._count

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Died

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._inner, name)
        if name not in {"create", "overwrite", "replace", "delete"}:
            return verb

        async def dying(*args: Any, **named: Any) -> Any:
            try:
                self._count()
            except Died:
                if self._after:
                    await verb(*args, **named)
                raise
            return await verb(*args, **named)

        return dying


@asynccontextmanager
async def opened(place: str, root: Path) -> AsyncIterator[GcWorld]:
    if place == "directory":
        async with open_world(root) as world:
            yield world
        return
    async with memory_world() as (world, _):
        yield world


@pytest.mark.parametrize(
    ("place", "every"),
    [
        ("memory", 25),
        pytest.param("memory", 1, marks=pytest.mark.long),
        pytest.param("directory", 5, marks=pytest.mark.long),
    ],
)
@pytest.mark.timeout(1800)
def test_a_kill_at_any_step_ends_in_the_same_state(place: str, every: int, tmp_path: Path) -> None:
    async def killed_at(write: int, *, after: bool) -> bool:
        async with opened(place, tmp_path / f"{write}-{after}") as world:
            lake = await aged(world)
            dying: Any = DyingStore(world.store, lake, at=write, after=after)
            ended = True
            try:
                erasure_id = await decided(world, lake, dying)
                await runner(world, lake, dying).run(erasure_id, NOW)
            except* Died:
                ended = False
            lake.step = lambda: None
            found = await read_erasures(world.store)
            for one in found or [None]:
                again = one.signed.decision.erasure_id if one else await decided(world, lake)
                report = await run(world, lake, again)
                assert report.ended, report.copies
                check_signatures(await read_erasure(world.store, again), KEYS.trusted)
            assert await names(world) == [20]
            assert lake.done == {"rows", "files", "entries"}
            return ended

    async def all_writes() -> int:
        write = 0
        while not await killed_at(write, after=write % 2 == 1):
            write += every
        return write

    assert asyncio.run(all_writes()) > 20


async def test_reports_are_numbered_and_each_stays() -> None:
    async with memory_world() as (world, _):
        lake = await aged(world)
        erasure_id = await decided(world, lake)
        await run(world, lake, erasure_id)
        await run(world, lake, erasure_id)
        for number in (1, 2):
            assert isinstance(await world.store.get(erasure_report_key(erasure_id, number)), Found)
        with pytest.raises(BadUsage, match="no such erasure"):
            await read_erasure(world.store, "../x")
        (stored,) = await read_erasures(world.store)
        assert stored.last is not None
        assert stored.last.number == 2
        assert decode_record("x", stored.body, type(stored.signed)) == stored.signed
