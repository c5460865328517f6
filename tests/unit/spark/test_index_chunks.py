"""Index chunks: which files a run reads, and when a chunk is removed."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.index_store import NOW_NS, IndexedTable, due, log_file, put_chunk
from support.queue_store import SimClock, SimStore, UnversionedStore

from sluice_lake.data_files import DataFile
from sluice_protocol.fields import KINDS
from sluice_protocol.index_chunk import text_terms
from sluice_protocol.keys import index_progress_key
from sluice_protocol.manifests import encode_record
from sluice_protocol.units import ObjectKey
from sluice_spark import index
from sluice_spark.errors import JobStopped
from sluice_spark.index import (
    DAY_NS,
    CheckStep,
    ChunkFate,
    IndexProgress,
    WaitingDate,
    add_waiting,
    after_step,
    decide_fate,
    find_new_files,
    group_files,
    index_file,
    list_chunk_dates,
    next_due,
    read_index_progress,
    write_index_progress,
)
from sluice_store.port import ListPage

DAY, OTHER = "2026-09-21", "2026-09-22"
A, B, C, D = (log_file(DAY, name) for name in "abcd")
FAR = log_file(OTHER, "far")


@pytest.mark.parametrize(
    ("paths", "current", "existing", "fate"),
    [
        ("ab", "b", "ab", ChunkFate.NEEDED),
        ("ab", "b", "b", ChunkFate.NEEDED),
        ("ab", "b", "", ChunkFate.NEEDED),
        ("ab", "c", "abc", ChunkFate.WAITS),
        ("ab", "c", "bc", ChunkFate.WAITS),
        ("ab", "", "b", ChunkFate.WAITS),
        ("ab", "c", "c", ChunkFate.GONE),
        ("ab", "c", "", ChunkFate.GONE),
        ("ab", "", "", ChunkFate.GONE),
        (None, "c", "c", ChunkFate.GONE),
        (None, "", "", ChunkFate.GONE),
    ],
)
def test_the_fate_of_a_chunk(
    paths: str | None, current: str, existing: str, fate: ChunkFate
) -> None:
    """An unreadable chunk, or one of another version, is removed and created again."""
    assert decide_fate(paths, current, existing) is fate


def test_a_date_waits_once_and_keeps_its_time() -> None:
    first = add_waiting((), [OTHER, DAY], 100, 50)
    assert [(one.date, one.since_unix_ns, one.due_unix_ns) for one in first] == [
        (DAY, 100, 150),
        (OTHER, 100, 150),
    ]
    assert add_waiting(first, [DAY], 120, 50) == first


def test_a_file_that_leaves_during_the_check_of_its_date_causes_another_check() -> None:
    begun = WaitingDate(date=DAY, since_unix_ns=1, due_unix_ns=2, checked_through="k")
    (entry,) = add_waiting([begun], [DAY], 120, 50)
    assert (entry.checked_through, entry.again) == ("k", True)
    step = CheckStep(through="z", ended=True, again=False, removed=0)
    assert [one.date for one in after_step([entry], entry, step, 200)] == [DAY]


def test_the_date_that_is_due_longest_is_next() -> None:
    waiting = [
        WaitingDate(date=date, since_unix_ns=0, due_unix_ns=at)
        for date, at in ((DAY, 7), (OTHER, 5), ("2026-09-23", 11))
    ]
    assert next_due(waiting, 4) is None
    assert (found := next_due(waiting, 10)) is not None
    assert found.date == OTHER


def test_a_date_waits_for_a_day_and_then_as_long_as_before() -> None:
    (entry,) = due(DAY)
    step = CheckStep(through="k", ended=True, again=True, removed=0)
    pauses = []
    now_ns = NOW_NS
    for _ in range(4):
        (entry,) = after_step([entry], entry, step, now_ns)
        pauses.append((entry.due_unix_ns - now_ns) // DAY_NS)
        now_ns = entry.due_unix_ns
    assert pauses == [1, 1, 2, 4]
    assert (
        after_step([entry], entry, CheckStep(through="k", ended=True, again=False, removed=1), 0)
        == ()
    )


async def test_a_chunk_is_removed_after_the_last_of_its_files() -> None:
    table = IndexedTable(store=SimStore())
    gone = await table.write(A, B)
    kept = {await table.write(C), await table.write(FAR)}
    assert await table.run(DAY) == 0
    assert await table.waiting() == []
    table.replace(A, B)
    assert await table.run(DAY) == 0
    assert gone in await table.chunks()
    (entry,) = await table.waiting()
    await table.vacuum()
    assert await table.run(now_ns=entry.due_unix_ns - 1) == 0
    assert await table.run(now_ns=entry.due_unix_ns) == 1
    assert await table.chunks() == kept
    assert await table.waiting() == []


async def test_a_chunk_of_a_file_that_was_committed_after_the_run_began_is_kept() -> None:
    """The run has an older state of the table, and a concurrent run made the chunk."""
    table = IndexedTable(store=SimStore())
    await table.write(A)
    key = await table.write(B)
    table.replace(B)
    assert await table.run(DAY) == 0
    assert key in await table.chunks()


async def test_a_chunk_of_a_file_of_the_table_is_kept_if_the_file_is_missing() -> None:
    table = IndexedTable(store=SimStore())
    key = await table.write(A)
    named, table.named = table.named, []
    await table.vacuum()
    table.named = named
    assert await table.run(DAY) == 0
    assert await table.chunks() == {key}


async def test_the_chunks_of_a_date_without_files_are_removed_unread() -> None:
    """Retention removes whole dates."""
    table = IndexedTable(store=SimStore())
    await table.write(A)
    damaged = await table.write(B)
    kept = await table.write(FAR)
    table.store.held[damaged].body = b"damaged"
    table.replace(A, B)
    await table.vacuum()
    table.store.counts.clear()
    assert await table.run(DAY) == 2
    # One read of the record of progress.
    assert table.store.counts == {"get": 1, "list": 2, "head": 2}
    assert await table.chunks() == {kept}


async def test_an_object_that_is_no_chunk_is_kept() -> None:
    table = IndexedTable(store=SimStore())
    note = ObjectKey(f"index/v1/logs/date={DAY}/hour=00/note.txt")
    await table.store.create(note, b"note")
    assert await table.run(DAY) == 0
    assert await table.chunks() == {note}


async def test_nothing_is_removed_in_a_bucket_without_versioning_and_no_date_waits() -> None:
    table = IndexedTable(store=UnversionedStore())
    key = await table.write(A)
    table.named = []
    table.store.held.pop(f"lake/v1/logs/{A.path}")
    assert await table.run(DAY) == 0
    assert await table.chunks() == {key}
    assert await table.waiting() == []


async def test_a_run_is_bounded_and_the_next_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "STEPS_MAX", 2)
    monkeypatch.setattr(index, "STEP_CHUNKS", 3)
    table = IndexedTable(store=SimStore())
    files = [log_file(DAY, f"f{number}") for number in range(8)]
    for one in files:
        await table.write(one)
    await table.write(FAR)
    table.replace(*files[:-1], FAR)
    await table.vacuum()
    removed = [await table.run(DAY, OTHER)]
    assert [one.checked_through != "" for one in await table.waiting()] == [True, False]
    removed += [await table.run(), await table.run()]
    assert sum(removed) == 8
    assert all(one <= 6 for one in removed)
    assert removed[1] > 0
    assert removed[2] == 0
    assert len(await table.chunks()) == 1


async def test_needed_chunks_are_passed_over_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step begins after the chunks of the one before, also where none of them is removed."""
    monkeypatch.setattr(index, "STEPS_MAX", 3)
    monkeypatch.setattr(index, "STEP_CHUNKS", 3)
    table = IndexedTable(store=SimStore())
    files = {await table.write(one): one for one in (log_file(DAY, f"f{n}") for n in range(8))}
    last = max(files)
    table.replace(files[last])
    await table.vacuum()
    assert await table.run(DAY) == 1
    assert await table.chunks() == set(files) - {last}
    assert await table.waiting() == []


