"""A run of an erasure: what it deletes and keeps, what it reports, and a kill at any write."""

import asyncio
import json
import zlib
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace as changed
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.builders import conflict_manifest
from support.commands import sluice
from support.gateway import CountingStore
from support.gc_world import (
    HORIZON_S,
    KEYS,
    RUN,
    GcWorld,
    Place,
    memory_world,
    open_place,
)

from sluice_gc import erasure_run
from sluice_gc.erasure_run import HEADS_TOGETHER, ErasureRun, ErasureSearch, check_signatures
from sluice_gc.settings import AuditSettings, EraseSettings
from sluice_gc.tombstones import is_trusted, list_tombstones, read_tombstone
from sluice_protocol.authority import Restore, restore_key
from sluice_protocol.erasure import (
    DUE_AFTER_NS,
    ErasedCopy,
    ErasureReport,
    decide_erasure,
    erasure_key,
    erasure_report_key,
)
from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.expiry import RowTally, decode_tombstone
from sluice_protocol.fields import KINDS
from sluice_protocol.keys import (
    DELETES,
    accepted_key,
    blob_key,
    digest_of,
    quarantine_key,
    trash_key,
)
from sluice_protocol.manifests import AcceptedManifest, decode_record, encode_record
from sluice_protocol.outcomes import Found, GetOutcome
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.units import Digest, ObjectKey
from sluice_spark.compaction.file_selection import retention_hours
from sluice_spark.erasure import ErasureLake, TableSearch
from sluice_spark.read_back import BatchComparison, ComparedBatch
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff
from sluice_store.stored_erasures import (
    EndedErasures,
    StoredErasure,
    count_late_erasures,
    read_erasure,
    read_erasures,
)
from sluice_store.stored_expiry import lift_hold

STARTS = (10, 20, 30)
MATCHING = (10, 30, 40, 50, 60)
NOW = EraseSettings(grace_s=0.0, readers_hours=0, max_delete_ratio=0.9)
DAY_S = 86_400
HOUR_NS = 3_600 * 10**9


class Died(BaseException):
    """The process was killed."""


class Lake(ErasureLake):
    """Tables that contain every batch, and what a run does with them."""

    def __init__(self, world: GcWorld) -> None:
        super().__init__(spark=None, store_url="")
        self.store, self.loop = world.store, asyncio.get_running_loop()
        self.done: set[str] = set()
        self.unequal: set[int] = set()
        self.unfinished: dict[str, int] = {}
        self.now_ns = world.clock.now_ns
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
        unfinished = dict(self.unfinished)
        found = TableSearch(version=7, rows=rows, files=2, replaced=left, unfinished=unfinished)
        return {"logs": found}

    def remove_replaced(
        self, tables: Sequence[str], wait_hours: int, unfinished_hours: int
    ) -> None:
        if wait_hours == 0 and "rows" in self.done:
            self._do("files")
        before_ns = self.now_ns() - unfinished_hours * HOUR_NS
        self.unfinished = {path: at for path, at in self.unfinished.items() if at >= before_ns}

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


async def aged(world: GcWorld, *, refused: bool = False) -> Lake:
    """Accept batches, of which the first and the last have matching records."""
    for start in STARTS:
        await world.accept(start)
    if refused:
        await world.quarantine(30, salt="refused")
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


async def test_a_file_of_a_killed_job_has_the_date_on_which_it_may_go() -> None:
    """Its job may still commit it; each run names the same date, and the one after it ends."""
    async with memory_world() as (world, _):
        lake = await aged(world)
        erasure_id = await decided(world, lake)
        written_ns = world.clock.now_ns() - 3 * HOUR_NS
        lake.unfinished["accepted_date=2026-01-01/killed.parquet"] = written_ns
        kept_hours = retention_hours(HORIZON_S, 24)
        for _ in range(2):
            report = await run(world, lake, erasure_id)
            one = copy(report, "unfinished_files")
            assert (one.state, one.found) == ("by_date", 1)
            assert one.at_unix_ns == written_ns + kept_hours * HOUR_NS
            assert copy(report, "replaced_files").state == "done"
            assert (report.verified, report.ended) == (False, False)
            world.clock.pass_s(3_600)
        world.clock.pass_s(kept_hours * 3_600)
        assert (await run(world, lake, erasure_id)).ended


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