async def test_a_stopped_run_has_recorded_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "STEP_CHUNKS", 1)
    stops = iter([False, True])

    def stop() -> None:
        if next(stops):
            raise JobStopped("stopped")

    table = IndexedTable(store=SimStore())
    for one in (A, B, C):
        await table.write(one)
    table.named = []
    await table.vacuum()
    with pytest.raises(JobStopped):
        await table.run(DAY, stop=stop)
    assert len(await table.chunks()) == 2
    (entry,) = await table.waiting()
    assert entry.checked_through
    assert await table.run() == 2


@dataclass
class BusyStore(SimStore):
    """A store in which another process adds a file and its chunk after the first listing."""

    added: list[DataFile] = field(default_factory=list)

    async def list(
        self, prefix: str, *, start_after: str = "", end_at: str | None = None
    ) -> AsyncIterator[ListPage]:
        async for page in super().list(prefix, start_after=start_after, end_at=end_at):
            yield page
        added, self.added = self.added, []
        for one in added:
            await IndexedTable(store=self).write(one)


async def test_a_chunk_that_another_run_makes_between_both_listings_is_kept() -> None:
    store = BusyStore(clock=SimClock())
    table = IndexedTable(store=store)
    await table.write(A)
    table.replace(A)
    await table.vacuum()
    store.added = [B]
    assert await table.run(DAY) == 1
    assert len(await table.chunks()) == 1