class SlowHeads(CountingStore):
    """Counts the heads of blobs that are read concurrently."""

    reading = most = 0

    async def get(self, key: ObjectKey, *, first: int = 0, last: int | None = None) -> GetOutcome:
        self.reading += last is not None
        self.most = max(self.most, self.reading)
        await asyncio.sleep(0)
        try:
            return await super().get(key, first=first, last=last)
        finally:
            self.reading -= last is not None


async def test_heads_of_refused_bytes_are_read_concurrently() -> None:
    """One after another, 1,500 of them took minutes on a busy S3 server."""
    async with memory_world() as (world, _):
        lake = await aged(world)
        for number in range(40):
            await world.orphan(40, salt=f"orphan {number}")
        store = SlowHeads(world.store)
        decision = decide_erasure(
            "body contains 'x'", (), (None, None), "request 17", erasure_id=world.ids.ulid(),
            delete_ids=[world.ids.ulid() for _ in KINDS], now_ns=world.clock.now_ns(),
            decided_by="operator:ann",
        )  # fmt: skip
        found = await ErasureSearch(store, lake).blobs(decision)
        assert len(found.of("orphans")) == 41
        assert store.most == HEADS_TOGETHER


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


def changes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside a JSON document."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from changes(inner, (*path, key))
    else:
        yield path


def altered(document: Any, path: tuple[Any, ...]) -> Any:
    """Return a copy of a JSON document with another value at a path."""
    changed_document = msgspec.json.decode(msgspec.json.encode(document))
    place = changed_document
    for key in path[:-1]:
        place = place[key]
    old = place[path[-1]]
    place[path[-1]] = (
        not old if isinstance(old, bool) else old + 1 if isinstance(old, int) else f"{old}x"
    )
    return changed_document


async def test_every_altered_value_of_a_decision_a_report_and_a_tombstone_is_refused() -> None:
    """One value at a time, whatever it is; a tombstone that is refused counts for nothing."""
    async with memory_world() as (world, _):
        lake = await aged(world)
        erasure_id = await decided(world, lake)
        await run(world, lake, erasure_id)
        stored = await read_erasure(world.store, erasure_id)
        assert stored.report is not None
        tried = 0
        for kind, one in (("signed", stored.signed), ("report", stored.report)):
            document = msgspec.json.decode(encode_record(one))
            for path in changes(document):
                body = msgspec.json.encode(altered(document, path))
                try:
                    forged = decode_record("x", body, type(one))
                except InvalidRecord:
                    continue
                with pytest.raises(InvalidRecord):
                    check_signatures(changed(stored, **{kind: forged}), KEYS.trusted)
                tried += 1
        (key,) = await list_tombstones(world.store)
        read = await world.store.get(key)
        assert isinstance(read, Found)
        signed = decode_tombstone(key, read.body)
        assert is_trusted(signed, KEYS.trusted, "A1")
        document = msgspec.json.decode(encode_record(signed))
        for path in changes(document):
            body = msgspec.json.encode(altered(document, path))
            try:
                forged = decode_tombstone(key, zlib.compress(body))
            except InvalidRecord:
                continue
            assert not is_trusted(forged, KEYS.trusted, "A1"), path
            tried += 1
        assert tried > 100


async def test_an_auditor_finds_four_answers_in_the_report_alone(tmp_path: Path) -> None:
    async with memory_world() as (world, _):
        lake = await aged(world)
        lake.unequal.add(30)
        erasure_id = await decided(world, lake)
        await run(world, lake, erasure_id, EraseSettings())
        read = await world.store.get(erasure_report_key(erasure_id, 1))
        assert isinstance(read, Found)
        at_ns = world.clock.now_ns()
    file, public = tmp_path / "report.json", tmp_path / "public"
    file.write_bytes(read.body)
    public.write_text(b64encode(KEYS.private.public_key().public_bytes_raw()).decode())
    verify = ("erase", "verify", str(file), "--key-file", str(public))
    done = sluice(*verify, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)["report"]
    # What was removed, and why?
    assert report["decision"]["where"] == "body contains 'x'"
    assert report["decision"]["reason"] == "request 17"
    assert (report["batches"], report["records"]) == (2, 2)
    # Who decided it, and when?
    assert report["decision"]["decided_by"] == "operator:ann"
    assert report["decision"]["decided_at_unix_ns"] <= at_ns
    # Where is a copy left, and until when?
    left = {one["name"]: one for one in report["copies"] if one["state"] in ("by_date", "open")}
    assert left["raw_blobs"]["detail"] == "kept by rows 1"
    assert left["orphans"]["at_unix_ns"] > at_ns
    assert {one["name"] for one in report["copies"] if one["state"] == "elsewhere"} >= {"backups"}
    # How is it proved?
    assert report["verified"] is False
    assert report["searched"]["blobs"] > 0
    assert (report["tombstones"], bool(report["audit_id"]), bool(report["plan_id"])) == (
        1,
        True,
        True,
    )
    shown = sluice(*verify).stdout
    for text in ("decided by operator:ann", "request 17", "kept by rows 1", "verified: false"):
        assert text in shown
    file.write_bytes(read.body.replace(b"operator:ann", b"operator:bob"))
    refused = sluice(*verify)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "altered" in refused.stderr
    file.write_bytes(b"{")
    assert sluice(*verify).stderr.count("\n") == 1
    file.unlink()
    assert "cannot read the report" in sluice(*verify).stderr


async def test_an_erasure_is_late_a_month_after_its_decision() -> None:
    async with memory_world() as (world, _):
        lake = await aged(world)
        erasure_id = await decided(world, lake)
        stored: StoredErasure = await read_erasure(world.store, erasure_id)
        due_ns = stored.signed.decision.decided_at_unix_ns + DUE_AFTER_NS
        assert (stored.is_late(due_ns), stored.is_late(due_ns + 1)) == (False, True)
        await run(world, lake, erasure_id)
        assert not (await read_erasure(world.store, erasure_id)).is_late(due_ns + 1)


async def test_blobs_beyond_the_limit_of_a_run_are_removed_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(erasure_run, "FOUND_MAX", 1)
    monkeypatch.setattr(erasure_run, "SEARCHED_TOGETHER", 1)
    async with memory_world() as (world, _):
        lake = await aged(world)
        erasure_id = await decided(world, lake)
        reports = [await run(world, lake, erasure_id) for _ in range(4)]
        left = [copy(one, "further_blobs").found for one in reports]
        # A plan of garbage collection contains the orphan too, whether or not a run found it.
        assert left == [3, 1, 0, 0]
        assert [one.verified for one in reports] == [one.ended for one in reports]
        assert [one.ended for one in reports] == [False, False, True, True]
        assert [one.batches for one in reports] == [2] * 4
        assert await names(world) == [20]


async def test_a_filter_that_matches_more_than_a_run_removes_is_still_compared_with_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(erasure_run, "FOUND_MAX", 1)
    async with memory_world() as (world, _):
        lake = await aged(world)
        lake.count_matches = lambda manifests, _: dict.fromkeys(range(len(manifests)), 3)  # type: ignore[method-assign]
        with pytest.raises(BadUsage, match="all 9 records"):
            await decided(world, lake)