@pytest.mark.parametrize("dates", [2, 100])
async def test_a_run_without_due_dates_makes_no_request(dates: int) -> None:
    table = IndexedTable(store=SimStore())
    for number in range(dates):
        await table.write(log_file(f"20{10 + number % 80}-01-{1 + number // 80:02d}", "a"))
    await table.run("1999-01-01")
    table.store.counts.clear()
    assert await table.run() == 0
    # The record is read by the test itself.
    assert table.store.counts == {"get": 1}


async def test_the_dates_with_chunks_are_listed_with_a_request_for_each() -> None:
    table = IndexedTable(store=SimStore())
    await table.run("1999-01-01")
    for name in "abc":
        await table.write(log_file(DAY, name))
    await table.write(FAR)
    await table.store.create(ObjectKey("index/v1/logs/date=other/x"), b"")
    await table.store.create(ObjectKey("index/v1/logs/date=2026-10"), b"")
    table.store.counts.clear()
    assert await list_chunk_dates(table.store, "logs") == [DAY, OTHER]
    assert table.store.counts == {"list": 5}


def file(day: int, name: str) -> DataFile:
    date = f"2026-0{1 + day // 28}-{1 + day % 28:02d}"
    return DataFile(path=f"date={date}/{name}.parquet", partition=date, size_bytes=10)


async def store_with(days: int) -> tuple[SimStore, list[DataFile]]:
    """Return a store with a chunk for the one file of each date, and the files."""
    store = SimStore()
    files = [file(day, "a") for day in range(days)]
    for group in group_files(files):
        await put_chunk(store, group)
    store.counts.clear()
    return store, files


@pytest.mark.parametrize("days", [2, 100])
async def test_the_requests_of_a_run_do_not_grow_with_the_dates_that_are_indexed(days: int) -> None:
    store, files = await store_with(days)
    known = {one.path for one in files}
    later = [file(days - 1, "b"), file(0, "late")]
    assert await find_new_files(store, "logs", [*files, *later], known) == later
    assert store.counts == {"list": 2, "get": 2}
    assert await find_new_files(store, "logs", files, known) == []
    assert store.counts == {"list": 2, "get": 2}


async def test_without_a_recorded_state_every_chunk_is_read_and_no_file_is_indexed_again() -> None:
    store, files = await store_with(5)
    later = file(4, "b")
    assert await find_new_files(store, "logs", [*files, later], ()) == [later]
    assert store.counts == {"list": 5, "get": 5}


async def test_the_recorded_state_is_read_as_it_was_written_and_damage_is_ignored() -> None:
    store = SimStore()
    assert await read_index_progress(store, "logs") is None
    progress = IndexProgress(table_id="0a", table_version=7)
    await write_index_progress(store, "logs", progress)
    assert await read_index_progress(store, "logs") == progress
    assert store.held[index_progress_key("logs")].body == encode_record(progress)
    assert index_progress_key("logs") == "index/v1/logs/progress.json"
    assert encode_record(progress) == (
        b'{"schema":"sluice.index_progress.v3","table_id":"0a","table_version":7,"waiting":[]}'
    )
    store.held[index_progress_key("logs")].body = b"{broken"
    assert await read_index_progress(store, "logs") is None


async def test_the_waiting_dates_are_part_of_the_record() -> None:
    """A check that has not begun has no position."""
    waiting = (
        WaitingDate(date="2026-09-21", since_unix_ns=5, due_unix_ns=9),
        WaitingDate(
            date="2026-09-22", since_unix_ns=5, due_unix_ns=9, checked_through="k", again=True
        ),
    )
    store = SimStore()
    progress = IndexProgress(table_id="0a", table_version=7, waiting=waiting)
    await write_index_progress(store, "logs", progress)
    assert await read_index_progress(store, "logs") == progress
    assert encode_record(progress) == (
        b'{"schema":"sluice.index_progress.v3","table_id":"0a","table_version":7,"waiting":['
        b'{"date":"2026-09-21","due_unix_ns":9,"since_unix_ns":5},'
        b'{"again":true,"checked_through":"k","date":"2026-09-22","due_unix_ns":9,'
        b'"since_unix_ns":5}]}'
    )


def test_a_file_without_a_column_that_was_added_later_is_indexed(tmp_path: Path) -> None:
    folder = tmp_path / "lake/v1/logs/accepted_date=2026-09-21"
    folder.mkdir(parents=True)
    rows = pa.table({"body": ["GET /index.html"], "ts_ns": [5], "agent_id": ["host-1"]})
    path = folder / "part-a.parquet"
    pq.write_table(rows, path)
    entry = index_file(
        f"file://{tmp_path}", KINDS["logs"], f"{folder.name}/{path.name}", path.stat().st_size
    )
    assert entry.file.groups == (1,)
    (terms,) = entry.groups
    assert terms.texts.tolist() == text_terms([b"GET /index.html"]).tolist()
    assert not len(terms.values)