async def test_a_copy_that_another_run_puts_into_the_trash_meanwhile_is_found() -> None:
    """The trash was listed before, and the blob itself does not exist any more."""
    async with memory_world() as (world, _):
        lake = await aged(world)
        erasure_id = await decided(world, lake)
        frame = world.frame(10)
        removed = lake.remove_replaced

        def copies(tables: Sequence[str], wait_hours: int, unfinished_hours: int) -> None:
            create = world.store.create(trash_key(digest_of(frame)), frame)
            asyncio.run_coroutine_threadsafe(create, lake.loop).result(10)
            removed(tables, wait_hours, unfinished_hours)

        lake.remove_replaced = copies  # type: ignore[method-assign]
        report = await run(world, lake, erasure_id)
        assert (copy(report, "trash").found, report.verified) == (1, False)


@given(st.lists(st.binary(min_size=32, max_size=32)), st.lists(st.integers(0, 2**16 - 1)))
def test_hashes_in_files_are_those_that_were_added(known: list[bytes], other: list[int]) -> None:
    """Some end in zero bytes."""
    asked = [*known, *(number.to_bytes(2, "little").ljust(32, b"\0") for number in other)]
    with pytest.MonkeyPatch.context() as patch, closing(erasure_run._Hashes()) as hashes:
        patch.setattr(erasure_run, "HASHES_BYTES_MAX", 96)
        for one in known:
            hashes.add(Digest(one.hex()))
        for one in asked:
            assert (Digest(one.hex()) in hashes) == (one in known)


async def test_refused_bytes_go_and_their_conflict_stays_proved() -> None:
    """Two refusals of one identity, of which the accepted batch contains matches too."""
    async with memory_world() as (world, _):
        lake = await aged(world)
        refused = [await world.quarantine(30, salt=salt) for salt in ("refused", "again")]
        kept = await world.quarantine(20, salt="other")
        world.clock.pass_s(HORIZON_S + 2)
        await world.discover()
        erasure_id = await decided(world, lake)
        report = await run(world, lake, erasure_id)
        assert report.ended, report.copies
        assert copy(report, "quarantine").state == "done"
        assert await names(world) == [20]
        keys = sorted(quarantine_key(world.identity(30), one) for one in refused)
        assert list(report.refused) == keys
        for key in keys:
            assert isinstance(await world.store.get(key), Found)
        assert [await world.has(one) for one in (*refused, kept)] == [False, False, True]
        tombstones = [
            await read_tombstone(world.store, key, KEYS.trusted, "A1")
            for key in await list_tombstones(world.store)
        ]
        named = {name for one in tombstones if one and one.refused is True for name in one.named()}
        assert named == {(quarantine_key(world.identity(30), one), one) for one in refused}
        assert all(one and one.erasure == erasure_id for one in tombstones)
        counts = (await world.audit()).counts
        assert (counts.missing_blobs, counts.expired, counts.quarantined) == (0, 2, 3)
        assert not counts.found_wrong
        again = await run(world, lake, erasure_id)
        assert (again.ended, list(again.refused)) == (True, keys)


async def test_refused_bytes_are_kept_by_a_hold_and_until_the_retry_horizon() -> None:
    async with memory_world() as (world, _):
        lake = await aged(world)
        refused = await world.quarantine(30, salt="refused")
        erasure_id = await decided(world, lake)
        report = await run(world, lake, erasure_id)
        one = copy(report, "quarantine")
        assert (one.state, one.found) == ("by_date", 1)
        world.clock.pass_s(HORIZON_S + 2)
        await world.discover()
        first = await run(world, lake, erasure_id, changed(NOW, grace_s=60.0))
        assert copy(first, "quarantine").state == "by_date"
        world.clock.pass_s(61)
        hold = await world.hold("host-1")
        collected = await world.run(await world.plan(), changed(RUN, dry_run=True))
        assert collected.facts.kept == {"held": 1}
        backoff = Backoff.seeded_by(world.clock)
        await lift_hold(world.store, hold.hold_id, by="bob", reason="over", backoff=backoff)
        assert (await run(world, lake, erasure_id)).ended
        assert not await world.has(refused)


async def test_refused_bytes_without_their_manifest_are_kept_and_named() -> None:
    """A manifest of another identity names them, and none of the identity that they contain."""
    async with memory_world() as (world, store):
        lake = await aged(world)
        refused = await world.quarantine(30, salt="refused", indexed=False)
        store.remove_key(quarantine_key(world.identity(30), refused))
        other = world.identity(70)
        conflict = conflict_manifest(
            other, accepted=refused, submitted=refused, at_ns=world.clock.now_ns(),
            collector_id="gw",
        )  # fmt: skip
        await world.store.create(quarantine_key(other, refused), encode_record(conflict))
        world.clock.pass_s(HORIZON_S + 2)
        await world.discover()
        erasure_id = await decided(world, lake)
        one = copy(await run(world, lake, erasure_id), "quarantine")
        assert (one.state, one.found) == ("open", 1)
        assert one.detail == f"kept by manifest 1: {blob_key(refused)}"
        assert await world.has(refused)


async def test_an_erasure_that_has_ended_is_not_read_again_unless_it_has_a_newer_report() -> None:
    async with memory_world() as (world, _):
        lake, ended = await aged(world), EndedErasures()
        erasure_id = await decided(world, lake)
        assert len(await read_erasures(world.store, ended)) == 1
        assert len(await read_erasures(world.store, ended)) == 1
        await run(world, lake, erasure_id)
        assert [one.ended for one in await read_erasures(world.store, ended)] == [True]
        assert await read_erasures(world.store, ended) == []
        await run(world, lake, erasure_id)
        assert len(await read_erasures(world.store, ended)) == 1
        assert await read_erasures(world.store, ended) == []
        restored = Restore(
            number=1, authority_id="A1", restored_by="ann",
            restored_at_unix_ns=world.clock.now_ns() + 1, applied={},
        )  # fmt: skip
        await world.store.create(restore_key(1), encode_record(restored))
        assert [one.ended for one in await read_erasures(world.store, ended)] == [False]
        assert await count_late_erasures(world.store, ended) == 0
        world.clock.pass_s(31 * DAY_S)
        assert await count_late_erasures(world.store, ended) == 1
        await run(world, lake, erasure_id)
        assert await count_late_erasures(world.store, ended) == 0


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


@pytest.mark.parametrize(
    ("kind", "every", "after"),
    [
        ("memory", 25, False),
        ("memory", 25, True),
        pytest.param("memory", 1, False, marks=pytest.mark.long),
        pytest.param("memory", 1, True, marks=pytest.mark.long),
        pytest.param("directory", 5, False, marks=pytest.mark.long),
        pytest.param("directory", 5, True, marks=pytest.mark.long),
        pytest.param("s3", 7, True, marks=[pytest.mark.long, pytest.mark.s3]),
    ],
)
@pytest.mark.timeout(1800)
def test_a_kill_at_any_step_ends_in_the_same_state(
    kind: str, every: int, after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write, or a step of Spark. Audits have few shards, so that most writes are other steps."""
    monkeypatch.setattr(erasure_run, "AuditSettings", partial(AuditSettings, shards=2))

    async def killed_at(place: Place, write: int) -> bool:
        async with place(str(write)) as world:
            lake = await aged(world, refused=True)
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
            refused = digest_of(world.frame(30, salt="refused"))
            assert not await world.has(refused)
            assert (await world.audit()).counts.missing_blobs == 0
            assert lake.done == {"rows", "files", "entries"}
            return ended

    async def all_writes(place: Place) -> int:
        write = 0
        while not await killed_at(place, write):
            write += every
        return write

    with open_place(kind, tmp_path) as place:
        assert asyncio.run(all_writes(place)) > 40


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
